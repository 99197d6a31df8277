#include "launch_shm/html_report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/option_names.hpp"
#include "cli/option_tables.hpp"
#include "cli/version.hpp"
#include "config/job_settings.hpp"
#include "report/terminal.hpp"

namespace ps_shm::tools {
namespace {

using report::CurvePoint;
using report::RunReport;
using report::WorkerReport;

// Colours that stay apart for readers who do not see all of them, on light and dark grounds.
constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ground: #fff; --text: #1c2128; --dim: #68707a; --line: #d5d9de; --box: #f5f7f9;
  --main: #2f6fb5; --second: #c8781e; --pull: #4f83c2; --gradient: #4d9a62; --delay: #9a6fb0; --push: #d98a32;
  --step: #b9a14a; --other: #9aa1a9; }
@media (prefers-color-scheme: dark) { :root { --ground: #15181c; --text: #e3e6ea; --dim: #969da6; --line: #363c44;
  --box: #1e2227; --main: #6ba4e0; --second: #e59c4c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; } .dim { color: var(--dim); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; margin-top: 1.2rem; }
.tile { background: var(--box); border-radius: .5rem; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.3rem; font-weight: 600; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: var(--text); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .dim { fill: var(--dim); }
svg .curve { fill: none; stroke: var(--main); stroke-width: 2; stroke-linejoin: round; }
svg .point { fill: var(--main); } svg .second { stroke: var(--second); } svg .second.point { fill: var(--second); }
svg .bar { fill: var(--main); }
.key { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em; }
.keys span { white-space: nowrap; margin-right: 1.2em; } .keys .key { margin-right: .35em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
@media (max-width: 45rem) { svg { min-width: 44rem; font-size: 14px; } }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--dim); white-space: nowrap; } td:first-child code { white-space: nowrap; } td.n, th.n { text-align: right; white-space: nowrap; }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: break-word; } summary { cursor: pointer; margin: .6rem 0; }
)";

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < ' ' && c != '\n' ? '?' : c;
    }
  return safe;
}

// All counts of the page: 1 234, 12 345 678
std::string grouped(std::uint64_t count) {
  std::string text = fmt::to_string(count);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, "\u202f");
  return text;
}

std::string number(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  if (value >= 999.5 && value < 1e15) return grouped(static_cast<std::uint64_t>(value + 0.5));
  return fmt::format("{:.4g}", value);
}

struct Scale {
  double begin, end;  // of the values
  double from, to;    // where they are drawn
  double at(double value) const { return from + (value - begin) / (end - begin) * (to - from); }
};

// Round values between the two, about `count` of them.
std::vector<double> ticks(double begin, double end, int count) {
  const double rough = (end - begin) / count, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double one : {5.0, 2.0, 1.0})
    if (one * power >= rough) step = one * power;
  std::vector<double> all;
  for (double at = std::ceil(begin / step - 1e-9) * step; at <= end + step * 1e-9; at += step)
    all.push_back(std::fabs(at) < step * 1e-9 ? 0 : at);
  return all;
}

constexpr double kWidth = 940, kLeft = 62, kRight = 20, kTop = 12, kBottom = 44;

std::string text_at(double x, double y, const char* anchor, std::string_view text, const char* kind = "dim") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", x, y, anchor, kind,
                     escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>\n", x1, y1, x2,
                     y2);
}

std::string axes(const Scale& x, const Scale& y, const char* x_title) {
  std::string svg;
  for (const double at : ticks(y.begin, y.end, 5))
    svg += line_at(x.from, y.at(at), x.to, y.at(at)) + text_at(x.from - 8, y.at(at) + 4, "end", number(at));
  for (const double at : ticks(x.begin, x.end, 8)) svg += text_at(x.at(at), y.from + 18, "middle", number(at));
  return svg + text_at(x.to, y.from + 36, "end", x_title);
}

std::string svg_of(double height, const std::string& what, const std::string& inside) {
  return fmt::format(
      "<div class=\"scroll\"><svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\">\n{}</svg></div>\n",
      kWidth, height, escaped(what), inside);
}

std::string metrics_text(const CurvePoint& point) {
  return fmt::format("step {}, {}: {}", grouped(point.step), report::duration(point.seconds),
                     report::to_text(point.metrics, ""));
}

// A line through the points and a mark at each, whose tooltip has all metrics.
std::string curve_of(const std::vector<CurvePoint>& points, const Scale& x, const Scale& y,
                     double (*value)(const CurvePoint&), const char* kind) {
  std::string path, marks;
  for (const CurvePoint& point : points) {
    if (!std::isfinite(value(point))) continue;
    const double at_x = x.at(point.seconds), at_y = y.at(value(point));
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", at_x, at_y);
    marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" class=\"point {}\"><title>{}</title></circle>\n",
                         at_x, at_y, kind, escaped(metrics_text(point)));
  }
  return fmt::format("<path d=\"{}\" class=\"curve {}\"/>\n{}", path, kind, marks);
}

std::string curve_plot(const RunReport& run, const char* what, double (*value)(const CurvePoint&)) {
  double least = std::numeric_limits<double>::infinity(), most = -least, seconds = 0;
  for (const auto* points : {&run.curve, &run.evaluations})
    for (const CurvePoint& point : *points) {
      if (!std::isfinite(value(point))) continue;
      least = std::min(least, value(point));
      most = std::max(most, value(point));
      seconds = std::max(seconds, point.seconds);
    }
  if (!(least <= most) || seconds <= 0) return "";
  const double margin = most > least ? 0.05 * (most - least) : std::max(std::fabs(most) * 0.05, 1e-3);
  constexpr double kHeight = 300;
  const Scale x{0, seconds, kLeft, kWidth - kRight};
  const Scale y{least >= 0 ? std::max(0.0, least - margin) : least - margin, most + margin, kHeight - kBottom, kTop};
  return fmt::format("<h2>{}</h2>\n", what) +
         svg_of(kHeight, what,
                axes(x, y, "seconds of training") + curve_of(run.curve, x, y, value, "") +
                    curve_of(run.evaluations, x, y, value, "second"));
}

double loss_of(const CurvePoint& point) { return point.metrics.loss; }
double accuracy_of(const CurvePoint& point) { return point.metrics.accuracy.value_or(NAN); }

std::string curves(const RunReport& run) {
  const std::string of = run.is_test_of_training ? "on the training data" : "on the test data";
  std::string html = curve_plot(run, ("Loss " + of).c_str(), loss_of);
  if (html.empty())
    return run.count || !run.test ? "" : "<h2>Loss</h2>\n<p class=\"dim\">The run was too short for a curve.</p>\n";
  if (!run.evaluations.empty())
    html +=
        "<p class=\"dim keys\"><span><span class=\"key\" style=\"background: var(--main)\"></span>copies taken during "
        "the "
        "run, evaluated at its end</span> <span><span class=\"key\" style=\"background: var(--second)\"></span>by the "
        "evaluator, of what was published</span></p>\n";
  return html + curve_plot(run, ("Accuracy " + of).c_str(), accuracy_of);
}

// Counts of equal ranges of staleness: the first bar is for pushes without updates in between, the last has all the rest.
std::string staleness_plot(const RunReport& run) {
  double all = 0;
  for (const StalenessCount& bucket : run.staleness_counts) all += double(bucket.count);
  if (all == 0 || !run.may_be_stale()) return "";
  constexpr std::size_t kBars = 24;
  const std::uint64_t most = run.staleness_counts.back().least;
  const std::size_t bars = most < kBars ? most + 1 : kBars;
  const std::uint64_t p99 = std::max<std::uint64_t>(run.staleness.p99, 1);
  const std::uint64_t width = most < kBars ? 1 : std::max<std::uint64_t>((p99 + bars - 3) / (bars - 2), 1);
  std::vector<double> shares(bars, 0);
  for (const StalenessCount& bucket : run.staleness_counts)
    shares[bucket.least == 0 ? 0 : std::min<std::uint64_t>(1 + (bucket.least - 1) / width, bars - 1)] +=
        100 * double(bucket.count) / all;
  while (shares.size() > 1 && shares.back() == 0) shares.pop_back();
  constexpr double kHeight = 260;
  const double highest = *std::max_element(shares.begin(), shares.end());
  const Scale x{0, double(shares.size()), kLeft, kWidth - kRight}, y{0, highest * 1.05, kHeight - kBottom, kTop};
  std::string svg;
  for (const double at : ticks(0, y.end, 4))
    svg += line_at(x.from, y.at(at), x.to, y.at(at)) + text_at(x.from - 8, y.at(at) + 4, "end", number(at) + " %");
  const std::size_t every = shares.size() > 12 ? 2 : 1;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const std::uint64_t first = i == 0 ? 0 : 1 + (i - 1) * width;
    const std::uint64_t last = i == 0 ? 0 : i + 1 == bars ? std::max(run.staleness.max, first) : first + width - 1;
    const std::string range = first == last ? grouped(first) : fmt::format("{}-{}", grouped(first), grouped(last));
    const double left = x.at(double(i)), step = x.at(1) - x.at(0);
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"bar\"><title>staleness {}: {:.2f} "
        "% "
        "of the pushes</title></rect>\n",
        left + 0.1 * step, y.at(shares[i]), 0.8 * step, y.from - y.at(shares[i]), range, shares[i]);
    if (i % every == 0) svg += text_at(left + step / 2, y.from + 18, "middle", range);
  }
  svg += text_at(x.to, y.from + 36, "end", "staleness: updates by others between a worker's pull and its push");
  return "<h2>Staleness</h2>\n" + svg_of(kHeight, "staleness of the pushes", svg) +
         fmt::format("<p class=\"dim\">mean {:.2f}, median {}, 99th percentile {}, maximum {}</p>\n",
                     run.staleness.mean, grouped(run.staleness.p50), grouped(run.staleness.p99),
                     grouped(run.staleness.max));
}

// One bar per worker: where its time went.
std::string phase_plot(const RunReport& run) {
  struct Kind {
    const char *name, *colour, *meaning;
    double train::PhaseSeconds::*member;
  };
  using train::PhaseSeconds;
  static constexpr Kind kKinds[] = {{"pull", "pull", "copies parameters", &PhaseSeconds::pull},
                                    {"gradient", "gradient", "computes", &PhaseSeconds::gradient},
                                    {"delay", "delay", "sleeps, as --delay asks", &PhaseSeconds::delay},
                                    {"push", "push", "applies its gradient", &PhaseSeconds::push},
                                    {"wait", "step", "waits for other workers", &PhaseSeconds::step}};
  constexpr double kRow = 26, kBar = 18;
  double longest = 0, height = kTop;
  for (const WorkerReport& worker : run.per_worker)
    if (worker.phases) longest = std::max(longest, worker.seconds), height += kRow;
  if (longest <= 0) return "";
  const Scale x{0, longest, kLeft + 20, kWidth - kRight};
  std::string rows, legend;
  std::array<bool, std::size(kKinds)> is_used{};
  double y = kTop;
  for (const WorkerReport& worker : run.per_worker) {
    if (!worker.phases) continue;
    rows += text_at(x.from - 8, y + kBar - 4, "end", fmt::format("worker {}", worker.rank));
    double at = 0;
    const auto add = [&](const char* name, const char* colour, double seconds) {
      if (seconds <= 0) return;
      const double end = std::min(at + seconds, longest);
      rows += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" style=\"fill: var(--{})\"><title>worker "
          "{}, "
          "{}: {} ({:.1f} %)</title></rect>\n",
          x.at(at), y, std::max(0.0, x.at(end) - x.at(at)), kBar, colour, worker.rank, name, report::duration(seconds),
          100 * seconds / worker.seconds);
      at = end;
    };
    for (std::size_t i = 0; i < std::size(kKinds); ++i) {
      const double seconds = (*worker.phases).*kKinds[i].member;
      is_used[i] = is_used[i] || seconds > 0;
      add(kKinds[i].name, kKinds[i].colour, seconds);
    }
    add("other", "other", worker.seconds - at);
    y += kRow;
  }
  const auto key = [&](const char* colour, const std::string& text) {
    legend += fmt::format("<span><span class=\"key\" style=\"background: var(--{})\"></span>{}</span>\n", colour, text);
  };
  for (std::size_t i = 0; i < std::size(kKinds); ++i)
    if (is_used[i]) key(kKinds[i].colour, fmt::format("{}: {}", kKinds[i].name, kKinds[i].meaning));
  key("other", "other");
  std::string scale;
  for (const double at : ticks(0, longest, 8))
    scale += line_at(x.at(at), kTop, x.at(at), height) + text_at(x.at(at), height + 16, "middle", number(at));
  scale += text_at(x.to, height + 34, "end", "seconds");
  return "<h2>Time of the workers</h2>\n" + svg_of(height + 40, "time of each worker by phase", scale + rows) +
         fmt::format("<p class=\"dim keys\">{}</p>\n", legend);
}

using Cells = std::vector<std::string>;

// The first column is text, the others are numbers if `has_numbers`.
std::string table_of(const Cells& titles, const std::vector<Cells>& rows, bool has_numbers) {
  std::string html = "<div class=\"scroll\"><table>\n";
  const auto add = [&](const Cells& cells, const char* tag) {
    html += "<tr>";
    for (const std::string& cell : cells)
      html += fmt::format("<{0}{1}>{2}</{0}>", tag, has_numbers ? " class=\"n\"" : "", cell);
    html += "</tr>\n";
  };
  if (!titles.empty()) add(titles, "th");
  for (const Cells& row : rows) add(row, "td");
  return html + "</table></div>\n";
}

double per_second(std::uint64_t count, double seconds) { return seconds > 0 ? double(count) / seconds : 0; }

std::string workers_table(const RunReport& run) {
  if (run.per_worker.empty()) return "";
  Cells titles = {"worker", "steps", "time", "steps/s", "examples/s", "training loss", "retries", "dropped"};
  if (run.may_be_stale()) titles.insert(titles.end() - 2, {"mean staleness", "99th percentile"});
  std::vector<Cells> rows;
  for (const WorkerReport& worker : run.per_worker) {
    Cells& row = rows.emplace_back();
    row = {fmt::to_string(worker.rank),
           grouped(worker.steps),
           report::duration(worker.seconds),
           number(per_second(worker.steps, worker.seconds)),
           run.count ? "-" : number(per_second(worker.examples, worker.seconds)),
           worker.loss ? number(*worker.loss) : "-",
           grouped(worker.retries),
           grouped(worker.dropped)};
    if (run.may_be_stale())
      row.insert(row.end() - 2, {report::mean_text(worker.staleness),
                                 worker.staleness.count != 0 ? grouped(worker.staleness.p99) : "-"});
  }
  return "<h2>Workers</h2>\n" + table_of(titles, rows, true);
}

std::string tiles(const RunReport& run) {
  std::string html = "<div class=\"tiles\">\n";
  const auto add = [&](const std::string& what, const std::string& value) {
    html += fmt::format("<div class=\"tile\"><span class=\"dim\">{}</span><b>{}</b></div>\n", what, value);
  };
  const std::string of = run.is_test_of_training ? "training " : "test ";
  if (run.test) {
    if (run.test->accuracy) add(of + "accuracy", fmt::format("{:.2f} %", 100 * *run.test->accuracy));
    if (run.test->auc) add(of + "AUC", number(*run.test->auc));
    if (run.test->rmse) add(of + "RMSE", number(*run.test->rmse));
    add(of + "loss", number(run.test->loss));
  }
  if (run.average_test) add("of the moving averages: test loss", number(run.average_test->loss));
  if (run.count) add("value", to_text(*run.count));
  const std::uint64_t steps = run.steps - run.first_step;
  add("steps", grouped(steps));
  add("time", report::duration(run.seconds));
  add("steps/s", grouped(static_cast<std::uint64_t>(per_second(steps, run.seconds) + 0.5)));
  if (!run.count && run.examples != 0)
    add("examples/s", grouped(static_cast<std::uint64_t>(per_second(run.examples, run.seconds) + 0.5)));
  if (run.may_be_stale()) add("mean staleness", report::mean_text(run.staleness));
  return html + "</div>\n";
}

// The settings that differ from their defaults, and those that do not, folded.
std::string settings_tables(LaunchSettings settings) {
  settings.ps.job = config::resolved(settings.ps.job);
  const LaunchSettings defaults;
  std::vector<Cells> given, others;
  for (const config::Setting<LaunchSettings>& row : launch_options()) {
    const std::string now = config::show(row, settings);
    const bool is_default = now == config::show(row, defaults);
    const std::string value = is_default ? with_option_names(show_default(row, defaults)) : now;
    (is_default ? others : given)
        .push_back({fmt::format("<code>--{}</code>", row.name), fmt::format("<code>{}</code>", escaped(value)),
                    escaped(with_option_names(row.meaning))});
  }
  const Cells titles = {"setting", "value", "meaning"};
  return "<h2>Settings</h2>\n" + table_of(titles, given, false) +
         fmt::format("<details><summary>{} others, with their defaults</summary>\n{}</details>\n", others.size(),
                     table_of(titles, others, false));
}

// The value of the first line "KEY : VALUE".
std::string value_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string environment_table(const RunReport& run, const LaunchSettings& settings) {
  std::vector<Cells> rows;
  const auto add = [&](const char* what, const std::string& value) {
    if (!value.empty()) rows.push_back({what, escaped(value)});
  };
  const auto add_code = [&](const char* what, const std::string& value) {
    rows.push_back({what, fmt::format("<code>{}</code>", escaped(value))});
  };
  add_code("command", fmt::format("{}", fmt::join(settings.command, " ")));
  utsname system{};
  if (uname(&system) == 0) {
    add("machine", system.nodename);
    add("system", fmt::format("{} {}, {}", system.sysname, system.release, system.machine));
  }
  add("processor", value_in("/proc/cpuinfo", "model name"));
  add("processors", fmt::to_string(sysconf(_SC_NPROCESSORS_ONLN)));
  add("memory", fmt::format("{:.1f} GiB", double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)) / 0x1p30));
  for (const WorkerReport& worker : run.per_worker)
    if (worker.gpu.is_object() && worker.gpu.contains("device"))
      rows.push_back({fmt::format("GPU of worker {}", worker.rank), escaped(worker.gpu["device"].dump())});
  std::string version = version_text("launch_shm");
  for (std::size_t at = 0, end; (end = version.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string line = version.substr(at, end - at);
    const std::size_t gap = line.find(' ');
    rows.push_back({escaped(line.substr(0, gap)), escaped(line.substr(line.find_first_not_of(' ', gap)))});
  }
  if (!run.table) add_code("digest of the parameters", fmt::format("{:016x}", run.digest));
  return "<h2>Environment</h2>\n" + table_of({}, rows, false);
}

}  // namespace

std::string to_html(const RunReport& run, const LaunchSettings& settings) {
  const std::string what = fmt::format("{}{}{}, {} {}", run.model, run.data.empty() ? "" : " on ", run.data,
                                       run.workers, run.workers == 1 ? "worker" : "workers");
  const std::time_t now = std::time(nullptr);
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>{0}: {1}</title>\n<style>{2}</style>\n</head>\n<body>\n"
      "<h1>{1}</h1>\n<p>job {0}: {3}, {4}{5}{6}</p>\n<p class=\"dim\">{7:%Y-%m-%d %H:%M:%S %Z}{8}</p>\n",
      escaped(run.job), escaped(what), kStyle, run.mode, run.layout, run.count ? "" : ", ",
      run.count ? "" : run.optimizer, fmt::localtime(now),
      run.first_step != 0 ? fmt::format(", continued from step {}", run.first_step) : "");
  return html + tiles(run) + curves(run) + staleness_plot(run) + phase_plot(run) + workers_table(run) +
         settings_tables(settings) + environment_table(run, settings) + "</body>\n</html>\n";
}

}  // namespace ps_shm::tools
