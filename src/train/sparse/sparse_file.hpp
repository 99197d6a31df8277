// The binary form of sparse examples in a file: its header, who writes it, and the read-only mapping (sparse_data.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "train/sparse/sparse_data.hpp"

namespace ps::train {

// An example's record: its label, n, n ids, n values; each a word of 4 bytes.
inline constexpr std::size_t kRecordHeaderWords = 2;
constexpr std::uint64_t record_words(std::uint32_t nonzeros) noexcept {
  return kRecordHeaderWords + 2 * std::uint64_t{nonzeros};
}

// A name's record: how many bytes it has, and these, filled up to whole words.
constexpr std::uint64_t name_record_words(std::uint64_t bytes) noexcept { return 1 + (bytes + 3) / 4; }

// Where a binary form comes from; another origin makes it stale.
struct SparseOrigin {
  std::uint64_t bytes = 0, modified_ns = 0;  // of the source
  std::uint64_t options = 0;                 // a hash of its path and of all options that change the outcome
  bool operator==(const SparseOrigin&) const = default;
};

inline constexpr std::uint64_t kSparseMagic = 0x3130455352505350;  // "PSPRSE01"
inline constexpr std::uint32_t kSparseVersion = 2;                 // raised with every change of the form

// The first bytes of the file. `check` is a hash of those before it, written last: a file without it is half-made.
struct SparseHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t reserved;
  SparseOrigin origin;
  SparseInfo info;
  std::uint64_t words;       // of the examples, behind the header
  std::uint64_t name_words;  // behind those
  std::uint64_t check;
};
inline constexpr std::size_t kSparseDataOffset = 4096;  // the words begin on a page of their own
static_assert(sizeof(SparseHeader) <= kSparseDataOffset && std::is_trivially_copyable_v<SparseHeader>);

// Whether the bytes are a whole binary form; `origin`: of this origin.
bool is_sound(const SparseHeader& header, std::uint64_t file_bytes) noexcept;

// Writes a binary form through a descriptor, sequentially and in constant memory. Throws Error where the disk is full.
class SparseWriter {
 public:
  // `place` is for messages: where the file is, and what can be done to have it elsewhere.
  SparseWriter(int descriptor, std::string place);

  // Requires: ids ascending, as many values. Of `info`, counts and labels are kept here, all else by the reader.
  void add(float label, std::span<const std::uint32_t> ids, std::span<const float> values);

  // Names the next id, beginning with 0. Requires: add() is not called after it, nor patch().
  void add_name(std::string_view name);

  // Changes the ids of the examples so far where they lie.
  void patch(const std::function<void(std::span<std::uint32_t> ids)>& change);

  SparseInfo& info() noexcept { return info_; }

  // Completes the file.
  void finish(const SparseOrigin& origin);

 private:
  // Room for a record in the buffer.
  std::uint32_t* append(std::size_t words);
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
  // Throws Error where there is no address space left. Requires: the file is sound.
  SparseMapping(int descriptor, std::uint64_t file_bytes, const std::string& name);
  SparseMapping(const SparseMapping&) = delete;
  SparseMapping& operator=(const SparseMapping&) = delete;
  ~SparseMapping();

  const SparseHeader& header() const noexcept { return *static_cast<const SparseHeader*>(address_); }

 private:
  void* address_;
  std::size_t bytes_;
};

// What follows a header in memory: the words of the examples, and those of the names.
std::span<const std::uint32_t> words_behind(const SparseHeader& header) noexcept;
std::span<const std::uint32_t> name_words_behind(const SparseHeader& header) noexcept;

// Copies a mapping, whose pages it gives back behind it.
void copy_pages(const std::uint32_t* from, std::span<std::byte> to) noexcept;

// Gives the memory of whole pages of a mapping back; they are read again when they are touched.
void release_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept;

// Asks for them ahead.
void expect_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept;

}  // namespace ps::train
