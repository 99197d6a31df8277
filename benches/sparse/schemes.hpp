// The ways of changing the rows of one table that are compared:
//
//   plain    one process, a table of its own, no parameter server: the base line
//   exact    a job's in-place variable, Worker::pull_rows and push_rows
//   racy     the same with racy adds: Hogwild! as published
//   striped  a table in shared memory with a spin lock for each stripe of rows (row modulo their number, a power of two). The lock is held
//            for one row's update at a time, so nobody holds two and their order does not matter; pulls take none
//   lock     the same with one spin lock, held from pull to push
//
// The locks are rivals for the sake of comparison: a process that dies with one of them stops all others for ever.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../processes.hpp"
#include "loop.hpp"
#include "ps_shm/worker.hpp"

namespace ps_shm::bench {

enum class Scheme { kPlain, kExact, kRacy, kStriped, kLock };

std::optional<Scheme> scheme_of(const std::string& name);
const char* to_string(Scheme scheme) noexcept;

// A table and the processes that work on it.
class Table {
 public:
  virtual ~Table() = default;
  // Rounds are batches. The epoch chooses the order of the examples, and the rate.
  virtual std::vector<Ran> run(const Span& span, std::uint64_t epoch) = 0;
  virtual std::vector<float> values() const = 0;
  virtual std::optional<StalenessSummary> staleness() const { return {}; }
};

// Requires: `task` outlives the table.
std::unique_ptr<Table> make_table(Scheme scheme, int workers, const Task& task, std::uint32_t stripes);

std::unique_ptr<Table> make_plain_table(const Task& task);
std::unique_ptr<Table> make_job_table(bool is_exact, int workers, const Task& task);
std::unique_ptr<Table> make_locked_table(std::uint32_t locks, int workers, const Task& task);  // 1: held for all
}  // namespace ps_shm::bench
