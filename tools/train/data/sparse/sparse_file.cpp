#include "train/data/sparse/sparse_file.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"
#include "train/data/random.hpp"

namespace ps_shm::train {
namespace {

constexpr std::size_t kBufferWords = std::size_t{1} << 18;     // 1 MiB
constexpr std::size_t kPatchedAtOnce = std::size_t{16} << 18;  // words whose pages stay mapped while ids change

std::uint64_t check_of(const SparseHeader& header) noexcept {
  return hash_name({reinterpret_cast<const char*>(&header), offsetof(SparseHeader, check)});
}

// The pages from the one that contains `begin` to the one before that of `end`.
void advise(const std::uint32_t* begin, const std::uint32_t* end, int advice) noexcept {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(begin) / page * page;
  const auto last = reinterpret_cast<std::uintptr_t>(end) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

}  // namespace

bool is_sound(const SparseHeader& header, std::uint64_t file_bytes) noexcept {
  return header.magic == kSparseMagic && header.version == kSparseVersion && header.check == check_of(header) &&
         header.words < file_bytes && header.name_words < file_bytes &&
         file_bytes == kSparseDataOffset + 4 * (header.words + header.name_words);
}

SparseWriter::SparseWriter(int descriptor, std::string place) : descriptor_(descriptor), place_(std::move(place)) {
  buffer_.reserve(kBufferWords);
}

void SparseWriter::note_label(float label) noexcept {
  if (info_.examples == 0) info_.label_min = info_.label_max = label;
  info_.label_min = std::min(info_.label_min, label);
  info_.label_max = std::max(info_.label_max, label);
  info_.label_sum += label;
  std::uint32_t& distinct = info_.distinct_labels;
  if (distinct >= 3 || (distinct > 0 && label == first_labels_[0]) || (distinct > 1 && label == first_labels_[1]))
    return;
  if (distinct < 2) first_labels_[distinct] = label;
  ++distinct;
}

// Returns where the ids or keys go.
std::uint32_t* SparseWriter::begin_record(float label, std::size_t nonzeros) {
  note_label(label);
  ++info_.examples;
  info_.nonzeros += nonzeros;
  std::uint32_t* const out = append(record_words(static_cast<std::uint32_t>(nonzeros), info_.has_keys != 0));
  std::memcpy(out, &label, 4);
  out[1] = static_cast<std::uint32_t>(nonzeros);
  return out + kRecordHeaderWords;
}

void SparseWriter::add(float label, std::span<const std::uint32_t> ids, std::span<const float> values) {
  std::uint32_t* const out = begin_record(label, ids.size());
  std::copy(ids.begin(), ids.end(), out);
  if (!values.empty()) std::memcpy(out + ids.size(), values.data(), values.size_bytes());
}

void SparseWriter::add(float label, std::span<const std::uint64_t> keys, std::span<const float> values) {
  info_.has_keys = 1;
  std::uint32_t* const out = begin_record(label, keys.size());
  if (keys.empty()) return;
  std::memcpy(out, keys.data(), keys.size_bytes());
  std::memcpy(out + 2 * keys.size(), values.data(), values.size_bytes());
}

void SparseWriter::add_name(std::string_view name) {
  const std::size_t words = name_record_words(name.size());
  std::uint32_t* const out = append(words);
  out[0] = static_cast<std::uint32_t>(name.size());
  std::memcpy(out + 1, name.data(), name.size());
  name_words_ += words;
}

std::uint32_t* SparseWriter::append(std::size_t words) {
  if (buffer_.size() + words > kBufferWords) flush();
  const std::size_t at = buffer_.size();
  buffer_.resize(at + words);
  return &buffer_[at];
}

void SparseWriter::flush() {
  write_at(kSparseDataOffset + 4 * written_words_, buffer_.data(), 4 * buffer_.size());
  written_words_ += buffer_.size();
  buffer_.clear();
}

void SparseWriter::write_at(std::uint64_t offset, const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes != 0) {
    const ssize_t written = pwrite(descriptor_, next, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      throw Error(fmt::format("cannot write the binary form of the data, {} MiB so far, {}: {}", offset >> 20, place_,
                              std::strerror(written < 0 ? errno : ENOSPC)),
                  ErrorCode::kNoSpace);
    next += written;
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::size_t>(written);
  }
}

void SparseWriter::patch(const std::function<void(std::span<std::uint32_t>)>& change,
                         const std::function<void()>& look) {
  flush();
  if (written_words_ == 0) return;
  const std::size_t bytes = kSparseDataOffset + 4 * written_words_;
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED)
    throw Error(fmt::format("cannot map {} MiB of the data's binary form: {}; is there a limit on address space "
                            "(ulimit -v)?",
                            bytes >> 20, std::strerror(errno)),
                config::code_of(errno));
  const auto unmap = [bytes](void* mapped) { munmap(mapped, bytes); };
  const std::unique_ptr<void, decltype(unmap)> mapping(address, unmap);  // also if `look` throws
  std::uint32_t* const words = static_cast<std::uint32_t*>(address) + kSparseDataOffset / 4;
  std::uint64_t released = 0;
  for (std::uint64_t at = 0; at < written_words_; at += record_words(words[at + 1])) {
    change({words + at + kRecordHeaderWords, words[at + 1]});
    if (at - released < kPatchedAtOnce) continue;
    release_pages(words + released, words + at);
    released = at;
    look();
  }
}

void SparseWriter::finish(const SparseOrigin& origin) {
  flush();
  alignas(8) char page[kSparseDataOffset] = {};
  SparseHeader header;
  std::memset(static_cast<void*>(&header), 0, sizeof header);  // its padding is hashed, too
  header.magic = kSparseMagic;
  header.version = kSparseVersion;
  header.origin = origin;
  std::memcpy(static_cast<void*>(&header.info), &info_, sizeof info_);
  header.words = written_words_ - name_words_;
  header.name_words = name_words_;
  header.check = check_of(header);
  std::memcpy(page, &header, sizeof header);
  write_at(0, page, sizeof page);
}

SparseMapping::SparseMapping(int descriptor, std::uint64_t file_bytes, const std::string& name) : bytes_(file_bytes) {
  address_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, descriptor, 0);
  if (address_ == MAP_FAILED)
    throw Error(fmt::format("{}: cannot map {} MiB of its binary form: {}; is there a limit on address space "
                            "(ulimit -v)?",
                            name, file_bytes >> 20, std::strerror(errno)),
                config::code_of(errno));
}

SparseMapping::~SparseMapping() { munmap(address_, bytes_); }

std::span<const std::uint32_t> words_behind(const SparseHeader& header) noexcept {
  return {reinterpret_cast<const std::uint32_t*>(&header) + kSparseDataOffset / 4, header.words};
}

std::span<const std::uint32_t> name_words_behind(const SparseHeader& header) noexcept {
  const std::span<const std::uint32_t> examples = words_behind(header);
  return {examples.data() + examples.size(), header.name_words};
}

void copy_pages(const std::uint32_t* from, std::span<std::byte> to, const std::function<void(std::uint64_t)>& look) {
  constexpr std::size_t kPiece = std::size_t{4} << 20;
  for (std::size_t at = 0; at < to.size(); at += kPiece) {
    const std::size_t bytes = std::min(kPiece, to.size() - at);
    std::memcpy(to.data() + at, from + at / 4, bytes);
    release_pages(from + at / 4, from + (at + bytes) / 4);
    look(at + bytes);
  }
}

void release_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept { advise(begin, end, MADV_DONTNEED); }
void expect_pages(const std::uint32_t* begin, const std::uint32_t* end) noexcept { advise(begin, end, MADV_WILLNEED); }

}  // namespace ps_shm::train
