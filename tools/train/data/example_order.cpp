#include "train/data/example_order.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"

namespace ps_shm::train {
namespace {

// 1 GiB of floats per batch. It also keeps all sizes of matrix products far within BLAS's 32 bits.
constexpr std::size_t kMaxBatchValues = std::size_t{1} << 28;

}  // namespace

std::size_t checked_batch_size(const Dataset& data, std::size_t batch_size) {
  if (data.count == 0 || data.features == 0) throw Error("the data set is empty; expected at least one example");
  const std::size_t limit = std::max<std::size_t>(1, kMaxBatchValues / data.features);
  if (batch_size == 0 || batch_size > limit) {
    throw Error(
        fmt::format("batch size {}: expected 1 to {} for examples of {} values", batch_size, limit, data.features));
  }
  return batch_size;
}

ExampleOrder::ExampleOrder(std::size_t examples, std::uint64_t seed, unsigned rank)
    : generator_(mix(seed, rank)), order_(examples) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  shuffle();
}

std::size_t ExampleOrder::next() {
  if (position_ == order_.size()) {
    shuffle();
    position_ = 0;
  }
  return order_[position_++];
}

void ExampleOrder::skip(std::uint64_t examples) {
  while (examples >= order_.size() - position_) {
    examples -= order_.size() - position_;
    shuffle();
    position_ = 0;
  }
  position_ += examples;
}

void ExampleOrder::shuffle() {
  for (std::size_t last = order_.size() - 1; last > 0; --last) {
    std::swap(order_[last], order_[draw_below(generator_, last + 1)]);
  }
}

}  // namespace ps_shm::train
