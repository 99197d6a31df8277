// The options that say what a job is, what its optimizer is, and what its workers do.
#include <algorithm>

#include "command_line.hpp"

namespace ps::tools {
namespace {

// N, or LO..HI of an elastic job.
void read_workers(const std::string& text, JobConfig& job) {
  const auto dots = text.find("..");
  job.workers = static_cast<std::uint32_t>(read_whole(text.substr(0, dots), 1, kMaxWorkers));
  job.elastic_min = job.elastic_max = 0;
  if (dots == std::string::npos) return;
  job.elastic_min = job.workers;
  job.elastic_max = static_cast<std::uint32_t>(read_whole(text.substr(dots + 2), job.workers, kMaxWorkers));
}

void read_place(std::string text, JobConfig& job) {
  for (text += ','; !text.empty(); text.erase(0, text.find(',') + 1)) {
    const std::string one = text.substr(0, text.find(','));
    const auto equals = one.rfind('=');
    if (equals == std::string::npos) throw Error(fmt::format("'{}' places nothing; write VARIABLE=SHARD", one));
    job.place[one.substr(0, equals)] = static_cast<std::uint32_t>(read_whole(one.substr(equals + 1), 0, kMaxTasks - 1));
  }
}

void read_numa(std::string text, JobConfig& job) {
  job.numa = text == "auto" ? Numa::kAuto : text == "none" ? Numa::kNone : Numa::kNodes;
  job.numa_nodes.clear();
  if (job.numa != Numa::kNodes) return;
  for (text += ','; !text.empty(); text.erase(0, text.find(',') + 1))
    job.numa_nodes.push_back(static_cast<std::uint32_t>(read_whole(text.substr(0, text.find(',')), 0, 63)));
}

}  // namespace

void CommandLine::add_optimizer(Optimizer& optimizer) {
  std::vector<std::pair<std::string, UpdateRule>> rules;
  for (auto rule = static_cast<std::uint32_t>(UpdateRule::kAdd);
       rule <= static_cast<std::uint32_t>(UpdateRule::kRowwiseAdagrad); ++rule)
    rules.emplace_back(to_string(static_cast<UpdateRule>(rule)), static_cast<UpdateRule>(rule));
  add_choice<UpdateRule>("--optimizer", optimizer.rule, "what a push does (sgd; with --push-every add)", rules);
  add("--lr", "X", "learning rate at step 0 (the optimizer's usual: sgd 0.1, adam 0.001, ...)",
      [&optimizer](const std::string& text) {
        optimizer.learning_rate = static_cast<float>(read_real(text));
        if (!(*optimizer.learning_rate > 0)) throw Error("must be greater than 0");
      });
  add("--lr-schedule", "SPEC",
      "constant, exp:DECAY:STEPS, step:DECAY:STEPS, cosine:STEPS[:FLOOR], or epoch:DECAY, once an epoch; warmup:STEPS+ "
      "in "
      "front of any (constant)",
      [&optimizer, this](const std::string& text) {
        // Whoever knows the data puts the steps of an epoch there.
        epoch_schedule_ = is_epoch_schedule(text) ? text : "";
        optimizer.schedule = resolve_schedule(text, 1);
      });
  add_flag("--lr-staleness", optimizer.staleness_scaling, "async, ssp: scale the rate by 1 / (1 + staleness)");
  add_real("--momentum", optimizer.momentum, "momentum, nesterov (0.9)", true);
  add_real("--beta1", optimizer.beta1, "adam, adamw (0.9)", true);
  add_real("--beta2", optimizer.beta2, "adam, adamw (0.999)", true);
  add_real("--rho", optimizer.rho, "rmsprop: decay of the mean square (0.9)", true);
  add_real("--epsilon", optimizer.epsilon, "adagrad, rmsprop, adam, adamw: in the denominator (1e-8)");
  add_real("--initial-accumulator", optimizer.initial_accumulator, "adagrad (0.1)");
  add_real("--ftrl-beta", optimizer.ftrl_beta, "ftrl (1)");
  add_real("--l1", optimizer.l1, "ftrl: L1 regularisation of weights (0)");
  add_real("--l2", optimizer.l2, "L2 regularisation of weights (0)");
  add_real("--weight-decay", optimizer.weight_decay, "decoupled decay of weights (0; adamw 0.01)");
  add_real("--clip-value", optimizer.clip_value, "limit of a gradient's elements (0: none)");
  add_real("--clip-norm", optimizer.clip_norm, "limit of a gradient's global norm (0: none)");
  add_real("--ema", optimizer.ema, "decay of the parameters' moving average (0: none)", true);
}

void CommandLine::add_job(PsSettings& settings) {
  JobConfig& job = settings.job;
  add("--workers", "N|LO..HI",
      fmt::format("how many workers start the job ({}); LO..HI: launch_shm keeps their number within these",
                  job.workers),
      [&job](const std::string& text) { read_workers(text, job); });
  add_whole("--max-workers", job.max_workers, 1, kMaxWorkers, "how many may be there at one time (16, or 2 N)");
  add_whole("--threads", job.threads, 1, kMaxThreads, "how many threads of a worker share large pulls and pushes (1)");
  add_choice<Mode>("--mode", job.mode,
                   "when a push applies: at once, at once within a bound of staleness, or step by step (async)",
                   {{"async", Mode::kAsync}, {"ssp", Mode::kSsp}, {"sync", Mode::kSync}});
  add_whole("--staleness", job.staleness, 0, 0xffffffff, "ssp: how many steps ahead of the slowest one may be (0)");
  add_whole("--quorum", job.quorum, 0, kMaxWorkers, "sync: so many gradients close a step (0: of all alive)");
  add_choice<Reduce>("--reduce", job.reduce,
                     "sync: combine gradients in rank order, or sum them as they come (ordered)",
                     {{"ordered", Reduce::kOrdered}, {"atomic", Reduce::kAtomic}});
  add_choice<Layout>("--layout", job.layout, "how variables lie in memory (versioned)",
                     {{"versioned", Layout::kVersioned}, {"inplace", Layout::kInplace}});
  add("--chunk-bytes", "SIZE", "of the chunks of versioned variables, a power of two from 1KiB to 1MiB (by size)",
      [&job](const std::string& text) {
        job.chunk_bytes = read_bytes(text);
        if (job.chunk_bytes == 0) throw Error("must be greater than 0");
      });
  add_choice<Adds>("--adds", job.adds, "how in-place variables are added to; racy loses updates (exact)",
                   {{"exact", Adds::kExact}, {"racy", Adds::kRacy}});
  add_optimizer(job.optimizer);
  add_whole("--ps-tasks", job.tasks, 1, kMaxTasks, "how many shards the job has (1)");
  add_choice<Placement>(
      "--placement", job.placement, "which shard a variable goes to (round-robin)",
      {{"round-robin", Placement::kRoundRobin}, {"greedy", Placement::kGreedy}, {"partition", Placement::kPartition}});
  add_whole("--partitions", job.partitions, 1, 1024, "placement partition: parts of a variable (one per shard)");
  add_choice<PartitionBy>(
      "--partition-by", job.partition_by,
      "placement partition, in-place variables: parts of neighbouring rows, or row r in part r modulo "
      "their number (range)",
      {{"range", PartitionBy::kRange}, {"hash", PartitionBy::kHash}});
  add("--max-part-bytes", "SIZE", "placement partition: instead, parts of at most this size",
      [&job](const std::string& text) {
        job.max_part_bytes = read_bytes(text);
        if (job.max_part_bytes == 0) throw Error("must be greater than 0");
      });
  add_joined("--place", "VARIABLE=SHARD", "place one by hand; may be repeated",
             [&job](const std::string& text) { read_place(text, job); });
  add("--numa", "auto|none|NODES",
      "memory node of each shard; nodes as 0,1 (auto: shard k on node k, if there are several)",
      [&job](const std::string& text) { read_numa(text, job); });
  add("--group", "NAME", "share the job with the users of a group: segments get mode 0660 (only this user has it)",
      [&job](const std::string& text) { job.group = text; });
  add_flag("--huge-pages", job.huge_pages, "ask for huge pages");
  add_whole("--seed", job.seed, 0, kAny, "of initial values and data order (1)");
  add_seconds("--linger", job.linger_seconds, "how long the ps stays after the last worker has left (30s)");
  add_seconds("--step-timeout", job.step_timeout_seconds,
              "how long to wait for live peers; then a sync step goes on without them, ssp gives up (none)");
  add_flag("--keep-segments", settings.keep_segments, "leave the job in /dev/shm at the end, for inspect_shm");
}

void CommandLine::add_training(TrainingSettings& settings) {
  std::vector<std::pair<std::string, std::string>> models;
  for (const char* model : {"count", "softmax", "mlp", "logistic", "svm", "mf", "fm"})
    models.emplace_back(model, model);
  add_choice<std::string>("--model", settings.model,
                          "what to train; count adds 1.0 to the variable `var`; logistic, svm, mf and fm are of sparse "
                          "examples (mlp)",
                          models);
  add("--data", "SOURCE",
      "digits, fashion-mnist, a folder of IDX files, or made up: synthetic:FEATURESxCLASSES[xEXAMPLES] (digits); "
      "sparse "
      "models: a file of LIBSVM text or of ratings, also .gz, or made up: zipf:FEATURESxEXAMPLES[xPER_ROW[xEXPONENT]], "
      "ratings:USERSxITEMSxRATINGS",
      [&settings](const std::string& text) { settings.data = text; });
  add_whole("--batch", settings.batch, 1, 1'000'000'000,
            "examples in a batch (32; for images of 784 pixels and more, and sparse models, 100)");
  add_whole("--epochs", settings.epochs, 1, 1'000'000'000,
            "instead of --steps, where the data is known: launch_shm, --standalone (sparse models 10)");
  add_whole("--push-every", settings.push_every, 1, 1'000'000,
            "local SGD: steps on the worker's own copy before the difference is pushed (1)");
  add_real("--local-lr", settings.local_learning_rate, "their rate (--lr with optimizer add, else 0.1)");
  add_flag("--no-stream-waits", settings.no_stream_waits,
           "on a GPU: enqueue a step's work when the step before is over, not ahead of it behind a wait on the stream");
  add_whole("--size", settings.size, 1, kAny, "count: elements of the variable (1)");
  add_seconds("--interval", settings.interval_seconds, "count: wait after each add (0)");
  add_seconds("--wait-job", settings.wait_job_seconds, "how long to wait for the job to exist (60s)");
  add_sparse(settings.sparse);
}

}  // namespace ps::tools
