#include "inspect_shm/watch/map.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace ps_shm::watch {
namespace {

struct MapCell {
  double updates = 0, retries = 0;
};

// Of the chunks that share a cell, the maximum of each figure.
std::vector<MapCell> cells_of(const std::vector<PieceRow>& pieces, std::size_t each) {
  std::vector<MapCell> cells((pieces.size() + each - 1) / each);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    MapCell& cell = cells[i / each];
    cell.updates = std::max(cell.updates, pieces[i].updates_per_second);
    cell.retries = std::max(cell.retries, pieces[i].retries_per_second);
  }
  return cells;
}

Style style_of(const MapCell& cell) {
  constexpr double kMany = 0.1;  // fraction of the updates
  if (cell.updates == 0 && cell.retries == 0) return Style::kDim;
  return cell.retries == 0 ? Style::kCool : cell.retries < kMany * cell.updates ? Style::kWarn : Style::kBad;
}

// The `count` pieces with the most updates; `what`: a chunk or block.
std::vector<Line> hottest_lines(std::vector<PieceRow> pieces, std::size_t count, const char* what) {
  const std::size_t shown = std::min(pieces.size(), count);
  std::partial_sort(pieces.begin(), pieces.begin() + std::ptrdiff_t(shown), pieces.end(),
                    [](const PieceRow& a, const PieceRow& b) {
                      return a.updates_per_second != b.updates_per_second ? a.updates_per_second > b.updates_per_second
                                                                          : a.piece < b.piece;
                    });
  std::vector<Line> lines;
  for (std::size_t i = 0; i < shown; ++i)
    lines.push_back({{fmt::format("{} {:>8}  {:>8} updates/s  {:>8} retries/s", what, pieces[i].piece,
                                  short_number(pieces[i].updates_per_second), short_number(pieces[i].retries_per_second))}});
  return lines;
}

}  // namespace

std::vector<Line> chunk_map(const Model& model, const ViewState& view, std::size_t rows, std::size_t columns) {
  if (model.chosen >= model.variables.size()) return {{{"no variable yet", Style::kDim}}};
  const VariableRow& variable = model.variables[model.chosen];
  const char* const what = variable.layout == "inplace" ? "block" : "chunk";
  double updates = 0, retries = 0, most = 0;
  for (const PieceRow& piece : model.pieces) {
    updates += piece.updates_per_second, retries += piece.retries_per_second;
    most = std::max(most, piece.updates_per_second);
  }
  const double count = std::max<double>(double(model.pieces.size()), 1);
  std::vector<Line> lines = {
      {{fmt::format("variable {}  {}  {}", variable.name, variable.shape, variable.layout), Style::kBold},
       {fmt::format("   {} {}s of {}", model.piece_count, what,
                    short_bytes(variable.bytes / std::max<std::uint64_t>(model.piece_count, 1)))}},
      {{fmt::format("per {}: {} updates/s, {} retries/s on average", what, short_number(updates / count),
                    short_number(retries / count))}}};
  if (!variable.is_initialised) {
    lines.push_back({{"it is not initialised yet", Style::kWarn}});
    return lines;
  }
  constexpr std::size_t kLabel = 9, kHottest = 4, kAround = 3;  // lines: the legend, and blank ones
  const std::size_t width = columns > kLabel + 8 ? columns - kLabel : 8;
  const std::size_t taken = lines.size() + kHottest + kAround;
  const std::size_t height = rows > taken + 1 ? rows - taken : 1;
  const std::size_t each = std::max<std::size_t>((model.pieces.size() + width * height - 1) / (width * height), 1);
  const std::vector<MapCell> cells = cells_of(model.pieces, each);
  for (std::size_t begin = 0; begin < cells.size(); begin += width) {
    Line line = {{fmt::format("{:>{}} ", model.pieces[begin * each].piece, kLabel - 1), Style::kDim}};
    for (std::size_t i = begin; i < std::min(begin + width, cells.size()); ++i) {
      const Style style = style_of(cells[i]);
      const std::string_view mark =
          cells[i].updates == 0 ? (view.has_utf8 ? "·" : " ")
                                : level_mark(std::size_t(cells[i].updates / most * (kLevels - 1) + 0.5), view.has_utf8);
      if (line.back().style == style && line.size() > 1)
        line.back().text += mark;
      else
        line.push_back({std::string(mark), style});
    }
    lines.push_back(std::move(line));
  }
  const std::uint64_t looked = std::max<std::uint64_t>(model.pieces.size(), 1);
  std::string legend = fmt::format("height: updates/s, up to {}", short_number(most));
  if (each > 1) legend += fmt::format("; a mark: the maximum of {} {}s", each, what);
  if (model.piece_count > looked)
    legend += fmt::format("; one {} of {} is sampled", what, (model.piece_count + looked - 1) / looked);
  lines.push_back({{legend, Style::kDim}});
  lines.push_back({{"colour: retries  ", Style::kDim},
                   {"none", Style::kCool},
                   {"  "},
                   {"some", Style::kWarn},
                   {"  "},
                   {"above a tenth of the updates", Style::kBad}});
  for (Line& line : hottest_lines(model.pieces, kHottest, what)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ps_shm::watch
