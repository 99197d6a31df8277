// --summary-dir of a process that trains.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "summaries.hpp"
#include "train/step_observer.hpp"
#include "train/train_log.hpp"

namespace ps::tools {

// What a worker writes: the loss, its speed, its gradients. A process that trains alone writes what a ps would, too.
class TrainingSummaries final : public train::StepObserver {
 public:
  // `alone`: the job's settings where there is no ps.
  TrainingSummaries(const WorkerSettings& settings, std::uint32_t rank, std::optional<JobConfig> alone, Notice notice);

  bool wants(std::uint64_t step) override { return worker_.is_due(step); }
  void observe(const train::StepView& view) override;

  // The last batch, and what has come of the parameters.
  void finish(const train::TrainTotals& totals, std::vector<train::NamedValues> parameters = {});

 private:
  SummaryWriter worker_;
  const std::optional<JobConfig> alone_;
  std::optional<SummaryWriter> ps_;
  Speed steps_, examples_;
};

// None where no summaries are wanted.
std::optional<TrainingSummaries> training_summaries(const WorkerSettings& settings, std::uint32_t rank,
                                                    std::optional<JobConfig> alone = std::nullopt);

}  // namespace ps::tools
