#include "ps/job_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "ps/errors.hpp"
#include "shm/counters.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/versioned_slot.hpp"
#include "shm/worker_table.hpp"

namespace ps {
namespace {

using shm::JobSegments;
using shm::VariableShm;

// A chunk that is whole is read at the first attempt, and at the second where its writers are faster than the copy; so
// many in a row only fail where no writer will ever repair the stamp.
constexpr int kPullAttempts = 10000;

[[noreturn]] void fail_damaged(const std::string& segment, const std::string& what) {
  throw Error(fmt::format("/dev/shm/{} is damaged: {}; remove its job with inspect_shm rm --force", segment, what));
}

// Whether `count` things of `unit` bytes from `offset` on end before `end`, without overflow.
bool fits(std::uint64_t offset, std::uint64_t count, std::uint64_t unit, std::uint64_t end) {
  return offset <= end && count <= (end - offset) / unit;
}

bool is_inplace(const VariableShm& variable) { return variable.layout == static_cast<std::uint32_t>(Layout::kInplace); }

bool is_initialised(const VariableShm& variable) { return variable.init.load_relaxed() == shm::kInitialised; }

bool has_name(const VariableShm& variable) {
  const std::size_t length = strnlen(variable.name, sizeof variable.name);
  return length != 0 && length < sizeof variable.name &&
         std::all_of(variable.name, variable.name + length, [](char c) { return c > ' ' && c < 0x7f; });
}

bool has_shape(const VariableShm& variable) {
  if (variable.axes > shm::kMaxAxes || variable.elements == 0) return false;
  std::uint64_t elements = 1;
  for (std::uint32_t axis = 0; axis < variable.axes; ++axis)
    if (__builtin_mul_overflow(elements, variable.extents[axis], &elements)) return false;
  return elements == variable.elements;
}

// Whether all that reading the variable touches lies within the shard's `end` bytes, but for the buffers that chunk
// words name. Its sizes are those of layout.hpp.
bool has_place(const VariableShm& variable, std::uint64_t end) {
  if (variable.piece_elements == 0 || variable.pieces != (variable.elements - 1) / variable.piece_elements + 1 ||
      variable.words_offset % shm::kCacheLine != 0 ||
      !fits(variable.words_offset, variable.pieces, sizeof(shm::PieceWordShm), end))
    return false;
  if (is_inplace(variable))
    return variable.data_offset % sizeof(float) == 0 &&
           fits(variable.data_offset, variable.elements, sizeof(float), end);
  if (variable.layout != static_cast<std::uint32_t>(Layout::kVersioned) || variable.buffer_class < shm::kMinClass ||
      variable.buffer_class > shm::kMaxClass)
    return false;
  const std::uint64_t buffer_bytes = std::uint64_t{1} << variable.buffer_class;
  const std::uint64_t floats = (buffer_bytes - sizeof(shm::BufferHeaderShm)) / sizeof(float);
  return variable.slots < floats && variable.piece_elements <= floats / (1 + variable.slots) &&
         variable.pieces <= shm::kBufferMask && variable.first_chunk <= shm::kBufferMask - variable.pieces &&
         fits(variable.data_offset, variable.pieces, buffer_bytes, end);
}

// A private copy of a record, so that what was checked stays as it was.
using Record = std::unique_ptr<VariableShm>;

Record copy_record(JobSegments& job, std::uint32_t number, std::uint32_t shards) {
  const VariableShm& shared = job.record(number);
  auto copy = std::make_unique<VariableShm>();
  std::memcpy(static_cast<void*>(copy.get()), &shared,
              offsetof(VariableShm, init));              // immutable since it was published
  copy->init.store_relaxed(shared.init.load_acquire());  // pairs with the initialiser's release: words and values
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(shm::control_name(job.job()), fmt::format("variable record {} has {}", number, what));
  };
  require(has_name(*copy), "no name");
  require(has_shape(*copy), "no possible shape");
  require(copy->dtype == static_cast<std::uint32_t>(DType::kFloat32), "an unknown dtype");
  require(copy->shard < shards, "a shard that does not exist");
  // D3: the shard was grown before the record was published, so its size of now covers the variable.
  require(has_place(*copy, job.shard(copy->shard).file_bytes()), "offsets or sizes outside of its shard");
  return copy;
}

std::vector<float> read_values(JobSegments& job, const VariableShm& variable) {
  std::vector<float> values(variable.elements);
  if (is_inplace(variable)) {
    const shm::InplaceVariable source(job.shard_data(variable.shard), variable);
    for (std::uint64_t block = 0; block < source.blocks(); ++block)
      source.pull_block(block, values.data() + source.block_begin(block));
    return values;
  }
  const shm::Segment& shard = job.shard(variable.shard);
  const shm::VersionedVariable source(shard.data(), variable);
  std::uint64_t shard_bytes = shard.file_bytes();
  for (std::uint64_t chunk = 0; chunk < source.chunks(); ++chunk) {
    float* out = values.data() + source.chunk_begin(chunk);
    shm::PullResult result = shm::PullResult::kTorn;
    for (int attempt = 0; attempt < kPullAttempts && result != shm::PullResult::kWhole; ++attempt) {
      result = source.try_pull_chunk(chunk, out, shard_bytes);
      if (result != shm::PullResult::kNoBuffer) continue;
      // The buffer may be a spare that came with a variable declared since the size was looked up.
      const std::uint64_t known_bytes = std::exchange(shard_bytes, shard.file_bytes());
      if (shard_bytes == known_bytes)
        fail_damaged(shard.name(), fmt::format("chunk {} of variable '{}' lies outside of it", chunk, variable.name));
    }
    if (result != shm::PullResult::kWhole)
      throw Error(
          fmt::format("chunk {} of variable '{}' is torn: its stamp differed from its word {} times; /dev/shm/{} is "
                      "damaged, or stop its workers and try again",
                      chunk, variable.name, kPullAttempts, shard.name()));
  }
  return values;
}

// Pushes of the whole variable, on the average over its pieces.
std::uint64_t count_updates(JobSegments& job, const VariableShm& variable) {
  const auto* words =
      reinterpret_cast<const shm::PieceWordShm*>(job.shard_data(variable.shard) + variable.words_offset);
  std::uint64_t sum = 0;
  for (std::uint64_t piece = 0; piece < variable.pieces; ++piece) {
    const std::uint64_t word = words[piece].word.load_acquire();
    sum += is_inplace(variable) ? word : shm::version_of(word);
  }
  return sum / variable.pieces;
}

StalenessSummary summarise(const shm::StalenessTotals& totals) {
  return {totals.mean(), totals.percentile(0.5), totals.percentile(0.99), totals.max};
}

void hash_bytes(std::uint64_t& hash, const void* bytes, std::size_t count) {  // FNV-1a
  const auto* next = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ next[i]) * 1099511628211ULL;
}

}  // namespace

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

struct JobView::Impl {
  JobSegments job;
  std::uint32_t ranks, shards;  // as they were when try_attach checked them against the segment's size

  explicit Impl(JobSegments attached) : job(std::move(attached)), ranks(job.ranks()), shards(job.config().shards) {
    const JobConfig config = job.settings();
    const auto is_one_or = [](auto value, std::uint32_t other) {
      return static_cast<std::uint32_t>(value) == 1 || static_cast<std::uint32_t>(value) == other;
    };
    if (!is_one_or(config.mode, static_cast<std::uint32_t>(Mode::kSync)) || !is_one_or(config.layout, 2) ||
        !is_one_or(config.adds, 2) || !is_one_or(config.schedule.kind, 2))
      fail_damaged(shm::control_name(job.job()), "its settings have a value without a meaning");
  }

  static std::unique_ptr<Impl> try_open(const std::string& name, shm::AttachOutcome& outcome) {
    check_job_name(name);
    std::optional<JobSegments> attached = JobSegments::try_attach(name, shm::Access::kReadOnly, outcome);
    return attached ? std::make_unique<Impl>(std::move(*attached)) : nullptr;
  }

  // A file that somebody has cut off since would end the process with SIGBUS.
  void require_whole() {
    if (job.control().file_bytes() < shm::kWorkersOffset + ranks * sizeof(shm::WorkerShm))
      fail_damaged(shm::control_name(job.job()), "it has been cut off");
    for (std::uint32_t shard = 0; shard < shards; ++shard)
      if (job.shard(shard).file_bytes() < job.shard_data_offset())
        fail_damaged(shm::shard_name(job.job(), shard), "it has been cut off");
  }

  std::vector<Record> records() {
    require_whole();
    std::vector<Record> all;
    for (std::uint32_t position = 0; position < shm::kMaxVariables; ++position) {
      const std::uint32_t entry = job.index(position).load_acquire();  // pairs with declare's swap
      if (entry == 0) break;
      if (entry > shm::kMaxVariables)
        fail_damaged(shm::control_name(job.job()), fmt::format("index {} names record {}", position, entry));
      all.push_back(copy_record(job, entry - 1, shards));
    }
    return all;
  }

  // Whom a worker that is in round `round` of barrier `which` waits for; empty if nobody is left.
  std::string awaited(std::uint32_t which, std::uint64_t round, const std::vector<WorkerState>& states) const {
    std::vector<std::uint32_t> missing;
    std::uint32_t joined = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      joined += states[rank] != WorkerState::kNever;
      const shm::BarrierEntryShm& entry = job.worker(rank).barriers[which];
      if (states[rank] == WorkerState::kAlive && entry.published.load_acquire() != round + 1 &&
          entry.active_from.load_acquire() <= round)
        missing.push_back(rank);
    }
    if (!missing.empty())
      return fmt::format(": {} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
    const std::uint32_t workers = job.config().workers;
    return round == 0 && joined < workers ? fmt::format(": {} more to join", workers - joined) : std::string();
  }

  std::string waiting_for(const shm::WorkerShm& entry, const std::vector<WorkerState>& states) const {
    const auto what = static_cast<shm::WaitingFor>(entry.waiting_for.load_acquire());
    const std::uint64_t on = entry.waiting_on.load_relaxed();  // relaxed: a text for people
    switch (what) {
      case shm::WaitingFor::kNothing:
        return {};
      case shm::WaitingFor::kInitialised: {
        const std::uint32_t number =
            on < shm::kMaxVariables ? job.index(static_cast<std::uint32_t>(on)).load_acquire() : 0;
        if (number == 0 || number > shm::kMaxVariables) return "a variable to be initialised";
        const char* name = job.record(number - 1).name;
        return fmt::format("variable {} to be initialised", std::string(name, strnlen(name, sizeof VariableShm::name)));
      }
      case shm::WaitingFor::kStep:
        return fmt::format("step {}{}", on, awaited(0, on, states));
      case shm::WaitingFor::kBarrier:
        return fmt::format("barrier {}{}", on, awaited(1, on, states));
      case shm::WaitingFor::kVariable:
        return "a variable to be declared";
    }
    return "something unknown";
  }
};

JobView::JobView(const std::string& job) {
  shm::AttachOutcome outcome;
  impl_ = Impl::try_open(job, outcome);
  if (!impl_) throw Error(shm::describe(outcome, shm::control_name(job)));
}

JobView::JobView(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobView::~JobView() = default;
JobView::JobView(JobView&&) noexcept = default;

std::optional<JobView> JobView::try_open(const std::string& job) {
  shm::AttachOutcome outcome;
  std::unique_ptr<Impl> impl = Impl::try_open(job, outcome);
  if (!impl) return std::nullopt;
  return JobView(std::move(impl));
}

JobInfo JobView::info() const {
  const std::vector<Record> records = impl_->records();
  JobSegments& job = impl_->job;
  JobInfo info;
  info.config = job.settings();
  info.global_step = job.global_step().load_acquire();
  info.finished = job.is_finished();
  info.served = job.locks().is_held_by_other(shm::kTaskByte);
  info.ps_pid = job.state().ps_pid.load_relaxed();  // relaxed: a figure for people
  info.instance = job.instance();
  info.created_unix_ns = job.control().header().created_unix_ns;
  info.control_bytes = job.control().file_bytes();
  for (std::uint32_t shard = 0; shard < impl_->shards; ++shard) info.shard_bytes += job.shard(shard).file_bytes();
  for (const std::string& name : shm::list_segments(shm::control_name(job.job()) + ".w")) {
    shm::Segment gradients;
    if (gradients.open(name, shm::Access::kReadOnly) == shm::AttachOutcome::kReady &&
        gradients.header().instance == job.instance())
      info.gradient_bytes += gradients.file_bytes();
  }
  std::set<std::pair<std::uint32_t, std::uint32_t>> classes;  // the first variable of a class brings its spares
  for (const Record& record : records)
    if (!is_inplace(*record) && classes.emplace(record->shard, record->buffer_class).second)
      info.spare_bytes += (std::uint64_t{impl_->ranks} * shm::kSparesPerClass) << record->buffer_class;
  return info;
}

std::vector<WorkerInfo> JobView::workers() const {
  impl_->require_whole();
  const JobSegments& job = impl_->job;
  std::vector<WorkerState> states;
  for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) states.push_back(shm::worker_state(job, rank));
  std::vector<WorkerInfo> all;
  for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) {
    if (states[rank] == WorkerState::kNever) continue;
    const shm::WorkerShm& entry = job.worker(rank);
    const auto figure = [&](shm::Counter which) { return shm::counter(entry, which); };
    WorkerInfo info;
    info.rank = rank;
    info.state = states[rank];
    info.pid = entry.pid.load_relaxed();  // relaxed, as all below: figures for people
    info.holders = entry.holders.load_relaxed();
    info.steps = figure(shm::Counter::kSteps);
    info.pushes = figure(shm::Counter::kPushes);
    info.pulls = figure(shm::Counter::kPulls);
    info.push_retries = figure(shm::Counter::kPushRetries);
    info.pull_retries = figure(shm::Counter::kPullRetries);
    info.dropped = figure(shm::Counter::kDropped);
    info.examples = figure(shm::Counter::kExamples);
    info.loss = std::bit_cast<double>(figure(shm::Counter::kLossBits));
    const std::uint64_t joined = entry.joined_ns.load_relaxed();
    const std::uint64_t end = info.state == WorkerState::kLeft ? entry.left_ns.load_relaxed() : shm::now_ns();
    info.seconds = end > joined ? double(end - joined) * 1e-9 : 0.0;
    if (info.state == WorkerState::kAlive) info.waiting_for = impl_->waiting_for(entry, states);
    shm::StalenessTotals totals;
    totals.add(entry);
    info.staleness = summarise(totals);
    all.push_back(std::move(info));
  }
  return all;
}

std::vector<VariableInfo> JobView::variables() const {
  std::vector<VariableInfo> all;
  for (const Record& record : impl_->records()) {
    VariableInfo info;
    info.name = record->name;
    info.dtype = static_cast<DType>(record->dtype);
    info.shape.assign(record->extents, record->extents + record->axes);
    info.rule = static_cast<UpdateRule>(record->rule);
    info.layout = static_cast<Layout>(record->layout);
    info.element_count = record->elements;
    info.bytes = record->elements * sizeof(float);
    info.pieces = record->pieces;
    info.piece_elements = record->piece_elements;
    info.shard = record->shard;
    info.initialised = is_initialised(*record);
    if (info.initialised) info.updates = count_updates(impl_->job, *record);
    all.push_back(std::move(info));
  }
  return all;
}

std::vector<float> JobView::values(const std::string& name) const {
  const std::vector<Record> records = impl_->records();
  std::vector<std::string> names;
  for (const Record& record : records) {
    names.emplace_back(record->name);
    if (names.back() != name) continue;
    if (!is_initialised(*record)) throw Error(fmt::format("variable '{}' is not initialised yet", name));
    return read_values(impl_->job, *record);
  }
  throw Error(names.empty() ? fmt::format("there is no variable '{}': job '{}' has none yet", name, impl_->job.job())
                            : fmt::format("there is no variable '{}': job '{}' has {}", name, impl_->job.job(),
                                          fmt::join(names, ", ")));
}

StalenessSummary JobView::staleness() const {
  impl_->require_whole();
  shm::StalenessTotals totals;
  for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) totals.add(impl_->job.worker(rank));
  return summarise(totals);
}

std::uint64_t JobView::digest() const {
  std::vector<Record> records = impl_->records();
  std::sort(records.begin(), records.end(),
            [](const Record& a, const Record& b) { return std::strcmp(a->name, b->name) < 0; });
  std::uint64_t hash = 14695981039346656037ULL;
  for (const Record& record : records) {
    hash_bytes(hash, record->name, std::strlen(record->name));
    if (!is_initialised(*record)) continue;  // it has no values yet
    const std::vector<float> values = read_values(impl_->job, *record);
    hash_bytes(hash, values.data(), values.size() * sizeof(float));
  }
  return hash;
}

}  // namespace ps
