#include "config/job_settings.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <string_view>

#include "config/live_rows.hpp"
#include "config/modes.hpp"
#include "config/spelling.hpp"
#include "config/values.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::config {
namespace {

Value<JobConfig> job_name() {
  Value<JobConfig> value = text(&JobConfig::job, "NAME");
  value.read = [](JobConfig& in, const std::string& text) {
    check_job_name(text);
    in.job = text;
  };
  value.check = [](const JobConfig& in) { check_job_name(in.job); };
  return value;
}

// A size, or a word for one that depends on the variable. 0, which stands for auto, is stored as an empty text.
Value<JobConfig> chunk_bytes() {
  static const std::string kGpu = "gpu";
  static const std::vector<std::string> kWords = {"auto", kGpu};
  Value<JobConfig> value = bytes_or_none(&JobConfig::chunk_bytes);
  value.form = fmt::format("SIZE|{}", fmt::join(kWords, "|"));
  value.bounds = "SIZE: a power of two from 1KiB to 1MiB";
  value.read = [read_size = value.read](JobConfig& in, const std::string& text) {
    const auto word = std::find(kWords.begin(), kWords.end(), folded(text));
    if (word != kWords.end())
      in.chunk_bytes = *word == kGpu ? kChunkBytesForGpu : 0;
    else if (!text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0)
      throw Error(fmt::format("'{}' is not a size, {}{}", text, fmt::join(kWords, " or "), did_you_mean(text, kWords)));
    else
      read_size(in, text);
  };
  value.check = [](const JobConfig& in) {
    const std::uint64_t bytes = in.chunk_bytes;
    if (bytes == 0 || bytes == kChunkBytesForGpu) return;
    if (!std::has_single_bit(bytes) || bytes < 1024 || bytes > 1 << 20)
      throw Error(fmt::format("must be a power of two from 1KiB to 1MiB, {}", fmt::join(kWords, " or ")));
  };
  value.write = [write_size = value.write](const JobConfig& in) {
    return in.chunk_bytes == kChunkBytesForGpu ? kGpu : write_size(in);
  };
  return value;
}

Value<JobConfig> place() {
  return {.kind = Kind::kPairs,
          .form = "VARIABLE=SHARD",
          .bounds = "",
          .words = {},
          .read =
              [](JobConfig& in, const std::string& texts) {
                for_each_text(texts, [&](const std::string& one) {
                  const auto equals = one.rfind('=');
                  if (equals == std::string::npos)
                    throw Error(fmt::format("'{}' is not a placement; write VARIABLE=SHARD", one));
                  in.place[one.substr(0, equals)] =
                      static_cast<std::uint32_t>(read_whole(one.substr(equals + 1), 0, kMaxTasks - 1));
                });
              },
          .check =
              [](const JobConfig& in) {
                constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
                if (in.place.size() > 64) throw Error("at most 64 variables can be placed by hand");
                for (const auto& [variable, shard] : in.place)
                  if (variable.empty() || variable.size() > 127 ||
                      variable.find_first_not_of(kAllowed) != std::string::npos)
                    throw Error("a variable's name has 1 to 127 of A-Z a-z 0-9 _ . : / -");
              },
          .write =
              [](const JobConfig& in) {
                std::string texts;
                for (const auto& [variable, shard] : in.place)
                  texts += fmt::format("{}{}={}", texts.empty() ? "" : ",", variable, shard);
                return texts;
              }};
}

Value<JobConfig> numa() {
  return {.kind = Kind::kWord,
          .form = "auto|none|NODES",
          .bounds = "",
          .words = {},
          .read =
              [](JobConfig& in, const std::string& texts) {
                in.numa = texts == "auto" ? Numa::kAuto : texts == "none" ? Numa::kNone : Numa::kNodes;
                in.numa_nodes.clear();
                if (in.numa != Numa::kNodes) return;
                for_each_text(texts, [&](const std::string& one) {
                  // A node that this machine lacks causes a warning later.
                  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
                  in.numa_nodes.push_back(static_cast<std::uint32_t>(read_whole(one, 0, kMost)));
                });
              },
          .check =
              [](const JobConfig& in) {
                if (in.numa < Numa::kAuto || in.numa > Numa::kNodes)
                  throw Error("unknown value; expected auto, none or nodes");
                if (in.numa == Numa::kNodes && (in.numa_nodes.empty() || in.numa_nodes.size() > 64))
                  throw Error("name 1 to 64 nodes");
              },
          .write = [](const JobConfig& in) -> std::string {
            if (in.numa == Numa::kNodes) return fmt::format("{}", fmt::join(in.numa_nodes, ","));
            return in.numa == Numa::kNone ? "none" : "auto";
          }};
}

// Stored values contain printable ASCII without spaces only: other bytes are percent-encoded, such as %20.
Value<JobConfig> folder_of_checkpoint() {
  Value<JobConfig> value = text(&JobConfig::restore, "DIR");
  value.read = [](JobConfig& in, const std::string& text) {
    in.restore.clear();
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '%') {
        in.restore += text[i];
        continue;
      }
      unsigned char byte = 0;
      const char* const end = text.data() + std::min(text.size(), i + 3);
      if (std::from_chars(text.data() + i + 1, end, byte, 16).ptr != text.data() + i + 3)
        throw Error("invalid percent escape");
      in.restore += static_cast<char>(byte);
      i += 2;
    }
  };
  value.write = [](const JobConfig& in) {
    std::string text;
    for (const char letter : in.restore)
      text += letter > ' ' && letter < 0x7f && letter != '%'
                  ? std::string(1, letter)
                  : fmt::format("%{:02x}", static_cast<unsigned char>(letter));
    return text;
  };
  return value;
}

// clang-format off
Settings<JobConfig> workers_and_steps() {
  using J = JobConfig;
  constexpr unsigned kBoth = kPs | kLaunch;
  constexpr auto kJob = Group::kJob, kWorkers = Group::kWorkers;
  return {
      {"job", job_name(), kJob, kPs | kWorker | kLaunch, "name of the job",
       {.otherwise = "required", .is_stored = false, .common = kPs | kWorker | kLaunch}},
      {"workers", whole(&J::workers, 1, kMaxWorkers), kWorkers, kBoth, "number of workers that start the job",
       {.common = kBoth}},
      {"elastic-min", whole(&J::elastic_min, 0, kMaxWorkers), kWorkers, kNone,
       "minimum number of workers that a launcher keeps running"},
      {"elastic-max", whole(&J::elastic_max, 0, kMaxWorkers), kWorkers, kNone,
       "maximum number of workers that a launcher keeps running"},
      {"max-workers", whole_or_none(&J::max_workers, 1, kMaxWorkers), kWorkers, kBoth,
       "maximum number of workers at one time", {.otherwise = "twice `workers`, at least 16; `layout` single-writer: 1"}},
      {"threads", whole(&J::threads, 1, kMaxThreads), kWorkers, kBoth,
       "maximum number of threads with which a worker transfers large pulls and pushes"},
      {"mode", choice(&J::mode), kJob, kBoth,
       "async: apply each push at once; ssp: the same, within a bound of staleness; sync: one combined update per step",
       {.common = kBoth}},
      {"staleness", whole(&J::staleness, 0, 0xffffffff), kJob, kBoth,
       "ssp: maximum lead of a worker over the slowest", {.unit = "steps", .common = kPs}},
      {"quorum", whole(&J::quorum, 0, kMaxWorkers), kJob, kBoth,
       "sync: number of gradients that complete a step; 0: one from each live "
       "worker", {.common = kPs}},
      {"stale-limit", whole(&J::stale_limit, 0, kAny), kJob, kBoth,
       "async, ssp: drops a step whose gradient was computed from values that are so many global steps of other workers "
       "old, or more; 0: no limit", {.unit = "steps"}},
      {"reduce", choice(&J::reduce), kJob, kBoth,
       "sync: ordered sums the gradients in rank order, atomic in the order of their arrival"},
      {"adds", choice(&J::adds), kJob, kBoth,
       "in-place variables: exact makes updates atomic, racy makes Hogwild! updates, of which some may be lost"},
      {"steps", whole_or_none(&J::steps, 1, kAny), kJob, kPs, "global step at which the job ends",
       {.unit = "steps", .otherwise = "no limit", .common = kPs}},
      {"step-timeout", wait_limit(&J::step_timeout, Range::kPositive), kJob, kBoth,
       "how long to wait for live peers; then a sync step completes without them, and an ssp worker fails",
       {.unit = "s"}},
  };
}

Settings<JobConfig> places() {
  using J = JobConfig;
  constexpr unsigned kBoth = kPs | kLaunch;
  constexpr auto kPlacement = Group::kPlacement;
  return {
      {"ps-tasks", whole(&J::ps_tasks, 1, kMaxTasks), kPlacement, kBoth, "number of shards of the job"},
      {"placement", choice(&J::placement),
       kPlacement, kBoth, "policy that assigns variables to shards"},
      {"partitions", whole_or_none(&J::partitions, 1, 16384), kPlacement, kBoth,
       "placement partition: number of parts of a variable", {.otherwise = "one per shard"}},
      {"partition-by", choice(&J::partition_by), kPlacement, kBoth,
       "placement partition, in-place variables: range gives a part neighbouring rows, hash gives row r to part r "
       "modulo the number of parts"},
      {"max-part-bytes", bytes_or_none(&J::max_part_bytes), kPlacement, kBoth,
       "placement partition: maximum size of a part, instead of `partitions`", {.unit = "bytes", .otherwise = "none"}},
      {"place", place(), kPlacement, kBoth,
       "place a variable in the given shard; may be repeated", {.takes_all = true}},
      {"layout", choice(&J::layout), kPlacement, kBoth,
       "memory layout of variables: versioned chunks; inplace, which rows need; single-writer, faster with optimizer "
       "slots, for jobs with one worker"},
      {"chunk-bytes", chunk_bytes(), kPlacement, kBoth,
       "chunk size of versioned variables; auto: by the variable's size; gpu: the same, but large variables have chunks "
       "that a GPU pulls by its copy engine", {.unit = "bytes", .otherwise = "auto"}},
      {"numa", numa(), kPlacement, kBoth,
       "NUMA node of each shard: a list such as 0,1; auto: shard k on node k, if the machine has several nodes"},
      {"huge-pages", flag(&J::huge_pages), kPlacement, kBoth, "request huge pages"},
  };
}

Settings<JobConfig> beginning_and_end() {
  using J = JobConfig;
  constexpr unsigned kBoth = kPs | kLaunch;
  constexpr auto kRun = Group::kRun;
  return {
      {"seed", whole_or_none(&J::seed, 0, kAny), Group::kData, kBoth,
       "random seed of initial values and data order, and of the hash by which tables by key place their rows",
       {.otherwise = "1, and a random hash"}},
      {"linger", seconds(&J::linger), kRun, kBoth,
       "how long the ps keeps running after the last worker has left",
       {.unit = "s"}},
      {"restore", folder_of_checkpoint(), kRun, kNone, "checkpoint that the job was restored from",
       {.is_of_beginning = true}},
      {"first-step", whole(&J::first_step, 0, kAny), kRun, kNone, "global step at which the job began",
       {.unit = "steps", .is_of_beginning = true}},
      {"group", text(&J::group, "NAME"), kRun, kBoth | kWorker,
       "share the job with the users of a group: segments get mode 0660; workers of other users need the option, too",
       {.otherwise = "private to this user", .is_stored = false}},
  };
}
// clang-format on

Settings<JobConfig> make_job_settings() {
  using J = JobConfig;
  Settings<J> rows = workers_and_steps();
  append(rows, places());
  append(rows, beginning_and_end());
  add_within(rows, &J::optimizer, optimizer_settings());
  for_each_live([&](const auto& live) {
    for (Setting<J>& row : rows)
      if (std::string_view(row.name) == live.name) row.traits.is_live = true;
  });
  return rows;
}

}  // namespace

const Settings<JobConfig>& job_settings() {
  static const Settings<JobConfig> kRows = make_job_settings();
  return kRows;
}

std::uint32_t ranks_of(const JobConfig& config) noexcept {
  if (config.max_workers == 0 && config.layout == Layout::kSingleWriter && config.workers == 1) return 1;
  return config.max_workers != 0 ? config.max_workers : std::clamp<std::uint32_t>(2 * config.workers, 16, kMaxWorkers);
}

void require_single_writer(const JobConfig& config, const std::string& what) {
  if (ranks_of(config) != 1 || config.elastic_max > 1)
    throw Error(what +
                " needs a job that can have one worker only: use `workers` 1 and `max-workers` 1, or layout versioned");
  if (traits_of(config.mode).needs_versioned)
    throw Error(what + " needs `mode` async or ssp: in mode sync a step belongs to all workers; use layout versioned");
}

std::uint64_t seed_of(const JobConfig& config) noexcept { return config.seed.value_or(1); }

JobConfig resolved(JobConfig config) {
  Optimizer& optimizer = config.optimizer;
  config.max_workers = ranks_of(config);
  config.seed = seed_of(config);
  if (!optimizer.lr) optimizer.lr = default_lr(optimizer.rule);
  if (!optimizer.weight_decay) optimizer.weight_decay = default_weight_decay(optimizer.rule);
  return config;
}

std::string workers_text(const JobConfig& config) {
  if (config.elastic_max == 0) return fmt::to_string(config.workers);
  return fmt::format("{}..{}", config.elastic_min, config.elastic_max);
}

namespace {

// Of the job's settings, the structure with a member.
template <class Config, class Stored>
Config& owner_of(Config& config, Stored JobConfig::*) noexcept {
  return config;
}
template <class Config, class Stored>
auto& owner_of(Config& config, Stored Optimizer::*) noexcept {
  return config.optimizer;
}

template <class Value>
Value value_of(Value value, const Optimizer&) noexcept {
  return value;
}
float value_of(const std::optional<float>& lr, const Optimizer& of) noexcept {
  return lr.value_or(default_lr(of.rule));
}

}  // namespace

LiveSettings live_of(const JobConfig& config) noexcept {
  LiveSettings live;
  for_each_live(
      [&](const auto& row) { live.*row.live = value_of(owner_of(config, row.stored).*row.stored, config.optimizer); });
  return live;
}

JobConfig with_live(JobConfig config, const LiveSettings& live) {
  for_each_live([&](const auto& row) { owner_of(config, row.stored).*row.stored = live.*row.live; });
  return config;
}

std::string show_live(const char* name, const LiveSettings& live) {
  const Settings<JobConfig>& all = job_settings();
  const auto row =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return std::string_view(one.name) == name; });
  return show(*row, with_live({}, live));
}

}  // namespace ps_shm::config
