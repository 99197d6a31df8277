#include "train/data/prefetch_ring.hpp"

#include <utility>

namespace ps_shm::train {

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
  changed_.wait(lock, [&] { return filled_ > number || failure_; });
  if (filled_ <= number) std::rethrow_exception(failure_);
  return number % slots_;
}

void PrefetchRing::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Filling handed_out_ - 1 is in use, so `filled_` has a free slot if it is less than slots_ after that one.
    changed_.wait(lock, [&] { return stopping_ || filled_ + 1 < handed_out_ + slots_; });
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
