// The endless, reproducible order in which one worker sees sparse examples, directly from their mapping.
//
// One thread uses a stream. Invariants:
//  1. Each epoch visits every example of the chosen part once, in a fresh order.
//  2. Data of at most `window_bytes` is shuffled as a whole. For larger data, each epoch takes windows of neighbouring
//     examples in a random order and shuffles within each window; pages of finished windows are released, so
//     memory use is constant.
//  3. The order is a function of the data, the part, the seed and the rank only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "train/data/sparse/sparse_data.hpp"

namespace ps_shm::train {

// Selects the examples: a fraction of them, chosen by a hash of their number, is held out for testing.
struct SparsePart {
  double test_share = 0.0;
  bool is_test = false;

  bool has(std::uint64_t example) const noexcept;
};

class SparseStream {
 public:
  static constexpr std::size_t kWindowBytes = std::size_t{64} << 20;

  // Throws Error if the part has no examples. Requires: the data outlives the stream.
  SparseStream(const SparseData& data, const SparsePart& part, std::uint64_t seed, unsigned rank,
               std::size_t window_bytes = kWindowBytes);

  // The next example; its spans stay valid as long as the data. Prefetches those that follow.
  SparseExample next();

  // Equivalent to this many calls of next(). Complete epochs are only shuffled.
  void skip(std::uint64_t examples);

  // Number of examples of the part, and number of epochs completed.
  std::uint64_t examples() const noexcept { return examples_; }
  std::uint64_t epochs() const noexcept { return epochs_; }

 private:
  // A range of neighbouring records, some of which belong to the part.
  struct Window {
    std::uint64_t begin = 0, end = 0;  // words
    std::uint64_t first_example = 0;
  };

  void find_windows(std::size_t window_bytes);
  void begin_epoch();
  void enter_window();
  void leave_window();
  template <class T>
  void shuffle(std::vector<T>& items);

  const SparseData& data_;
  SparsePart part_;
  bool has_keys_;
  std::mt19937_64 random_;
  std::uint64_t examples_ = 0, epochs_ = 0;
  std::vector<Window> windows_;
  std::size_t window_ = 0;               // the one being read
  const std::uint32_t* base_ = nullptr;  // its first word
  std::vector<std::uint32_t> order_;     // records of the part in the window, as words from base_
  std::size_t position_ = 0;
};

// Calls body(example) for every example of the part, in the order of the data, in constant memory.
void for_each_example(const SparseData& data, const SparsePart& part,
                      const std::function<void(const SparseExample&)>& body);

}  // namespace ps_shm::train
