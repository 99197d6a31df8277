// What a scene of slots has, and what its fibers note for the check at its end.
#pragma once

#include <cstdint>

#include "shm/base/undo_log.hpp"

namespace ps_shm::test {

struct Shape {
  std::uint64_t floats = 2;
  std::uint32_t variables = 1, ranks = 2;
  bool is_recovered = false;        // the words of free buffers are modelled as well
  bool has_snapshot_point = false;  // snapshot point 1 is open, and all pushes are after it
  bool has_adds = false;            // pushes with an odd number are no steps that an optimizer's state counts
  bool is_in_place = false;         // pushes change chunks where they lie
  std::uint32_t of_block = 1;       // floats that are modelled of each block: its first ones, all of the last block
  bool has_swaps = false;           // of these, each may be a swap as well
  bool has_one_log = false;         // each push begins with the first free buffer again, as after a recovery
};

// Every push adds a power of two of its own, so a value tells which pushes are in it. Each fiber writes to its own
// part.
struct Log {
  // by variable and push: 1 + the version that the push was applied to; 0: it has not returned
  std::uint64_t applied_to[2][12];
  std::uint32_t helped[2];  // four bits per step: how often the rank applied the step
  std::uint32_t contributed[2];
  // Only where memory is sequentially consistent: on a weak one, a pull may lack what was acknowledged before it.
  std::uint32_t acknowledged[2];    // pushes, as bits
  std::uint32_t begun[2], done[2];  // by variable: pushes in place, and the bits of those that have returned
  struct PullInPlace {
    std::uint8_t is_there, variable, next, blocks[3];  // the version after that of the copy; the bits of its blocks
  } pulls_in_place[2];
  struct Pull {
    std::uint64_t version;
    std::uint32_t acknowledged, values, variable, is_there;  // acknowledged before the pull; its result
  } pulls[2][3];
};

constexpr std::uint64_t floats_of_blocks(std::uint64_t blocks, std::uint64_t of_block = 1) noexcept {
  return (blocks - 1) * shm::UndoLog::kBlock + of_block;
}
inline constexpr std::uint32_t kAnyVariable = ~0U;  // of a push in place

}  // namespace ps_shm::test
