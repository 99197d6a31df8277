// Versioned variables: exact, lock-free updates chunk by chunk, without torn reads and without locks.
//
// Protocol of a chunk, whose `word` {version : 40, buffer : 24} names the current buffer (docs/protocols.md, slot)
//   push   slot.W1 old = word, acquire                          pairs with slot.W6: the buffer's bytes
//          slot.W2 a free buffer is noted as in flight          free_buffers.hpp
//          slot.W3 stamp = building, relaxed; fence release     pairs with slot.R3
//          slot.W4 free buffer's bytes = update(current buffer's bytes)
//          slot.W5 stamp = {chunk, old.version + 1}, relaxed    slot.W6 carries it
//          slot.W6 word: old -> {old.version + 1, free buffer}, acq_rel   pairs with slot.W1, slot.R1; if it fails,
//                  start again. The first push of a snapshot epoch to a chunk performs a copy-on-write: it preserves
//                  the replaced buffer as the chunk's image in the snapshot, and the new buffer's pre-image field names
//                  it (snapshot.C6)
//   pull   slot.R1 word, acquire                                pairs with slot.W6
//          slot.R2 the bytes
//          slot.R3 fence acquire; stamp, relaxed, is {chunk, version of slot.R1}; otherwise start again
// A buffer that is being written is not current, so the current buffer is never torn (invariant.I4). slot.W6 fails only
// because another swap has succeeded: pushes are lock-free, and each is applied once (invariant.I3). A kill at any
// point leaves word and current buffer intact (invariant.I2).
// Accumulators (--reduce atomic) are versioned chunks of gradients (barrier.B9).
// Two workers that contend for a variable of one chunk take turns; the turns are hints (slot.V7).
// The chunks of single-writer variables may also be changed where they lie (single_writer_chunk.hpp).
// Buffer numbers that are read from shared memory are checked before they are used: the functions below throw Error
// (kDamaged) if one lies outside of the shard.
// Versions wrap after 24 to 43 hours of uninterrupted pushes to one chunk. A wrap misleads only a process that sleeps
// inside one chunk for exactly an integer number of wraps (docs/protocols.md has the arithmetic).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shm/base/clock.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/rank_set.hpp"
#include "shm/slots/chunk_buffers.hpp"
#include "shm/slots/free_buffers.hpp"
#include "shm/slots/single_writer_chunk.hpp"

namespace ps_shm::shm {

// The update that made a chunk's current values.
struct ChunkFacts {
  std::uint64_t version = 0;
  UpdateLabel label;
};

enum class StepResult { kApplied, kAlreadyIncluded };

enum class ContributeResult { kAdded, kAlreadyIn, kTooLate };

enum class PullResult { kWhole, kTorn, kNoBuffer };

// May be shared by threads, except that pushes to a variable of one chunk, which it counts, come from one thread at a
// time.
class VersionedVariable : public SingleWriterChunks {
 public:
  using SingleWriterChunks::SingleWriterChunks;

  std::uint64_t version(std::uint64_t chunk) const noexcept { return version_of(word(chunk)); }

  // Approximate number of swaps that pushes have lost: two simultaneous increments may count as one.
  std::uint32_t lost_swaps(std::uint64_t chunk) const noexcept { return words_[chunk].lost_swaps.hint(); }

  // Where the chunk's parameters probably will be when they are needed, for prefetching.
  const float* likely_place(std::uint64_t chunk) const noexcept {
    return parameters(place(buffer_of(words_[chunk].word.hint())));
  }

  // For a GPU, which reads chunks by other means than the processor: the word, its place, and whether the copy of the
  // buffer named by the word is untorn. The last requires that every byte of the copy has been read.
  std::uint64_t word(std::uint64_t chunk) const noexcept { return words_[chunk].word.load_acquire(); }  // (slot.R1)
  const std::byte* word_place(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<const std::byte*>(&words_[chunk].word);
  }
  bool is_still_whole(std::uint64_t chunk, std::uint64_t word) const {
    return is_whole(at(buffer_of(word)), chunk, word);
  }

  // Stores the initial values, and into the optimizer slots, which are zero, what fill(values, slots) writes.
  // `version`: how many updates the values already contain. Only for the task that has claimed the initialisation;
  // wait-free.
  template <class FillSlots>
  void initialise_chunk(std::uint64_t chunk, std::span<const float> values, std::uint64_t version,
                        FillSlots&& fill) noexcept {
    float* out = begin_chunk(chunk, values, version);
    fill(static_cast<const float*>(out), out + place_of(1));
  }
  void initialise_chunk(std::uint64_t chunk, std::span<const float> values) noexcept { begin_chunk(chunk, values, 0); }

  // Copies the chunk's parameters (array 0) or optimizer slot array - 1 to `out`; returns their version, which beside an
  // update in place is the one before the last whole one. Lock-free; adds the number of repeats to `retries`.
  [[gnu::always_inline]] std::uint64_t pull_chunk(std::uint64_t chunk, float* out, std::uint64_t& retries,
                                                  std::uint64_t array = 0) const {
    for (bool is_first = true;; is_first = false, ++retries) {
      poll_in_model(is_first, 0);
      const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
      const BufferHeaderShm& buffer = at(buffer_of(word));
      racing_copy(out, parameters(buffer) + place_of(array), array_size(chunk, array));  // (slot.R2)
      if (is_whole(buffer, chunk, word)) return version_of(word);
      // Blocks of two versions count as the older one, so that nobody takes them for the chunk's current version.
      if (try_pull_changing(chunk, word, out, array)) return (version_of(word) - 1) & kVersionMask;
    }
  }

  // A single attempt of the same, for a job that may be dead and a segment that may be damaged. kNoBuffer: the word
  // names a buffer outside of the shard, and nothing was read. Wait-free.
  [[nodiscard]] PullResult try_pull_chunk(std::uint64_t chunk, float* out, std::uint64_t array = 0) const {
    const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
    if (!has_buffer(*shard_, buffer_of(word), buffer_class_)) return PullResult::kNoBuffer;
    const BufferHeaderShm& buffer = place(buffer_of(word));
    racing_copy(out, parameters(buffer) + place_of(array), array_size(chunk, array));  // (slot.R2)
    return is_whole(buffer, chunk, word) || try_pull_changing(chunk, word, out, array) ? PullResult::kWhole
                                                                                       : PullResult::kTorn;
  }

  // The same for the parameters, together with the update that the buffer's header names.
  [[nodiscard]] PullResult try_pull_labelled(std::uint64_t chunk, float* out, ChunkFacts& facts) const {
    const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
    if (!has_buffer(*shard_, buffer_of(word), buffer_class_)) return PullResult::kNoBuffer;
    const BufferHeaderShm& buffer = place(buffer_of(word));
    racing_copy(out, parameters(buffer), chunk_size(chunk));  // (slot.R2)
    facts = {version_of(word), label_of(buffer)};
    return is_whole(buffer, chunk, word) ? PullResult::kWhole : PullResult::kTorn;
  }

  // The same for buffer `number`, which may have been the chunk's current buffer before `version`. False: it was not,
  // or it has been reused. Requires: this thread has read the chunk's word with that version. An older buffer is then
  // completely visible, since its swap came before. Wait-free.
  [[nodiscard]] bool try_pull_old(std::uint64_t chunk, std::uint64_t version, std::uint64_t number, float* out,
                                  ChunkFacts& facts) const {
    if (!has_buffer(*shard_, number, buffer_class_)) return false;
    const BufferHeaderShm& buffer = place(number);
    const std::uint64_t stamp = buffer.stamp.load_relaxed();  // relaxed: checked below, as slot.R3 does
    facts.version = stamp & kVersionMask;
    if (stamp != make_stamp(variable_.first_chunk + chunk, facts.version) || facts.version >= version) return false;
    racing_copy(out, parameters(buffer), chunk_size(chunk));  // (slot.R2)
    facts.label = label_of(buffer);
    fence_acquire();  // (slot.R3) pairs with slot.W3
    return buffer.stamp.load_relaxed() == stamp;
  }

  // Copies the chunk's parameters (array 0) or optimizer slot array - 1 as they are in the snapshot of that epoch;
  // returns their version. Lock-free. Requires: it is the job's last snapshot point, and it is open; the chunk has a
  // reserve.
  std::uint64_t pull_image(std::uint64_t chunk, std::uint64_t epoch, float* out, std::uint64_t array = 0) const {
    return with_image(
               chunk, epoch,
               [&](const float* image) {
                 racing_copy(out, image + place_of(array), array_size(chunk, array));  // (snapshot.C9)
               },
               [&](std::uint64_t word) { return try_pull_changing(chunk, word, out, array); })
        .version;
  }
  // The same for the number of steps that the image's optimizer state contains.
  std::uint64_t image_steps(std::uint64_t chunk, std::uint64_t epoch) const {
    return with_image(
               chunk, epoch, [](const float*) {}, [&](std::uint64_t word) { return changing(word) != 0; })
        .steps;
  }

  // The buffer that the chunk preserves beside its current one (snapshot.C6), or 0. A single attempt; wait-free.
  std::uint64_t kept_by(std::uint64_t chunk) const {
    const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
    const BufferHeaderShm& buffer = at(buffer_of(word));
    const std::uint64_t preimage = preimage_of(buffer).load_relaxed();
    return is_whole(buffer, chunk, word) || is_changing_still(chunk, word)
               ? preserved_buffer(variable_, chunk, preimage)
               : 0;
  }

  // Applies exactly one update to the chunk. update(out, in, past) computes new parameters and optimizer slots from `in`
  // into `out`. It may be called several times. Lock-free.
  template <class Update>
  SwapResult push_chunk(std::uint64_t chunk, FreeBuffers& free_buffers, UpdateLabel label, Update&& update) {
    SwapResult result;
    for (;; ++result.retries) {
      poll_in_model(result.retries == 0, result.retries);
      std::uint64_t old = words_[chunk].word.load_acquire();                            // (slot.W1)
      const std::uint64_t included = at(buffer_of(old)).included_steps.load_relaxed();  // slot.V4: slot.W6 checks it
      const auto compute = [&](float* out, const float* in, ChunkPast past) {
        update(out, in, past);
        return true;
      };
      if (try_swap(chunk, old, free_buffers, label, included, nullptr, compute)) {
        result.version = version_of(old);
        if (variable_.pieces == 1) count_win(result.retries);
        return result;
      }
      words_[chunk].lost_swaps.leave_hint(words_[chunk].lost_swaps.hint() + 1);
      if (variable_.pieces == 1) back_off(result.retries);
    }
  }

  // Applies a sync step (barrier.B5), unless the chunk already includes `step`. Every helper computes the same bits,
  // and one helper's swap succeeds. If what update(out, in, past) has read changed in the meantime, it returns
  // false and is called again. Lock-free.
  template <class Update>
  StepResult apply_step(std::uint64_t chunk, std::uint64_t step, FreeBuffers& free_buffers, UpdateLabel label,
                        Update&& update) {
    for (;;) {
      std::uint64_t old = words_[chunk].word.load_acquire();  // (slot.W1)
      const BufferHeaderShm& buffer = at(buffer_of(old));
      const std::uint64_t included = buffer.included_steps.load_relaxed();
      if (!is_whole(buffer, chunk, old)) continue;  // slot.V4: otherwise `included` may be another chunk's
      if (included > step) return StepResult::kAlreadyIncluded;
      if (try_swap(chunk, old, free_buffers, label, step + 1, nullptr, update)) return StepResult::kApplied;
    }
  }

  // For an accumulator: adds the gradient of label.rank for label.step. sum(out, in) writes in + gradient, or only the
  // gradient if `in` is nullptr. `again`: the caller has already contributed to this step, and adds more. Lock-free.
  template <class Sum>
  ContributeResult contribute(std::uint64_t chunk, FreeBuffers& free_buffers, UpdateLabel label, bool again,
                              Sum&& sum) {
    for (;;) {
      std::uint64_t old = words_[chunk].word.load_acquire();  // (slot.W1)
      const BufferHeaderShm& buffer = at(buffer_of(old));
      const std::uint64_t summed = buffer.included_steps.load_relaxed();
      RankSet contributors = contributors_of(buffer);
      if (!is_whole(buffer, chunk, old)) continue;  // slot.V4
      if (summed > label.step + 1) return ContributeResult::kTooLate;
      const bool is_first = summed < label.step + 1;
      if (is_first) contributors = {};
      if (contributors.contains(label.rank) && !again) return ContributeResult::kAlreadyIn;
      contributors.insert(label.rank);
      const auto compute = [&](float* out, const float* in, ChunkPast) {
        sum(out, is_first ? nullptr : in);
        return true;
      };
      if (try_swap(chunk, old, free_buffers, label, label.step + 1, &contributors, compute))
        return ContributeResult::kAdded;
    }
  }

  // For an accumulator: calls use(sum, contributors) with the sum of `step`, to which other workers may still be
  // adding. True: the sum was untorn until use() returned. False: try again. Calls nothing if no rank has contributed
  // to `step`.
  template <class Use>
  bool try_use_sum(std::uint64_t chunk, std::uint64_t step, Use&& use) const {
    const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
    const BufferHeaderShm& buffer = at(buffer_of(word));
    const std::uint64_t summed = buffer.included_steps.load_relaxed();
    const RankSet contributors = contributors_of(buffer);
    if (!is_whole(buffer, chunk, word)) return false;  // slot.V4
    if (summed != step + 1) return true;
    if (kThreadSanitizer || model_of(&buffer) != nullptr) {
      float* copy = racing_scratch(2);
      racing_copy(copy, parameters(buffer), gradient_size(chunk));
      use(static_cast<const float*>(copy), contributors);
    } else {
      use(parameters(buffer), contributors);
    }
    return is_whole(buffer, chunk, word);
  }

  // Whether an accumulator's chunk has a contribution to `step` from one of `ranks`. Lock-free.
  bool has_sum(std::uint64_t chunk, std::uint64_t step, const RankSet& ranks) const {
    bool has = false;
    while (!try_use_sum(chunk, step, [&](const float*, const RankSet& in) { has = in.intersects(ranks); })) has = false;
    return has;
  }

  // Whether the chunk includes sync step `step`. Lock-free.
  bool includes(std::uint64_t chunk, std::uint64_t step) const {
    for (;;) {
      const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
      const BufferHeaderShm& buffer = at(buffer_of(word));
      const std::uint64_t included = buffer.included_steps.load_relaxed();
      if (is_whole(buffer, chunk, word)) return included > step;
    }
  }

 private:
  static constexpr std::uint32_t kStreak = 128;      // pushes in a row by the worker whose cache has the chunk
  static constexpr std::uint64_t kTurnNs = 20'000;   // about as long as a streak
  static constexpr std::uint64_t kHandOverNs = 500;  // until the other worker has noticed
  enum Wanted : std::uint32_t { kFree, kWanted, kGranted };

  // slot.V7: announces that this worker wants a turn, and waits for it.
  void wait_turn() noexcept {
    auto& wanted = words_[0].wanted;
    wanted.leave_hint(kWanted);
    for (const std::uint64_t until = monotonic_ns() + kTurnNs; wanted.hint() == kWanted && monotonic_ns() < until;)
      spin_pause();
    wanted.leave_hint(kFree);
  }

  // After a lost swap of the variable's only chunk; `losses` swaps of the same push were lost before. One is lost by
  // chance.
  void back_off(std::uint64_t losses) noexcept {
    if (losses != 0) wait_turn();
  }

  // After a successful swap: passes the turn on after a streak of them.
  void count_win(std::uint64_t losses) noexcept {
    streak_ = losses == 0 ? streak_ + 1 : 0;
    if (streak_ < kStreak) return;
    streak_ = 0;
    if (words_[0].wanted.hint() != kWanted) return;
    words_[0].wanted.leave_hint(kGranted);
    for (const std::uint64_t until = monotonic_ns() + kHandOverNs; monotonic_ns() < until;) spin_pause();
    wait_turn();
  }

  float* begin_chunk(std::uint64_t chunk, std::span<const float> values, std::uint64_t version) noexcept;

  // Calls read(parameters of the image) until what it has read is the untorn image; returns its past. If an update in
  // place is changing that image, calls read_changing(word) until it returns true.
  template <class Read, class ReadChanging>
  ChunkPast with_image(std::uint64_t chunk, std::uint64_t epoch, Read&& read, ReadChanging&& read_changing) const {
    for (;;) {
      const std::uint64_t word = words_[chunk].word.load_acquire();  // (slot.R1)
      const BufferHeaderShm& buffer = at(buffer_of(word));
      const std::uint64_t preimage = preimage_of(buffer).load_relaxed();
      const std::uint64_t skipped = skipped_of(buffer).load_relaxed();
      if (!is_whole(buffer, chunk, word)) {  // slot.V4: otherwise these may belong to another chunk
        if (!is_changing_still(chunk, word)) continue;
        // An update in place leaves the fields as they are, so they are this chunk's.
        if (preimage_epoch(preimage) < epoch) {
          if (read_changing(word)) return past_of((version_of(word) - 1) & kVersionMask, skipped);  // slot.V13
          continue;
        }
      }
      const bool has_preimage =
          preimage_epoch(preimage) >= epoch;  // then the image is the preserved buffer, which stays as it is
      const BufferHeaderShm& image = has_preimage ? at(buffer_of(preimage)) : buffer;
      read(parameters(image));
      const ChunkPast past = past_of(image.stamp.load_relaxed() & kVersionMask, skipped_of(image).load_relaxed());
      if (has_preimage || is_whole(buffer, chunk, word)) return past;
    }
  }

  // relaxed: the stamp check covers these fields
  static UpdateLabel label_of(const BufferHeaderShm& buffer) noexcept {
    return {.rank = buffer.writer.load_relaxed(), .step = buffer.writer_step.load_relaxed()};
  }
  static RankSet contributors_of(const BufferHeaderShm& buffer) noexcept {
    RankSet set;
    for (std::size_t i = 0; i < set.bits.size(); ++i) set.bits[i] = buffer.contributors.bits[i].load_relaxed();
    return set;
  }

  // compute(out, in, past) returns false if what it was computed from has changed in the meantime.
  template <class Compute>
  bool try_swap(std::uint64_t chunk, std::uint64_t old, FreeBuffers& free_buffers, UpdateLabel label,
                std::uint64_t included, const RankSet* contributors, Compute&& compute) {
    const BufferHeaderShm& in = at(buffer_of(old));
    std::uint64_t gain = buffer_of(old), preimage = 0;
    if (contributors == nullptr) {
      preimage = preimage_of(in).load_relaxed();  // (snapshot.C5) counts if slot.W6 wins (slot.V4)
      if (preimage_epoch(preimage) < label.epoch) {
        if (!is_whole(in, chunk, old)) return false;  // another chunk's: its buffer must not be noted
        if (const std::uint64_t before = preserved_buffer(variable_, chunk, preimage); before != 0) {
          preimage = make_preimage(label.epoch, gain);  // (snapshot.C6) preserves the image of the snapshot
          gain = before;
        }
      }
    }
    const FreeBuffer free_buffer =
        free_buffers.begin(variable_, variable_.first_chunk + chunk, old, gain);  // (slot.W2)
    BufferHeaderShm& out = place(free_buffer.buffer);
    const std::uint64_t next = make_word(version_of(old) + 1, free_buffer.buffer);
    out.stamp.store_relaxed(kBuilding);  // (slot.W3)
    fault_point(FaultPoint::kPushBuilding);
    fence_release();  // (slot.W3) slot.V2: no byte before the stamp; pairs with slot.R3
    const std::uint64_t skipped = label.resets ? version_of(old) : skipped_of(in).load_relaxed();  // slot.V15
    const bool is_good = racing_update(                                                            // (slot.W4)
        parameters(out), parameters(in), payload_floats(),
        [&](float* to, const float* from) { return compute(to, from, past_of(version_of(old), skipped)); });
    fault_point(FaultPoint::kPushComputed);
    if (!is_good) {
      FreeBuffers::lost(free_buffer);
      return false;
    }
    if (contributors != nullptr) {
      for (std::size_t i = 0; i < contributors->bits.size(); ++i)
        out.contributors.bits[i].store_relaxed(contributors->bits[i]);
    } else {
      preimage_of(out).store_relaxed(preimage);                              // (snapshot.C6)
      skipped_of(out).store_relaxed(label.is_step ? skipped : skipped + 1);  // slot.V15
    }
    out.included_steps.store_relaxed(included);
    out.writer.store_relaxed(label.rank);
    out.writer_step.store_relaxed(label.step);
    fault_point(FaultPoint::kPushLabelled);
    out.stamp.store_relaxed(stamp_of(chunk, next));  // (slot.W5)
    fault_point(FaultPoint::kPushStamped);
    if (words_[chunk].word.try_exchange_acq_rel(old, next)) {  // (slot.W6) pairs with slot.W1, slot.R1
      fault_point(FaultPoint::kPushSwapped);
      FreeBuffers::won(free_buffer, gain);
      return true;
    }
    fault_point(FaultPoint::kPushLost);
    FreeBuffers::lost(free_buffer);
    return false;
  }

  std::uint32_t streak_ = 0;
};

}  // namespace ps_shm::shm
