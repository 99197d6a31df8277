// An endless, reproducible stream of batches for one worker, gathered ahead of need by a thread of its own.
//
// One thread may call next(); the gathering thread is hidden. Invariants:
//  1. Each epoch visits every example once, in a fresh order. A batch may span the end of an epoch, or many epochs.
//  2. The stream is a function of the data, the batch size, the seed and the rank only: not of timing or platform.
//  3. Batch k lies in slot k mod kSlots; a slot is refilled only when next() has been called after it was handed out.
//     The counters have 64 bits: at a batch every nanosecond they last for centuries.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "train/dataset.hpp"

namespace ps::train {

class BatchStream {
 public:
  // Starts gathering. Throws ps::Error if the data is empty or the batch size unusable.
  // Requires: the data outlives the stream and does not change.
  BatchStream(const Dataset& data, std::size_t batch_size, std::uint64_t seed, unsigned rank);

  // Returns within the time that it takes to gather one batch.
  ~BatchStream();

  BatchStream(const BatchStream&) = delete;
  BatchStream& operator=(const BatchStream&) = delete;

  // The next batch_size examples, valid until the next call. Blocks only if gathering has fallen behind.
  Batch next();

 private:
  // One in use and two ready: gathering a batch takes far less than a step, so more would only occupy cache.
  static constexpr std::uint64_t kSlots = 3;

  struct Slot {
    std::vector<float> images;
    std::vector<std::uint8_t> labels;
  };

  void gather_ahead();
  void gather(Slot& slot);
  std::size_t next_example();
  void shuffle();

  const Dataset& data_;
  const std::size_t batch_size_;

  // Touched by the gathering thread alone, once it runs.
  std::mt19937_64 generator_;
  std::vector<std::size_t> order_;
  std::size_t position_ = 0;

  std::vector<Slot> slots_;
  std::mutex mutex_;  // guards the three below; process-private
  std::condition_variable changed_;
  std::uint64_t gathered_ = 0;
  std::uint64_t handed_out_ = 0;
  bool stopping_ = false;

  std::thread gatherer_;  // last: it uses all of the above
};

}  // namespace ps::train
