#include "sparse_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <string_view>

#include "config/modes.hpp"
#include "option_tables.hpp"
#include "ps/errors.hpp"
#include "train/models.hpp"
#include "train/sparse/sparse_trainer.hpp"
#include "update/traits.hpp"

namespace ps::tools {
namespace {

constexpr std::string_view kOfCount[] = {"size", "interval"};
constexpr const char* kOfDenseModels[] = {"push-every", "local-lr", "no-stream-waits"};
constexpr const char* kEpoch = "epoch:";

}  // namespace

std::string names_with_factors() {
  return train::model_names([](const train::ModelRow& row) { return row.has_factors; });
}

std::string names_with_bias() {
  return train::model_names(
      [](const train::ModelRow& row) { return row.kind == train::ModelKind::kSparse && !row.has_factors; }, "and");
}

bool TrainingSettings::is_sparse() const { return train::model_row(model).kind == train::ModelKind::kSparse; }

bool is_epoch_schedule(const std::string& text) {
  return text.starts_with(kEpoch) || text.find(std::string("+") + kEpoch) != std::string::npos;
}

Schedule resolve_schedule(const std::string& text, std::uint64_t steps_per_epoch) {
  if (!is_epoch_schedule(text)) return Schedule::parse(text);
  std::string resolved = text;
  resolved.replace(resolved.find(kEpoch), std::string(kEpoch).size(), "step:");
  try {
    return Schedule::parse(fmt::format("{}:{}", resolved, steps_per_epoch));
  } catch (const Error&) {
    throw Error(fmt::format(
        "learning-rate schedule '{}': use epoch:DECAY with DECAY above 0, also behind warmup:STEPS+", text));
  }
}

void complete_training(const CommandLine& line, TrainingSettings& training) {
  if (training.epochs != 0 && training.steps != 0) throw Error("--epochs: give either --epochs or --steps, not both");
  if (training.is_count() && (training.epochs != 0 || !training.epoch_schedule.empty()))
    throw Error("--epochs, --lr-schedule epoch: count has no epochs; choose another --model");
  if (!training.init_match.empty() && training.init_from.empty())
    throw Error("--init-match: of the variables that --init-from has values for; give a file, too");
  try {
    static_cast<void>(std::regex(training.init_match));
  } catch (const std::regex_error& error) {
    throw Error(fmt::format("--init-match {}: no regular expression: {}", training.init_match, error.what()));
  }
  const train::ModelRow& row = train::model_row(training.model);
  for (const std::string_view option : kOfCount)
    if (!training.is_count() && line.was_given(std::string(option)))
      throw Error(fmt::format("--{}: of --model count only; leave it out", option));
  if (!training.is_sparse()) {
    for (const config::Setting<SparseSettings>& setting : sparse_settings())
      if (line.was_given(setting.name))
        throw Error(fmt::format("--{}: of sparse models only; choose --model {}", setting.name,
                                train::model_names(train::ModelKind::kSparse)));
    if (training.is_count())
      for (const config::Setting<TrainingSettings>& setting : training_settings())
        if ((setting.group == config::Group::kData || setting.group == config::Group::kOptimizer) &&
            setting.name != std::string("model") && line.was_given(setting.name) &&
            std::find(std::begin(kOfCount), std::end(kOfCount), setting.name) == std::end(kOfCount))
          throw Error(fmt::format("--{}: model count has none; leave it out", setting.name));
    if (training.data.empty()) training.data = row.usual_data;
    return;
  }
  for (const char* option : kOfDenseModels)
    if (line.was_given(option))
      throw Error(fmt::format("--{}: model {} has none; leave it out, or choose --model mlp", option, training.model));
  SparseSettings& sparse = training.sparse;
  if (!row.has_factors && sparse.factors)
    throw Error(fmt::format("--factors: model {} has none; choose --model {}", training.model, names_with_factors()));
  if (!row.has_factors && sparse.factor_l2)
    throw Error(
        fmt::format("--factor-l2: model {} has no factors; choose --model {}", training.model, names_with_factors()));
  if (row.has_factors && sparse.bias)
    throw Error(fmt::format("--bias: of {}; model {} has what it needs", names_with_bias(), training.model));
  if (!sparse.test_data.empty() && sparse.test_share)
    throw Error("--test-share: give either --test-data or --test-share, not both");
  const std::uint64_t batch = training.batch != 0 ? training.batch : train::SparseTrainOptions::kBatch;
  if (sparse.combine > batch)
    throw Error(fmt::format("--combine: {} are more than the {} examples of a --batch", sparse.combine, batch));
  if (training.data.empty()) training.data = row.usual_data;
}

void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job) {
  if (!training.is_sparse()) return;
  Optimizer& optimizer = job.optimizer;
  if (traits_of(job.mode).needs_versioned)
    throw Error(fmt::format("--mode {}: the rows of model {} change where they lie; choose --mode async or ssp",
                            to_string(job.mode), training.model));
  if (optimizer.ema > 0) throw Error(fmt::format("--ema: model {} keeps no averages; leave it out", training.model));
  if (optimizer.staleness_scaling)
    throw Error(fmt::format("--lr-staleness: rows of model {} know no staleness; leave it out", training.model));
  if (optimizer.weight_decay) throw Error(fmt::format("--weight-decay: model {} has --l2 instead", training.model));
  const update::Traits& traits = update::traits_of(optimizer.rule);
  if (line.was_given("optimizer") && traits.reads_by_rate && !optimizer.schedule.is_constant())
    throw Error(fmt::format(
        "--lr-schedule: optimizer {} computes rows of the learning rate; use constant, or another --optimizer",
        traits.name));
  job.layout = Layout::kInplace;
  if (line.was_given("optimizer")) {
    if (traits.is_sum)
      throw Error(fmt::format("--optimizer {}: model {} needs another one; choose sgd, adagrad, ftrl or adam",
                              traits.name, training.model));
    return;
  }
  const train::ModelRow& row = train::model_row(training.model);
  optimizer.rule = row.usual_rule;
  if (!optimizer.learning_rate) optimizer.learning_rate = row.usual_learning_rate;
}

void check_sparse_device(const TrainingSettings& training, const device::DeviceChoice& device) {
  if (training.is_sparse() && device.must_be_gpu())
    throw Error(fmt::format("--device: model {} computes on the CPU; choose --device cpu", training.model));
}

}  // namespace ps::tools
