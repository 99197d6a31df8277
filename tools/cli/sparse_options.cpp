#include "cli/sparse_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "cli/init_match.hpp"
#include "cli/option_tables.hpp"
#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "train/loop/sparse_trainer.hpp"
#include "train/models/models.hpp"
#include "update/traits.hpp"

namespace ps_shm::tools {
namespace {

constexpr std::string_view kOfCount[] = {"count-size", "count-interval"};
// What a model that does not learn has no use for, and why.
constexpr std::pair<const char*, const char*> kNeedLearning[] = {
    {"standalone", "needs a ps"},
    {"evaluate", "has no loss"},
    {"evaluate-every", "has no loss"},
    {"on-nan", "has no loss"},
    {"curve", "has no loss"},
    {"epochs", "has no epochs"},
    {"push-every", "has nothing to train"},
    {"trace", "has no phases"},
    {"record", "adds ones, whose sum is the same in any order"},
};
constexpr const char* kOfDenseModels[] = {"push-every", "shard-data", "local-lr", "enqueue", "wire"};
// What is not possible with --keyed, and why.
constexpr const char* kKeysAsTheyAre = "features are taken by their own numbers";
constexpr const char* kNoSnapshots = "a table by key has no snapshots; the model is evaluated at the end";
constexpr std::pair<const char*, const char*> kNotKeyed[] = {
    {"hash-bits", kKeysAsTheyAre},
    {"index-base", kKeysAsTheyAre},
    {"init-from", "a table by key makes its rows as features come"},
    {"curve", kNoSnapshots},
    {"evaluate", kNoSnapshots},
    {"evaluate-every", kNoSnapshots},
    {"publish", "a table by key is not published"},
    {"save", "the rows of a table by key are saved by --checkpoint-dir"},
    {"record", "accesses of a table by key are not recorded"},
    {"replay", "accesses of a table by key are not recorded"},
    {"place", "a table by key has no shard of its own; divide it over all of them by --placement partition"},
    {"standalone", "a table by key belongs to a job; launch_shm --workers 1 trains with one worker"},
};
constexpr const char* kEpoch = "epoch:";

[[noreturn]] void refuse_without_learning(const char* option, const std::string& model, const char* why) {
  throw Error(fmt::format("--{}: model {} {}; choose --model {}", option, model, why,
                          train::model_names(train::ModelKind::kDense)));
}

void check_keyed(const CommandLine& line, const TrainingSettings& training) {
  const SparseSettings& sparse = training.sparse;
  constexpr double kMostSeconds = 30.0 * 24 * 3600;
  for (const char* option : {"max-rows", "admit-after", "evict", "ttl"})
    if (!sparse.keyed && line.was_given(option)) throw Error(fmt::format("--{}: requires --keyed", option));
  for (const auto& [option, why] : kNotKeyed)
    if (sparse.keyed && line.was_given(option)) throw Error(fmt::format("--{}: not with --keyed: {}", option, why));
  if (sparse.table.ttl > kMostSeconds) throw Error(fmt::format("--ttl: at most {} s, 30 days", kMostSeconds));
}

}  // namespace

std::string names_with_factors() {
  return train::model_names([](const train::ModelRow& row) { return row.has_factors; });
}

std::string names_with_bias() {
  return train::model_names(
      [](const train::ModelRow& row) { return row.kind == train::ModelKind::kSparse && !row.has_factors; }, "and");
}

// The name of a program after -- is that of no model.
bool TrainingSettings::learns() const {
  const auto rows = train::models();
  return std::none_of(rows.begin(), rows.end(), [&](const train::ModelRow& row) {
    return row.name == model && row.kind == train::ModelKind::kCount;
  });
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
        "learning-rate schedule '{}': use epoch:DECAY with DECAY above 0, optionally after warmup:STEPS+", text));
  }
}

void complete_training(const CommandLine& line, TrainingSettings& training) {
  if (training.epochs != 0 && training.steps != 0) throw Error("--epochs: give either --epochs or --steps, not both");
  if (!training.learns()) {
    for (const auto& [option, why] : kNeedLearning)
      if (line.was_given(option)) refuse_without_learning(option, training.model, why);
    if (!training.epoch_schedule.empty()) refuse_without_learning("lr-schedule epoch", training.model, "has no epochs");
    for (const config::Setting<Optimizer>& row : config::optimizer_settings())  // the environment may be for others
      if (line.was_typed(row.name)) refuse_without_learning(row.name, training.model, "adds ones, by no optimizer");
  }
  if (line.was_typed("local-lr") && training.push_every <= 1)
    throw Error("--local-lr: the rate of the local steps between pushes; requires --push-every");
  if (!training.init_match.empty() && training.init_from.empty())
    throw Error("--init-match: requires --init-from FILE");
  check_init_match(training.init_match);
  const train::ModelRow& row = train::model_row(training.model);
  for (const std::string_view option : kOfCount)
    if (training.learns() && line.was_given(std::string(option)))
      throw Error(fmt::format("--{}: for --model count only; leave it out", option));
  if (!training.is_sparse()) {
    for (const config::Setting<SparseSettings>& setting : sparse_settings())
      if (line.was_given(setting.name))
        throw Error(fmt::format("--{}: for sparse models only; choose --model {}", setting.name,
                                train::model_names(train::ModelKind::kSparse)));
    if (!training.learns())
      for (const config::Setting<TrainingSettings>& setting : training_settings())
        if ((setting.group == config::Group::kData || setting.group == config::Group::kOptimizer) &&
            setting.name != std::string("model") && line.was_given(setting.name) &&
            std::find(std::begin(kOfCount), std::end(kOfCount), setting.name) == std::end(kOfCount))
          throw Error(fmt::format("--{}: not used by model count; leave it out", setting.name));
    if (training.data.empty()) training.data = row.default_data;
    return;
  }
  for (const char* option : kOfDenseModels)
    if (line.was_given(option))
      throw Error(
          fmt::format("--{}: not used by model {}; leave it out, or choose --model mlp", option, training.model));
  SparseSettings& sparse = training.sparse;
  check_keyed(line, training);
  if (!row.has_factors && sparse.factors)
    throw Error(
        fmt::format("--factors: model {} has no factors; choose --model {}", training.model, names_with_factors()));
  if (!row.has_factors && sparse.factor_l2)
    throw Error(
        fmt::format("--factor-l2: model {} has no factors; choose --model {}", training.model, names_with_factors()));
  if (row.has_factors && sparse.bias)
    throw Error(fmt::format("--bias: for {} only; model {} does not need it", names_with_bias(), training.model));
  if (!sparse.test_data.empty() && sparse.test_share)
    throw Error("--test-share: give either --test-data or --test-share, not both");
  const std::uint64_t batch = training.batch != 0 ? training.batch : train::SparseTrainOptions::kBatch;
  if (sparse.combine > batch)
    throw Error(fmt::format("--combine: {} exceeds the {} examples of a --batch", sparse.combine, batch));
  if (training.data.empty()) training.data = row.default_data;
}

void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job) {
  if (!training.is_sparse()) return;
  Optimizer& optimizer = job.optimizer;
  if (traits_of(job.mode).needs_versioned)
    throw Error(fmt::format("--mode {}: the rows of model {} are updated in place; choose --mode async or ssp",
                            to_string(job.mode), training.model));
  if (optimizer.ema > 0) throw Error(fmt::format("--ema: model {} keeps no averages; leave it out", training.model));
  if (optimizer.lr_staleness)
    throw Error(fmt::format(
        "--lr-staleness: the rows of model {} have no staleness; leave it out, or limit it with --stale-limit",
        training.model));
  if (optimizer.weight_decay)
    throw Error(fmt::format("--weight-decay: not used by model {}; use --l2 instead", training.model));
  const update::Traits& traits = update::traits_of(optimizer.rule);
  if (line.was_given("optimizer") && traits.reads_by_rate && !optimizer.schedule.is_constant())
    throw Error(fmt::format(
        "--lr-schedule: optimizer {} computes rows from a fixed learning rate; use constant, or another --optimizer",
        traits.name));
  job.layout = Layout::kInplace;
  if (line.was_given("optimizer")) {
    if (traits.is_sum)
      throw Error(fmt::format("--optimizer {}: not supported by model {}; choose sgd, adagrad, ftrl or adam",
                              traits.name, training.model));
    return;
  }
  const train::ModelRow& row = train::model_row(training.model);
  optimizer.rule = row.default_rule;
  if (!optimizer.lr) optimizer.lr = row.default_lr;
}

}  // namespace ps_shm::tools
