#include "train/data/sparse/sparse_stream.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"
#include "train/data/sparse/sparse_cursor.hpp"
#include "train/data/sparse/sparse_file.hpp"

namespace ps_shm::train {
namespace {

constexpr std::uint64_t kHeldOut = 0x7465737473657473;  // purposes of random numbers
constexpr std::uint64_t kVisits = 0x7669736974736f66;
constexpr std::size_t kLine = 64;
// How many examples ahead the first cache line of a record is prefetched, and then, its length being known, the others.
constexpr std::size_t kHeadAhead = 6, kBodyAhead = 3;
constexpr std::size_t kMaxLinesAhead = 16;  // of one record: the processor prefetches longer ones itself

void prefetch(const void* address) noexcept { __builtin_prefetch(address, 0, 3); }

}  // namespace

bool SparsePart::has(std::uint64_t example) const noexcept {
  // 53 bits, as a double in [0, 1).
  const double drawn = static_cast<double>(mix(kHeldOut, example) >> 11) * 0x1.0p-53;
  return (drawn < test_share) == is_test;
}

SparseStream::SparseStream(const SparseData& data, const SparsePart& part, std::uint64_t seed, unsigned rank,
                           std::size_t window_bytes)
    : data_(data), part_(part), has_keys_(data.info().has_keys != 0), random_(mix(mix(seed, kVisits), rank)) {
  find_windows(window_bytes);
  if (examples_ == 0)
    throw Error(fmt::format("{}: none of its {} examples is {}; change the fraction that is held out", data.name(),
                            data.info().examples, part.is_test ? "held out for testing" : "left for training"));
  begin_epoch();
}

// One pass over the lengths of all records.
void SparseStream::find_windows(std::size_t window_bytes) {
  const std::uint64_t all = data_.words().size();
  const std::uint64_t most =
      std::clamp<std::uint64_t>(window_bytes / 4, 1, std::numeric_limits<std::uint32_t>::max());  // order_ has u32
  const std::uint64_t wanted = all <= most ? all : most;
  Window window;
  std::uint64_t example = 0, of_part = 0;
  const auto close = [&](std::uint64_t end) {
    window.end = end;
    if (of_part != 0) windows_.push_back(window);
    examples_ += of_part;
    window = {end, end, example};
    of_part = 0;
  };
  SparseCursor cursor(data_);
  for (; cursor.next(); ++example) {
    if (cursor.word() != window.begin && cursor.end_word() - window.begin > wanted) close(cursor.word());
    of_part += part_.has(example);
  }
  close(all);
}

template <class T>
void SparseStream::shuffle(std::vector<T>& items) {
  for (std::size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[draw_below(random_, left)]);
}

void SparseStream::begin_epoch() {
  shuffle(windows_);
  window_ = 0;
  enter_window();
}

void SparseStream::enter_window() {
  const Window& window = windows_[window_];
  base_ = data_.words().data() + window.begin;
  position_ = 0;
  if (windows_.size() > 1 || order_.empty()) {
    order_.clear();
    std::uint64_t example = window.first_example;
    for (const std::uint32_t* record = base_; record != data_.words().data() + window.end;
         record += record_words(record[1], has_keys_))
      if (part_.has(example++)) order_.push_back(static_cast<std::uint32_t>(record - base_));
  }
  shuffle(order_);
  if (window_ + 1 < windows_.size())
    expect_pages(data_.words().data() + windows_[window_ + 1].begin, data_.words().data() + windows_[window_ + 1].end);
}

void SparseStream::leave_window() {
  if (windows_.size() > 1)
    release_pages(data_.words().data() + windows_[window_].begin, data_.words().data() + windows_[window_].end);
  if (++window_ < windows_.size()) return enter_window();
  ++epochs_;
  begin_epoch();
}

SparseExample SparseStream::next() {
  if (position_ + kHeadAhead < order_.size()) prefetch(base_ + order_[position_ + kHeadAhead]);
  if (position_ + kBodyAhead < order_.size()) {
    const std::uint32_t* const record = base_ + order_[position_ + kBodyAhead];
    const std::size_t lines =
        std::min(record_words(record[1], has_keys_) * 4 / kLine + 1, std::uint64_t{kMaxLinesAhead});
    for (std::size_t line = 1; line < lines; ++line) prefetch(record + line * (kLine / 4));
  }
  const SparseExample example = example_at(base_ + order_[position_], has_keys_);
  if (++position_ == order_.size()) leave_window();
  return example;
}

void SparseStream::skip(std::uint64_t examples) {
  while (examples >= order_.size() - position_) {
    examples -= order_.size() - position_;
    leave_window();
  }
  position_ += examples;
}

void for_each_example(const SparseData& data, const SparsePart& part,
                      const std::function<void(const SparseExample&)>& body) {
  std::uint64_t example = 0;
  for (SparseCursor cursor(data); cursor.next(); ++example)
    if (part.has(example)) body(cursor.example());
}

}  // namespace ps_shm::train
