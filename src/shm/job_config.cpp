#include "ps/job_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ps/errors.hpp"
#include "ps/variable.hpp"

namespace ps {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kInt64:
      return "int64";
  }
  return "unknown";
}

const char* to_string(Mode mode) noexcept {
  switch (mode) {
    case Mode::kAsync:
      return "async";
    case Mode::kSsp:
      return "ssp";
    case Mode::kSync:
      return "sync";
  }
  return "unknown";
}

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::kVersioned:
      return "versioned";
    case Layout::kInplace:
      return "inplace";
  }
  return "unknown";
}

const char* to_string(Adds adds) noexcept {
  switch (adds) {
    case Adds::kExact:
      return "exact";
    case Adds::kRacy:
      return "racy";
  }
  return "unknown";
}

const char* to_string(Reduce reduce) noexcept {
  switch (reduce) {
    case Reduce::kOrdered:
      return "ordered";
    case Reduce::kAtomic:
      return "atomic";
  }
  return "unknown";
}

const char* to_string(PartitionBy partition_by) noexcept {
  return partition_by == PartitionBy::kHash ? "hash" : "range";
}

const char* to_string(Placement placement) noexcept {
  switch (placement) {
    case Placement::kRoundRobin:
      return "round-robin";
    case Placement::kGreedy:
      return "greedy";
    case Placement::kPartition:
      return "partition";
  }
  return "unknown";
}

std::uint64_t VariableSpec::element_count() const noexcept {
  std::uint64_t count = 1;
  for (const std::uint64_t extent : shape) count *= extent;
  return count;
}

void check_job_name(const std::string& name) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  const bool good = !name.empty() && name.size() <= 64 && std::string(kLetters).find(name[0]) != std::string::npos &&
                    name.find_first_not_of(std::string(kLetters) + "_-") == std::string::npos;
  if (!good)
    throw Error(
        fmt::format("'{}' cannot name a job: use 1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit", name));
}

namespace {

void require(bool good, const std::string& what) {
  if (!good) throw Error(what);
}

bool is_share(float value) { return value >= 0 && value < 1; }                                    // false for NaN
bool is_amount(float value) { return value >= 0 && value <= std::numeric_limits<float>::max(); }  // the same

// As Schedule::parse accepts them.
void check(const Schedule& schedule) {
  require(is_amount(schedule.decay) && is_amount(schedule.decay_steps) && schedule.decay_steps > 0 &&
              (schedule.kind == Schedule::Kind::kCosine ? schedule.decay <= 1 : schedule.decay > 0),
          "lr-schedule must have a decay and steps above 0, cosine a floor from 0 to 1");
  require(schedule.warmup_steps >= 0 && schedule.warmup_steps <= 16777216.0F,
          "lr-schedule must have at most 16777216 steps of warmup");
}

void check(const Optimizer& optimizer) {
  check(optimizer.schedule);
  const float rate = optimizer.learning_rate.value_or(default_learning_rate(optimizer.rule));
  require(is_amount(rate) && rate > 0, "lr must be greater than 0");
  require(is_share(optimizer.momentum), "momentum must be at least 0 and less than 1");
  require(is_share(optimizer.beta1) && is_share(optimizer.beta2), "beta1 and beta2 must be at least 0 and less than 1");
  require(is_share(optimizer.rho), "rho must be at least 0 and less than 1");
  require(is_share(optimizer.ema), "ema must be at least 0 and less than 1");
  require(is_amount(optimizer.epsilon), "epsilon must be at least 0");
  require(is_amount(optimizer.initial_accumulator), "initial-accumulator must be at least 0");
  require(is_amount(optimizer.ftrl_beta), "ftrl-beta must be at least 0");
  require(is_amount(optimizer.l1), "l1 must be at least 0");
  require(is_amount(optimizer.l2), "l2 must be at least 0");
  require(is_amount(optimizer.weight_decay.value_or(0)), "weight-decay must be at least 0");
  require(is_amount(optimizer.clip_value), "clip-value must be at least 0");
  require(is_amount(optimizer.clip_norm), "clip-norm must be at least 0");
}

void check_shards(const JobConfig& config) {
  require(config.chunk_bytes == 0 ||
              (std::has_single_bit(config.chunk_bytes) && config.chunk_bytes >= 1024 && config.chunk_bytes <= 1 << 20),
          "chunk-bytes must be a power of two from 1KiB to 1MiB");
  require(config.tasks >= 1 && config.tasks <= kMaxTasks, "ps-tasks must be 1 to 64");
  require(config.partitions == 0 || config.max_part_bytes == 0,
          "give partitions or max-part-bytes, not both: one follows from the other");
  require(config.placement == Placement::kPartition || (config.partitions == 0 && config.max_part_bytes == 0),
          "partitions and max-part-bytes need placement partition");
  require(config.placement == Placement::kPartition || config.partition_by == PartitionBy::kRange,
          "partition-by hash needs placement partition");
  require(config.place.size() <= 64, "at most 64 variables can be placed by hand");
  for (const auto& [variable, shard] : config.place) {
    require(!variable.empty() && variable.size() < 124, "place: a variable's name has 1 to 123 characters");
    require(shard < config.tasks,
            fmt::format("place {}={}: shards are 0 to {}; raise ps-tasks", variable, shard, config.tasks - 1));
  }
  require(config.numa != Numa::kNodes || (!config.numa_nodes.empty() && config.numa_nodes.size() <= 64),
          "numa: name 1 to 64 nodes");
}

}  // namespace

void check(const JobConfig& config) {
  check_job_name(config.job);
  require(config.workers >= 1 && config.workers <= kMaxWorkers, "workers must be 1 to 256");
  require(config.max_workers == 0 || (config.max_workers >= config.workers && config.max_workers <= kMaxWorkers),
          "max-workers must be at least workers and at most 256");
  require(config.threads >= 1 && config.threads <= kMaxThreads, "threads must be 1 to 64");
  require(
      config.mode != Mode::kSync || config.layout != Layout::kInplace,
      "mode sync needs layout versioned: helping is exact for versioned chunks only; use --layout versioned or --mode "
      "async");
  require(config.staleness == 0 || config.mode == Mode::kSsp, "staleness is the bound of mode ssp: use --mode ssp");
  require(config.reduce != Reduce::kAtomic || config.mode == Mode::kSync, "reduce atomic is a way to do mode sync");
  require(config.layout != Layout::kInplace || config.optimizer.ema == 0,
          "ema keeps a moving average beside each parameter, which needs layout versioned");
  check(config.optimizer);
  check_shards(config);
  require(config.elastic_max == 0 || (config.elastic_min >= 1 && config.elastic_min <= config.elastic_max &&
                                      config.elastic_max <= kMaxWorkers),
          "the bounds of an elastic number of workers must be 1 to 256, the smaller one first");
  require(config.elastic_max <= (config.max_workers == 0 ? std::max(16U, 2 * config.workers) : config.max_workers),
          "max-workers must be at least the upper bound of workers");
  require(std::isfinite(config.linger_seconds) && config.linger_seconds >= 0, "linger must be at least 0");
  require(std::isfinite(config.step_timeout_seconds) && config.step_timeout_seconds >= 0,
          "step-timeout must be at least 0");
  check(LiveSettings{.mode = config.mode,
                     .staleness = config.staleness,
                     .quorum = config.quorum,
                     .learning_rate =
                         config.optimizer.learning_rate.value_or(default_learning_rate(config.optimizer.rule)),
                     .clip_norm = config.optimizer.clip_norm,
                     .workers = config.workers},
        config);
}

void check_same(const JobConfig& there, const JobConfig& wanted) {
  const auto same = [&](const char* name, const auto& a, const auto& b) {
    if (a == b) return;
    throw Error(fmt::format(
        "job '{}' has lost its ps and goes on with {} {}, you say {}: give the settings that it began with, "
        "or none at all and --adopt; to begin anew end its workers first",
        there.job, name, a, b));
  };
  const Optimizer &a = there.optimizer, &b = wanted.optimizer;
  same("workers", there.workers, wanted.workers);
  if (wanted.max_workers != 0) same("max-workers", there.max_workers, wanted.max_workers);
  same("threads", there.threads, wanted.threads);
  same("mode", std::string(to_string(there.mode)), to_string(wanted.mode));
  same("staleness", there.staleness, wanted.staleness);
  same("quorum", there.quorum, wanted.quorum);
  same("reduce", std::string(to_string(there.reduce)), to_string(wanted.reduce));
  same("layout", std::string(to_string(there.layout)), to_string(wanted.layout));
  same("adds", std::string(to_string(there.adds)), to_string(wanted.adds));
  same("steps", there.steps, wanted.steps);
  same("seed", there.seed, wanted.seed);
  same("linger", there.linger_seconds, wanted.linger_seconds);
  same("step-timeout", there.step_timeout_seconds, wanted.step_timeout_seconds);
  same("ps-tasks", there.tasks, wanted.tasks);
  same("placement", std::string(to_string(there.placement)), to_string(wanted.placement));
  same("partitions", there.partitions, wanted.partitions);
  same("partition-by", std::string(to_string(there.partition_by)), to_string(wanted.partition_by));
  same("chunk-bytes", there.chunk_bytes, wanted.chunk_bytes);
  same("max-part-bytes", there.max_part_bytes, wanted.max_part_bytes);
  same("variables placed by hand", there.place.size(), wanted.place.size());
  for (const auto& [variable, shard] : wanted.place) {
    const auto found = there.place.find(variable);
    same(("place " + variable).c_str(), found == there.place.end() ? -1 : std::int64_t{found->second},
         std::int64_t{shard});
  }
  same("optimizer", std::string(to_string(a.rule)), to_string(b.rule));
  same("lr", a.learning_rate.value_or(default_learning_rate(a.rule)),
       b.learning_rate.value_or(default_learning_rate(b.rule)));
  same("lr-schedule", a.schedule.to_string(), b.schedule.to_string());
  same("lr-staleness", a.staleness_scaling, b.staleness_scaling);
  same("momentum", a.momentum, b.momentum);
  same("beta1", a.beta1, b.beta1);
  same("beta2", a.beta2, b.beta2);
  same("rho", a.rho, b.rho);
  same("epsilon", a.epsilon, b.epsilon);
  same("initial-accumulator", a.initial_accumulator, b.initial_accumulator);
  same("ftrl-beta", a.ftrl_beta, b.ftrl_beta);
  same("l1", a.l1, b.l1);
  same("l2", a.l2, b.l2);
  same("weight-decay", a.weight_decay.value_or(default_weight_decay(a.rule)),
       b.weight_decay.value_or(default_weight_decay(b.rule)));
  same("clip-value", a.clip_value, b.clip_value);
  same("clip-norm", a.clip_norm, b.clip_norm);
  same("ema", a.ema, b.ema);
}

void check(const LiveSettings& settings, const JobConfig& config) {
  require(settings.mode == Mode::kAsync || settings.mode == Mode::kSsp || settings.mode == Mode::kSync,
          "unknown mode; expected async, ssp or sync");
  require((settings.mode == Mode::kSync) == (config.mode == Mode::kSync),
          "a running job's mode can't be changed to or from sync: start it anew");
  require(settings.staleness < std::uint64_t{1} << 32, "staleness must be less than 2^32");
  require(settings.quorum == 0 || settings.mode == Mode::kSync, "a quorum is of mode sync only");
  const std::uint32_t most = config.max_workers != 0 ? config.max_workers : std::max(16U, 2 * config.workers);
  require(settings.quorum <= most, fmt::format("quorum must be at most the number of workers, {}", most));
  require(is_amount(settings.learning_rate) && settings.learning_rate > 0, "lr must be greater than 0");
  require(is_amount(settings.clip_norm), "clip-norm must be at least 0");
  if (config.elastic_max == 0)
    require(settings.workers == config.workers,
            "the number of workers is fixed: launch_shm --workers LO..HI makes it elastic");
  else
    require(settings.workers >= config.elastic_min && settings.workers <= config.elastic_max,
            fmt::format("workers must be {} to {}", config.elastic_min, config.elastic_max));
}

}  // namespace ps
