#include "inspect_shm/watch/pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>
#include <utility>

#include "config/live_rows.hpp"
#include "inspect_shm/watch/lists.hpp"
#include "inspect_shm/watch/map.hpp"
#include "inspection/figures.hpp"
#include "report/terminal.hpp"

namespace ps_shm::watch {
namespace {

constexpr std::size_t kLabel = 11;  // width of the overview's labels

Line labelled(const char* label, Line rest) {
  rest.insert(rest.begin(), {fmt::format("{:<{}}", label, kLabel), Style::kDim});
  return rest;
}
Line labelled(const char* label, std::string text) { return labelled(label, Line{{std::move(text)}}); }

Style style_of(const std::string& state) {
  return state == "live" ? Style::kGood : state == "orphaned" ? Style::kWarn : Style::kBad;
}

std::string loss_text(const std::optional<double>& loss) { return loss ? fmt::format("{:.4g}", *loss) : "-"; }

std::string progress_text(const Model& model) {
  std::string text = fmt::format("step {}", model.global_step);
  if (model.target_steps != 0) text += fmt::format(" of {}", model.target_steps);
  return text + fmt::format("   {} steps/s", short_number(model.steps_per_second));
}

std::string table_text(const TableFacts& table) {
  return fmt::format("{}: {} of {} rows   {} made/s   {} evicted/s   hits {}   {}", table.name, table.rows,
                     table.max_rows, short_number(table.made_per_second), short_number(table.evicted_per_second),
                     table.hit_rate ? fmt::format("{:.0f} %", 100 * *table.hit_rate) : "-", short_bytes(table.bytes));
}

std::string bridge_text(const inspect::BridgeInfo& bridge) {
  std::string text = fmt::format("box {} of {}   round {}", bridge.box.value_or(0), bridge.boxes.value_or(0),
                                 bridge.round.value_or(0));
  if (bridge.age_seconds)
    text += fmt::format(" with {}, {} ago   {} and {} a round   difference {}", bridge.members.size(),
                        short_seconds(*bridge.age_seconds), short_seconds(bridge.seconds.value_or(0)),
                        short_bytes(bridge.bytes.value_or(0)), short_number(bridge.norm.value_or(0)));
  if (bridge.dropped.value_or(0) != 0 || bridge.dropped_steps.value_or(0) != 0)
    text +=
        fmt::format("   dropped: {} elements, {} steps", bridge.dropped.value_or(0), bridge.dropped_steps.value_or(0));
  return text;
}

std::size_t living(const Model& model) {
  return static_cast<std::size_t>(std::count_if(
      model.workers.begin(), model.workers.end(),
      [](const WorkerRow& worker) { return worker.phase != Phase::kDead && worker.phase != Phase::kLeft; }));
}

std::string ranks_in(const Model& model, Phase phase) {
  std::vector<std::uint32_t> ranks;
  for (const WorkerRow& worker : model.workers)
    if (worker.phase == phase) ranks.push_back(worker.rank);
  return ranks.empty() ? "" : fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// First what is always shown, the mode without its name.
std::string settings_text(const Model& model) {
  const LiveSettings& live = model.live;
  std::string always, others;
  config::for_each_live([&](const auto& row) {
    const auto value = live.*row.live;
    const bool is_zero = value == decltype(value){};
    const bool is_in_use = row.of_mode != nullptr ? traits_of(live.mode).*row.of_mode : !is_zero;
    if (row.shown == config::Shown::kNever || (row.shown == config::Shown::kInUse && !is_in_use)) return;
    std::string& text = row.shown == config::Shown::kAlways ? always : others;
    if (row.key == config::LiveKey::kMode)
      text += config::show_live(row, live, 4);
    else if (row.key == config::LiveKey::kQuorum && is_zero)
      text += "   quorum: all";
    else
      text += fmt::format("   {} {}", row.name, config::show_live(row, live, 4));
  });
  return always + others;
}

// The counts in at most `rows` rows, each starting at some staleness, as fractions of all.
std::vector<Line> histogram(const Model& model, std::size_t rows, std::size_t columns, bool has_utf8) {
  std::vector<Line> lines;
  double all = 0;
  for (const StalenessCount& count : model.staleness) all += double(count.count);
  if (all == 0 || rows == 0) return lines;
  const std::uint64_t most = model.staleness.back().least;
  // Equal widths, except that the first row is for pushes without updates in between, and the last has all the rest.
  const std::uint64_t p99 = std::max<std::uint64_t>(model.staleness_summary.p99, 1);
  const std::uint64_t width = rows <= 2 ? most : std::max<std::uint64_t>((p99 + rows - 3) / (rows - 2), 1);
  std::vector<double> sums(rows, 0);
  for (const StalenessCount& count : model.staleness)
    sums[count.least == 0 ? 0 : std::min<std::uint64_t>(1 + (count.least - 1) / width, rows - 1)] +=
        double(count.count);
  while (sums.size() > 1 && sums.back() == 0) sums.pop_back();
  const std::size_t room = columns > kLabel + 24 ? std::min<std::size_t>(columns - kLabel - 24, 50) : 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const std::uint64_t first = i == 0 ? 0 : 1 + (i - 1) * width;
    const std::uint64_t last = i == 0 ? 0 : i + 1 == rows ? std::max(most, first) : first + width - 1;
    const std::string from = first == last ? fmt::to_string(first) : fmt::format("{}-{}", first, last);
    lines.push_back({{std::string(kLabel, ' ')},
                     {fmt::format("{:>11} {:>5.1f} % ", from, 100 * sums[i] / all)},
                     {report::bar(sums[i] / all, room, has_utf8), Style::kCool}});
  }
  return lines;
}

Line workers_line(const Model& model) {
  Line workers = {{fmt::format("{} alive", living(model)), living(model) == 0 ? Style::kBad : Style::kGood},
                  {fmt::format(" of {}", model.wanted_workers)}};
  for (const auto& [phase, style] : {std::pair(Phase::kStopped, Style::kBad), std::pair(Phase::kDead, Style::kBad),
                                     std::pair(Phase::kWaiting, Style::kWarn), std::pair(Phase::kLeft, Style::kDim)})
    if (const std::string ranks = ranks_in(model, phase); !ranks.empty())
      workers.push_back({fmt::format("   {}: {}", to_string(phase), ranks), style});
  return workers;
}

std::string memory_text(const ByteCount& bytes) {
  std::string memory = short_bytes(bytes.total());
  inspection::for_each_figure<ByteCount>([&](const auto& figure) {
    if (figure.shown.title != nullptr && bytes.*figure.read != 0)
      memory += fmt::format("   {} {}", figure.shown.title, short_bytes(bytes.*figure.read));
  });
  return memory;
}

std::vector<Line> overview(const Model& model, const ViewState& view, std::size_t rows, std::size_t columns) {
  std::vector<Line> lines;
  const std::size_t curve = columns > kLabel + 32 ? std::min<std::size_t>(columns - kLabel - 32, 60) : 0;
  const auto curve_line = [&](const char* label, std::string now, const std::vector<double>& values) {
    std::string range;
    double least = INFINITY, most = -INFINITY;
    for (const double value : values)
      if (std::isfinite(value)) least = std::min(least, value), most = std::max(most, value);
    if (least <= most) range = fmt::format("  {} to {}", short_number(least), short_number(most));
    return labelled(label, Line{{fmt::format("{:<10}", now), Style::kBold},
                                {sparkline(values, curve, view.has_utf8), Style::kCool},
                                {range, Style::kDim}});
  };
  std::string progress = progress_text(model);
  if (model.seconds_left && living(model) != 0)
    progress += fmt::format("   {} left", short_seconds(*model.seconds_left));
  if (model.is_finished) progress += "   finished";
  lines.push_back(labelled("mode", settings_text(model)));
  lines.push_back(labelled("progress", progress));
  lines.push_back(curve_line("steps/s", short_number(model.steps_per_second), model.speeds));
  lines.push_back(curve_line("loss", loss_text(model.loss), model.losses));

  lines.push_back(labelled("workers", workers_line(model)));

  lines.push_back(labelled("memory", memory_text(model.bytes)));
  std::size_t served = 0;
  for (const TaskInfo& task : model.tasks) served += task.is_alive;
  lines.push_back(labelled(
      "", fmt::format("/dev/shm: {} of {} left   {} of {} shards served   {} old", short_bytes(model.shm_free_bytes),
                      short_bytes(model.shm_bytes), served, model.tasks.size(), short_seconds(model.age_seconds))));

  for (const TableFacts& table : model.tables)
    lines.push_back(labelled(&table == &model.tables.front() ? "tables" : "", table_text(table)));

  if (model.bridge) lines.push_back(labelled("bridge", bridge_text(*model.bridge)));

  const StalenessSummary& staleness = model.staleness_summary;
  lines.push_back(labelled("staleness", staleness.count == 0
                                            ? "-"
                                            : fmt::format("mean {:.3g}   p50 {}   p99 {}   max {}", staleness.mean,
                                                          staleness.p50, staleness.p99, staleness.max)));
  const std::size_t left = rows > lines.size() ? rows - lines.size() : 0;
  for (Line& line : histogram(model, std::min<std::size_t>(left / 2, 8), columns, view.has_utf8))
    lines.push_back(std::move(line));

  std::vector<const Event*> newest;
  for (auto event = model.events.rbegin(); event != model.events.rend(); ++event)
    if (event->kind != "decided" && newest.size() + lines.size() < rows) newest.push_back(&*event);
  for (std::size_t i = newest.size(); i-- > 0;)
    lines.push_back(labelled(i + 1 == newest.size() ? "events" : "",
                             Line{{time_of(newest[i]->unix_ns) + "  ", Style::kDim}, {newest[i]->text}}));
  return lines;
}

Line head(const Model& model, std::size_t columns) {
  Line line = {{fmt::format(" {} ", model.job), Style::kSelected},
               {" "},
               {model.state, style_of(model.state)},
               {fmt::format("   {}   {}   {} of {} workers", ps_shm::to_string(model.mode), progress_text(model),
                            living(model), model.wanted_workers)}};
  const std::string loss = model.loss ? fmt::format("   loss {}", loss_text(model.loss)) : "";
  if (report::width_of(text_of(line) + loss) <= columns) line.push_back({loss});  // the overview has it, too
  return line;
}

Line tabs(const ViewState& view) {
  Line line;
  for (std::size_t i = 0; i < kPages; ++i) {
    const bool is_here = static_cast<std::size_t>(view.page) == i;
    line.push_back(
        {fmt::format(" {} {} ", i + 1, to_string(static_cast<Page>(i))), is_here ? Style::kSelected : Style::kPlain});
  }
  if (!view.filter.empty()) line.push_back({fmt::format("  filter: {}", view.filter), Style::kWarn});
  if (view.is_paused) line.push_back({"  paused", Style::kWarn});
  return line;
}

struct KeyHelp {
  const char *key, *brief, *meaning;
};
// In the order of their importance: the last line of the screen shows those that fit.
constexpr KeyHelp kKeys[] = {
    {"q", "quit", "quit"},
    {"?", "help", "show or leave this page"},
    {"1-6", "page", "go to a page, as Tab and the arrows left and right do"},
    {"arrows", "select", "select a line, as page up, page down, Home and End do"},
    {"s", "sort", "sort by the next column"},
    {"r", "reverse", "reverse the order"},
    {"/", "filter", "show only lines that contain some text; Escape shows all again"},
    {"space", "pause", "pause, or go on"},
    {"c", "change", "change a setting, as inspect_shm set does, after a question"},
    {"x", "end worker", "end the worker that is selected on page 2, after a question"},
    {"<>", "variable",
     "chunks and rows: the previous or next variable; Enter on page 3 shows the chunks of a variable"}};

Line bottom(const ViewState& view, std::size_t columns) {
  if (!view.prompt.empty()) return {{view.prompt, Style::kBold}};
  if (!view.message.empty()) return {{view.message, Style::kWarn}};
  constexpr std::size_t kGap = 2;
  Line line;
  std::size_t used = 0;
  for (const KeyHelp& one : kKeys) {
    const std::string what = fmt::format(" {}", one.brief);
    const std::size_t width = std::string_view(one.key).size() + what.size();
    if (used + width > columns) break;
    if (used != 0) line.push_back({std::string(kGap, ' ')});
    line.push_back({one.key, Style::kBold});
    line.push_back({what, Style::kDim});
    used += width + kGap;
  }
  return line;
}

std::vector<Line> help(std::size_t columns) {
  constexpr std::size_t kKey = 9;
  std::vector<Line> lines;
  const auto add = [&](const std::string& key, const std::string& meaning) {
    std::istringstream wrapped(report::wrapped(meaning, columns > kKey ? columns - kKey : 1, 0));
    bool is_first = true;
    for (std::string line; std::getline(wrapped, line); is_first = false)
      lines.push_back({{fmt::format("{:<{}}", is_first ? key : "", kKey), Style::kBold}, {line}});
  };
  for (const KeyHelp& one : kKeys) add(one.key, one.meaning);
  lines.emplace_back();
  add("!",
      "a line that needs attention: a worker that is stopped, dead or makes no progress, a loss that is not a "
      "number, a full /dev/shm, a job without a ps");
  return lines;
}

std::vector<Line> lines_of_page(const Model& model, ViewState& view, std::size_t rows, std::size_t columns,
                                Screenful& screen) {
  switch (view.page) {
    case Page::kChunks:
      return chunk_map(model, view, rows, columns);
    case Page::kRows:
      return row_list(model, view, rows, columns, screen);
    case Page::kWorkers:
    case Page::kVariables:
    case Page::kEvents:
      return list_of(model, view, rows, columns, screen);
    case Page::kOverview:
      break;
  }
  return overview(model, view, rows, columns);
}

}  // namespace

const char* to_string(Phase phase) noexcept {
  static constexpr const char* kNames[] = {"computing", "pulling", "pushing", "waiting", "stopped", "dead", "left"};
  return kNames[static_cast<std::size_t>(phase)];
}

const char* to_string(Page page) noexcept {
  static constexpr const char* kNames[kPages] = {"overview", "workers", "variables", "chunks", "rows", "events"};
  return kNames[static_cast<std::size_t>(page)];
}

Screenful draw(const Model& model, ViewState& view, std::size_t rows, std::size_t columns) {
  Screenful screen;
  screen.lines = {head(model, columns), tabs(view)};
  const std::size_t room = rows > screen.lines.size() + 1 ? rows - screen.lines.size() - 1 : 0;
  const std::size_t most_alerts =
      view.page == Page::kOverview ? std::min<std::size_t>(3, room / 3) : std::min<std::size_t>(1, room / 3);
  for (std::size_t i = 0; i < model.alerts.size() && i < most_alerts; ++i) {
    const std::size_t more = i + 1 == most_alerts ? model.alerts.size() - i - 1 : 0;
    screen.lines.push_back(
        {{"! " + model.alerts[i] + (more == 0 ? "" : fmt::format(" (and {} more)", more)), Style::kBad}});
  }
  const std::size_t body = rows > screen.lines.size() + 1 ? rows - screen.lines.size() - 1 : 0;
  std::vector<Line> lines = view.has_help ? help(columns) : lines_of_page(model, view, body, columns, screen);
  for (std::size_t i = 0; i < body; ++i) screen.lines.push_back(i < lines.size() ? std::move(lines[i]) : Line{});
  screen.lines.resize(std::min(screen.lines.size(), rows > 0 ? rows - 1 : 0));
  screen.lines.push_back(bottom(view, columns));
  for (Line& line : screen.lines) line = clipped(line, columns);
  return screen;
}

std::string plain_line(const Model& model) {
  std::string line =
      fmt::format("{}   {}   {} of {} workers", model.state, progress_text(model), living(model), model.wanted_workers);
  if (model.loss) line += fmt::format("   loss {}", loss_text(model.loss));
  if (model.staleness_summary.count != 0) line += fmt::format("   staleness {:.3g}", model.staleness_summary.mean);
  for (const std::string& alert : model.alerts) line += fmt::format("   ! {}", alert);
  line += "\n";
  for (const TableFacts& table : model.tables) line += fmt::format("  table {}\n", table_text(table));
  if (model.bridge) line += fmt::format("  bridge of {}\n", bridge_text(*model.bridge));
  return line;
}

}  // namespace ps_shm::watch
