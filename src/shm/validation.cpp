#include "shm/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "ps/errors.hpp"
#include "shm/directory.hpp"
#include "shm/live_settings.hpp"
#include "shm/placement.hpp"
#include "shm/spares.hpp"

namespace ps::shm {
namespace {

constexpr std::uint64_t kMostHolders = std::uint64_t{1} << 32;  // one a microsecond for an hour

template <class Enum>
bool is_one_of(std::uint32_t value, Enum last) {
  return value >= 1 && value <= static_cast<std::uint32_t>(last);
}

bool is_versioned(const VariableShm& record) { return record.layout == static_cast<std::uint32_t>(Layout::kVersioned); }
bool is_initialised(const VariableShm& record) { return record.init.load_relaxed() == kInitialised; }

template <std::size_t Size>
bool is_text(const char (&text)[Size]) {
  const std::string_view content = text_of(text);
  return !content.empty() && content.size() < Size &&
         std::all_of(content.begin(), content.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// One record, where those before it have been checked.
class RecordCheck {
 public:
  RecordCheck(const JobSegments& job, std::uint32_t position, const VariableShm& record,
              std::span<const VariableShm* const> before)
      : job_(job), position_(position), record_(record), before_(before) {}

  void check(SlotsOf slots_of) const {
    require(is_text(record_.name), "no name");
    require(record_.dtype == static_cast<std::uint32_t>(DType::kFloat32), "an unknown dtype");
    require(is_one_of(record_.rule, UpdateRule::kRowwiseAdagrad), "an unknown update rule");
    require(is_one_of(record_.layout, Layout::kInplace), "an unknown layout");
    require((record_.flags & ~(kRegularize | kRowState)) == 0, "unknown flags");
    check_shape();
    if (is_accumulator(record_))
      check_accumulator();
    else
      check_slots(slots_of), check_part();
    check_place();
    const std::uint64_t init = record_.init.load_relaxed();
    const std::uint64_t byte = init & 0xffff;
    require(init == 0 || init == kInitialised || (byte != 0 && byte <= kRankByte + job_.ranks()),
            "an initialiser that does not exist");
  }

 private:
  void require(bool good, const char* what) const {
    if (!good)
      fail_damaged(control_name(job_.job()), fmt::format("the variable record at position {} has {}", position_, what));
  }

  void check_shape() const {
    require(record_.axes <= kMaxAxes, "too many axes");
    std::uint64_t elements = 1;
    for (std::uint32_t axis = 0; axis < record_.axes; ++axis) {
      const std::uint64_t extent = record_.extents[axis];
      require(extent != 0 && extent <= kMaxElements / elements, "no possible shape");
      elements *= extent;
    }
    const std::vector<PartPlan> plan =
        plan_parts(job_, text_of(record_.name), std::span(record_.extents, record_.axes));
    require(record_.parts == plan.size() && record_.part < record_.parts && record_.whole_elements == elements &&
                record_.part_begin == plan[record_.part].begin && record_.elements == plan[record_.part].elements,
            "no possible shape");
  }

  void check_accumulator() const {
    require(job_.config().reduce == static_cast<std::uint32_t>(Reduce::kAtomic) && record_.base <= before_.size() &&
                !is_accumulator(*before_[record_.base - 1]),
            "nothing to accumulate for");
    const VariableShm& base = *before_[record_.base - 1];
    require(text_of(base.name) == text_of(record_.name) && base.part == record_.part && base.layout == record_.layout &&
                base.elements == record_.elements && base.rule == record_.rule && record_.slots == 0,
            "another variable to accumulate for");
  }

  void check_slots(SlotsOf slots_of) const {
    const auto rule = static_cast<UpdateRule>(record_.rule);
    require(record_.slots == slots_of(rule, job_.config().ema > 0 && rule != UpdateRule::kAdd, !is_versioned(record_)),
            "another number of optimizer slots than its update rule");
    const bool has_row_state = rule == UpdateRule::kRowwiseAdagrad;
    require(((record_.flags & kRowState) != 0) == has_row_state && !(has_row_state && is_versioned(record_)),
            "another state of rows than its update rule");
    require(record_.partition_by ==
                (is_versioned(record_) ? static_cast<std::uint32_t>(PartitionBy::kRange) : job_.config().partition_by),
            "another way to cut it into parts than its job");
  }

  // Parts are declared in their order. One that hangs in the air would leave its variable one short: whoever declares the
  // missing part would find the variable initialised, and wait for ever for a chunk that nobody has filled.
  void check_part() const {
    const auto is_previous = [&](const VariableShm* other) {
      return !is_accumulator(*other) && other->part + 1 == record_.part &&
             text_of(other->name) == text_of(record_.name);
    };
    require(record_.part == 0 || std::any_of(before_.begin(), before_.end(), is_previous), "no part before it");
  }

  // D2: it lies where its declarer had to put it.
  void check_place() const {
    VariableShm expected;
    std::memcpy(static_cast<void*>(&expected), &record_, offsetof(VariableShm, init));
    try {
      choose_pieces(expected, is_accumulator(record_) ? before_[record_.base - 1] : nullptr, job_.config().chunk_bytes);
      choose_place(expected, job_, before_);
    } catch (const Error& error) {
      require(false, error.what());
    }
    require(record_.shard == expected.shard && record_.buffer_class == expected.buffer_class &&
                record_.piece_elements == expected.piece_elements && record_.pieces == expected.pieces &&
                record_.words_offset == expected.words_offset && record_.data_offset == expected.data_offset &&
                record_.shard_end == expected.shard_end && record_.gradient_offset == expected.gradient_offset &&
                record_.gradient_end == expected.gradient_end && record_.row_elements == expected.row_elements &&
                record_.row_floats == expected.row_floats && record_.row_counts_offset == expected.row_counts_offset &&
                (!is_versioned(record_) ||
                 (record_.first_chunk == expected.first_chunk && record_.spares_offset == expected.spares_offset)),
            "another place than the records before it leave for it");
    const Segment& shard = job_.shard(record_.shard);
    if (!shard.is_mapped())
      fail_damaged(shard_name(job_.job(), record_.shard),
                   fmt::format("it is gone, and variable '{}' lies in it", text_of(record_.name)));
    // D3: the shard was grown before the record was published, so its size of now covers the variable.
    if (record_.shard_end > shard.usable_bytes())
      fail_damaged(shard.name(),
                   fmt::format("it has been cut off, and variable '{}' lies in it", text_of(record_.name)));
  }

  const JobSegments& job_;
  std::uint32_t position_;
  const VariableShm& record_;
  std::span<const VariableShm* const> before_;
};

// The words, buffers and spares of one shard and class.
class ClassCheck {
 public:
  ClassCheck(JobSegments& job, std::uint32_t shard, std::uint32_t buffer_class,
             const std::vector<CheckedRecord>& records)
      : job_(job), shard_(shard), class_(buffer_class) {
    for (const CheckedRecord& record : records)
      if (record->shard == shard && is_versioned(*record) && record->buffer_class == buffer_class) {
        areas_.emplace_back(record->data_offset >> class_, record->pieces);
        if (records_.empty())
          areas_.emplace_back(record->spares_offset >> class_, std::uint64_t{job.lanes()} * kSparesPerClass);
        records_.push_back(record.get());
      }
  }

  void check() {
    for (const VariableShm* record : records_)
      if (is_initialised(*record))
        for (std::uint64_t chunk = 0; chunk < record->pieces; ++chunk) check_chunk(*record, chunk);
    for (std::uint32_t lane = 0; lane < job_.lanes(); ++lane)
      for (std::uint32_t which = 0; which < kSparesPerClass; ++which)
        check_spare(job_.spare_table(shard_, lane).spares[class_ - kMinClass][which], lane, which);
    check_conservation();
  }

 private:
  // A chunk's word, or a spare's record that is not in flight.
  struct Holder {
    std::uint64_t buffer;
    const AtomicShm<std::uint64_t>* word;
    std::uint64_t value;
    auto operator<=>(const Holder&) const = default;
  };

  bool has(std::uint64_t buffer) const {
    return std::any_of(areas_.begin(), areas_.end(),
                       [&](const auto& area) { return buffer >= area.first && buffer - area.first < area.second; });
  }

  [[noreturn]] void fail(const std::string& what) const { fail_damaged(shard_name(job_.job(), shard_), what); }

  // The stamp of a buffer stays as the word says for as long as the word names it.
  void check_chunk(const VariableShm& record, std::uint64_t chunk) {
    const std::byte* data = job_.shard_data(shard_);
    const auto& shared = reinterpret_cast<const PieceWordShm*>(data + record.words_offset)[chunk].word;
    for (;;) {  // ends: each round but the last has seen another one's swap
      const std::uint64_t word = shared.load_acquire();
      if (!has(buffer_of(word)))
        fail(fmt::format("chunk {} of variable '{}' is in no buffer of its class", chunk, text_of(record.name)));
      const auto* buffer = reinterpret_cast<const BufferHeaderShm*>(data + (buffer_of(word) << class_));
      const std::uint64_t stamp = buffer->stamp.load_acquire();
      if (stamp == make_stamp(record.first_chunk + chunk, version_of(word))) {
        holders_.push_back({buffer_of(word), &shared, word});
        return;
      }
      if (shared.load_acquire() == word)
        fail(fmt::format("chunk {} of variable '{}' is torn: its stamp differs from its word", chunk,
                         text_of(record.name)));
    }
  }

  void check_spare(const SpareShm& spare, std::uint32_t lane, std::uint32_t which) {
    const std::uint64_t record = spare.record.load_acquire();
    const std::uint64_t note = spare.note_word.load_relaxed();
    fence_acquire();
    if (spare.record.load_relaxed() != record) return;  // its holder is alive and busy
    if (record == 0 && records_.empty()) return;
    const bool is_possible = (record & ~(kValidSpare | kSpareInFlight | kBufferMask)) == 0 && is_valid(record);
    if (record != 0 && (!is_possible || !has(buffer_of(record)) || (is_in_flight(record) && !has(buffer_of(note)))))
      fail(fmt::format("a spare buffer of rank {} is none of its class", lane / job_.config().threads));
    if (is_in_flight(record))
      in_flight_.push_back({&spare, record, note});
    else
      holders_.push_back({spare_buffer(record, *records_.front(), lane, which), &spare.record, record});
  }

  // Each buffer has one holder. They were looked at one after the other, while living peers swapped, so two holders of
  // one buffer are damage only if both have it at one moment. Words have versions, so one that is the same before and
  // after has been the same in between; two spare records are looked at so often that chance is out of the question.
  void check_conservation() {
    std::sort(holders_.begin(), holders_.end());
    const auto same_buffer = [](const Holder& a, const Holder& b) { return a.buffer == b.buffer; };
    for (auto at = holders_.begin();;) {
      at = std::adjacent_find(at, holders_.end(), same_buffer);
      if (at == holders_.end()) break;
      const Holder &first = *at, &second = *++at;
      if (stays([&] { return has_kept(first) && has_kept(second); })) fail_shared(first.buffer);
    }
    // A spare in flight: either it or the buffer that its swap replaces is held by somebody, never both.
    for (const InFlight& doubt : in_flight_) {
      const Holder* spare = holder_of(buffer_of(doubt.record));
      const Holder* replaced = holder_of(buffer_of(doubt.note));
      if (spare != nullptr && replaced != nullptr && stays([&] {
            return doubt.spare->record.load_acquire() == doubt.record && has_kept(*spare) && has_kept(*replaced) &&
                   doubt.spare->note_word.load_acquire() == doubt.note;
          }))
        fail_shared(spare->buffer);
    }
  }

  static bool has_kept(const Holder& holder) { return holder.word->load_acquire() == holder.value; }

  template <class Fact>
  static bool stays(Fact&& fact) {
    constexpr int kLooks = 1000;
    for (int look = 0; look < kLooks; ++look)
      if (!fact()) return false;
    return true;
  }

  const Holder* holder_of(std::uint64_t buffer) const {
    const auto found = std::lower_bound(holders_.begin(), holders_.end(), buffer,
                                        [](const Holder& holder, std::uint64_t b) { return holder.buffer < b; });
    return found != holders_.end() && found->buffer == buffer ? &*found : nullptr;
  }

  [[noreturn]] void fail_shared(std::uint64_t buffer) const {
    fail(fmt::format("buffer {} of {} bytes is in use twice", buffer, std::uint64_t{1} << class_));
  }

  struct InFlight {
    const SpareShm* spare;
    std::uint64_t record, note;
  };

  JobSegments& job_;
  std::uint32_t shard_, class_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> areas_;  // first buffer, their number
  std::vector<const VariableShm*> records_;
  std::vector<Holder> holders_;
  std::vector<InFlight> in_flight_;
};

void check_live(const JobSegments& job) {
  const Live live = read_live(job);
  try {
    check(live.settings, job.settings());
  } catch (const Error& error) {
    fail_damaged(control_name(job.job()), fmt::format("its live settings are impossible ({})", error.what()));
  }
}

// Rounds only go up. So of two words where one never exceeds the other by more than one, the first is read first.
void check_barrier(const JobSegments& job, std::uint32_t which) {
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(control_name(job.job()), fmt::format("barrier {} has {}", which, what));
  };
  const BarrierShm& barrier = job.barrier(which);
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const WorkerShm& worker = job.worker(rank);
    const BarrierEntryShm& entry = worker.barriers[which];
    const std::uint64_t generation = entry.generation.load_acquire();
    const std::uint64_t latest = std::max({entry.active_from.load_acquire(), entry.published.load_acquire(),
                                           entry.proposal.load_acquire(), entry.included.load_acquire()});
    require(latest == 0 || latest - 1 <= barrier.step.load_acquire(), "an entry for a step that is far ahead");
    require((generation & kHolderMask) <= worker.holders.load_acquire(), "a gradient segment of nobody");
  }
  if (which == 0 && job.config().mode != static_cast<std::uint32_t>(Mode::kSync)) return;  // its step is a counter then
  const std::uint64_t before = barrier.step.load_acquire();
  const std::uint64_t decision = barrier.decision.load_acquire(), decided = decision >> 16;
  const auto proposer = static_cast<std::uint32_t>(decision & 0xffff);
  require(decision == 0 || proposer < job.ranks(), "a proposer that does not exist");
  const std::uint64_t proposal = job.worker(proposer).barriers[which].proposal.load_acquire();
  const std::uint64_t after = barrier.step.load_acquire();
  require(decided >= before && decided <= after + 1, "a decision about another step than the one under way");
  require(decided != after + 1 || proposal == decided, "a decision that nobody has proposed");
}

void check_workers(const JobSegments& job) {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const WorkerShm& worker = job.worker(rank);
    if (worker.state.load_acquire() > static_cast<std::uint32_t>(RankState::kLeft) ||
        worker.holders.load_acquire() > kMostHolders)
      fail_damaged(control_name(job.job()), fmt::format("the entry of rank {} is impossible", rank));
  }
}

}  // namespace

void fail_damaged(const std::string& segment, const std::string& what) {
  throw Error(fmt::format("/dev/shm/{} is damaged: {}; remove its job with inspect_shm rm --force", segment, what));
}

void check_settings(const JobSegments& job) {
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(control_name(job.job()), what);
  };
  const JobConfigShm& config = job.config();
  const HeaderShm& header = job.control().header();
  require(job.control().is_of(SegmentKind::kControl, 0, job.job(), header.instance) && header.instance != 0,
          "it is no control segment of that job");
  require(config.max_workers >= 1 && config.max_workers <= kMaxRanks &&
              header.initial_bytes == control_bytes(config.max_workers) &&
              header.reserved_bytes == header.initial_bytes,
          "its size is not that of its worker table");
  require(is_one_of(config.mode, Mode::kSync) && is_one_of(config.layout, Layout::kInplace) &&
              is_one_of(config.adds, Adds::kRacy) && is_one_of(config.reduce, Reduce::kAtomic) &&
              is_one_of(config.placement, Placement::kPartition) &&
              is_one_of(config.partition_by, PartitionBy::kHash) && is_one_of(config.numa, Numa::kNodes) &&
              is_one_of(config.rule, UpdateRule::kRowwiseAdagrad) &&
              is_one_of(config.schedule_kind, Schedule::Kind::kCosine) && config.staleness_scaling <= 1 &&
              config.huge_pages <= 1,
          "its settings have a value without a meaning");
  require(config.places <= kMaxPlaces && config.numa_nodes <= kMaxNodes,
          "its settings have longer lists than there can be");
  for (std::uint32_t i = 0; i < config.places; ++i)
    require(is_text(job.place(i).name), "its settings place a variable without a name");
  try {
    check(job.settings());
  } catch (const Error& error) {
    fail_damaged(control_name(job.job()), fmt::format("its settings are impossible ({})", error.what()));
  }
}

std::vector<CheckedRecord> copy_records(JobSegments& job, SlotsOf slots_of) {
  std::vector<CheckedRecord> all;
  std::vector<const VariableShm*> before;
  std::vector<bool> named(kMaxVariables);
  for (std::uint32_t position = 0; position < kMaxVariables; ++position) {
    const std::uint32_t entry = job.index(position).load_acquire();  // pairs with declare's swap
    if (entry == 0) break;
    if (entry > kMaxVariables || named[entry - 1])
      fail_damaged(control_name(job.job()), fmt::format("index {} names record {}", position, entry));
    named[entry - 1] = true;
    const VariableShm& shared = job.record(entry - 1);
    auto copy = std::make_unique<VariableShm>();
    std::memcpy(static_cast<void*>(copy.get()), &shared,
                offsetof(VariableShm, init));              // immutable since it was published
    copy->init.store_relaxed(shared.init.load_acquire());  // pairs with the initialiser's release: words and values
    RecordCheck(job, position, *copy, before).check(slots_of);
    before.push_back(copy.get());
    all.push_back(std::move(copy));
  }
  return all;
}

void check_job(JobSegments& job, SlotsOf slots_of) {
  check_workers(job);
  for (std::uint32_t which = 0; which < kBarriers; ++which) check_barrier(job, which);
  check_live(job);
  const Directory directory(job);
  for (;;) {
    const std::vector<CheckedRecord> records = copy_records(job, slots_of);
    try {
      for (std::uint32_t shard = 0; shard < job.config().shards; ++shard)
        for (std::uint32_t buffer_class = kMinClass; job.shard(shard).is_mapped() && buffer_class <= kMaxClass;
             ++buffer_class)
          ClassCheck(job, shard, buffer_class, records).check();
      return;
    } catch (const Error&) {
      // A buffer may have come with a variable that was declared since, and moved on by a swap.
      if (directory.count() == records.size()) throw;
    }
  }
}

}  // namespace ps::shm
