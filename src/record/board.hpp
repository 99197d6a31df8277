// What the replaying workers of a job share: how often each chunk's version has been pulled, which lives have begun and
// ended, and whether one has found that it differs.
//
// A version's pulls are counted up by those who pull it. Whoever makes the next version waits for all of them,
// and clears the count before its swap: nobody else counts there then, for the next version is not there yet.
#pragma once

#include <cstdint>
#include <string>

#include "shm/atomic.hpp"
#include "shm/layout.hpp"

namespace ps::record {

struct BoardState {
  shm::AtomicShm<std::uint32_t> futex;    // announced behind each pull, push and step
  shm::AtomicShm<std::uint32_t> differs;  // rank + 1
  shm::AtomicShm<std::uint32_t> begun[shm::kMaxRanks];
  shm::AtomicShm<std::uint32_t> ended[shm::kMaxRanks];
};

class Board {
 public:
  // In memory that ends with this process; others open path().
  explicit Board(std::uint64_t chunks);
  // Another process's. Throws Error: it is gone, or of another number of chunks.
  Board(const std::string& path, std::uint64_t chunks);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::string path() const;
  BoardState& state() const noexcept { return *static_cast<BoardState*>(memory_); }
  shm::AtomicShm<std::uint32_t>& pulls(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<shm::AtomicShm<std::uint32_t>*>(&state() + 1)[chunk];
  }

 private:
  void map(std::uint64_t chunks);

  int descriptor_ = -1;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ps::record
