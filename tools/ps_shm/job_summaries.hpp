// --summary-dir of a ps: data of all workers from the job's shared memory, and the parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/repeating.hpp"
#include "common/summaries.hpp"
#include "ps_shm/job_view.hpp"

namespace ps_shm::tools {

// Works in a thread of its own from the job's first step until its destruction, when it writes the last state.
class JobSummaries {
 public:
  JobSummaries(const JobConfig& job, const SummarySettings& settings, LogCallback log);

 private:
  bool look(bool is_last);
  persistence::Summary state(std::uint64_t step);
  void add_workers(persistence::Summary& summary, std::uint64_t step);
  void add_staleness(persistence::Summary& summary);
  void add_parameters(persistence::Summary& summary);

  const std::string job_;
  const LogCallback log_;
  SummaryWriter writer_;
  std::optional<JobView> view_;
  Speed steps_, examples_;
  std::vector<StalenessCount> stale_;  // at the previous call
  double stale_mean_ = 0.0;
  Repeating repeating_;  // the last member: it uses the others
};

}  // namespace ps_shm::tools
