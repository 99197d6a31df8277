// --summary-dir of a ps: what the job's shared memory says of all workers, and the parameters.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ps/job_view.hpp"
#include "repeating.hpp"
#include "summaries.hpp"

namespace ps::tools {

// Works in a thread of its own, from the job's first step on until it goes; the last state is written then, too.
class JobSummaries {
 public:
  JobSummaries(const JobConfig& job, const SummarySettings& settings, Notice notice);

 private:
  void look(bool is_last);
  keep::Summary state(std::uint64_t step);
  void add_workers(keep::Summary& summary, std::uint64_t step);
  void add_staleness(keep::Summary& summary);
  void add_parameters(keep::Summary& summary);

  const std::string job_;
  const Notice notice_;
  SummaryWriter writer_;
  std::optional<JobView> view_;
  std::string said_;
  Speed steps_, examples_;
  std::vector<StalenessCount> stale_;  // as it was at the last look
  double stale_mean_ = 0.0;
  Repeating repeating_;  // the last member: it uses the others
};

}  // namespace ps::tools
