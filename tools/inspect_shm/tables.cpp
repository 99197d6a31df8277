// Tables by key, as JSON and as text.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inspect_shm/cells.hpp"
#include "inspect_shm/inspect.hpp"
#include "inspection/tables.hpp"
#include "ps_shm/job_view.hpp"
#include "report/figures.hpp"

namespace ps_shm::inspect {
namespace {

constexpr auto kBetweenReads = std::chrono::seconds(1);
constexpr std::uint64_t kSample = 1 << 20;  // rows, and values: takes some milliseconds

Json hit_rate(std::uint64_t hits, std::uint64_t misses) {
  return hits + misses == 0 ? Json() : Json(double(hits) / double(hits + misses));
}

std::string share_as_text(const Json& share) {
  return share.is_null() ? "-" : fmt::format("{:.1f} %", 100 * share.get<double>());
}

}  // namespace

Json facts_of(const TableInfo& table) {
  Json facts = report::figures_json(table);
  facts.update(report::figures_json(table.statistics));
  facts["hit_rate"] = hit_rate(table.statistics.hits, table.statistics.misses);
  return facts;
}

Json show_table(const std::string& job, const std::string& name) {
  const JobView view(job);
  const auto find = [&] {
    for (TableInfo& table : view.tables())
      if (table.spec.name == name) return std::move(table);
    static_cast<void>(view.count_rows(name, 1));  // throws an Error that lists the names
    throw Error(fmt::format("table '{}' has been made meanwhile; try again", name), ErrorCode::kUnavailable);
  };
  const TableInfo before = find();
  const TableCensus rows = view.count_rows(name, kSample);
  Json shown = facts_of(before);
  Json rates = {{"made_per_second", nullptr}, {"evicted_per_second", nullptr}, {"recent_hit_rate", nullptr}};
  if (rows.has_living_workers) {
    const auto began = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(kBetweenReads);
    const TableStatistics then = before.statistics;
    const TableInfo after = find();
    const TableStatistics& now = after.statistics;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    shown = facts_of(after);
    rates["made_per_second"] = double(now.made - then.made) / seconds.count();
    rates["evicted_per_second"] = double(now.evicted - then.evicted) / seconds.count();
    rates["recent_hit_rate"] = hit_rate(now.hits - then.hits, now.misses - then.misses);
  }
  shown.update(rates);
  shown["sampled"] = {
      {"rows", rows.sampled},          {"with_keys", rows.with_keys}, {"sealed", rows.sealed},
      {"being_made", rows.being_made}, {"dead", rows.dead},           {"free", rows.free},
      {"mean_chain", rows.mean_chain}, {"p99_chain", rows.p99_chain}, {"longest_chain", rows.longest_chain}};
  const OddRows odd = TableReader(job, name).odd_rows(kSample);
  shown["values"] = {{"sampled", odd.sampled}, {"not_finite", odd.odd}, {"is_sample", odd.share != 1}};
  shown["pinned"] = rows.pinned;
  shown["hottest"] = Json::array();
  for (const TableCensus::Used& used : rows.hottest)
    shown["hottest"].push_back({{"key", used.key}, {"frequency", used.frequency}});
  return {{"job", job}, {"table", std::move(shown)}};
}

std::string tables_as_text(const Json& tables, Columns columns) {
  if (tables.empty()) return "";
  constexpr auto kStays = report::Column::kStays;
  std::vector<report::Row> rows;
  for (const Json& row : tables)
    rows.push_back({cell(row["name"]), cell(row["rows"]), cell(row["max_rows"]),
                    fmt::format("{:.2f}", row["load"].get<double>()), cell(row["row_size"]), cell(row["rule"]),
                    cell(row["evict"]), cell(row["parts"]), share_as_text(row["hit_rate"]),
                    bytes_as_text(row["bytes"])});
  return report::table_in_lines({{"TABLE", kStays, ""},
                                 {"ROWS", kStays, ""},
                                 {"MAX ROWS", kStays, ""},
                                 {"LOAD", 1, ""},
                                 {"ROW SIZE", 2, ""},
                                 {"RULE", 4, ""},
                                 {"EVICT", 3, ""},
                                 {"PARTS", 0, "1"},
                                 {"HITS", 5, "-"},
                                 {"SIZE", kStays, ""}},
                                rows, columns);
}

std::string table_as_text(const Json& shown, Columns columns) {
  const Json &table = shown["table"], &looked = table["sampled"], &values = table["values"];
  const auto rate = [&](const char* key) {
    return table[key].is_null() ? std::string() : fmt::format(", {:.1f} a second", table[key].get<double>());
  };
  std::string text = fmt::format(
      "table {} of job {}: {} of {} rows of {} {}, {}\n", cell(table["name"]), cell(shown["job"]), cell(table["rows"]),
      cell(table["max_rows"]), cell(table["row_size"]),
      table["dtype"] == "float32" ? "floats" : "numbers of " + cell(table["dtype"]), bytes_as_text(table["bytes"]));
  if (table["rows_with_room"] != table["max_rows"])
    text += fmt::format("  /dev/shm has memory for {} rows\n", cell(table["rows_with_room"]));
  text += fmt::format(
      "  rule {}, {}{}{}, {} part{}, {} a row\n", cell(table["rule"]),
      table["evict"] == "none" ? "refuses new keys when it is full" : fmt::format("evicts by {}", cell(table["evict"])),
      table["ttl"] == 0 ? "" : fmt::format(", ttl {}", report::duration(table["ttl"].get<double>())),
      table["admit_after"] == 1 ? "" : fmt::format(", admits with push {}", cell(table["admit_after"])),
      cell(table["parts"]), table["parts"] == 1 ? "" : "s", bytes_as_text(table["row_bytes"]));
  text += fmt::format("  made {}{}; evicted {}{}, {} of them too old\n", cell(table["made"]), rate("made_per_second"),
                      cell(table["evicted"]), rate("evicted_per_second"), cell(table["expired"]));
  text +=
      fmt::format("  spared {}, rescued {}, unadmitted {}, refused {}; searches restarted {}\n", cell(table["spared"]),
                  cell(table["rescued"]), cell(table["unadmitted"]), cell(table["refused"]), cell(table["restarts"]));
  text += fmt::format("  pulls with a row: {}{}\n", share_as_text(table["hit_rate"]),
                      table["recent_hit_rate"].is_null()
                          ? ""
                          : fmt::format(", {} in the last second", share_as_text(table["recent_hit_rate"])));
  text +=
      fmt::format("  {} rows looked at: {} with keys, of these {} sealed; {} being made, {} dead, {} free; {} pinned\n",
                  cell(looked["rows"]), cell(looked["with_keys"]), cell(looked["sealed"]), cell(looked["being_made"]),
                  cell(looked["dead"]), cell(looked["free"]), cell(table["pinned"]));
  text += fmt::format("  NaN or infinities in {} rows, of {} whose values were read{}\n", cell(values["not_finite"]),
                      cell(values["sampled"]), values["is_sample"] ? ", a sample" : "");
  text += fmt::format("  {} buckets, load {:.2f}; rows behind one: mean {:.2f}, p99 {}, most {}\n",
                      cell(table["buckets"]), table["load"].get<double>(), looked["mean_chain"].get<double>(),
                      cell(looked["p99_chain"]), cell(looked["longest_chain"]));
  for (const Json& used : table["hottest"])
    text += fmt::format("  {} key {}, frequency {}\n", &used == &table["hottest"].front() ? "hottest:" : "        ",
                        cell(used["key"]), cell(used["frequency"]));
  return report::fitted(text, columns);
}

Json dump_table(const JobView& view, const TableInfo& table, std::uint64_t limit) {
  Json rows = Json::array();
  for (const TableRow& row : view.table_rows(table.spec.name, limit)) {
    Json values = Json::array();
    for (const float value : row.values) values.push_back(number(value));
    rows.push_back({{"key", row.key}, {"values", std::move(values)}});
  }
  return {{"name", table.spec.name},
          {"row_size", table.spec.row_size},
          {"row_count", table.statistics.rows},
          {"rows", std::move(rows)}};
}

TableContents contents_of(const JobView& view, const std::string& table) {
  std::vector<TableRow> rows = view.table_rows(table);
  std::sort(rows.begin(), rows.end(), [](const TableRow& a, const TableRow& b) { return a.key < b.key; });
  TableContents all;
  for (const TableRow& row : rows) {
    all.keys.push_back(row.key);
    all.values.insert(all.values.end(), row.values.begin(), row.values.end());
  }
  return all;
}

std::string table_rows_as_text(const Json& table) {
  std::string text =
      fmt::format("{}, {} rows of {} floats\n", cell(table["name"]), cell(table["row_count"]), cell(table["row_size"]));
  for (const Json& row : table["rows"]) {
    text += fmt::format("{:>20}:", cell(row["key"]));
    for (const Json& value : row["values"])
      text += value.is_null() ? " -" : fmt::format(" {}", static_cast<float>(value.get<double>()));
    text += "\n";
  }
  if (table["rows"].size() < table["row_count"]) text += "                     ... (--limit 0 shows all)\n";
  return text;
}

}  // namespace ps_shm::inspect
