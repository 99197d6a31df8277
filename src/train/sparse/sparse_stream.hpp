// The endless, reproducible order in which one worker sees sparse examples, straight from their mapping.
//
// One thread uses a stream. Invariants:
//  1. Each epoch visits every example of the chosen part once, in a fresh order.
//  2. Data of at most `window_bytes` is shuffled as a whole. Of larger data each epoch takes windows of neighbouring
//     examples in a random order and shuffles within a window; pages of windows that are done with are given back, so
//     memory stays constant.
//  3. The order is a function of the data, the part, the seed and the rank only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "train/sparse/sparse_data.hpp"

namespace ps::train {

// Which examples: a share of them, chosen by a hash of their number, is held out for testing.
struct SparsePart {
  double test_share = 0.0;
  bool is_test = false;

  bool has(std::uint64_t example) const noexcept;
};

class SparseStream {
 public:
  static constexpr std::size_t kWindowBytes = std::size_t{64} << 20;

  // Throws Error if the part has no example. Requires: the data outlives the stream.
  SparseStream(const SparseData& data, const SparsePart& part, std::uint64_t seed, unsigned rank,
               std::size_t window_bytes = kWindowBytes);

  // The next example; its spans stay valid as long as the data. Asks for the memory of those that follow.
  SparseExample next();

  // As so many calls of next(). Whole epochs are only shuffled.
  void skip(std::uint64_t examples);

  // How many examples the part has, and how many epochs this stream has completed.
  std::uint64_t examples() const noexcept { return examples_; }
  std::uint64_t epochs() const noexcept { return epochs_; }

 private:
  // Neighbouring records, of which some are of the part.
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
  std::mt19937_64 random_;
  std::uint64_t examples_ = 0, epochs_ = 0;
  std::vector<Window> windows_;
  std::size_t window_ = 0;               // which one is being read
  const std::uint32_t* base_ = nullptr;  // its first word
  std::vector<std::uint32_t> order_;     // of its records of the part: words from base_
  std::size_t position_ = 0;
};

// Calls body(example) for every example of the part, in the order of the data, in constant memory.
void for_each_example(const SparseData& data, const SparsePart& part,
                      const std::function<void(const SparseExample&)>& body);

}  // namespace ps::train
