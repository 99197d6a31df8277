// The threads with which a worker shares large pulls and pushes (oneTBB), each with its own shm::FreeBuffers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "shm/slots/free_buffers.hpp"
#include "worker/function_ref.hpp"

namespace ps_shm {

class Threads {
 public:
  // Requires: count is at most the job's `threads`.
  Threads(shm::JobSegments& job, std::uint32_t rank, std::uint32_t count);
  ~Threads();

  // The number of pieces of so many bytes that justify a thread. With less than 256 KiB, waking the thread costs more
  // than its part of the work saves.
  static constexpr std::uint64_t grain(std::uint64_t piece_bytes) noexcept {
    constexpr std::uint64_t kBytes = 256 << 10;
    return std::max<std::uint64_t>(1, kBytes / piece_bytes);
  }

  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(free_buffers_.size()); }
  shm::FreeBuffers& free_buffers(std::uint32_t thread) noexcept { return free_buffers_[thread]; }

  // Calls body(begin, end, thread) for ranges that together are [0, count), in any order. Uses only this thread unless
  // each thread can have at least `grain`. No two threads use the same thread number at one time. Returns when all are
  // done.
  template <class Body>
  void split(std::uint64_t count, std::uint64_t grain, Body&& body) {
    if (!arena_ || count < 2 * grain) return body(std::uint64_t{0}, count, 0U);
    share(count, grain, body);
  }

  // The same, but the ranges, of `grain` each, are started in ascending order, for data that arrives in that order.
  template <class Body>
  void split_in_order(std::uint64_t count, std::uint64_t grain, Body&& body) {
    if (!arena_ || count < 2 * grain) return body(std::uint64_t{0}, count, 0U);
    share_in_order(count, grain, body);
  }

 private:
  // By reference, so that oneTBB's templates are compiled once and not for every body.
  using RangeBody = FunctionRef<void(std::uint64_t begin, std::uint64_t end, std::uint32_t thread)>;
  struct Arena;

  void share(std::uint64_t count, std::uint64_t grain, RangeBody body);
  void share_in_order(std::uint64_t count, std::uint64_t grain, RangeBody body);

  std::vector<shm::FreeBuffers> free_buffers_;
  std::unique_ptr<Arena> arena_;  // null: one thread
};

}  // namespace ps_shm
