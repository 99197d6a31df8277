// The recording of a worker: a file of its own, which only grows and stays readable if the worker is killed.
//
//   header   magic, rank, life, examples before; then events, one after the other, up to the first byte of zero
//   kVariable   chunks, elements, length of the name, name     the next number of a variable
//   kRates      bits of the base rate, of the norm's limit, of momentum and of beta1    of the updates that follow
//   kUpdate     global steps since the last kUpdate            by which the rate of the following pushes is scheduled
//   kPull       variable; for each chunk its version
//   kPush       variable, check, first chunk; for each chunk from there on, wrapping around, a token of its version
//   kDropped    variable, check                                instead of the push, in a step that the age limit drops
//   kStep       followed, once the step is counted, by the global step before it, less the last one
//   kFinished   the program was told that the job is finished
//   kLeft       the worker has left
//
// All numbers are LEB128 and none is 0: a number that may be 0 is stored plus one. So no byte that begins a number or
// an event is 0, nor is one that ends a number. A version is stored as the difference from what the worker knew of the
// chunk. A token is difference << 2 | kTried while the swap is tried, and gets kDone once the swap has succeeded. The
// last token of a killed worker therefore tells which push was under way. (A piece is a chunk.)
#pragma once

#include <cstdint>
#include <cstring>

#include "update/hash.hpp"

namespace ps_shm::record {

enum class Kind : std::uint8_t { kVariable = 1, kRates, kUpdate, kPull, kPush, kStep, kFinished, kLeft, kDropped };

inline constexpr std::uint64_t kTried = 1, kDone = 2;
inline constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << 22;  // of all variables of a worker
inline constexpr std::uint64_t kMaxName = 256;
inline constexpr std::size_t kMaxNumberBytes = 10;

struct Header {
  char magic[8];
  std::uint64_t rank, life;
  std::uint64_t examples;  // trained on before this life, as checked() has them: in one word, for the kill between two

  std::uint64_t examples_before() const noexcept { return examples >> 16; }
  // A reader goes through its data until it is there, so that any other number may take for ever.
  std::uint64_t checked(std::uint64_t count) const noexcept {
    return count << 16 | (update::mixed(count ^ update::mixed(rank ^ update::mixed(life))) & 0xffff);
  }
};
inline constexpr char kMagic[8] = {'p', 's', '.', 'r', 'e', 'c', '.', '3'};

}  // namespace ps_shm::record
