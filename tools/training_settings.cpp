// The table of what workers do: model, data, batches.
#include "config/values.hpp"
#include "option_tables.hpp"
#include "sparse_options.hpp"
#include "train/models.hpp"

namespace ps::tools {
namespace {

using config::Group;
constexpr unsigned kBoth = config::kWorker | config::kLaunch;
constexpr auto kData = Group::kData, kOptimizer = Group::kOptimizer;

}  // namespace

const config::Settings<SparseSettings>& sparse_settings() {
  using namespace config;
  using S = SparseSettings;
  using Format = train::SparseSourceOptions::Format;
  using train::FirstIndex;
  // clang-format off
  static const Settings<S> kRows = {
      {"test-data", text(&S::test_data, "FILE"), kData, kBoth, "sparse models: examples to test with",
       {.otherwise = "a share of --data"}},
      {"test-share", share(&S::test_share), kData, kBoth,
       "sparse models: the share of --data that is held out to test with; 0: test with the training data",
       {.otherwise = "0.1; 0 with --test-data"}},
      {"format", choice(&S::format, Choices<Format>{{Format::kLibsvm, "libsvm"}, {Format::kRatings, "ratings"}},
       true), kData, kBoth, "of --data: LIBSVM text, or `user item rating [time]`", {.otherwise = "by content"}},
      {"index-base", choice(&S::first_index, Choices<FirstIndex>{{FirstIndex::kZero, "0"}, {FirstIndex::kOne, "1"}},
       true), kData, kBoth, "LIBSVM: the first index", {.otherwise = "1, or 0 where a 0 occurs"}},
      {"hash-bits", whole_or_none(&S::hash_bits, 1, 31), kData, kBoth, "LIBSVM: hash features into a table of 2^N",
       {.otherwise = "features as they are"}},
      {"cache", text(&S::cache, "DIR"), kData, kBoth, "keep the data there in binary form, for the next run"},
      {"share-data", flag(&S::share_data), kData, kBoth, "the workers share one copy of the data, in shared memory"},
      {"factors", whole_or_none(&S::factors, 0, 4096), kData, kBoth, names_with_factors() + ": factors of each row",
       {.otherwise = "8"}},
      {"factor-l2", amount(&S::factor_l2), kData, kBoth, names_with_factors() + ": L2 regularisation of factors",
       {.otherwise = "as --l2"}},
      {"bias", flag(&S::bias), kData, kBoth, names_with_bias() + ": a weight that every example has"},
      {"combine", whole(&S::combine, 1, 1'000'000'000), kData, kBoth,
       "sparse models: how many examples' gradients are summed up privately, then pushed together",
       {.unit = "examples"}},
  };
  // clang-format on
  return kRows;
}

const config::Settings<TrainingSettings>& training_settings() {
  using namespace config;
  using T = TrainingSettings;
  static const Settings<T> kRows = [] {
    Choices<std::string> models;
    for (const train::ModelRow& row : train::models()) models.emplace_back(row.name, row.name);
    // clang-format off
    Settings<T> rows = {
        {"model", choice(&T::model, models), kData, kBoth, "what to train; count adds 1.0 to the variable var; " +
         train::model_names(train::ModelKind::kSparse, "and") + " are of sparse examples", {.common = kBoth}},
        {"data", text(&T::data, "SOURCE"), kData, kBoth,
         "digits, fashion-mnist, a folder of IDX files, or made up: synthetic:FEATURESxCLASSES[xEXAMPLES]; sparse "
         "models: a file of LIBSVM text or of ratings, also .gz, or made up: "
         "zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]], ratings:USERSxITEMSxRATINGS",
         {.otherwise = "digits; sparse models: made up", .common = kBoth}},
        {"batch", whole_or_none(&T::batch, 1, 1'000'000'000), kData, kBoth, "how many examples a batch has",
         {.unit = "examples",
          .otherwise = "32; for images of 784 pixels and more, and sparse models, 100",
          .common = config::kWorker}},
        {"steps", whole_or_none(&T::steps, 1, kAny), Group::kJob, kBoth,
         "global steps of the job, where no ps says it: launch_shm, --standalone; count: adds of each worker",
         {.unit = "steps",
          .otherwise = "6000; for other data than digits 30000; sparse models: --epochs; count: 1000",
          .common = kBoth}},
        {"epochs", whole_or_none(&T::epochs, 1, 1'000'000'000), Group::kJob, kBoth,
         "instead of --steps, where the data is known: launch_shm, --standalone",
         {.unit = "epochs", .otherwise = "none; sparse models: 10"}},
        {"init-from", text(&T::init_from, "FILE"), kData, kBoth,
         "begin with the values of a safetensors file, as --save or PyTorch write it, in the place of random ones",
         {.otherwise = "the model's own"}},
        {"init-match", text(&T::init_match, "REGEX"), kData, kBoth,
         "--init-from: only variables in whose names this is found", {.otherwise = "all"}},
        {"push-every", whole(&T::push_every, 1, 1'000'000), kOptimizer, kBoth,
         "local SGD: steps on the worker's own copy before the difference is pushed", {.unit = "steps"}},
        {"local-lr", amount(&T::local_learning_rate), kOptimizer, kBoth, "local SGD: the rate of these steps",
         {.otherwise = "as --lr with optimizer add, else 0.1"}},
        {"size", whole(&T::size, 1, kAny), kData, kBoth, "count: how large the variable is", {.unit = "elements"}},
        {"interval", seconds(&T::interval_seconds), kData, kBoth, "count: wait after each add", {.unit = "s"}},
        {"on-nan", choice(&T::on_nan, Choices<OnNan>{{OnNan::kWarn, "warn"}, {OnNan::kStop, "stop"},
         {OnNan::kSkip, "skip"}, {OnNan::kRestore, "restore"}}), Group::kWorkers, kBoth,
         "when a loss is not finite: warn once and push, stop this worker, skip the gradient, or skip it and restore "
         "the job's newest checkpoint from --checkpoint-dir"},
        {"wait-job", seconds(&T::wait_job_seconds), Group::kRun, kBoth, "how long to wait for the job to exist",
         {.unit = "s"}},
        {"no-stream-waits", flag(&T::no_stream_waits), Group::kWorkers, kBoth,
         "on a GPU: enqueue a step's work when the step before is over, not ahead of it behind a wait on the stream"},
    };
    // clang-format on
    add_within(rows, &T::sparse, sparse_settings());
    return rows;
  }();
  return kRows;
}

}  // namespace ps::tools
