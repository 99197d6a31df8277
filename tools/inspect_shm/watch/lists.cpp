#include "inspect_shm/watch/lists.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

namespace ps_shm::watch {
namespace {

// A cell and its sort key: its number, or its text.
struct Cell {
  Span span;
  double number = 0;
};
struct Entry {
  std::size_t about = 0;
  std::vector<Cell> cells;
};
struct List {
  std::vector<Column> columns;
  std::vector<Entry> entries;
};

Cell text(std::string what, Style style = Style::kPlain) { return {{std::move(what), style}}; }
Cell number(double value, std::string shown, Style style = Style::kPlain) { return {{std::move(shown), style}, value}; }
Cell whole(std::uint64_t value, Style style = Style::kPlain) {
  return number(double(value), fmt::to_string(value), style);
}
Cell figure(double value, Style style = Style::kPlain) { return number(value, short_number(value), style); }
Cell none() { return number(-INFINITY, "-"); }

bool has_text(const Entry& entry, const std::string& wanted) {
  return std::any_of(entry.cells.begin(), entry.cells.end(),
                     [&](const Cell& cell) { return cell.span.text.find(wanted) != std::string::npos; });
}

Cell phase_cell(const WorkerRow& worker) {
  const bool lasts = worker.phase == Phase::kWaiting || worker.phase == Phase::kStopped;
  const Style style = worker.phase == Phase::kStopped || worker.phase == Phase::kDead ? Style::kBad
                      : worker.phase == Phase::kWaiting                               ? Style::kWarn
                      : worker.phase == Phase::kLeft                                  ? Style::kDim
                                                                                      : Style::kGood;
  return text(lasts ? fmt::format("{} {}{}", to_string(worker.phase), worker.is_since_before ? ">" : "",
                                  short_seconds(worker.phase_seconds))
                    : to_string(worker.phase),
              style);
}

List workers(const Model& model) {
  List list;
  list.columns = {{"RANK", true, 0},
                  {"PID", true, 2},
                  {"DEVICE", false, 3},
                  {"PHASE", false, 0},
                  {"STEP", true, 1},
                  {"STEPS/S", true, 1},
                  {"COMP PULL PUSH WAIT %", true, 4},
                  {"RETRIES", true, 5},
                  {"RETRIES/S", true, 9},
                  {"DROPPED", true, 5},
                  {"STALE", true, 7},
                  {"LOSS", true, 3},
                  {"WAITING FOR", false, 0}};
  for (const WorkerRow& worker : model.workers) {
    Entry& entry = list.entries.emplace_back(Entry{worker.rank, {}});
    entry.cells = {whole(worker.rank), whole(worker.pid),   text(worker.device.empty() ? "-" : worker.device),
                   phase_cell(worker), whole(worker.steps), figure(worker.steps_per_second)};
    const auto percent = [&](Phase phase) { return 100 * worker.shares[static_cast<std::size_t>(phase)]; };
    entry.cells.push_back(
        number(percent(Phase::kWaiting),
               fmt::format("{:.0f} {:>4.0f} {:>4.0f} {:>4.0f}  ", percent(Phase::kComputing), percent(Phase::kPulling),
                           percent(Phase::kPushing), percent(Phase::kWaiting))));
    entry.cells.push_back(whole(worker.retries));
    entry.cells.push_back(figure(worker.retries_per_second));
    entry.cells.push_back(whole(worker.dropped));
    entry.cells.push_back(
        worker.staleness.count != 0
            ? number(double(worker.staleness.max), fmt::format("{}/{}", worker.staleness.p50, worker.staleness.max))
            : none());
    entry.cells.push_back(worker.loss ? number(*worker.loss, fmt::format("{:.4g}", *worker.loss),
                                               std::isfinite(*worker.loss) ? Style::kPlain : Style::kBad)
                                      : none());
    entry.cells.push_back(text(worker.waiting_for, Style::kWarn));
  }
  return list;
}

List variables(const Model& model) {
  List list;
  list.columns = {{"NAME", false, 0},     {"DTYPE", false, 8}, {"SHAPE", false, 4},        {"LAYOUT", false, 7},
                  {"SHARD", true, 9},     {"NODE", true, 10},  {"SIZE", true, 6},          {"VERSION", true, 3},
                  {"UPDATES/S", true, 1}, {"NORM", true, 2},   {"MIN", true, 5},           {"MAX", true, 5},
                  {"NAN", true, 1},       {"INF", true, 3},    {"UPDATE/WEIGHT", true, 6}, {"SEEN", true, 7}};
  for (const VariableRow& variable : model.variables) {
    Entry& entry = list.entries.emplace_back(Entry{variable.number, {}});
    const Style style = variable.is_initialised ? Style::kPlain : Style::kDim;
    entry.cells = {text(variable.name, style),
                   text(variable.dtype, style),
                   text(variable.shape, style),
                   text(variable.layout, style),
                   text(variable.shards, style),
                   text(variable.nodes, style),
                   number(double(variable.bytes), short_bytes(variable.bytes), style)};
    if (!variable.is_initialised) {
      entry.cells.push_back(number(-1, "not initialised", Style::kWarn));
      entry.cells.resize(list.columns.size());
      continue;
    }
    entry.cells.push_back(whole(variable.version));
    entry.cells.push_back(figure(variable.updates_per_second));
    if (!variable.values) {
      entry.cells.resize(list.columns.size(), none());
      continue;
    }
    const ValueFacts& values = *variable.values;
    const auto count = [](std::uint64_t bad) { return whole(bad, bad == 0 ? Style::kDim : Style::kBad); };
    entry.cells.push_back(figure(values.norm));
    entry.cells.push_back(figure(values.min));
    entry.cells.push_back(figure(values.max));
    entry.cells.push_back(count(values.nans));
    entry.cells.push_back(count(values.infs));
    entry.cells.push_back(values.update_to_weight
                              ? number(*values.update_to_weight, fmt::format("{:.1e}", *values.update_to_weight))
                              : none());
    entry.cells.push_back(
        number(values.share, values.share >= 1 ? "all" : fmt::format("{:.2g} %", 100 * values.share)));
  }
  return list;
}

List events(const Model& model) {
  List list;
  list.columns = {{"TIME", false, 0}, {"KIND", false, 2}, {"RANK", true, 3}, {"STEP", true, 1}, {"WHAT", false, 0}};
  for (std::size_t i = 0; i < model.events.size(); ++i) {
    const Event& event = model.events[i];
    const Style style = event.kind == "died" || event.kind == "short-quorum" || event.kind == "left-out" ? Style::kBad
                        : event.kind == "decided"                                                        ? Style::kDim
                        : event.kind == "set"                                                            ? Style::kWarn
                                              : Style::kPlain;
    Cell time = text(time_of(event.unix_ns), Style::kDim);
    list.entries.push_back({i,
                            {std::move(time), text(event.kind, style), event.rank ? whole(*event.rank) : none(),
                             whole(event.step), text(event.text, style)}});
  }
  return list;
}

List hot_rows(const Model& model) {
  List list;
  list.columns = {{"ROW", true, 0}, {"TOUCHED/S", true, 0}, {"VALUES", false, 0}};
  for (const HotRow& row : model.hot_rows)
    list.entries.push_back({row.row,
                            {whole(row.row),
                             number(row.touches_per_second, fmt::format("{}{}", row.is_at_least ? ">" : "",
                                                                        short_number(row.touches_per_second))),
                             text(row.values)}});
  return list;
}

List list_on(const Model& model, Page page) {
  switch (page) {
    case Page::kWorkers:
      return workers(model);
    case Page::kVariables:
      return variables(model);
    case Page::kEvents:
      return events(model);
    default:
      return hot_rows(model);
  }
}

void sort(List& list, const PageState& state) {
  const bool is_number = list.columns[state.sorted_by].is_number;
  std::stable_sort(list.entries.begin(), list.entries.end(), [&](const Entry& left, const Entry& right) {
    const Cell &a = (state.is_reversed ? right : left).cells[state.sorted_by],
               &b = (state.is_reversed ? left : right).cells[state.sorted_by];
    return is_number ? a.number < b.number : a.span.text < b.span.text;
  });
}

}  // namespace

std::string time_of(std::uint64_t unix_ns) {
  const auto seconds = static_cast<std::time_t>(unix_ns / 1'000'000'000);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  return fmt::format("{:02}:{:02}:{:02}", parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::vector<Line> list_of(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                          Screenful& screen) {
  List list = list_on(model, view.page);
  PageState& state = view.here();
  screen.columns = list.columns.size();
  state.sorted_by = std::min(state.sorted_by, list.columns.size() - 1);
  if (!view.filter.empty())
    std::erase_if(list.entries, [&](const Entry& entry) { return !has_text(entry, view.filter); });
  // Events and hot rows are ordered already; event times may cross midnight.
  if (state.sorted_by != 0 || state.is_reversed || (view.page != Page::kEvents && view.page != Page::kRows))
    sort(list, state);

  const std::size_t count = list.entries.size(), room = rows > 1 ? rows - 1 : 0;
  const std::size_t selected = count == 0 ? 0 : std::min(state.selected, count - 1);
  if (state.selected != kLast) state.selected = selected;
  if (selected < state.first) state.first = selected;
  if (room != 0 && selected >= state.first + room) state.first = selected - room + 1;
  state.first = count > room ? std::min(state.first, count - room) : 0;
  Table table{.columns = std::move(list.columns),
              .rows = {},
              .sorted_by = state.sorted_by,
              .is_reversed = state.is_reversed,
              .has_utf8 = view.has_utf8};
  for (std::size_t i = state.first; i < count && i < state.first + room; ++i) {
    Cells& cells = table.rows.emplace_back();
    for (Cell& cell : list.entries[i].cells) cells.push_back(std::move(cell.span));
    screen.shown.push_back(list.entries[i].about);
  }
  screen.count = count;
  if (count != 0) screen.selected = list.entries[selected].about;
  std::vector<Line> lines = lines_of(table, columns, selected - state.first);
  if (count == 0) lines.push_back({{view.filter.empty() ? "nothing yet" : "nothing matches the filter", Style::kDim}});
  return lines;
}

std::vector<Line> row_list(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                           Screenful& screen) {
  if (model.chosen >= model.variables.size()) return {{{"no variable yet", Style::kDim}}};
  const VariableRow& variable = model.variables[model.chosen];
  std::vector<Line> lines = {
      {{fmt::format("variable {}  {}  {}", variable.name, variable.shape, variable.layout), Style::kBold}}};
  if (!variable.has_rows) {
    lines.push_back({{"it has no rows that are pushed individually: < and > choose another variable", Style::kDim}});
    return lines;
  }
  lines.back().push_back({fmt::format("   {} pushes of blocks a second", short_number(model.row_pushes_per_second))});
  std::vector<PieceRow> hottest;
  for (const PieceRow& piece : model.pieces)
    if (piece.rows != 0) hottest.push_back(piece);
  std::stable_sort(hottest.begin(), hottest.end(),
                   [](const PieceRow& a, const PieceRow& b) { return a.updates_per_second > b.updates_per_second; });
  std::string where = "hottest blocks:";
  for (const PieceRow& piece : hottest)
    where += fmt::format("  rows {} to {} ({}/s)", piece.first_row, piece.first_row + piece.rows - 1,
                         short_number(piece.updates_per_second));
  lines.push_back({{where, Style::kDim}});
  for (Line& line : list_of(model, view, rows > lines.size() ? rows - lines.size() : 0, columns, screen))
    lines.push_back(std::move(line));
  return lines;
}

}  // namespace ps_shm::watch
