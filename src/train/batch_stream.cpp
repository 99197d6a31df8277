#include "train/batch_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ps/errors.hpp"
#include "train/random.hpp"

namespace ps::train {
namespace {

// 1 GiB of floats a batch. It also keeps every size of a matrix product far within BLAS's 32 bits.
constexpr std::size_t kMaxBatchValues = std::size_t{1} << 28;

std::size_t checked_batch_size(const Dataset& data, std::size_t batch_size) {
  if (data.count == 0 || data.features == 0) throw Error("the data set is empty; expected at least one example");
  const std::size_t limit = std::max<std::size_t>(1, kMaxBatchValues / data.features);
  if (batch_size == 0 || batch_size > limit) {
    throw Error(
        fmt::format("batch size {}: expected 1 to {} for examples of {} values", batch_size, limit, data.features));
  }
  return batch_size;
}

}  // namespace

BatchStream::BatchStream(const Dataset& data, std::size_t batch_size, std::uint64_t seed, unsigned rank)
    : data_(data), batch_size_(checked_batch_size(data, batch_size)), generator_(mix(seed, rank)), order_(data.count) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  shuffle();
  slots_.resize(kSlots);
  for (Slot& slot : slots_) {
    slot.images.resize(batch_size_ * data_.features);
    slot.labels.resize(batch_size_);
  }
  gatherer_ = std::thread([this] { gather_ahead(); });
}

BatchStream::~BatchStream() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  gatherer_.join();
}

Batch BatchStream::next() {
  std::unique_lock lock(mutex_);
  const std::uint64_t number = handed_out_++;  // gives the batch before this one back
  changed_.notify_all();
  changed_.wait(lock, [&] { return gathered_ > number; });
  const Slot& slot = slots_[number % kSlots];
  return {batch_size_, slot.images, slot.labels};
}

void BatchStream::gather_ahead() {
  std::unique_lock lock(mutex_);
  for (;;) {
    // Batch handed_out_ - 1 is in use, so batch `gathered_` has a free slot if it is less than kSlots after that one.
    changed_.wait(lock, [&] { return stopping_ || gathered_ + 1 < handed_out_ + kSlots; });
    if (stopping_) return;
    Slot& slot = slots_[gathered_ % kSlots];
    lock.unlock();
    gather(slot);
    lock.lock();
    ++gathered_;
    changed_.notify_all();
  }
}

void BatchStream::gather(Slot& slot) {
  for (std::size_t i = 0; i < batch_size_; ++i) {
    const std::size_t example = next_example();
    std::copy_n(data_.images.data() + example * data_.features, data_.features,
                slot.images.data() + i * data_.features);
    slot.labels[i] = data_.labels[example];
  }
}

std::size_t BatchStream::next_example() {
  if (position_ == order_.size()) {
    shuffle();
    position_ = 0;
  }
  return order_[position_++];
}

void BatchStream::shuffle() {
  for (std::size_t last = order_.size() - 1; last > 0; --last) {
    std::swap(order_[last], order_[draw_below(generator_, last + 1)]);
  }
}

}  // namespace ps::train
