#include "ps_shm/job_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "config/eviction.hpp"
#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/variable_spec.hpp"
#include "update/dtypes.hpp"
#include "update/traits.hpp"

namespace ps_shm {

const char* to_string(DType dtype) noexcept {
  const update::DTypeTraits* row = update::find_dtype(dtype);
  return row != nullptr ? row->name : "unknown";
}

const char* to_string(WorkerState state) noexcept {
  switch (state) {
    case WorkerState::kNever:
      return "never";
    case WorkerState::kAlive:
      return "alive";
    case WorkerState::kLeft:
      return "left";
    case WorkerState::kDead:
      return "dead";
  }
  return "unknown";
}

std::uint32_t bytes_of(DType dtype) noexcept {
  const update::DTypeTraits* row = update::find_dtype(dtype);
  return row != nullptr ? row->bytes : 0;
}

const char* to_string(Mode mode) noexcept { return traits_of(mode).name; }

const char* to_string(Layout layout) noexcept {
  switch (layout) {
    case Layout::kVersioned:
      return "versioned";
    case Layout::kInplace:
      return "inplace";
    case Layout::kSingleWriter:
      return "single-writer";
  }
  return "unknown";
}

const char* to_string(Evict evict) noexcept { return traits_of(evict).name; }

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
  switch (partition_by) {
    case PartitionBy::kRange:
      return "range";
    case PartitionBy::kHash:
      return "hash";
  }
  return "unknown";
}

const char* to_string(Numa numa) noexcept {
  switch (numa) {
    case Numa::kAuto:
      return "auto";
    case Numa::kNone:
      return "none";
    case Numa::kNodes:
      return "nodes";
  }
  return "unknown";
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

using config::job_settings;
using config::Setting;

void require(bool good, const std::string& what) {
  if (!good) throw Error(what);
}

void check_shards(const JobConfig& config) {
  require(config.partitions == 0 || config.max_part_bytes == 0,
          "`partitions`: give it or `max-part-bytes`, not both: one follows from the other");
  require(config.placement == Placement::kPartition || (config.partitions == 0 && config.max_part_bytes == 0),
          "`partitions` and `max-part-bytes` need `placement` partition");
  require(config.placement == Placement::kPartition || config.partition_by == PartitionBy::kRange,
          "`partition-by` hash needs `placement` partition");
  for (const auto& [variable, shard] : config.place)
    require(shard < config.ps_tasks,
            fmt::format("`place` {}={}: shards are 0 to {}; raise `ps-tasks`", variable, shard, config.ps_tasks - 1));
}

}  // namespace

void check(const JobConfig& config) {
  for (const Setting<JobConfig>& setting : job_settings()) config::check(setting, config);
  require(config.max_workers == 0 || config.max_workers >= config.workers,
          "`max-workers` must be at least `workers` and at most 256");
  require(!traits_of(config.mode).needs_versioned || config.layout != Layout::kInplace,
          "`mode` sync needs `layout` versioned: helping is exact for versioned chunks only; use `layout` versioned or "
          "`mode` async");
  if (config.layout == Layout::kSingleWriter) config::require_single_writer(config, "`layout` single-writer");
  require(config.staleness == 0 || traits_of(config.mode).has_staleness_bound,
          "`staleness` is the bound of mode ssp: use `mode` ssp");
  require(config.reduce != Reduce::kAtomic || traits_of(config.mode).has_reduce, "`reduce` atomic needs `mode` sync");
  require(config.layout != Layout::kInplace || config.optimizer.ema == 0,
          "`ema` keeps a moving average beside each parameter, which needs `layout` versioned");
  check_shards(config);
  require(config.elastic_max == 0 ? config.elastic_min == 0
                                  : config.elastic_min >= 1 && config.elastic_min <= config.elastic_max,
          "`workers`: the bounds of an elastic number must be 1 to 256, the smaller one first");
  require(config.elastic_max <= config::ranks_of(config),
          "`max-workers` must be at least the upper bound of `workers`");
  check(config::live_of(config), config);
}

void check_same(const JobConfig& there, const JobConfig& wanted) {
  JobConfig complete = config::resolved(wanted);
  if (wanted.max_workers == 0) complete.max_workers = there.max_workers;  // not given: any number is accepted
  const auto require_same = [&](const char* name, const std::string& before, const std::string& said) {
    if (before != said)
      throw Error(
          fmt::format(
              "job '{}' has lost its ps and goes on with {} {}, not {}: give the settings that it started with, "
              "or none at all and `adopt`; to start from scratch end its workers first",
              there.job, name, before, said),
          ErrorCode::kIncompatible);
  };
  require_same("workers", config::workers_text(there), config::workers_text(complete));  // the bounds are not options
  for (const Setting<JobConfig>& setting : job_settings())
    if (setting.traits.is_stored && !setting.traits.is_of_beginning)
      require_same(setting.name, show(setting, there), show(setting, complete));
}

void check(const LiveSettings& settings, const JobConfig& config) {
  const JobConfig wanted = config::with_live(config, settings);
  require(find_mode(static_cast<std::uint32_t>(settings.mode)) != nullptr,
          fmt::format("`mode`: unknown mode; expected {}", mode_names()));
  require(may_change_live(config.mode, settings.mode),
          "a running job's `mode` can't be changed to or from sync: restart the job");
  require(settings.quorum == 0 || traits_of(settings.mode).has_quorum, "`quorum` needs `mode` sync");
  require(settings.stale_limit == 0 || !traits_of(settings.mode).steps_together(),
          "`stale-limit` needs `mode` async or ssp: in mode sync no gradient is applied late");
  require(settings.staleness == 0 || !traits_of(settings.mode).steps_together(),
          "`staleness` is the bound of mode ssp, and a job in mode sync can't be changed to it");
  const std::uint32_t most = config::ranks_of(config);
  require(settings.quorum <= most, fmt::format("`quorum` must be at most the number of workers, {}", most));
  if (config.elastic_max == 0)
    require(settings.workers == config.workers,
            "the number of workers is fixed: launch_shm `workers` LO..HI makes it elastic");
  else
    require(settings.workers >= config.elastic_min && settings.workers <= config.elastic_max,
            fmt::format("`workers` must be {} to {}", config.elastic_min, config.elastic_max));
  const auto& used = update::traits_of(config.optimizer.rule).hyper_parameters;
  for (const Setting<JobConfig>& setting : job_settings()) {
    if (!setting.traits.is_live) continue;
    config::check(setting, wanted);
    float Optimizer::*const member = setting.traits.hyper_parameter;
    require(member == nullptr || wanted.optimizer.*member == config.optimizer.*member ||
                std::any_of(std::begin(used), std::end(used), [&](const auto& one) { return one.from == member; }),
            fmt::format("`{}`: optimizer {} has none", setting.name, to_string(config.optimizer.rule)));
  }
  require(settings.lr > 0 || !update::traits_of(config.optimizer.rule).reads_by_rate,
          fmt::format("`lr` must be greater than 0 with `optimizer` {}, which divides by it",
                      to_string(config.optimizer.rule)));
}

}  // namespace ps_shm
