// The order in which one worker sees the examples of a data set: endless, reproducible.
//
// Invariants:
//  1. Each epoch visits every example once, in a fresh order.
//  2. The order is a function of the number of examples, the seed and the rank only: not of timing, platform or the
//     batch size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "train/data/dataset.hpp"

namespace ps_shm::train {

class ExampleOrder {
 public:
  // Requires: examples > 0.
  ExampleOrder(std::size_t examples, std::uint64_t seed, unsigned rank);

  // The next example's number. The first call in an epoch is slow: it shuffles the whole epoch.
  std::size_t next();

  // Equivalent to this many calls of next().
  void skip(std::uint64_t examples);

 private:
  void shuffle();

  std::mt19937_64 generator_;
  std::vector<std::size_t> order_;
  std::size_t position_ = 0;
};

// Throws ps_shm::Error if the data is empty or the batch size is not possible.
std::size_t checked_batch_size(const Dataset& data, std::size_t batch_size);

}  // namespace ps_shm::train
