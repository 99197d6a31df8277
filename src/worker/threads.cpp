#include "worker/threads.hpp"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <optional>

namespace ps_shm {
namespace {

std::uint32_t current_thread() { return static_cast<std::uint32_t>(tbb::this_task_arena::current_thread_index()); }

}  // namespace

struct Threads::Arena {
  explicit Arena(std::uint32_t count) : threads(static_cast<int>(count)) {
    // Without this, oneTBB starts no more threads than there are cores, and prints a warning to stderr.
    if (static_cast<int>(count) > tbb::info::default_concurrency())
      allowed.emplace(tbb::global_control::max_allowed_parallelism, count);
  }

  std::optional<tbb::global_control> allowed;
  tbb::task_arena threads;
};

Threads::Threads(shm::JobSegments& job, std::uint32_t rank, std::uint32_t count) {
  for (std::uint32_t thread = 0; thread < count; ++thread) free_buffers_.emplace_back(job, job.lane(rank, thread));
  if (count > 1) arena_ = std::make_unique<Arena>(count);
}

Threads::~Threads() = default;

void Threads::share(std::uint64_t count, std::uint64_t grain, RangeBody body) {
  arena_->threads.execute([&] {
    tbb::parallel_for(tbb::blocked_range<std::uint64_t>(0, count, grain),
                      [&](const auto& range) { body(range.begin(), range.end(), current_thread()); });
  });
}

void Threads::share_in_order(std::uint64_t count, std::uint64_t grain, RangeBody body) {
  shm::AtomicShm<std::uint64_t> next;
  next.store_relaxed(0);  // relaxed, as what follows: it numbers the ranges and publishes nothing
  arena_->threads.execute([&] {
    tbb::parallel_for(0U, this->count(), [&](std::uint32_t) {
      for (std::uint64_t begin; (begin = next.fetch_add_relaxed(grain)) < count;)
        body(begin, std::min(begin + grain, count), current_thread());
    });
  });
}

}  // namespace ps_shm
