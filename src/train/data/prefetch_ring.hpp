// A ring of slots that a thread of its own fills ahead of need, in order, for one thread that uses them in that order.
//
// Invariants:
//  1. Filling k is of slot k mod slots; a slot is refilled only when next() has been called after it was handed out.
//  2. Fillings never overlap: what fills needs no lock.
// The counters have 64 bits: at a filling every nanosecond they last for centuries.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace ps::train {

class PrefetchRing {
 public:
  // Starts filling. Requires: at least two slots; `fill` does not throw, and what it uses outlives this object.
  PrefetchRing(std::size_t slots, std::function<void(std::size_t slot)> fill);

  // Returns within the time that filling one slot takes.
  ~PrefetchRing();

  PrefetchRing(const PrefetchRing&) = delete;
  PrefetchRing& operator=(const PrefetchRing&) = delete;

  // The slot of the next filling; it stays as it is until the next call. Blocks only if filling has fallen behind.
  std::size_t next();

 private:
  void run();

  const std::uint64_t slots_;
  const std::function<void(std::size_t)> fill_;
  std::mutex mutex_;  // guards the three below; process-private
  std::condition_variable changed_;
  std::uint64_t filled_ = 0;
  std::uint64_t handed_out_ = 0;
  bool stopping_ = false;

  std::thread filler_;  // last: it uses all of the above
};

}  // namespace ps::train
