// A ring of slots, filled ahead of time in order by a thread of its own, and used in that order by one other thread.
//
// Invariants:
//  1. Filling k uses slot k mod slots; a slot is refilled only after the next() call that follows its return.
//  2. Fillings never overlap: `fill` needs no lock.
// The counters have 64 bits: at one filling per nanosecond they last for centuries.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace ps_shm::train {

class PrefetchRing {
 public:
  // Starts filling. Requires: at least two slots; what `fill` uses outlives this object.
  PrefetchRing(std::size_t slots, std::function<void(std::size_t slot)> fill);

  // Returns within the time that filling one slot takes.
  ~PrefetchRing();

  PrefetchRing(const PrefetchRing&) = delete;
  PrefetchRing& operator=(const PrefetchRing&) = delete;

  // The slot of the next filling, unchanged until the next call. Blocks only if filling is behind.
  // Throws what `fill` threw for that slot; nothing is filled from then on.
  std::size_t next();

 private:
  void run();

  const std::uint64_t slots_;
  const std::function<void(std::size_t)> fill_;
  std::mutex mutex_;  // guards the four below; process-private
  std::condition_variable changed_;
  std::uint64_t filled_ = 0;
  std::uint64_t handed_out_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;

  std::thread filler_;  // last member: it uses all of the above
};

}  // namespace ps_shm::train
