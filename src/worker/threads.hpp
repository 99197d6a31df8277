// The threads that share a worker's large pulls and pushes (oneTBB), each with its own lane of spare buffers.
#pragma once

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "shm/spares.hpp"

namespace ps {

class Threads {
 public:
  // Requires: count is at most the job's threads.
  Threads(shm::JobSegments& job, std::uint32_t rank, std::uint32_t count) {
    for (std::uint32_t thread = 0; thread < count; ++thread) spares_.emplace_back(job, job.lane(rank, thread));
    if (count <= 1) return;
    if (static_cast<int>(count) > tbb::info::default_concurrency())  // or TBB would refuse the rest, aloud
      allowed_.emplace(tbb::global_control::max_allowed_parallelism, count);
    arena_.emplace(static_cast<int>(count));
  }

  // How many pieces of so many bytes are worth a thread: with less than 256 KiB its wake-up costs more than its share
  // saves.
  static constexpr std::uint64_t grain(std::uint64_t piece_bytes) noexcept {
    constexpr std::uint64_t kBytes = 256 << 10;
    return std::max<std::uint64_t>(1, kBytes / piece_bytes);
  }

  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(spares_.size()); }
  shm::Spares& spares(std::uint32_t thread) noexcept { return spares_[thread]; }

  // Calls body(begin, end, thread) for ranges that make up [0, count), in any order, by this thread alone unless each can
  // have `grain` and more. A thread's number is used by one thread at a time. Returns when all are done.
  template <class Body>
  void split(std::uint64_t count, std::uint64_t grain, Body&& body) {
    if (!arena_ || count < 2 * grain) return body(std::uint64_t{0}, count, 0U);
    arena_->execute([&] {
      tbb::parallel_for(tbb::blocked_range<std::uint64_t>(0, count, grain), [&](const auto& range) {
        body(range.begin(), range.end(), static_cast<std::uint32_t>(tbb::this_task_arena::current_thread_index()));
      });
    });
  }

  // The same, but the ranges, of `grain` each, are begun in their order, whoever takes them: for what comes in that order.
  template <class Body>
  void split_in_order(std::uint64_t count, std::uint64_t grain, Body&& body) {
    if (!arena_ || count < 2 * grain) return body(std::uint64_t{0}, count, 0U);
    shm::AtomicShm<std::uint64_t> next;
    next.store_relaxed(0);  // relaxed, as what follows: a number for each range, nothing is published by it
    arena_->execute([&] {
      tbb::parallel_for(0U, this->count(), [&](std::uint32_t) {
        const auto thread = static_cast<std::uint32_t>(tbb::this_task_arena::current_thread_index());
        for (std::uint64_t begin; (begin = next.fetch_add_relaxed(grain)) < count;)
          body(begin, std::min(begin + grain, count), thread);
      });
    });
  }

 private:
  std::vector<shm::Spares> spares_;
  std::optional<tbb::global_control> allowed_;
  std::optional<tbb::task_arena> arena_;
};

}  // namespace ps
