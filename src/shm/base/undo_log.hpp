// The old values of the block that an update in place is changing.
//
// Such an update goes through a chunk block by block. Before it changes a block it copies the block's floats to one of
// the two halves of a log in shared memory, in turn, and marks the block. So at each moment the block that the mark
// names can be taken back (slot.V11), all blocks before it are new, and all behind it are old.
#pragma once

#include <cstdint>

#include "shm/base/racing.hpp"

namespace ps_shm::shm {

struct UndoLog {
  static constexpr std::uint64_t kBlock = 128;  // elements: a log of Adam's takes 3 KiB of the first-level cache

  // Marks are stamps of no chunk (slot.V1): the number of a block's first element, or one of these two.
  static constexpr std::uint64_t kOfNoChunk = std::uint64_t{0xffffff} << 40, kNoBlock = std::uint64_t{1} << 38;
  static constexpr std::uint64_t kUnchanged = kOfNoChunk | kNoBlock, kChanged = kUnchanged | 1;  // all blocks
  static constexpr std::uint64_t make_mark(std::uint64_t at) noexcept { return kOfNoChunk | at; }
  static constexpr bool is_block(std::uint64_t mark) noexcept { return (mark & ~(kNoBlock - 1)) == kOfNoChunk; }
  static constexpr std::uint64_t block_of(std::uint64_t mark) noexcept { return mark & (kNoBlock - 1); }

  // Floats of a log for elements of so many floats each: their values and slots.
  static constexpr std::uint64_t floats(std::uint64_t arrays) noexcept { return 2 * kBlock * arrays; }

  // Where the old floats of the block that begins at element `at` are: array k lies k * kBlock floats behind.
  float* half(std::uint64_t at, std::uint64_t arrays) const noexcept {
    return buffer + at / kBlock % 2 * kBlock * arrays;
  }

  // Keeps the `count` elements from element `at` of a chunk on, which lie at `in`, array k at in + k * stride. Wait-free.
  [[gnu::always_inline]] void keep(const float* in, std::uint64_t stride, std::uint64_t arrays, std::uint64_t at,
                                   std::uint64_t count) const noexcept {
    float* const to = half(first + at, arrays);
    for (std::uint64_t array = 0; array < arrays; ++array) racing_copy(to + array * kBlock, in + array * stride, count);
    mark->store_release(make_mark(first + at));  // (slot.U3) pairs with slot.U5, slot.U6: the old floats are there
    fence_release();                     // (slot.U3) no float of the block before its mark; pairs with slot.U5
  }

  // The same log, to which the elements from element `at` of this one's on are given as if they were the first.
  UndoLog behind(std::uint64_t at) const noexcept { return {buffer, mark, first + at}; }

  float* buffer;  // floats(arrays) of them
  AtomicShm<std::uint64_t>* mark;
  std::uint64_t first = 0;  // number of the element of the chunk that keep() is given as element 0
};

}  // namespace ps_shm::shm
