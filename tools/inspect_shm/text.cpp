// The results of inspect.cpp as tables.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "inspect_shm/cells.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspection/figures.hpp"

namespace ps_shm::inspect {
namespace {

using report::fitted;
using report::Row;
using report::table;

std::string or_none(const Json& list) {
  std::string text;
  for (const Json& entry : list) {
    if (!text.empty()) text += ',';
    text += entry.get<std::string>();
  }
  return text.empty() ? "-" : text;
}

}  // namespace

std::string jobs_as_text(const Json& jobs, Columns columns) {
  std::vector<Row> rows = {{"JOB", "STATE", "PS", "WORKERS", "STEP", "SIZE", "AGE"}};
  for (const Json& row : jobs["jobs"])
    rows.push_back({cell(row["job"]), cell(row["state"]), row["state"] == "live" ? cell(row["ps_pid"]) : "-",
                    row["workers"].is_null() ? "-" : cell(row["workers_alive"]) + "/" + cell(row["workers"]),
                    cell(row["global_step"]), size_as_text(row["bytes"]),
                    row["age_seconds"].is_null() ? "-" : age_as_text(row["age_seconds"])});
  const std::string text = rows.size() == 1 ? "no jobs\n" : table(rows, columns);
  if (jobs["publications"].empty()) return text;
  rows = {{"PUBLICATION", "STATE", "PUBLISHER", "GENERATION", "SUBSCRIBERS", "SIZE", "AGE"}};
  for (const Json& row : jobs["publications"])
    rows.push_back({cell(row["publication"]), cell(row["state"]), row["state"] == "live" ? cell(row["pid"]) : "-",
                    cell(row["generation"]), cell(row["subscribers"]), size_as_text(row["bytes"]),
                    row["age_seconds"].is_null() ? "-" : age_as_text(row["age_seconds"])});
  return text + "\n" + table(rows, columns);
}

std::string publications_as_text(const Json& listed, Columns columns) {
  std::string text;
  for (const Json& row : listed["publications"]) {
    text +=
        fmt::format("publication {}: {}, {}", cell(row["publication"]), cell(row["state"]), size_as_text(row["bytes"]));
    if (row["generation"].is_null()) {  // nothing is known of it
      text += "\n";
      continue;
    }
    text += fmt::format(", {} old\n", age_as_text(row["age_seconds"]));
    const bool is_shared = !row["writers"].empty();
    const bool is_alive = is_shared ? std::any_of(row["writers"].begin(), row["writers"].end(),
                                                  [](const Json& one) { return one["leads"]; })
                                    : row["state"] == "live";
    text += fmt::format("  {} number {} (process {}), {}\n", is_shared ? "leader" : "publisher",
                        cell(row["publishers"]), cell(row["pid"]),
                        is_alive                  ? "alive"
                        : row["state"] == "ended" ? "has closed it"
                                                  : "dead");
    text += fmt::format("  {} tensors of {}, {} records, {} times busy, {} written\n", cell(row["tensors"]),
                        bytes_as_text(row["tensor_bytes"]), cell(row["records"]), cell(row["busy"]),
                        bytes_as_text(row["written_bytes"]));
    text += row["generation"] == 0
                ? "  no generation yet\n"
                : fmt::format("  generation {}, step {}, {} tensors changed, {} old{}\n", cell(row["generation"]),
                              cell(row["step"]), cell(row["changed"]), age_as_text(row["generation_age_seconds"]),
                              row["partial"] == true ? ", with a part of an unfinished push" : "");
    if (is_shared)
      text += fmt::format("  attempt {}, step {}, {}\n", cell(row["round"]["attempt"]), cell(row["round"]["step"]),
                          row["round"]["open"] == true ? "open" : "closed");
    for (const Json& writer : row["writers"])
      text += fmt::format("  writer {} (process {}), {}{}{}\n", cell(writer["writer"]), cell(writer["pid"]),
                          cell(writer["state"]), writer["leads"] == true ? ", leads" : "",
                          writer["done"] == true ? ", has written its slices" : "");
    for (const Json& subscriber : row["subscribers"]) {
      std::vector<std::string> held;
      for (const Json& generation : subscriber["generations"]) held.push_back(cell(generation));
      text += fmt::format("  subscriber {} (process {}), {}: has {}{}\n", cell(subscriber["rank"]),
                          cell(subscriber["pid"]), cell(subscriber["state"]),
                          held.empty() ? "nothing" : fmt::format("generation {}", fmt::join(held, " and ")),
                          subscriber["acknowledged"] == 0
                              ? ""
                              : fmt::format(", has acknowledged generation {}", cell(subscriber["acknowledged"])));
    }
    text += fmt::format("  {} of {} subscriber entries in use\n", row["subscribers"].size(), cell(row["places"]));
  }
  return text.empty() ? "no publications\n" : fitted(text, columns);
}

std::string settings_as_text(const Json& shown, Columns columns) {
  const Json& live = shown["live"];
  std::vector<std::string> lines;
  std::size_t others = 0;
  for (const auto& [key, value] : shown["settings"].items()) {
    const auto now = live.find(key);
    const bool has_changed = now != live.end() && *now != value;
    if (columns && !has_changed && !is_of_interest(key, value))
      ++others;
    else
      lines.push_back(fmt::format("  {:<19} {}{}", key, cell(value), has_changed ? ", now " + cell(*now) : ""));
  }
  const Json& changes = shown["live_version"];
  std::string text = changes == 0
                         ? "settings\n"
                         : fmt::format("settings, changed {} time{}\n", cell(changes), changes == 1 ? "" : "s");
  text += report::listed(lines, columns);
  if (others != 0) text += fmt::format("  {} others have their default values; --wide shows them\n", others);
  return text;
}

namespace {

// For a job that this program cannot read.
std::string header_as_text(const Json& shown) {
  const Json& header = shown["header"];
  std::string text = fmt::format("job {}: {}; this program knows layout version {}\nheader\n", cell(shown["job"]),
                                 cell(shown["state"]), cell(header["known_layout_version"]));
  for (const auto& [key, value] : header.items())
    if (key != "known_layout_version")
      text += key == "age_seconds" ? fmt::format("  {:<15} {}\n", "age", age_as_text(value))
                                   : fmt::format("  {:<15} {}\n", key, cell(value));
  return text + "inspect it with the inspect_shm of its programs' build\n";
}

// Null: nothing.
std::string bridge_as_text(const Json& bridge) {
  if (bridge.is_null()) return {};
  if (bridge.contains("error")) return fmt::format("bridge: {}\n", cell(bridge["error"]));
  std::string text = fmt::format("bridge of box {} of {}: {}, round {}, with boxes ", cell(bridge["box"]),
                                 cell(bridge["boxes"]), bridge["alive"] ? "alive" : "dead", cell(bridge["round"]));
  std::vector<std::string> members;
  for (const Json& member : bridge["members"]) members.push_back(cell(member));
  text += members.empty() ? std::string("-") : fmt::format("{}", fmt::join(members, ", "));
  if (!bridge["age_seconds"].is_null())
    text += fmt::format("\n  last round {} ago: {} s, {} sent, norm of the difference {}",
                        age_as_text(bridge["age_seconds"]), cell(bridge["seconds"]), bytes_as_text(bridge["bytes"]),
                        cell(bridge["norm"]));
  for (const Json& table : bridge["tables"])
    text += fmt::format("\n  table {}: {} of at most {} keys, {} rows in the last cut", cell(table["name"]),
                        cell(table["keys"]), cell(table["most_keys"]), cell(table["cut_rows"]));
  if (bridge["dropped"] != 0 || bridge["dropped_steps"] != 0)
    text += fmt::format("\n  dropped of this box's work: {} elements in doubt, {} steps that were not finite",
                        cell(bridge["dropped"]), cell(bridge["dropped_steps"]));
  return text + "\n";
}

}  // namespace

std::string job_as_text(const Json& shown, Columns columns) {
  if (shown.contains("header")) return fitted(header_as_text(shown), columns);
  const Json& decision = shown["decision"];
  std::string text = fmt::format("job {}: {}, ps pid {}, {} old\n", cell(shown["job"]), cell(shown["state"]),
                                 cell(shown["ps_pid"]), age_as_text(shown["age_seconds"]));
  text += fmt::format("global step {}{}{}\n", cell(shown["global_step"]), shown["finished"] ? ", finished" : "",
                      shown["ended"] ? ", ended" : "");
  if (!decision["step"].is_null())
    text += fmt::format("contributors of step {}: decided by worker {}\n", cell(decision["step"]),
                        cell(decision["proposer"]));
  if (const Json& snapshot = shown["snapshot"]; snapshot["epoch"] != 0)
    text +=
        fmt::format("snapshot {}: taken {} ago, {}{}\n", cell(snapshot["epoch"]), age_as_text(snapshot["age_seconds"]),
                    snapshot["held"] ? "held" : "given back", snapshot["pushes_wait"] ? "; pushes wait for it" : "");
  text += bridge_as_text(shown["bridge"]) + settings_as_text(shown, columns) + "segments\n";
  for (const Json& segment : shown["segments"])
    text += fmt::format("  {:<24} {:>12}\n", cell(segment["name"]), bytes_as_text(segment["bytes"]));
  text += "shards\n";
  for (const Json& shard : shown["shards"])
    text += fmt::format("  {}: {} variables or parts, {} in use of {}, may grow to {}; node {}, {}{}\n",
                        cell(shard["shard"]), cell(shard["variables"]), bytes_as_text(shard["used_bytes"]),
                        bytes_as_text(shard["file_bytes"]), bytes_as_text(shard["reserved_bytes"]), cell(shard["node"]),
                        shard["huge_pages"] ? "huge pages, " : "",
                        shard["served"] ? fmt::format("served by process {}", cell(shard["pid"])) : "not served");
  const Json& bytes = shown["bytes"];
  const double total = bytes["total"].get<double>();
  text += "memory use\n";
  std::vector<std::string> parts;
  inspection::for_each_figure<ByteCount>([&](const auto& figure) {
    const Json& part = bytes[figure.name];
    if (!columns || part != 0)
      parts.push_back(fmt::format("  {:<16} {:>10} {:>6.1f} %", figure.name, bytes_as_text(part),
                                  100 * part.template get<double>() / total));
  });
  text += report::listed(parts, columns) + fmt::format("  {:<16} {:>10}\n", "total", bytes_as_text(bytes["total"]));
  return fitted(text, columns);
}

namespace {

// The rows of its variable that a part contains; empty if it contains all of it.
std::string rows_of(const Json& part, std::size_t parts) {
  const std::uint64_t first = part["first_row"], end = first + part["rows"].get<std::uint64_t>();
  return parts == 1 ? "" : fmt::format("[{}..{})", first, end);
}

}  // namespace

std::string variables_as_text(const Json& listed, Columns columns) {
  constexpr auto kStays = report::Column::kStays;
  std::vector<Row> rows;
  for (const Json& row : listed["variables"])
    for (const Json& part : row["parts"]) {
      rows.push_back({cell(row["name"]) + rows_of(part, row["parts"].size()), shape_of(row), cell(row["rule"]),
                      cell(row["layout"]), cell(part["shard"]), cell(part["node"]), bytes_as_text(part["bytes"]),
                      or_none(row["slots"]), bytes_as_text(part["slot_bytes"]), cell(part["chunks"]),
                      cell(row["updates"]), row["initialised"] ? "ready" : "NOT INITIALISED"});
    }
  const std::string tables = tables_as_text(listed["tables"], columns);
  if (rows.empty()) return tables.empty() ? "no variables\n" : tables;
  return report::table_in_lines({{"NAME", kStays, ""},
                                 {"SHAPE", kStays, ""},
                                 {"RULE", 5, ""},
                                 {"LAYOUT", 3, ""},
                                 {"SHARD", 4, "0"},
                                 {"NODE", 0, "-"},
                                 {"SIZE", kStays, ""},
                                 {"SLOTS", 6, "-"},
                                 {"SLOT SIZE", 2, "0 B"},
                                 {"PIECES", 1, ""},
                                 {"UPDATES", kStays, ""},
                                 {"STATE", kStays, ""}},
                                rows, columns) +
         (tables.empty() ? "" : "\n" + tables);
}

std::string uninitialised_as_text(const Json& listed, Columns) {
  std::string text;
  for (const Json& name : listed["uninitialised"]) text += cell(name) + "\n";
  return text;
}

std::string placement_as_text(const Json& listed, Columns columns) {
  std::vector<Row> rows = {{"NAME", "SHARD", "SEGMENT", "PS", "NODE", "OFFSET", "BYTES", "SLOT BYTES"}};
  for (const Json& row : listed["placement"])
    rows.push_back({cell(row["name"]) + rows_of(row, row["parts"]), cell(row["shard"]), cell(row["segment"]),
                    cell(row["ps_pid"]), cell(row["node"]), cell(row["offset"]), cell(row["bytes"]),
                    cell(row["slot_bytes"])});
  return rows.size() == 1 ? "no variables\n" : table(rows, columns);
}

namespace {

template <class Value>
struct WithoutOptional {
  using Type = Value;
};
template <class Value>
struct WithoutOptional<std::optional<Value>> {
  using Type = Value;
};

std::string cell_of(const Json& value, inspection::Unit unit) {
  if (value.is_null() || unit == inspection::Unit::kNone) return cell(value);
  return unit == inspection::Unit::kBytes ? bytes_as_text(value) : fmt::format("{:.2f}", value.get<double>());
}

// Adds a column for each figure with a title, also of the records within these records, if any has one.
template <class Record>
void add_columns(const std::vector<Json>& records, bool has_all, std::vector<Row>& rows) {
  inspection::for_each_figure<Record>([&](const auto& figure) {
    std::vector<Json> values;
    for (const Json& record : records) values.push_back(record.is_null() ? Json() : record[figure.name]);
    using Value =
        typename WithoutOptional<std::decay_t<std::invoke_result_t<decltype(figure.read), const Record&>>>::Type;
    if constexpr (inspection::kHasFigures<Value>) {
      if (!std::all_of(values.begin(), values.end(), [](const Json& value) { return value.is_null(); }))
        add_columns<Value>(values, has_all, rows);
    } else if (figure.shown.title != nullptr && (has_all || figure.shown.is_common)) {
      rows[0].emplace_back(figure.shown.title);
      for (std::size_t i = 0; i < values.size(); ++i) rows[i + 1].push_back(cell_of(values[i], figure.shown.unit));
    }
  });
}

}  // namespace

// On a terminal the columns that most people need, so that a row fits on a line.
std::string workers_as_text(const Json& listed, Columns columns) {
  const Json& workers = listed["workers"];
  if (workers.empty()) return "no worker has joined yet\n";
  std::vector<Row> rows(1 + workers.size());
  add_columns<WorkerInfo>({workers.begin(), workers.end()}, !columns, rows);
  return table(rows, columns) + (columns ? fitted("--wide shows more columns\n", columns) : "");
}

std::string events_as_text(const Json& listed, Columns columns) {
  std::string text;
  for (const Json& event : listed["events"]) {
    const std::uint64_t ns = event["unix_ns"];
    text +=
        fmt::format("{:%H:%M:%S}.{:06} step {:<8} {}\n", fmt::localtime(static_cast<std::time_t>(ns / 1'000'000'000)),
                    ns / 1000 % 1'000'000, cell(event["step"]), cell(event["text"]));
  }
  return text.empty() ? "no events\n" : fitted(text, columns);
}

std::string changes_as_text(const Json& changes, Columns columns) {
  std::string text;
  for (const auto& [key, change] : changes["changed"].items()) {
    std::string name = key;
    std::replace(name.begin(), name.end(), '_', '-');
    text += fmt::format("{}: {} -> {}\n", name, cell(change["before"]), cell(change["after"]));
  }
  return text.empty() ? "nothing changes\n" : fitted(text, columns);
}

}  // namespace ps_shm::inspect
