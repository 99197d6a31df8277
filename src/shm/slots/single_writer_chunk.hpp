// Updates in place: the chunks of single-writer variables, which their only pusher may change where they lie.
//
// Protocol of a chunk, on top of that of versioned_slot.hpp (docs/protocols.md, slot)
//   push   slot.U1 old = word; a free buffer is noted as in flight: it becomes the undo log (undo_log.hpp)
//          slot.U2 the log's mark = unchanged; fence release; stamp = {no chunk, log}; fence release
//          slot.U3 block by block: its old floats go to the log, the mark names it, it changes
//          slot.U4 the mark = changed, release; word: old -> {old.version + 1, the same buffer}; stamp
//   pull   slot.U5 if the stamp names a log: mark, copy, the old floats of the marked block over it, the same mark
// So a current buffer changes (slot.V9), but never more of it at once than the log can take back (slot.V10, slot.V11,
// slot.V12): readers get whole blocks also beside a stopped or killed pusher (slot.V13), and the next owner of its rank
// completes the version (slot.V14).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "shm/base/racing.hpp"
#include "shm/base/undo_log.hpp"
#include "shm/slots/chunk_buffers.hpp"
#include "shm/slots/free_buffers.hpp"

namespace ps_shm::shm {

// May be shared by threads, except that a chunk that is changed in place has one pusher at a time.
class SingleWriterChunks : public ChunkBuffers {
 public:
  using ChunkBuffers::ChunkBuffers;

  // Applies exactly one update to the chunk where it lies. update(values, stride, begin, count, past, log) changes
  // `count` elements from element `begin` on, whose floats lie at `values` and, array k, at values + k * stride. If
  // `log` is not nullptr it keeps the old floats of each block there.
  // Nothing, and the caller has to call push_chunk(): the chunk's current values belong to a snapshot. Wait-free.
  // Requires: no other process pushes to the variable, and no other thread to the chunk; it is a step.
  template <class Update>
  std::optional<SwapResult> try_push_in_place(std::uint64_t chunk, FreeBuffers& free_buffers, UpdateLabel label,
                                              Update&& update) {
    const std::uint64_t old = words_[chunk].word.load_relaxed();  // relaxed: only the rank's owner writes it
    BufferHeaderShm& buffer = at(buffer_of(old));
    if (!is_whole(buffer, chunk, old)) fail_changed(*shard_, chunk);
    const std::uint64_t preimage = preimage_of(buffer).load_relaxed();
    if (preimage_epoch(preimage) < label.epoch && preserved_buffer(variable_, chunk, preimage) != 0) return {};
    const FreeBuffer undo =
        free_buffers.begin(variable_, variable_.first_chunk + chunk, old, buffer_of(old));  // (slot.U1)
    const UndoLog log = log_in(undo.buffer);
    log.mark->store_release(UndoLog::kUnchanged);  // (slot.U2) pairs with slot.U5: behind the word of the push before
    fence_release();  // (slot.U2) pairs with slot.R3, slot.U5: no byte of the log, and no such stamp, before the mark
    buffer.stamp.store_relaxed(make_changing(undo.buffer, old));
    fence_release();  // (slot.U2) pairs with slot.R3: no byte of the chunk and its header before the stamp
    buffer.writer.store_relaxed(label.rank);
    buffer.writer_step.store_relaxed(label.step);
    const std::uint64_t count = gradient_size(chunk);
    float* const values = parameters(buffer);
    const ChunkPast past =
        past_of(version_of(old), skipped_of(buffer).load_relaxed());  // slot.V15: only the owner writes it
    if (kThreadSanitizer || model_of(&buffer) != nullptr)
      change_copies(values, count, log, [&](float* block, std::uint64_t begin, std::uint64_t elements) {
        update(block, UndoLog::kBlock, begin, elements, past, nullptr);
      });
    else
      update(values, stride_, 0, count, past, &log);  // (slot.U3)
    complete(chunk, old, buffer, log);
    FreeBuffers::lost(undo);
    return SwapResult{.version = version_of(old)};
  }

  // slot.U6: what a dead pusher had in flight. `word`, `undo`: its note and its buffer. Takes the marked block back, and
  // completes the version, if the pusher was changing the chunk in place. May be repeated. Requires: it is dead.
  void complete_in_place(std::uint64_t chunk, std::uint64_t word, std::uint64_t undo) {
    BufferHeaderShm& buffer = at(buffer_of(word));
    if (buffer.stamp.load_acquire() != make_changing(undo, word)) return;  // (slot.U6) pairs with slot.U2: the log
    const UndoLog log = log_in(undo);
    const std::uint64_t mark = log.mark->load_acquire();  // (slot.U6) pairs with slot.U3
    if (UndoLog::is_block(mark))
      for (std::uint64_t array = 0; array < arrays(); ++array)
        put_back(parameters(buffer), log, UndoLog::block_of(mark), array, chunk);
    complete(chunk, word, buffer, log);
  }

 protected:
  // The current buffer's stamp, if that buffer is being changed in place; otherwise 0.
  std::uint64_t changing(std::uint64_t word) const {
    const std::uint64_t stamp = at(buffer_of(word)).stamp.load_acquire();  // (slot.U5) pairs with slot.U2
    return is_changing(stamp) && has_buffer(*shard_, buffer_of(stamp), buffer_class_) ? stamp : 0;
  }
  // Whether it is, and the chunk still has that word, so that what its header names is the chunk's.
  bool is_changing_still(std::uint64_t chunk, std::uint64_t word) const {
    return changing(word) != 0 && words_[chunk].word.load_relaxed() == word;
  }

  // slot.U5. The values that a chunk has between two blocks of an update in place. False: try again, as the pusher has
  // gone on, or there is no such update. Not inline, so that other pulls do not save registers for it.
  [[nodiscard, gnu::noinline]] bool try_pull_changing(std::uint64_t chunk, std::uint64_t word, float* out,
                                                      std::uint64_t array) const {
    const std::uint64_t stamp = changing(word);
    if (stamp == 0) return false;
    const BufferHeaderShm& buffer = place(buffer_of(word));
    const UndoLog log = log_in(buffer_of(stamp));
    const std::uint64_t mark = log.mark->load_acquire();  // (slot.U5) pairs with slot.U3, slot.U4
    if (mark != UndoLog::kUnchanged && mark != UndoLog::kChanged && !UndoLog::is_block(mark)) return false;
    racing_copy(out, parameters(buffer) + place_of(array), array_size(chunk, array));
    if (UndoLog::is_block(mark)) put_back(out - place_of(array), log, UndoLog::block_of(mark), array, chunk);
    fence_acquire();  // (slot.U5) pairs with slot.U3
    // (slot.U5) The same push's mark: one of a later push comes with a later word.
    return log.mark->load_acquire() == mark && buffer.stamp.load_relaxed() == stamp &&
           words_[chunk].word.load_relaxed() == word;
  }

 private:
  UndoLog log_in(std::uint64_t buffer) const noexcept { return {parameters(place(buffer)), &place(buffer).stamp}; }

  // Copies the floats of the block at element `at` back that the log has of that array.
  void put_back(float* to, const UndoLog& log, std::uint64_t at, std::uint64_t array, std::uint64_t chunk) const {
    const std::uint64_t count = gradient_size(chunk);
    if (at >= count) return;  // damaged
    racing_copy(to + place_of(array) + at, log.half(at, arrays()) + array * UndoLog::kBlock,
                std::min(UndoLog::kBlock, count - at));
  }

  // slot.U3 for the thread sanitizer and models: change(floats, begin, count) gets a copy of each block.
  template <class Change>
  void change_copies(float* values, std::uint64_t count, const UndoLog& log, Change&& change) {
    float* const block = racing_scratch(0);
    for (std::uint64_t at = 0; at < count; at += UndoLog::kBlock) {
      const std::uint64_t elements = std::min(UndoLog::kBlock, count - at);
      log.keep(values + at, stride_, arrays(), at, elements);
      for (std::uint64_t array = 0; array < arrays(); ++array)
        racing_copy(block + array * UndoLog::kBlock, values + at + array * stride_, elements);
      change(block, at, elements);
      for (std::uint64_t array = 0; array < arrays(); ++array)
        racing_copy(values + at + array * stride_, block + array * UndoLog::kBlock, elements);
    }
  }

  // slot.U4. The word goes first, so that at each moment the stamp names either the word's version or the log.
  void complete(std::uint64_t chunk, std::uint64_t old, BufferHeaderShm& buffer, const UndoLog& log) {
    const std::uint64_t next = make_word(version_of(old) + 1, buffer_of(old));
    log.mark->store_release(UndoLog::kChanged);  // (slot.U4) pairs with slot.U5: all blocks are there
    std::uint64_t expected = old;
    // (slot.U4) pairs with slot.W1, slot.R1. A dead pusher may have done it.
    if (!words_[chunk].word.try_exchange_acq_rel(expected, next) && expected != next) fail_changed(*shard_, chunk);
    buffer.stamp.store_relaxed(stamp_of(chunk, next));  // slot.U4 of the word carries it
  }
};

}  // namespace ps_shm::shm
