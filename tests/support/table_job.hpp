// A job with a table by key, and what its dumps leave in the hands of one who applies them.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/table_layout.hpp"
#include "support/error_text.hpp"
#include "support/rows_job.hpp"

namespace ps_shm::test {

using Keys = std::vector<std::uint64_t>;
using Floats = std::vector<float>;

// Where the list of a table has the key's row, in a job with the settings of row_config().
inline std::uint64_t order_of(std::uint64_t key) { return shm::order_of_row(shm::KeyHash::of_seed(kRowSeed), key); }

// A job, and a worker of it with a table.
struct TableJob : Job {
  Worker worker{join({}, config.threads)};
  Table table;

  explicit TableJob(const TableSpec& spec, const JobConfig& given = row_config(UpdateRule::kAdd))
      : Job(given), table(worker.table(spec)) {}

  Floats pull(const Keys& keys) {
    Floats out(keys.size() * table.row_size());
    table.pull(keys, out);
    return out;
  }
  PushedKeys push(const Keys& keys, float gradient) {
    return table.push(keys, Floats(keys.size() * table.row_size(), gradient));
  }
  bool has(std::uint64_t key) {
    bool found = false;
    return table.contains({&key, 1}, {&found, 1}) == 1;
  }
};

inline TableSpec spec_of(std::uint64_t max_rows, std::uint64_t width = 3) {
  return {.name = "items", .row_size = width, .max_rows = max_rows, .evict = Evict::kLru};
}

// Keys that look like those of users: large, not in order.
inline Keys some_keys(std::size_t count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  Keys keys(count);
  for (std::uint64_t& key : keys) key = random();
  return keys;
}

// A copy of a table, kept by its dumps.
struct TableCopy {
  std::map<std::uint64_t, Floats> rows;
  std::uint64_t version = 0, full = 0;  // full: how many of the dumps had all rows

  void follow(Table& table) {
    std::map<std::uint64_t, Floats> changed;
    const TableDump dump = table.dump(
        version,
        [&](const TableRow& row) {
          Floats& floats = changed[row.key];
          floats.assign(row.values.begin(), row.values.end());
          floats.insert(floats.end(), row.state.begin(), row.state.end());
        },
        [&](std::uint64_t key) { rows.erase(key); });
    if (dump.is_full) rows.clear(), ++full;
    for (auto& [key, floats] : changed) rows[key] = std::move(floats);
    version = dump.version;
  }
};

}  // namespace ps_shm::test
