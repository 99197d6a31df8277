// The binary form of sparse examples in a file: header, writer, and read-only mapping (sparse_data.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "train/data/sparse/sparse_data.hpp"

namespace ps_shm::train {

// An example's record: its label, n, n ids, n values; each a word of 4 bytes. Keys are two words each.
inline constexpr std::size_t kRecordHeaderWords = 2;
constexpr std::uint64_t record_words(std::uint32_t nonzeros, bool has_keys = false) noexcept {
  return kRecordHeaderWords + 2 * std::uint64_t{nonzeros} + (has_keys ? std::uint64_t{nonzeros} + nonzeros % 2 : 0);
}

// A name's record: its number of bytes, and the bytes, padded to complete words.
constexpr std::uint64_t name_record_words(std::uint64_t bytes) noexcept { return 1 + (bytes + 3) / 4; }

// The origin of a binary form; a different origin makes it stale.
struct SparseOrigin {
  // Of the source. Programs that copy files set the time of modification to any value, but not that of a change.
  std::uint64_t bytes = 0, modified_ns = 0, changed_ns = 0, inode = 0;
  std::uint64_t content = 0;  // a hash of its beginning, its end and samples (sparse_forms.cpp)
  std::uint64_t options = 0;  // a hash of its path and of all options that affect the outcome
  bool operator==(const SparseOrigin&) const = default;
};

inline constexpr std::uint64_t kSparseMagic = 0x3130455352505350;  // "PSPRSE01"
inline constexpr std::uint32_t kSparseVersion = 4;                 // incremented with every change of the format

// The first bytes of the file. `check` is a hash of the bytes before it, written last: a file without it is incomplete.
struct SparseHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved;
  SparseOrigin origin;
  SparseInfo info;
  std::uint64_t words;       // of the examples, behind the header
  std::uint64_t name_words;  // after those
  std::uint64_t check;
};
inline constexpr std::size_t kSparseDataOffset = 4096;  // the words begin on a page boundary
static_assert(sizeof(SparseHeader) <= kSparseDataOffset && std::is_trivially_copyable_v<SparseHeader>);

// Whether the bytes are a complete binary form; with `origin`, of this origin.
bool is_sound(const SparseHeader& header, std::uint64_t file_bytes) noexcept;

// Writes a binary form to a descriptor, sequentially and in constant memory. Throws Error if the disk is full.
class SparseWriter {
 public:
  // `place` is for messages: where the file is, and how to have it elsewhere.
  SparseWriter(int descriptor, std::string place);

  // Requires: ids ascending, as many values. Counts and labels of `info` are maintained here, all else by the reader.
  void add(float label, std::span<const std::uint32_t> ids, std::span<const float> values);
  // Of keyed data. Requires: all examples have keys; patch() is not called.
  void add(float label, std::span<const std::uint64_t> keys, std::span<const float> values);

  // Names the next id, beginning with 0. Requires: neither add() nor patch() is called afterwards.
  void add_name(std::string_view name);

  // Changes the ids of the examples written so far, in place. Calls `look`, which may throw, every few milliseconds.
  void patch(const std::function<void(std::span<std::uint32_t> ids)>& change, const std::function<void()>& look);

  SparseInfo& info() noexcept { return info_; }

  // Completes the file.
  void finish(const SparseOrigin& origin);

 private:
  // Space for a record in the buffer.
  std::uint32_t* append(std::size_t words);
  std::uint32_t* begin_record(float label, std::size_t nonzeros);
  void flush();
  void write_at(std::uint64_t offset, const void* data, std::size_t bytes);
  void note_label(float label) noexcept;

  int descriptor_;
  std::string place_;
  SparseInfo info_;
  std::vector<std::uint32_t> buffer_;
  std::uint64_t written_words_ = 0, name_words_ = 0;
  float first_labels_[2] = {};
};

// A binary form, mapped read-only.
class SparseMapping {
 public:
  // Throws Error if there is no address space left. Requires: the file is valid.
  SparseMapping(int descriptor, std::uint64_t file_bytes, const std::string& name);
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  ~SparseMapping();

  const SparseHeader& header() const noexcept { return *static_cast<const SparseHeader*>(address_); }

 private:
  void* address_;
  std::size_t bytes_;
};

// The contents after a header in memory: the words of the examples, and those of the names.
std::span<const std::uint32_t> words_behind(const SparseHeader& header) noexcept;
std::span<const std::uint32_t> name_words_behind(const SparseHeader& header) noexcept;

// Copies a mapping and releases its pages on the way. Calls `look`, which may throw, with the number of bytes copied.
void copy_pages(const std::uint32_t* from, std::span<std::byte> to, const std::function<void(std::uint64_t)>& look);

// Releases the memory of complete pages of a mapping; they are read again when they are touched.
void release_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept;

// Prefetches them.
void expect_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept;

}  // namespace ps_shm::train
