#include "train/data/prefetch_ring.hpp"

#include <chrono>
#include <utility>

namespace ps_shm::train {
namespace {

// condition_variable::wait() would need the libstdc++ of GCC 12 (GLIBCXX_3.4.30), which is newer than that of the systems
// on which wheels run.
template <class IsTrue>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, IsTrue is_true) {
  while (!changed.wait_for(lock, std::chrono::hours(1), is_true)) continue;
}

}  // namespace

PrefetchRing::PrefetchRing(std::size_t slots, std::function<void(std::size_t slot)> fill)
    : slots_(slots), fill_(std::move(fill)), filler_([this] { run(); }) {}

PrefetchRing::~PrefetchRing() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  filler_.join();
}

std::size_t PrefetchRing::next() {
  std::unique_lock lock(mutex_);
  const std::uint64_t number = handed_out_++;  // releases the previous one
  changed_.notify_all();
  wait_until(changed_, lock, [&] { return filled_ > number || failure_; });
  if (filled_ <= number) std::rethrow_exception(failure_);
  return number % slots_;
}

void PrefetchRing::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Filling handed_out_ - 1 is in use, so `filled_` has a free slot if it is less than slots_ after that one.
    wait_until(changed_, lock, [&] { return stopping_ || filled_ + 1 < handed_out_ + slots_; });
    if (stopping_) return;
    const std::uint64_t number = filled_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      fill_(number % slots_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    if (!failure_) ++filled_;
    changed_.notify_all();
    if (failure_) return;
  }
}

}  // namespace ps_shm::train
