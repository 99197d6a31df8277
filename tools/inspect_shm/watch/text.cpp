#include "inspect_shm/watch/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ps_shm::watch {
namespace {

constexpr std::size_t kGap = 2;  // between columns

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}
// Its first `columns` characters.
std::string_view first_of(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && columns-- == 0) break;
  return text.substr(0, at);
}

std::string padded(const std::string& text, std::size_t width, bool to_the_right) {
  const std::string blanks(width - std::min(width, width_of(text)), ' ');
  return to_the_right ? blanks + text : text + blanks;
}

// The columns that fit, by rank.
std::vector<bool> shown_columns(const Table& table, const std::vector<std::size_t>& widths, std::size_t columns) {
  std::vector<bool> shown(widths.size(), true);
  constexpr std::size_t kLeastOfLast = 24;
  for (;;) {
    std::size_t used = 0;
    for (std::size_t i = 0; i < widths.size(); ++i)
      if (shown[i]) used += kGap + (i + 1 == widths.size() ? std::min(widths[i], kLeastOfLast) : widths[i]);
    if (used <= columns + kGap) return shown;
    std::size_t worst = widths.size();
    for (std::size_t i = 0; i < widths.size(); ++i)
      if (shown[i] && table.columns[i].rank > 0 &&
          (worst == widths.size() || table.columns[i].rank >= table.columns[worst].rank))
        worst = i;
    if (worst == widths.size()) return shown;
    shown[worst] = false;
  }
}

}  // namespace

std::string text_of(const Line& line) {
  std::string text;
  for (const Span& span : line) text += span.text;
  return text;
}

Line clipped(const Line& line, std::size_t columns) {
  Line some;
  for (const Span& span : line) {
    if (columns == 0) break;
    const std::string_view text = first_of(span.text, columns);
    columns -= std::min(columns, width_of(text));
    some.push_back({std::string(text), span.style});
  }
  return some;
}

std::string_view level_mark(std::size_t level, bool has_utf8) {
  static constexpr std::array<std::string_view, kLevels> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, kLevels> kPlain = {".", ":", "-", "=", "+", "*", "%", "#"};
  return (has_utf8 ? kBlocks : kPlain)[std::min(level, kLevels - 1)];
}

std::string sparkline(const std::vector<double>& values, std::size_t columns, bool has_utf8) {
  if (values.empty() || columns == 0) return {};
  const std::size_t shown = std::min(columns, values.size());
  std::vector<double> means;
  for (std::size_t i = 0; i < shown; ++i) {
    const std::size_t begin = i * values.size() / shown, end = (i + 1) * values.size() / shown;
    double sum = 0;
    for (std::size_t each = begin; each < end; ++each) sum += values[each];
    means.push_back(sum / double(end - begin));
  }
  double least = INFINITY, most = -INFINITY;
  for (const double mean : means)
    if (std::isfinite(mean)) least = std::min(least, mean), most = std::max(most, mean);
  std::string line;
  for (const double mean : means) {
    if (!std::isfinite(mean))
      line += ' ';
    else
      line +=
          level_mark(most > least ? std::size_t((mean - least) / (most - least) * (kLevels - 1) + 0.5) : 0, has_utf8);
  }
  return line;
}

std::vector<Line> lines_of(const Table& table, std::size_t columns, std::size_t selected) {
  std::vector<std::string> titles;
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    const char* const mark = table.has_utf8 ? (table.is_reversed ? "▼" : "▲") : (table.is_reversed ? "-" : "+");
    titles.push_back(table.columns[i].title + (i == table.sorted_by ? mark : ""));
    widths.push_back(width_of(titles.back()));
    for (const Cells& row : table.rows) widths[i] = std::max(widths[i], width_of(row[i].text));
  }
  const std::vector<bool> shown = shown_columns(table, widths, columns);
  std::vector<Line> lines;
  const auto add = [&](auto&& cell_of, bool is_selected) {
    Line line;
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
      if (!shown[i]) continue;
      if (!line.empty()) line.push_back({std::string(kGap, ' '), is_selected ? Style::kSelected : Style::kPlain});
      const Span cell = cell_of(i);
      line.push_back(
          {padded(cell.text, widths[i], table.columns[i].is_number), is_selected ? Style::kSelected : cell.style});
    }
    line = clipped(line, columns);
    if (is_selected)
      line.push_back({std::string(columns - std::min(columns, width_of(text_of(line))), ' '), Style::kSelected});
    lines.push_back(std::move(line));
  };
  add([&](std::size_t i) { return Span{titles[i], Style::kTitle}; }, false);
  for (std::size_t row = 0; row < table.rows.size(); ++row)
    add([&](std::size_t i) { return table.rows[row][i]; }, row == selected);
  return lines;
}

std::string short_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const double size = std::fabs(number);
  if (size >= 1e15 || (size != 0 && size < 1e-3)) return fmt::format("{:.2e}", number);
  static constexpr std::pair<double, const char*> kUnits[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
  for (const auto& [least, unit] : kUnits)
    if (size >= least) return fmt::format("{:.3g}{}", number / (least == 1e4 ? 1e3 : least), unit);
  return size >= 1000 ? fmt::format("{:.0f}", number) : fmt::format("{:.3g}", number);
}

std::string short_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double size = double(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kUnits); ++unit) size /= 1024;
  return size >= 100 || unit == 0 ? fmt::format("{:.0f} {}", size, kUnits[unit])
                                  : fmt::format("{:.3g} {}", size, kUnits[unit]);
}

std::string short_seconds(double seconds) {
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  const auto whole = std::uint64_t(std::min(seconds, 1e15));
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02} h", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace ps_shm::watch
