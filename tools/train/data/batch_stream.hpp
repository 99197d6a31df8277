// An endless, reproducible stream of batches for one worker, gathered ahead of time by a thread of its own.
//
// next() may be called by one thread; the gathering thread is hidden. Invariants:
//  1. Each epoch visits every example once, in a fresh order. A batch may span the end of an epoch, or many epochs.
//  2. The stream is a function of the data, the batch size, the seed and the rank only: not of timing or platform.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "train/data/dataset.hpp"
#include "train/data/example_order.hpp"
#include "train/data/prefetch_ring.hpp"

namespace ps_shm::train {

class BatchStream {
 public:
  // One in use and two ready: gathering a batch takes far less than a step, so more would only occupy cache.
  static constexpr std::size_t kSlots = 3;

  // The destination of a batch: batch_size x features floats, and batch_size labels.
  struct Buffers {
    float* images;
    std::uint8_t* labels;
  };

  // Starts gathering. Throws ps_shm::Error if the data is empty or the batch size unusable.
  // Requires: the data outlives the stream and does not change; so do `buffers`, which are kSlots, or none: then
  // the stream allocates its own. The first `skipped` examples are skipped.
  BatchStream(const Dataset& data, std::size_t batch_size, std::uint64_t seed, unsigned rank,
              std::span<const Buffers> buffers = {}, std::uint64_t skipped = 0);

  // The next batch_size examples, valid until the next call. Blocks only if gathering is behind.
  Batch next();

 private:
  struct Memory {
    std::vector<float> images;
    std::vector<std::uint8_t> labels;
  };

  void gather(const Buffers& to);

  const Dataset& data_;
  const std::size_t batch_size_;
  ExampleOrder order_;  // used by the gathering thread only
  std::vector<Memory> memory_;
  std::vector<Buffers> buffers_;
  PrefetchRing slots_;  // last member: it uses all of the above
};

}  // namespace ps_shm::train
