// --summary-dir of a process that trains.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/options.hpp"
#include "common/summaries.hpp"
#include "train/log/step_observer.hpp"
#include "train/log/train_log.hpp"

namespace ps_shm::tools {

// What a worker writes: loss, speed and gradients. A standalone process also writes what a ps would.
class TrainingSummaries final : public train::StepObserver {
 public:
  // `alone`: the job's settings if there is no ps.
  TrainingSummaries(const WorkerSettings& settings, std::uint32_t rank, std::optional<JobConfig> alone,
                    LogCallback log);

  bool wants(std::uint64_t step) override { return worker_.is_due(step); }
  void observe(const train::StepView& view) override;

  // The last batch, and the resulting parameters.
  void finish(const train::TrainTotals& totals, std::vector<train::NamedValues> parameters = {});

 private:
  SummaryWriter worker_;
  const std::optional<JobConfig> alone_;
  std::optional<SummaryWriter> ps_;
  Speed steps_, examples_;
};

// None if no summaries are requested.
std::optional<TrainingSummaries> training_summaries(const WorkerSettings& settings, std::uint32_t rank,
                                                    std::optional<JobConfig> alone = std::nullopt);

}  // namespace ps_shm::tools
