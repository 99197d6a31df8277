#include "train/data/sparse/text_lines.hpp"

#include <fmt/format.h>
#ifdef PS_SHM_ARCHIVE
#include <archive.h>
#endif

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "ps_shm/errors.hpp"
#include "train/data/plain_or_gzip.hpp"

namespace ps_shm::train {
namespace {

constexpr std::size_t kBlockBytes = PlainOrGzip::kAtOnce;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr const char* kExpected = "expected LIBSVM text or ratings, plain or compressed";

// A compression that libarchive reads. Gzip is left to zlib, because libarchive does not verify its checksum.
struct Compression {
  const char* name;
  std::string_view first_bytes;
  int filter;  // ARCHIVE_FILTER_BZIP2, _XZ and _ZSTD, also where there is no libarchive
};
constexpr Compression kCompressions[] = {
    {"bzip2", "BZh", 2},
    {"xz", std::string_view("\xFD\x37\x7A\x58\x5A\x00", 6), 6},
    {"zstd", "\x28\xB5\x2F\xFD", 14},
};

// By the content of the file, whatever its name; nullptr: none of these. Throws Error if there is no such file.
const Compression* compression_of(const std::string& path) {
  std::error_code unreadable;
  const auto status = std::filesystem::status(path, unreadable);
  if (status.type() == std::filesystem::file_type::not_found)
    throw Error(fmt::format("{}: no such file; {}", path, kExpected), ErrorCode::kNotFound);
  if (!unreadable && !std::filesystem::is_regular_file(status))
    throw Error(fmt::format("{}: not a regular file; {}", path, kExpected));
  char first[8] = {};
  std::ifstream file(path, std::ios::binary);  // one that cannot be read fails when it is opened for reading
  file.read(first, sizeof first);
  for (const Compression& one : kCompressions)
    if (std::string_view(first, std::size_t(file.gcount())).starts_with(one.first_bytes)) return &one;
  return nullptr;
}

}  // namespace

class TextLines::Source {
 public:
  virtual ~Source() = default;
  // Returning fewer than requested does not mean the end; 0 does. `problem` describes an error in the file, if any.
  virtual std::size_t read(char* out, std::size_t bytes, std::string& problem) = 0;
};

class TextLines::MemorySource final : public Source {
 public:
  explicit MemorySource(std::string_view text) : rest_(text) {}
  std::size_t read(char* out, std::size_t bytes, std::string&) override {
    const std::size_t received = rest_.copy(out, bytes);
    rest_.remove_prefix(received);
    return received;
  }

 private:
  std::string_view rest_;
};

class TextLines::FileSource final : public Source {
 public:
  explicit FileSource(const std::string& path) : file_(path) {}
  std::size_t read(char* out, std::size_t bytes, std::string& problem) override {
    return file_.read({reinterpret_cast<std::uint8_t*>(out), bytes}, problem);
  }

 private:
  PlainOrGzip file_;
};

#ifdef PS_SHM_ARCHIVE
class TextLines::ArchiveSource final : public Source {
 public:
  ArchiveSource(const std::string& path, const Compression& compression)
      : name_(compression.name), archive_(archive_read_new()) {
    if (!archive_) throw std::bad_alloc();
    archive_read_support_filter_by_code(archive_.get(), compression.filter);
    archive_read_support_format_raw(archive_.get());
    archive_read_support_format_empty(archive_.get());
    archive_entry* entry = nullptr;
    begun_ = archive_read_open_filename(archive_.get(), path.c_str(), std::size_t{1} << 18);
    if (begun_ == ARCHIVE_OK) begun_ = archive_read_next_header(archive_.get(), &entry);
  }

  std::size_t read(char* out, std::size_t bytes, std::string& problem) override {
    if (begun_ == ARCHIVE_EOF) return 0;
    const auto got = begun_ == ARCHIVE_OK ? archive_read_data(archive_.get(), out, bytes) : begun_;
    if (got >= 0) return static_cast<std::size_t>(got);
    const char* const message = archive_error_string(archive_.get());
    problem = fmt::format("damaged or truncated {} data here or soon after ({}); fetch the file again", name_,
                          message != nullptr ? message : "no reason given");
    return 0;
  }

 private:
  struct Close {
    void operator()(archive* opened) const { archive_read_free(opened); }
  };

  const char* name_;
  std::unique_ptr<archive, Close> archive_;
  int begun_;  // whether the content could be found
};
#endif

TextLines TextLines::of_file(const std::string& path) {
  if (const Compression* compression = compression_of(path)) {
#ifdef PS_SHM_ARCHIVE
    return {path, std::make_unique<ArchiveSource>(path, *compression)};
#else
    throw Error(fmt::format("{}: this build does not read {}, only plain text and gzip; unpack it", path,
                            compression->name));
#endif
  }
  return {path, std::make_unique<FileSource>(path)};
}
TextLines TextLines::of_memory(std::string_view text, const std::string& name) {
  return {name, std::make_unique<MemorySource>(text)};
}

TextLines::TextLines(std::string name, std::unique_ptr<Source> source)
    : name_(std::move(name)), source_(std::move(source)), buffer_(2 * kBlockBytes) {
  while (end_ < kByteOrderMark.size() && fill()) continue;
  if (std::string_view(buffer_.data(), end_).starts_with(kByteOrderMark)) begin_ = kByteOrderMark.size();
}

TextLines::TextLines(TextLines&&) noexcept = default;
TextLines::~TextLines() = default;

// Reads another block after the remaining bytes; false: there is no more.
bool TextLines::fill() {
  if (is_at_end_) return false;
  if (begin_ != 0) {
    std::copy(buffer_.begin() + std::ptrdiff_t(begin_), buffer_.begin() + std::ptrdiff_t(end_), buffer_.begin());
    end_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() - end_ < kBlockBytes) buffer_.resize(end_ + kBlockBytes);
  std::string problem;
  const std::size_t received = source_->read(buffer_.data() + end_, kBlockBytes, problem);
  end_ += received;
  bytes_ += received;
  if (!problem.empty()) {
    const std::string_view rest(buffer_.data(), end_);
    const auto lines = static_cast<std::uint64_t>(std::count(rest.begin(), rest.end(), '\n'));
    number_ += lines + 1;
    fail(rest.size() - (lines == 0 ? 0 : rest.rfind('\n') + 1), problem);
  }
  is_at_end_ = received == 0;
  if (watcher_ && received != 0) watcher_(bytes_);
  return received != 0;
}

bool TextLines::next(std::string_view& line) {
  if (is_unread_) {
    is_unread_ = false;
    line = line_;
    return true;
  }
  std::size_t searched = 0;
  for (;;) {
    const char* const first = buffer_.data() + begin_;
    const std::size_t rest = end_ - begin_;
    const void* const found = rest == searched ? nullptr : std::memchr(first + searched, '\n', rest - searched);
    const std::size_t size = found != nullptr ? std::size_t(static_cast<const char*>(found) - first) : rest;
    if (size > kMaxLineBytes) {
      ++number_;
      fail(kMaxLineBytes, fmt::format("the line is longer than {} MiB; is this a text file?", kMaxLineBytes >> 20));
    }
    if (found == nullptr) {
      searched = rest;
      if (fill()) continue;
      if (rest == 0) return false;
    }
    ++number_;
    line_ = std::string_view(buffer_.data() + begin_, size);
    begin_ += size + (found != nullptr ? 1 : 0);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    line = line_;
    return true;
  }
}

void TextLines::fail(std::size_t column, const std::string& what) const {
  throw Error(fmt::format("{}:{}:{}: {}", name_, number_, column + 1, what));
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kMax = 40;
  std::string out = "'";
  for (const char letter : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(letter);
    if (byte < 0x20 || byte >= 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += letter;
  }
  return out + (text.size() > kMax ? "...'" : "'");
}

}  // namespace ps_shm::train
