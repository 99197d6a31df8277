// Board: the replay coordinator, which the replaying workers of a job share. It says how often each chunk's version
// has been pulled, which lives have begun and ended, and whether a worker differs from its recording.
//
// The pulls of a version are counted by the workers that pull it. The worker that makes the next version waits for all
// of them, and clears the count before its swap. No other worker counts at that moment, since the next version does
// not exist yet.
#pragma once

#include <cstdint>
#include <string>

#include "shm/base/atomic.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::record {

struct CoordinatorState {
  shm::AtomicShm<std::uint32_t> futex;    // announced after each pull, push and step
  shm::AtomicShm<std::uint32_t> differs;  // rank + 1 of a worker that differs from its recording
  shm::AtomicShm<std::uint32_t> begun[shm::kMaxRanks];
  shm::AtomicShm<std::uint32_t> ended[shm::kMaxRanks];
};

class ReplayCoordinator {
 public:
  // Makes it in memory that ends with this process; other processes open path().
  explicit ReplayCoordinator(std::uint64_t chunks);
  // Opens another process's. Throws Error if it is gone, or has another number of chunks.
  ReplayCoordinator(const std::string& path, std::uint64_t chunks);
  ~ReplayCoordinator();
  ReplayCoordinator(const ReplayCoordinator&) = delete;
  ReplayCoordinator& operator=(const ReplayCoordinator&) = delete;

  std::string path() const;
  CoordinatorState& state() const noexcept { return *static_cast<CoordinatorState*>(memory_); }
  shm::AtomicShm<std::uint32_t>& pulls(std::uint64_t chunk) const noexcept {
    return reinterpret_cast<shm::AtomicShm<std::uint32_t>*>(&state() + 1)[chunk];
  }

 private:
  void map(std::uint64_t chunks);

  int descriptor_ = -1;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ps_shm::record
