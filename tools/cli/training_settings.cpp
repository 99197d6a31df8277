// The table of training settings: model, data, batches.
#include "cli/option_tables.hpp"
#include "cli/sparse_options.hpp"
#include "config/eviction.hpp"
#include "config/values.hpp"
#include "train/models/models.hpp"

namespace ps_shm::tools {
namespace {

using config::Group;
constexpr unsigned kBoth = config::kWorker | config::kLaunch;
constexpr auto kData = Group::kData, kOptimizer = Group::kOptimizer;

}  // namespace

namespace {

const config::Settings<train::TableOptions>& table_settings() {
  using namespace config;
  using T = train::TableOptions;
  // clang-format off
  static const Settings<T> kRows = {
      {"max-rows", whole(&T::max_rows, 64, 4'000'000'000), kData, kBoth,
       "--keyed: the most rows that there may be; memory is taken as they come", {.unit = "rows"}},
      {"admit-after", whole(&T::admit_after, 1, 255), kData, kBoth,
       "--keyed: a feature gets a row the Nth time that it is pushed"},
      {"evict", choice(&T::evict), kData, kBoth,
       std::string("--keyed: which row makes room for a new one if there are --max-rows: ") + kEvictionsInWords},
      {"ttl", seconds(&T::ttl), kData, kBoth,
       "--keyed: rows that were not pushed for so long are evicted, with --evict age rows that are older; 0: none; at most "
       "30 days", {.unit = "s"}},
  };
  // clang-format on
  return kRows;
}

}  // namespace

const config::Settings<SparseSettings>& sparse_settings() {
  using namespace config;
  using S = SparseSettings;
  using Format = train::SparseSourceOptions::Format;
  using train::FirstIndex;
  // clang-format off
  static const Settings<S> kOwn = {
      {"test-data", text(&S::test_data, "FILE"), kData, kBoth, "sparse models: file of test examples",
       {.otherwise = "a fraction of --data"}},
      {"test-share", share(&S::test_share), kData, kBoth,
       "sparse models: fraction of --data that is held out for testing; 0: test on the training data",
       {.otherwise = "0.1; 0 with --test-data"}},
      {"format", choice(&S::format, Choices<Format>{{Format::kLibsvm, "libsvm"}, {Format::kRatings, "ratings"}},
       true), kData, kBoth,
       "format of --data: LIBSVM text, or lines of `user item rating [time]`", {.otherwise = "detected"}},
      {"index-base", choice(&S::first_index, Choices<FirstIndex>{{FirstIndex::kZero, "0"}, {FirstIndex::kOne, "1"}},
       true), kData, kBoth, "LIBSVM: first feature index", {.otherwise = "1, or 0 if a 0 occurs"}},
      {"hash-bits", whole_or_none(&S::hash_bits, 1, 31), kData, kBoth,
       "LIBSVM: hash features into a table of 2^N entries", {.otherwise = "no hashing"}},
      {"cache", text(&S::cache, "DIR"), kData, kBoth, "cache the data in this folder in binary form, for reuse"},
      {"share-data", flag(&S::share_data), kData, kBoth, "keep one copy of the data for all workers, in shared memory"},
      {"factors", whole_or_none(&S::factors, 0, 4096), kData, kBoth, names_with_factors() + ": factors per row",
       {.otherwise = "8"}},
      {"factor-l2", amount(&S::factor_l2), kData, kBoth, names_with_factors() + ": L2 regularisation of factors",
       {.otherwise = "the value of --l2"}},
      {"bias", flag(&S::bias), kData, kBoth, names_with_bias() + ": add a bias weight"},
      {"combine", whole(&S::combine, 1, 1'000'000'000), kData, kBoth,
       "sparse models: number of examples whose gradients a worker sums before it pushes them",
       {.unit = "examples"}},
      {"keyed", flag(&S::keyed), kData, kBoth,
       "sparse models: find the parameters by the features' own 64-bit numbers, or a hash of the names of users and "
       "items, in a table that makes rows as features come"},
  };
  // clang-format on
  static const Settings<S> kRows = [] {
    Settings<S> rows = kOwn;
    add_within(rows, &S::table, table_settings());
    return rows;
  }();
  return kRows;
}

namespace {

// clang-format off
config::Settings<TrainingSettings> model_and_data() {
  using namespace config;
  using T = TrainingSettings;
  Choices<std::string> models;
  for (const train::ModelRow& row : train::models()) models.emplace_back(row.name, row.name);
  return {
      {"model", choice(&T::model, models), kData, kBoth, "model to train; count adds 1.0 to the variable var; " +
       train::model_names(train::ModelKind::kSparse, "and") + " take sparse examples", {.common = kBoth}},
      {"data", text(&T::data, "SOURCE"), kData, kBoth,
       "training data: digits, fashion-mnist, a folder of IDX files, or synthetic:FEATURESxCLASSES[xEXAMPLES]; "
       "sparse models: a file of LIBSVM text or of ratings, also compressed, or synthetic data: "
       "zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]], ratings:USERSxITEMSxRATINGS",
       {.otherwise = "digits; sparse models: synthetic data", .common = kBoth}},
      {"batch", whole_or_none(&T::batch, 1, 1'000'000'000), kData, kBoth, "number of examples per batch",
       {.unit = "examples",
        .otherwise = "32; 100 for sparse models and for images of 784 pixels or more",
        .common = config::kWorker}},
      {"shard-data", choice(&T::shard_data, Choices<ShardData>{{ShardData::kNone, "none"},
       {ShardData::kByLabel, "by-label"}}), kData, kBoth,
       "none: each worker draws from all training examples; by-label: from those of its own classes only, to try out "
       "what a mode makes of such data"},
      {"steps", whole_or_none(&T::steps, 1, kAny), Group::kJob, kBoth,
       "global steps of the job, with launch_shm or --standalone; count: adds of each worker",
       {.unit = "steps",
        .otherwise = "6000; 30000 for data other than digits; sparse models: --epochs; count: 1000",
        .common = kBoth}},
      {"epochs", whole_or_none(&T::epochs, 1, 1'000'000'000), Group::kJob, kBoth,
       "number of epochs, instead of --steps, with launch_shm or --standalone",
       {.unit = "epochs", .otherwise = "none; sparse models: 10"}},
      {"dtype", choice(&T::dtype, Choices<DType>{{DType::kFloat32, "float32"}, {DType::kBFloat16, "bfloat16"}}), kData,
       kBoth, "dtype of the model's variables, or of its table's rows; bfloat16: half the memory, rounded stochastically by "
       "each update"},
      {"init-from", text(&T::init_from, "FILE"), kData, kBoth,
       "initialise variables from a safetensors file, such as --save or PyTorch writes, instead of at random",
       {.otherwise = "the model's initial values"}},
      {"init-match", text(&T::init_match, "REGEX"), kData, kBoth,
       "--init-from: only variables whose names this regular expression matches, in whole or in part",
       {.otherwise = "all"}},
  };
}

config::Settings<TrainingSettings> steps_of_a_worker() {
  using namespace config;
  using T = TrainingSettings;
  return {
      {"push-every", whole(&T::push_every, 1, 1'000'000), kOptimizer, kBoth,
       "local SGD: number of steps on a worker's local copy before it pushes the difference", {.unit = "steps"}},
      {"local-lr", amount(&T::local_lr), kOptimizer, kBoth, "local SGD: learning rate of the local steps",
       {.otherwise = "--lr with optimizer add, otherwise 0.1"}},
      {"count-size", whole(&T::size, 1, kAny), kData, kBoth, "count: size of the variable", {.unit = "elements"}},
      {"count-interval", seconds(&T::interval_seconds), kData, kBoth, "count: pause after each add", {.unit = "s"}},
      {"on-nan", choice(&T::on_nan), Group::kWorkers, kBoth,
       "action on a loss that is not finite: warn once and push, stop this worker, skip the gradient, or skip it and "
       "restore the job's newest checkpoint from --checkpoint-dir"},
      {"wait-job", wait_limit(&T::wait_job, Range::kAmount), Group::kRun, kBoth,
       "how long to wait for the job to exist",
       {.unit = "s"}},
      {"enqueue", choice(&T::enqueue, Choices<train::Enqueue>{{train::Enqueue::kAhead, "ahead"},
       {train::Enqueue::kStep, "step"}, {train::Enqueue::kKernels, "kernels"}}), Group::kWorkers, kBoth,
       "on a GPU: enqueue a step's work ahead, behind a wait on the stream; as one graph, when the previous step has "
       "finished; or then, kernel by kernel"},
  };
}
// clang-format on

}  // namespace

const config::Settings<TrainingSettings>& training_settings() {
  using T = TrainingSettings;
  static const config::Settings<T> kRows = [] {
    config::Settings<T> rows = model_and_data();
    append(rows, steps_of_a_worker());
    config::add_within(rows, &T::sparse, sparse_settings());
    return rows;
  }();
  return kRows;
}

}  // namespace ps_shm::tools
