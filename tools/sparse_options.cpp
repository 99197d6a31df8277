#include "sparse_options.hpp"

#include <algorithm>
#include <iterator>

#include "train/sparse/sparse_model.hpp"
#include "train/sparse/sparse_trainer.hpp"

namespace ps::tools {
namespace {

constexpr const char* kOfSparseModels[] = {"--test-data", "--test-share", "--format",     "--index-base",
                                           "--hash-bits", "--cache",      "--share-data", "--factors",
                                           "--factor-l2", "--bias",       "--combine"};
constexpr const char* kOfDenseModels[] = {"--push-every", "--local-lr", "--no-stream-waits"};
constexpr const char* kEpoch = "epoch:";

bool has_factors(const TrainingSettings& training) { return training.model == "mf" || training.model == "fm"; }

// What a model learns well with on data of many kinds; measured, see the README's section on sparse models.
struct Usual {
  const char* model;
  UpdateRule rule;
  float learning_rate;
};
constexpr Usual kUsual[] = {{"logistic", UpdateRule::kAdagrad, 0.1F},
                            {"svm", UpdateRule::kAdagrad, 0.1F},
                            {"mf", UpdateRule::kAdagrad, 0.05F},
                            {"fm", UpdateRule::kAdagrad, 0.05F}};

}  // namespace

bool TrainingSettings::is_sparse() const { return train::is_sparse_model(model); }

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

void CommandLine::add_sparse(SparseSettings& settings) {
  using Format = train::SparseSourceOptions::Format;
  using train::FirstIndex;
  add("--test-data", "FILE", "sparse models: examples to test with (a share of --data)",
      [&settings](const std::string& text) { settings.test_data = text; });
  add("--test-share", "X",
      "sparse models: the share of --data that is held out to test with; 0: test with the training data (0.1)",
      [&settings](const std::string& text) {
        settings.test_share = read_real(text);
        if (*settings.test_share < 0 || *settings.test_share >= 1) throw Error("must be at least 0 and less than 1");
      });
  add_choice<Format>("--format", settings.format, "of --data: LIBSVM text, or `user item rating [time]` (by content)",
                     {{"libsvm", Format::kLibsvm}, {"ratings", Format::kRatings}});
  add_choice<FirstIndex>("--index-base", settings.first_index, "LIBSVM: the first index (1, or 0 where a 0 occurs)",
                         {{"0", FirstIndex::kZero}, {"1", FirstIndex::kOne}});
  add_whole("--hash-bits", settings.hash_bits, 1, 31, "LIBSVM: hash features into a table of 2^N (as they are)");
  add("--cache", "DIR", "keep the data there in binary form, for the next run (none)",
      [&settings](const std::string& text) { settings.cache = text; });
  add_flag("--share-data", settings.share_data, "the workers share one copy of the data, in shared memory");
  add_whole("--factors", settings.factors, 0, 4096, "mf, fm: factors of each row (8)");
  add_real("--factor-l2", settings.factor_l2, "mf, fm: L2 regularisation of factors (--l2)");
  add_flag("--bias", settings.bias, "logistic, svm: a weight that every example has");
  add_whole("--combine", settings.combine, 1, 1'000'000'000,
            "sparse models: examples whose gradients are summed up privately, then pushed together (1)");
}

void complete_training(const CommandLine& line, TrainingSettings& training) {
  training.epoch_schedule = line.epoch_schedule();
  if (training.epochs != 0 && training.steps != 0) throw Error("--epochs: give either --epochs or --steps, not both");
  if (training.is_count() && (training.epochs != 0 || !training.epoch_schedule.empty()))
    throw Error("--epochs, --lr-schedule epoch: count has no epochs; choose another --model");
  if (!training.is_sparse()) {
    for (const char* option : kOfSparseModels)
      if (line.was_given(option))
        throw Error(fmt::format("{}: of sparse models only; choose --model logistic, svm, mf or fm", option));
    if (training.data.empty()) training.data = "digits";
    return;
  }
  for (const char* option : kOfDenseModels)
    if (line.was_given(option))
      throw Error(fmt::format("{}: model {} has none; leave it out, or choose --model mlp", option, training.model));
  SparseSettings& sparse = training.sparse;
  if (!has_factors(training) && sparse.factors)
    throw Error(fmt::format("--factors: model {} has none; choose --model mf or fm", training.model));
  if (!has_factors(training) && sparse.factor_l2)
    throw Error(fmt::format("--factor-l2: model {} has no factors; choose --model mf or fm", training.model));
  if (has_factors(training) && sparse.bias)
    throw Error(fmt::format("--bias: of logistic and svm; model {} has what it needs", training.model));
  if (!sparse.test_data.empty() && sparse.test_share)
    throw Error("--test-share: give either --test-data or --test-share, not both");
  const std::uint64_t batch = training.batch != 0 ? training.batch : train::SparseTrainOptions::kBatch;
  if (sparse.combine > batch)
    throw Error(fmt::format("--combine: {} are more than the {} examples of a --batch", sparse.combine, batch));
  if (training.data.empty()) training.data = has_factors(training) ? "ratings:300x200x20000" : "zipf:1000x5000x10";
}

void complete_sparse_job(const CommandLine& line, const TrainingSettings& training, JobConfig& job) {
  if (!training.is_sparse()) return;
  Optimizer& optimizer = job.optimizer;
  if (job.mode == Mode::kSync)
    throw Error(fmt::format("--mode sync: the rows of model {} change where they lie; choose --mode async or ssp",
                            training.model));
  if (optimizer.ema > 0) throw Error(fmt::format("--ema: model {} keeps no averages; leave it out", training.model));
  if (optimizer.staleness_scaling)
    throw Error(fmt::format("--lr-staleness: rows of model {} know no staleness; leave it out", training.model));
  if (optimizer.weight_decay) throw Error(fmt::format("--weight-decay: model {} has --l2 instead", training.model));
  if (line.was_given("--optimizer") && optimizer.rule == UpdateRule::kFtrl && !optimizer.schedule.is_constant())
    throw Error(
        "--lr-schedule: optimizer ftrl computes rows of the learning rate; use constant, or another --optimizer");
  job.layout = Layout::kInplace;
  if (line.was_given("--optimizer")) {
    if (optimizer.rule == UpdateRule::kAdd)
      throw Error(fmt::format("--optimizer add: model {} needs another one; choose sgd, adagrad, ftrl or adam",
                              training.model));
    return;
  }
  const auto* usual =
      std::find_if(std::begin(kUsual), std::end(kUsual), [&](const Usual& one) { return training.model == one.model; });
  optimizer.rule = usual->rule;
  if (!optimizer.learning_rate) optimizer.learning_rate = usual->learning_rate;
}

void check_sparse_device(const TrainingSettings& training, const device::DeviceChoice& device) {
  if (training.is_sparse() && device.kind == device::DeviceChoice::Kind::kCuda)
    throw Error(fmt::format("--device: model {} computes on the CPU; choose --device cpu", training.model));
}

}  // namespace ps::tools
