// Jobs of tests: their settings, their server, and the workers, variables and tables of one process.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::test {

inline std::string unique_job_name() {
  static std::atomic<int> count{0};
  return fmt::format("test-{}-{}", getpid(), count++);
}

// A job name whose segments are unlinked at the end, whichever processes created or hold them.
class JobName {
 public:
  JobName() : name_(unique_job_name()) {}
  explicit JobName(std::string name) : name_(std::move(name)) {}
  ~JobName() {
    for (const std::string& segment : segments()) shm::unlink_segment(segment);
  }
  JobName(const JobName&) = delete;
  JobName& operator=(const JobName&) = delete;

  const std::string& text() const noexcept { return name_; }
  std::string control() const { return shm::control_name(name_); }

  // The names in /dev/shm that belong to the job.
  std::vector<std::string> segments() const {
    std::vector<std::string> found;
    for (const std::string& segment : shm::list_segments(control()))
      if (segment == control() || segment.compare(0, control().size() + 1, control() + ".") == 0)
        found.push_back(segment);
    return found;
  }

 private:
  std::string name_;
};

inline JobConfig with_name(JobConfig config, const std::string& name) {
  config.job = name;
  return config;
}

// An attachment to the job: its own descriptor, locks and addresses, as another process has them.
inline shm::JobSegments attach(const std::string& job, shm::Access access = shm::Access::kReadWrite) {
  shm::AttachOutcome outcome;
  auto attached = shm::JobSegments::try_attach(job, access, outcome);
  if (!attached) throw std::runtime_error("cannot attach to " + job);
  return std::move(*attached);
}

// The configuration, with a job name that no other has and a limit on waits for peers where it has none.
inline JobConfig config_of(JobConfig config = {}) {
  if (config.job.empty()) config.job = unique_job_name();
  if (!config.step_timeout) config.step_timeout = Seconds(600);
  return config;
}

// Options of a worker of the job, which logs nothing.
inline WorkerOptions options(const JobConfig& config, std::optional<std::uint32_t> rank = {},
                             std::uint32_t threads = 1) {
  return {.job = config.job, .rank = rank, .threads = threads, .log = [](const std::string&) {}};
}

inline void zero(std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }

inline VariableSpec vector_of(std::uint64_t elements, std::optional<UpdateRule> rule = UpdateRule::kAdd) {
  return {.name = "v", .shape = {elements}, .rule = rule};
}

// The values of the variable's elements, or of some of its rows.
inline std::vector<float> pulled(Worker& worker, const Variable& variable) {
  std::vector<float> out(variable.element_count());
  worker.pull(variable, out);
  return out;
}
inline std::vector<float> pulled(Worker& worker, const Variable& variable, const std::vector<std::uint32_t>& ids) {
  std::vector<float> out(ids.size() * variable.row_size());
  worker.pull_rows(variable, ids, out);
  return out;
}

// A job and its server.
struct Job {
  JobConfig config;
  JobName name{config.job};
  Server server{config};

  explicit Job(const JobConfig& given = {}) : config(config_of(given)) {}

  JobView view() const { return JobView(config.job); }
  shm::JobSegments attach(shm::Access access = shm::Access::kReadWrite) const {
    return test::attach(config.job, access);
  }
  WorkerOptions options(std::optional<std::uint32_t> rank = {}, std::uint32_t threads = 1) const {
    return test::options(config, rank, threads);
  }
  Worker join(std::optional<std::uint32_t> rank = {}, std::uint32_t threads = 1) const {
    return Worker(options(rank, threads));
  }
};

// A job, and a worker of it which has declared a variable.
struct VariableJob : Job {
  Worker worker;
  VariableSpec spec;
  Variable variable;

  VariableJob(const JobConfig& given, const VariableSpec& declared, const Initializer& initialize = zero)
      : Job(given), worker(join({}, config.threads)), spec(declared), variable(worker.variable(spec, initialize)) {}

  std::vector<float> pull() { return pulled(worker, variable); }
  std::vector<float> pull(const std::vector<std::uint32_t>& ids) { return pulled(worker, variable, ids); }
};

}  // namespace ps_shm::test
