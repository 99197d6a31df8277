#include "shm/slots/recovery.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "shm/base/clock.hpp"
#include "shm/base/memory_model.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/versioned_slot.hpp"

namespace ps_shm::shm {
namespace {

// One record in doubt. It owns `spare` if its owner's swap did not happen, and `gain` if it did.
struct Doubt {
  FreeBufferShm* shared;
  std::uint64_t chunk, word, free_buffer, gain;
};

enum class Fate { kNotSwapped, kSwapped, kUnknown };

// Searches all buffers of one class in one shard.
class ClassCensus {
 public:
  ClassCensus(JobSegments& job, std::uint32_t shard, std::uint32_t buffer_class) : job_(job), shard_(shard) {
    const Directory directory(job);
    for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
      const VariableShm& variable = directory.at(position);
      if (variable.shard == shard && variable.buffer_class == buffer_class && is_versioned(variable) &&
          variable.init.load_acquire() == kInitialised)  // (directory.D6) its words name buffers
        variables_.push_back(&variable);
    }
    class_ = buffer_class - kMinClass;
  }

  // slot.U6, for a dead rank's record. Comes before anything else: what a chunk's header names counts only then.
  void complete_in_place(const Doubt& doubt) const {
    for (const VariableShm* variable : variables_)
      if (variable->layout == static_cast<std::uint32_t>(Layout::kSingleWriter) &&
          doubt.chunk - variable->first_chunk < variable->pieces)
        VersionedVariable(job_.shard(shard_), *variable)
            .complete_in_place(doubt.chunk - variable->first_chunk, doubt.word, doubt.free_buffer);
  }

  std::vector<Doubt> doubts_of(std::uint32_t rank) const {
    std::vector<Doubt> doubts;
    if (variables_.empty()) return doubts;
    for (std::uint32_t lane = job_.lane(rank, 0); lane < job_.lane(rank + 1, 0); ++lane)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
        FreeBufferShm& shared = free_buffer(lane, which);
        const std::uint64_t record = shared.record.load_acquire();  // (slot.S3) pairs with slot.S1: the note
        if (is_in_flight(record))
          // relaxed: the record came with its note, and a dead owner's note stays unchanged
          doubts.push_back({&shared, shared.note_chunk.load_relaxed(), shared.note_word.load_relaxed(),
                            buffer_of(record), buffer_of(shared.note_gain.load_relaxed())});
      }
    return doubts;
  }

  // slot.V6, for a dead rank's record. The search races with live pushers: what it finds is proof, what it does not
  // find proves nothing.
  Fate fate_of(const Doubt& doubt) const {
    for (const VariableShm* variable : variables_) {
      if (doubt.chunk < variable->first_chunk || doubt.chunk >= variable->first_chunk + variable->pieces) continue;
      if (word(*variable, doubt.chunk - variable->first_chunk) == doubt.word) return Fate::kNotSwapped;
    }
    if (is_named(doubt.free_buffer)) return Fate::kSwapped;
    if (is_named(doubt.gain)) return Fate::kNotSwapped;  // it stayed there, or another swap gained it
    return Fate::kUnknown;
  }

  // Whether a word, a current buffer's header or a record that is not in flight names the buffer. A record in flight
  // proves nothing: its owner may have swapped that buffer in already without having noted it.
  bool is_named(std::uint64_t buffer) const {
    for (const VariableShm* variable : variables_) {
      const VersionedVariable chunks(job_.shard(shard_), *variable);
      for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
        if (buffer_of(word(*variable, chunk)) == buffer || chunks.kept_by(chunk) == buffer) return true;
    }
    for (std::uint32_t lane = 0; lane < job_.lanes(); ++lane)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
        const std::uint64_t record = free_buffer(lane, which).record.load_acquire();  // (slot.S3)
        if (!is_in_flight(record) && free_buffer_of(record, *variables_[0], lane, which) == buffer) return true;
      }
    return false;
  }

 private:
  FreeBufferShm& free_buffer(std::uint32_t lane, std::uint32_t which) const noexcept {
    return job_.free_buffer_table(shard_, lane).free_buffers[class_][which];
  }
  std::uint64_t word(const VariableShm& variable, std::uint64_t chunk) const noexcept {
    const auto* words = reinterpret_cast<const PieceWordShm*>(job_.shard_data(shard_) + variable.words_offset);
    return words[chunk].word.load_acquire();  // (slot.R1)
  }

  JobSegments& job_;
  std::uint32_t shard_, class_ = 0;
  std::vector<const VariableShm*> variables_;
};

void note_fate(const Doubt& doubt, Fate fate) {
  const std::uint64_t owned = fate == Fate::kSwapped ? doubt.gain : doubt.free_buffer;
  doubt.shared->record.store_release(kValidFreeBuffer | owned);  // (slot.S2)
  fault_point(FaultPoint::kRecoveryNoted);
}

// Recovers the buffers whose fate the rules decide; returns those that stay in doubt. A record that is recovered here
// may name a buffer about which an earlier one is in doubt, so this repeats until a round decides nothing.
std::vector<Doubt> recover_decided(const ClassCensus& census, std::vector<Doubt> doubts) {
  for (;;) {
    std::vector<Doubt> open;
    for (const Doubt& doubt : doubts) {
      const Fate fate = census.fate_of(doubt);
      if (fate == Fate::kUnknown)
        open.push_back(doubt);
      else
        note_fate(doubt, fate);
    }
    if (open.empty() || open.size() == doubts.size()) return open;
    doubts = std::move(open);
  }
}

// For a model of memory: which doubts there are.
std::uint64_t numbers_of(const std::vector<Doubt>& doubts) noexcept {
  std::uint64_t numbers = 0;
  for (const Doubt& doubt : doubts) numbers = numbers << 8 ^ doubt.free_buffer;
  return numbers;
}

bool overlap(const Doubt& a, const Doubt& b) noexcept {
  return a.free_buffer == b.free_buffer || a.free_buffer == b.gain || a.gain == b.free_buffer || a.gain == b.gain;
}

// Takes all dead ranks that are in doubt about the same buffers, directly or through others, and recovers them
// together.
bool recover_jointly(JobSegments& job, const ClassCensus& census, std::vector<Doubt> doubts, std::uint32_t rank,
                     const TaskLocks& locks) {
  std::vector<std::uint32_t> taken;
  for (std::uint32_t other = 0; other < job.ranks(); ++other) {
    if (other == rank || std::find(taken.begin(), taken.end(), other) != taken.end()) continue;
    for (const Doubt& theirs : census.doubts_of(other)) {
      if (std::none_of(doubts.begin(), doubts.end(), [&](const Doubt& mine) { return overlap(mine, theirs); }))
        continue;
      if (!locks.try_take(kRankByte + other)) break;  // alive: it will note its buffer itself
      fault_point(FaultPoint::kRecoveryTaken);
      taken.push_back(other);
      const std::vector<Doubt> all_theirs = census.doubts_of(other);
      doubts.insert(doubts.end(), all_theirs.begin(), all_theirs.end());
      other = ~0U;  // its buffers may overlap with those of ranks already skipped: start again
      break;
    }
  }
  // Dead ranks do not change anything. While all of them are held, one more search decides. What it leaves open
  // depends on a live rank, which may take either buffer at this moment: a guess could give one buffer two owners.
  const bool is_settled = recover_decided(census, std::move(doubts)).empty();
  for (const std::uint32_t other : taken) locks.release(kRankByte + other);
  return is_settled;
}

}  // namespace

bool recover_buffers(JobSegments& job, std::uint32_t rank, const TaskLocks& locks) {
  bool is_settled = true;
  // A live pusher has a buffer in flight for some microseconds, unless it has lost its processor or is stopped. The
  // searches are counted, since the clock also runs while this process has lost its own processor.
  constexpr int kQuickLooks = 50, kLooks = 150;
  constexpr std::uint64_t kPauseNs = 500'000;
  for (std::uint32_t shard = 0; shard < job.config().ps_tasks; ++shard)
    for (std::uint32_t buffer_class = kMinClass; buffer_class <= kMaxClass; ++buffer_class) {
      const ClassCensus census(job, shard, buffer_class);
      std::vector<Doubt> doubts = census.doubts_of(rank);
      for (const Doubt& doubt : doubts) census.complete_in_place(doubt);
      for (int look = 0; look < kLooks && !doubts.empty(); ++look) {
        poll_in_model(look == 0, numbers_of(doubts));
        const bool has_time = model_of_fences() == nullptr;  // a test's model has none
        if (has_time && look > kQuickLooks)
          sleep_ns(kPauseNs);
        else if (has_time && look > 0)
          std::this_thread::yield();
        doubts = recover_decided(census, doubts);
      }
      if (!doubts.empty() && !recover_jointly(job, census, std::move(doubts), rank, locks)) is_settled = false;
    }
  return is_settled;
}

}  // namespace ps_shm::shm
