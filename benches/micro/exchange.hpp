// The least that processes can do to meet: each publishes its round and waits until all others have published it. No
// deaths, no quorum, no decision: what a barrier's price is measured against.
#pragma once

#include <atomic>
#include <cstdint>

#include "../processes.hpp"

namespace ps_shm::bench {

enum class Waiting { kSpin, kSpinThenFutex, kFutex };

const char* to_string(Waiting waiting) noexcept;

class Exchange {
 public:
  Exchange(int processes, Waiting waiting)
      : processes_(processes), waiting_(waiting), lines_(std::size_t(processes) * sizeof(Line)) {}

  // The number-th process has come to this round, from 1 on; returns when all have. 2^30 rounds at most.
  void meet(int number, std::uint32_t round) const noexcept;

 private:
  struct alignas(128) Line {
    std::atomic<std::uint32_t> word;  // 2 * round, and 1 where somebody sleeps on it
  };

  void wait_for(std::atomic<std::uint32_t>& word, std::uint32_t round) const noexcept;

  int processes_;
  Waiting waiting_;
  SharedBytes lines_;
};

}  // namespace ps_shm::bench
