#include "shm/checks/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <span>
#include <utility>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/barrier.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kMaxHolders = std::uint64_t{1} << 32;  // one a microsecond for an hour

// Checks the words, buffers and free-buffer records of one shard and class.
class ClassCheck {
 public:
  // `records`: the records of that shard and class, in the directory's order.
  ClassCheck(JobSegments& job, std::uint32_t shard, std::uint32_t buffer_class,
             const std::vector<const VariableShm*>& records)
      : job_(job), shard_(shard), class_(buffer_class), records_(records) {
    for (const VariableShm* record : records_) {
      if (areas_.empty())
        areas_.emplace_back(record->free_buffers_offset >> class_, std::uint64_t{job.lanes()} * kFreeBuffersPerClass);
      areas_.emplace_back(record->data_offset >> class_, record->pieces);
    }
    std::sort(areas_.begin(), areas_.end());
  }

  void check() {
    for (const VariableShm* record : records_)
      if (record->init.load_relaxed() == kInitialised)
        for (std::uint64_t chunk = 0; chunk < record->pieces; ++chunk) check_chunk(*record, chunk);
    for (std::uint32_t lane = 0; lane < job_.lanes(); ++lane)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which)
        check_free_buffer(job_.free_buffer_table(shard_, lane).free_buffers[class_ - kMinClass][which], lane, which);
    check_conservation();
  }

 private:
  // A chunk's word, which holds its current buffer and the one that it preserves, or a free-buffer record not in
  // flight.
  struct Holder {
    std::uint64_t buffer;
    const AtomicShm<std::uint64_t>* word;
    std::uint64_t value;
    auto operator<=>(const Holder&) const = default;
  };

  bool has(std::uint64_t buffer) const {
    const auto after = std::upper_bound(areas_.begin(), areas_.end(), buffer,
                                        [](std::uint64_t b, const auto& area) { return b < area.first; });
    return after != areas_.begin() && buffer - std::prev(after)->first < std::prev(after)->second;
  }

  [[noreturn]] void fail(const std::string& what) const { fail_damaged(shard_name(job_.job(), shard_), what); }

  // While a word names a buffer, the buffer's stamp matches the word.
  void check_chunk(const VariableShm& record, std::uint64_t chunk) {
    const std::byte* data = job_.shard_data(shard_);
    const auto& shared = reinterpret_cast<const PieceWordShm*>(data + record.words_offset)[chunk].word;
    for (;;) {                                           // ends: another process has swapped in each round but the last
      const std::uint64_t word = shared.load_acquire();  // (slot.R1)
      if (!has(buffer_of(word)))
        fail(fmt::format("chunk {} of variable '{}' names no buffer of its class", chunk, text_of(record.name)));
      const auto* buffer = reinterpret_cast<const BufferHeaderShm*>(data + (buffer_of(word) << class_));
      const std::uint64_t preimage = preimage_of(*buffer).load_relaxed();
      fence_acquire();                                           // (slot.R3) the pre-image field before the stamp
      const std::uint64_t stamp = buffer->stamp.load_acquire();  // (slot.R3) before the second read of the word
      // slot.U2: an update in place is under way, or its worker was killed.
      const bool is_in_place = record.layout == static_cast<std::uint32_t>(Layout::kSingleWriter) &&
                               is_changing(stamp) && has(buffer_of(stamp)) &&
                               shared.load_acquire() == word;  // (slot.R1)
      if (is_in_place || stamp == make_stamp(record.first_chunk + chunk, version_of(word))) {
        holders_.push_back({buffer_of(word), &shared, word});
        if (const std::uint64_t kept = preserved_buffer(record, chunk, preimage); kept != 0) {
          if (!has(kept))
            fail(fmt::format("chunk {} of variable '{}' preserves a buffer that is not of its class", chunk,
                             text_of(record.name)));
          holders_.push_back({kept, &shared, word});
        }
        return;
      }
      if (shared.load_acquire() == word)  // (slot.R1)
        fail(fmt::format("chunk {} of variable '{}' is torn: its stamp differs from its word", chunk,
                         text_of(record.name)));
    }
  }

  void check_free_buffer(const FreeBufferShm& free_buffer, std::uint32_t lane, std::uint32_t which) {
    const std::uint64_t record = free_buffer.record.load_acquire();  // (slot.S3) pairs with slot.S1: the note
    const std::uint64_t gain = free_buffer.note_gain.load_relaxed();
    fence_acquire();                                          // (slot.S3) the note before the second read
    if (free_buffer.record.load_relaxed() != record) return;  // its owner is alive and busy
    if (record == 0 && records_.empty()) return;
    const bool is_possible =
        (record & ~(kValidFreeBuffer | kFreeBufferInFlight | kBufferMask)) == 0 && is_valid(record);
    if (record != 0 && (!is_possible || !has(buffer_of(record)) || (is_in_flight(record) && !has(gain))))
      fail(fmt::format("a free buffer of rank {} is not of its class", lane / job_.config().threads));
    if (is_in_flight(record))
      in_flight_.push_back({&free_buffer, record, gain});
    else
      holders_.push_back({free_buffer_of(record, *records_.front(), lane, which), &free_buffer.record, record});
  }

  // Each buffer has one holder. The holders were read one after the other, while live peers swapped. Two holders of
  // one buffer are therefore damage only if both have it at the same moment. Words have versions, so a word that is
  // the same before and after has not changed in between. Two free-buffer records are read so often that chance is
  // ruled out.
  void check_conservation() {
    std::sort(holders_.begin(), holders_.end());
    const auto same_buffer = [](const Holder& a, const Holder& b) { return a.buffer == b.buffer; };
    for (auto at = holders_.begin();;) {
      at = std::adjacent_find(at, holders_.end(), same_buffer);
      if (at == holders_.end()) break;
      const Holder &first = *at, &second = *++at;
      if (stays([&] { return has_kept(first) && has_kept(second); })) fail_shared(first.buffer);
    }
    // Of a free buffer in flight and the buffer that its swap gains, one may have a holder, never both.
    for (const InFlight& doubt : in_flight_) {
      const Holder* free_buffer = holder_of(buffer_of(doubt.record));
      const Holder* gain = holder_of(doubt.gain);
      if (free_buffer != nullptr && gain != nullptr && stays([&] {
            return doubt.free_buffer->record.load_acquire() == doubt.record &&  // (slot.S3)
                   has_kept(*free_buffer) && has_kept(*gain) &&
                   doubt.free_buffer->note_gain.load_acquire() == doubt.gain;  // (slot.S3)
          }))
        fail_shared(free_buffer->buffer);
    }
  }

  static bool has_kept(const Holder& holder) {
    return holder.word->load_acquire() == holder.value;  // (slot.R1, slot.S3) a chunk's word, or a free-buffer record
  }

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
    const FreeBufferShm* free_buffer;
    std::uint64_t record, gain;
  };

  JobSegments& job_;
  std::uint32_t shard_, class_;
  const std::vector<const VariableShm*>& records_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> areas_;  // {first buffer, number of them}; sorted, disjoint
  std::vector<Holder> holders_;
  std::vector<InFlight> in_flight_;
};

void check_live(const JobSegments& job) {
  const Live live = read_live(job);
  try {
    check(live.settings, job.config());
  } catch (const Error& error) {
    fail_damaged(control_name(job.job()), fmt::format("its runtime settings are impossible ({})", error.what()));
  }
}

// Rounds only increase. If one word never exceeds another one by more than one, it is therefore read first.
void check_barrier(const JobSegments& job, std::uint32_t which) {
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(control_name(job.job()), fmt::format("barrier {} has {}", which, what));
  };
  const BarrierShm& barrier = job.barrier(which);
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const WorkerShm& worker = job.worker(rank);
    const BarrierEntryShm& entry = worker.barriers[which];
    const std::uint64_t generation = entry.generation.load_acquire();    // (barrier.G1)
    const std::uint64_t active_from = entry.active_from.load_acquire();  // (barrier.B1)
    const std::uint64_t published = entry.published.load_acquire();      // (barrier.A1)
    const std::uint64_t proposal = entry.proposal.load_acquire();        // (barrier.A3)
    const std::uint64_t included = entry.included.load_acquire();        // (barrier.B11)
    const std::uint64_t latest = std::max({active_from, published, proposal, included});
    const std::uint64_t round = barrier.step.load_acquire();  // (barrier.A6) after them: it only increases
    require(latest == 0 || latest - 1 <= round, "an entry for a step that is far ahead");
    const std::uint64_t holders = worker.holders.load_acquire();  // (ranks.J4) after the generation
    require((generation & kHolderMask) <= holders, "a gradient segment without an owner");
  }
  if (which == 0 && !traits_of(job.config().mode).steps_together()) return;  // then its step is a counter
  const std::uint64_t before = barrier.step.load_acquire();                  // (barrier.A6)
  const std::uint64_t decision = barrier.decision.load_acquire(), decided = decided_rounds(decision);  // (barrier.A5)
  const std::uint32_t proposer = proposer_of(decision);
  if (which == 1) return require(decision == 0, "a decision, although it is the user barrier");
  require(decision == 0 || proposer < job.ranks(), "a proposer that does not exist");
  const std::uint64_t proposal = job.worker(proposer).barriers[which].proposal.load_acquire();  // (barrier.A3)
  const std::uint64_t after = barrier.step.load_acquire();                                      // (barrier.A6)
  require(decided >= before && decided <= after + 1, "a decision that is not about the step under way");
  require(decided != after + 1 || proposal == decided, "a decision that nobody has proposed");
}

void check_workers(const JobSegments& job) {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const WorkerShm& worker = job.worker(rank);
    const std::uint32_t state = worker.state.load_acquire();      // (ranks.J4)
    const std::uint64_t holders = worker.holders.load_acquire();  // (ranks.J4)
    if (state > static_cast<std::uint32_t>(RankState::kLeft) || holders > kMaxHolders ||
        worker.guest.load_relaxed() > 1)  // relaxed: ranks.J4 has brought it
      fail_damaged(control_name(job.job()), fmt::format("the entry of rank {} is impossible", rank));
  }
}

}  // namespace

void check_job(JobSegments& job) {
  check_workers(job);
  for (std::uint32_t which = 0; which < kBarriers; ++which) check_barrier(job, which);
  check_live(job);
  const Directory directory(job);
  for (;;) {
    const std::vector<CheckedRecord> records = copy_records(job);
    std::vector<std::array<std::vector<const VariableShm*>, kClasses>> classes(job.config().ps_tasks);  // of each shard
    for (const CheckedRecord& record : records)
      if (is_versioned(*record)) classes[record->shard][record->buffer_class - kMinClass].push_back(record.get());
    try {
      for (std::uint32_t shard = 0; shard < job.config().ps_tasks; ++shard)
        for (std::uint32_t index = 0; job.shard(shard).is_mapped() && index < kClasses; ++index)
          ClassCheck(job, shard, kMinClass + index, classes[shard][index]).check();
      return;
    } catch (const Error&) {
      // A buffer may have come with a variable that was declared since, and a swap may have put it into use.
      if (directory.count() == records.size()) throw;
    }
  }
}

}  // namespace ps_shm::shm
