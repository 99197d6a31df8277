// What inspect.cpp has found, as tables for people.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "inspect.hpp"
#include "report/devices.hpp"

namespace ps::inspect {
namespace {

std::string bytes_as_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = double(bytes);
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < std::size(kUnits); ++unit) amount /= 1024;
  return fmt::format("{:.{}f} {}", amount, unit == 0 ? 0 : 1, kUnits[unit]);
}

std::string age_as_text(double seconds) {
  const auto whole = static_cast<std::uint64_t>(seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min", whole / 60);
  return whole < 172800 ? fmt::format("{} h {} min", whole / 3600, whole / 60 % 60)
                        : fmt::format("{} d", whole / 86400);
}

std::string cell(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
  return value.dump();
}

// Columns as wide as they need; numbers are right-aligned under their title.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size());
  std::vector<bool> numeric(rows[0].size(), rows.size() > 1);
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < widths.size(); ++c) {
      widths[c] = std::max(widths[c], rows[r][c].size());
      if (r != 0 && rows[r][c].find_first_not_of("0123456789.+-einfa") != std::string::npos) numeric[c] = false;
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < widths.size(); ++c)
      line += numeric[c] ? fmt::format("{:>{}}  ", row[c], widths[c]) : fmt::format("{:<{}}  ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string or_none(const Json& list) {
  std::string text;
  for (const Json& entry : list) text += (text.empty() ? "" : ",") + entry.get<std::string>();
  return text.empty() ? "-" : text;
}

}  // namespace

std::string jobs_as_text(const Json& jobs) {
  std::vector<std::vector<std::string>> rows = {{"JOB", "STATE", "PS", "WORKERS", "STEP", "SIZE", "AGE"}};
  for (const Json& row : jobs["jobs"])
    rows.push_back({cell(row["job"]), cell(row["state"]), row["state"] == "live" ? cell(row["ps_pid"]) : "-",
                    row["workers"].is_null() ? "-" : cell(row["workers_alive"]) + "/" + cell(row["workers"]),
                    cell(row["global_step"]), bytes_as_text(row["bytes"]),
                    row["age_seconds"].is_null() ? "-" : age_as_text(row["age_seconds"])});
  return rows.size() == 1 ? "no jobs\n" : table(rows);
}

std::string job_as_text(const Json& shown) {
  const Json& decision = shown["decision"];
  std::string text = fmt::format("job {}: {}, ps pid {}, {} old\n", cell(shown["job"]), cell(shown["state"]),
                                 cell(shown["ps_pid"]), age_as_text(shown["age_seconds"]));
  text += fmt::format("global step {}{}{}\n", cell(shown["global_step"]), shown["finished"] ? ", finished" : "",
                      shown["ended"] ? ", told to end" : "");
  text += fmt::format("decision word {:#x}: {}\n", decision["word"].get<std::uint64_t>(),
                      decision["step"].is_null()
                          ? "none yet"
                          : fmt::format("step {} by rank {}", cell(decision["step"]), cell(decision["proposer"])));
  text += "settings\n";
  for (const auto& [key, value] : shown["settings"].items()) text += fmt::format("  {:<19} {}\n", key, cell(value));
  text += fmt::format("settings now, after {} changes\n", cell(shown["live_version"]));
  for (const auto& [key, value] : shown["live"].items()) text += fmt::format("  {:<19} {}\n", key, cell(value));
  text += "segments\n";
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
  const double total = bytes["total"].get<double>(), values = bytes["values"].get<double>();
  text += "where the bytes are\n";
  for (const char* key : {"values", "optimizer_slots", "accumulators", "gradients", "shared_data", "spares", "words",
                          "padding", "control"})
    text += fmt::format("  {:<16} {:>12} {:>6.1f} %\n", key, bytes_as_text(bytes[key]),
                        100 * bytes[key].get<double>() / total);
  text += fmt::format("  {:<16} {:>12}", "total", bytes_as_text(bytes["total"]));
  return text + (values > 0 ? fmt::format(", {:.3f} times the values\n", total / values) : "\n");
}

std::string variables_as_text(const Json& listed) {
  std::vector<std::vector<std::string>> rows = {
      {"NAME", "SHAPE", "RULE", "LAYOUT", "SHARD", "NODE", "SIZE", "SLOTS", "SLOT SIZE", "PIECES", "UPDATES", "STATE"}};
  for (const Json& row : listed["variables"])
    for (const Json& part : row["parts"]) {
      const std::uint64_t first = part["first_row"], end = first + part["rows"].get<std::uint64_t>();
      const std::string rows_of = row["parts"].size() == 1 ? "" : fmt::format("[{}..{})", first, end);
      rows.push_back({cell(row["name"]) + rows_of, row["shape"].dump(), cell(row["rule"]), cell(row["layout"]),
                      cell(part["shard"]), cell(part["node"]), bytes_as_text(part["bytes"]), or_none(row["slots"]),
                      bytes_as_text(part["slot_bytes"]), cell(part["pieces"]), cell(row["updates"]),
                      row["initialised"] ? "ready" : "NOT INITIALISED"});
    }
  return rows.size() == 1 ? "no variables\n" : table(rows);
}

std::string workers_as_text(const Json& listed) {
  std::vector<std::vector<std::string>> rows = {{"RANK", "STATE", "PID", "HOLDERS", "STEPS", "PUSHES", "PULLS",
                                                 "RETRIES", "DROPPED", "CLOCK", "LEAD MAX", "STALE MEAN", "P99", "MAX",
                                                 "LOSS", "WAITING FOR"}};
  for (const Json& row : listed["workers"]) {
    const Json& staleness = row["staleness"];
    rows.push_back({cell(row["rank"]), cell(row["state"]), cell(row["pid"]), cell(row["holders"]), cell(row["steps"]),
                    cell(row["pushes"]), cell(row["pulls"]),
                    fmt::to_string(row["push_retries"].get<std::uint64_t>() + row["pull_retries"].get<std::uint64_t>()),
                    cell(row["dropped"]), cell(row["clock"]), cell(row["lead_max"]),
                    fmt::format("{:.2f}", staleness["mean"].get<double>()), cell(staleness["p99"]),
                    cell(staleness["max"]), cell(row["loss"]), cell(row["waiting_for"])});
  }
  return rows.size() == 1 ? "no worker has joined yet\n" : table(rows);
}

std::string examination_as_text(const Json& examined) {
  const Json& system = examined["system"];
  const auto limit = [&](const char* key) { return system[key].is_null() ? "no limit" : cell(system[key]); };
  std::string text =
      fmt::format("/dev/shm: {} of {} free; {} processors, {} memory node{}; huge pages: {}\n",
                  bytes_as_text(system["shm_free_bytes"]), bytes_as_text(system["shm_bytes"]),
                  cell(system["processors"]), cell(system["memory_nodes"]), system["memory_nodes"] == 1 ? "" : "s",
                  system["no_huge_pages"] == "" ? "available" : cell(system["no_huge_pages"]));
  text += fmt::format("limits: open files {}, address space {}, locked memory {}\n", limit("open_files_limit"),
                      limit("address_space_limit"), limit("locked_memory_limit"));
  text += report::devices_as_text(examined["cuda"]);
  for (const Json& removed : examined["removed"])
    text += fmt::format("job {}: reclaimed {}\n", cell(removed["job"]), bytes_as_text(removed["bytes"]));
  for (const Json& failed : examined["failed"])
    text += fmt::format("job {}: not reclaimed: {}\n", cell(failed["job"]), cell(failed["why"]));
  std::uint64_t bytes = 0, dead = 0;
  for (const Json& row : examined["jobs"]) {
    const std::string job = cell(row["job"]);
    text += fmt::format("job {}: {}{}, {}", job, cell(row["state"]), row["kept"] ? ", kept on purpose" : "",
                        bytes_as_text(row["bytes"]));
    if (!row["age_seconds"].is_null()) text += fmt::format(", {} old", age_as_text(row["age_seconds"]));
    if (const Json& last = row["last"]; !last.is_null())
      text += fmt::format(", step {}{}; workers: {} alive, {} dead, {} left; ps number {} (process {})",
                          cell(last["global_step"]),
                          last["finished"]     ? ", finished"
                          : last["steps"] != 0 ? fmt::format(" of {}", cell(last["steps"]))
                                               : "",
                          cell(last["workers_alive"]), cell(last["workers_dead"]), cell(last["workers_left"]),
                          cell(last["servers"]), cell(last["ps_pid"]));
    text += "\n";
    if (!row["problem"].is_null()) text += fmt::format("  {}\n", cell(row["problem"]));
    if (row["state"] == "orphaned")
      text += fmt::format("  its ps is dead and its workers go on: ps_shm --job {} --adopt takes it over\n", job);
    if (row["state"] == "dead" && !row["last"].is_null() && !row["last"]["finished"])
      text += fmt::format("  ps_shm --job {} --adopt would go on with it\n", job);
    if (!row["reclaimable"]) continue;
    bytes += row["bytes"].get<std::uint64_t>();
    ++dead;
  }
  if (dead != 0)
    return text + fmt::format("{} of {} dead job{} can be reclaimed: inspect_shm doctor --repair\n",
                              bytes_as_text(bytes), dead, dead == 1 ? "" : "s");
  return text + (examined["jobs"].empty() ? "no jobs\n" : "nothing to reclaim\n");
}

std::string events_as_text(const Json& listed) {
  std::string text;
  for (const Json& event : listed["events"]) {
    const std::uint64_t ns = event["unix_ns"];
    text +=
        fmt::format("{:%H:%M:%S}.{:06} step {:<8} {}\n", fmt::localtime(static_cast<std::time_t>(ns / 1'000'000'000)),
                    ns / 1000 % 1'000'000, cell(event["step"]), cell(event["text"]));
  }
  return text.empty() ? "no events\n" : text;
}

std::string changes_as_text(const Json& changes) {
  std::string text;
  for (const auto& [key, change] : changes["changed"].items())
    text += fmt::format("{}: {} -> {}\n", key, cell(change["before"]), cell(change["after"]));
  return text.empty() ? "nothing changes\n" : text;
}

std::string values_as_text(const Json& dumped) {
  constexpr std::size_t kPerLine = 8;
  std::string text;
  for (const Json& row : dumped["variables"]) {
    text += fmt::format("{} {}, {} elements", cell(row["name"]), row["shape"].dump(), cell(row["element_count"]));
    if (!row.contains("values")) {
      text += ": NOT INITIALISED\n";
      continue;
    }
    const std::vector<float> values = row["values"];
    text += fmt::format(": min {}, max {}, mean {}, norm {}", cell(row["min"]), cell(row["max"]), cell(row["mean"]),
                        cell(row["norm"]));
    if (row["nan_count"] != 0) text += fmt::format(", {} of them NaN", cell(row["nan_count"]));
    for (std::size_t i = 0; i < values.size(); ++i)
      text += i % kPerLine == 0 ? fmt::format("\n{:>10}: {:>13}", i, values[i]) : fmt::format(" {:>13}", values[i]);
    text += values.size() < row["element_count"] ? "\n            ... (--limit 0 shows all)\n" : "\n";
  }
  return text.empty() ? "no variables\n" : text;
}

std::string removal_as_text(const Json& removed) {
  return fmt::format("removed job {}: {} segments, {}\n", cell(removed["job"]), removed["removed"].size(),
                     bytes_as_text(removed["bytes"]));
}

}  // namespace ps::inspect
