// A read-only view of a job, live or dead: its settings, variables' values, workers and counters. Writes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps/job_config.hpp"
#include "ps/worker.hpp"

namespace ps {

enum class WorkerState { kNever, kAlive, kLeft, kDead };
const char* to_string(WorkerState state) noexcept;

struct WorkerInfo {
  std::uint32_t rank = 0;
  WorkerState state = WorkerState::kNever;
  std::uint32_t pid = 0;
  std::uint64_t holders = 0;                         // how many processes have had this rank so far
  std::uint64_t steps = 0, pushes = 0, pulls = 0;    // pushes and pulls of variables
  std::uint64_t push_retries = 0, pull_retries = 0;  // of chunks
  std::uint64_t dropped = 0;                         // sync: gradients that came too late for their step
  std::uint64_t examples = 0;
  double loss = 0;
  double seconds = 0;       // from joining to now, or to leaving
  std::string waiting_for;  // empty: for nothing
  StalenessSummary staleness;
};

struct VariableInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape;
  UpdateRule rule = UpdateRule::kSgd;
  Layout layout = Layout::kVersioned;
  std::uint64_t element_count = 0;
  std::uint64_t bytes = 0;   // of the values alone
  std::uint64_t pieces = 0;  // chunks or blocks
  std::uint64_t piece_elements = 0;
  std::uint64_t updates = 0;  // pushes counted over all pieces, divided by their number
  std::uint32_t shard = 0;
  bool initialised = false;
};

struct JobInfo {
  JobConfig config;
  std::uint64_t global_step = 0;
  bool finished = false;
  bool served = false;  // a live ps has it
  std::uint32_t ps_pid = 0;
  std::uint64_t instance = 0;
  std::uint64_t created_unix_ns = 0;
  std::uint64_t control_bytes = 0, shard_bytes = 0, gradient_bytes = 0, spare_bytes = 0;
};

class JobView {
 public:
  // Throws Error naming the outcome: no such job, still being created, of another layout version or build, damaged.
  explicit JobView(const std::string& job);
  ~JobView();
  JobView(JobView&&) noexcept;
  JobView& operator=(JobView&&) = delete;

  // The same, or nothing where the job does not exist yet or is still being created.
  static std::optional<JobView> try_open(const std::string& job);

  JobInfo info() const;
  std::vector<WorkerInfo> workers() const;  // of every rank that somebody has had
  std::vector<VariableInfo> variables() const;

  // Values of an initialised variable, as Worker::pull gives them. Throws Error: unknown (lists those there are),
  // not initialised.
  std::vector<float> values(const std::string& name) const;

  // Over all workers together.
  StalenessSummary staleness() const;

  // A 64-bit hash (FNV-1a) over name and values of all variables in the order of their names.
  std::uint64_t digest() const;

 private:
  struct Impl;
  explicit JobView(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
