// Iterates over sparse data, record by record, checking that each record lies within the data, and that its ids are
// rows of a table: after one pass through the data, ids may be used as indices.
//
// The cursor of large data releases the pages behind it, so memory use is constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_file.hpp"

namespace ps_shm::train {

// The example whose record begins there.
inline SparseExample example_at(const std::uint32_t* record, bool has_keys) noexcept {
  const std::uint32_t n = record[1];
  const std::uint32_t* const ids = record + kRecordHeaderWords;
  SparseExample example;
  __builtin_memcpy(&example.label, record, sizeof example.label);
  // The words of values are floats: they are never written through this mapping, so reading them as floats works. So do
  // keys, whose records begin at even words.
  if (has_keys)
    example.keys = {reinterpret_cast<const std::uint64_t*>(ids), n};
  else
    example.ids = {ids, n};
  example.values = {reinterpret_cast<const float*>(ids + (has_keys ? 2 : 1) * std::size_t{n}), n};
  return example;
}

class SparseCursor {
 public:
  static constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

  // From the word `from` on, which is the start of a record, up to the word `to`.
  explicit SparseCursor(const SparseData& data) : SparseCursor(data, 0, data.words().size()) {}
  SparseCursor(const SparseData& data, std::uint64_t from, std::uint64_t to)
      : data_(data),
        words_(data.words()),
        features_(data.info().features),
        is_rating_(data.info().kind == SparseKind::kRatings),
        has_keys_(data.info().has_keys != 0),
        next_(from),
        kept_(from),
        end_(to) {}
  SparseCursor(const SparseCursor&) = delete;
  SparseCursor& operator=(const SparseCursor&) = delete;
  ~SparseCursor() = default;

  // Advances to the next example; false: there is none. Throws Error if the data is damaged.
  bool next() {
    at_ = next_;
    if (at_ == end_) return false;
    if (end_ - at_ < kRecordHeaderWords || end_ - at_ < record_words(words_[at_ + 1], has_keys_) || !has_good_ids())
      fail_damaged();
    next_ = at_ + record_words(words_[at_ + 1], has_keys_);
    if ((at_ - kept_) * 4 >= kKeptBytes) give_back();
    return true;
  }

  SparseExample example() const { return example_at(words_.data() + at_, has_keys_); }
  std::uint64_t word() const noexcept { return at_; }        // where the current record begins
  std::uint64_t end_word() const noexcept { return next_; }  // and ends

  [[noreturn]] void fail_damaged() const;

 private:
  void give_back();

  // Ascending, each below `features`; a rating has two. Any keys are good.
  bool has_good_ids() const noexcept {
    const std::uint32_t n = words_[at_ + 1];
    if (is_rating_ && n != 2) return false;
    if (has_keys_) return true;
    const std::uint32_t* const ids = &words_[at_] + kRecordHeaderWords;
    bool ascend = true;
    for (std::uint32_t i = 1; i < n; ++i) ascend &= ids[i] > ids[i - 1];
    return ascend && (n == 0 || ids[n - 1] < features_);
  }

  const SparseData& data_;
  std::span<const std::uint32_t> words_;
  std::uint64_t features_;
  bool is_rating_, has_keys_;
  std::uint64_t next_, kept_, end_, at_ = 0;
};

}  // namespace ps_shm::train
