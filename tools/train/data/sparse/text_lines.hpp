// Reads the lines of a text file, plain or compressed (gzip, bzip2, xz, zstd), or of text in memory, one by one in
// constant memory.
//
// Nothing in a file is trusted: lines longer than kMaxLineBytes, and damaged or truncated compressed data, are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::train {

inline constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;  // about a million features

class TextLines {
 public:
  // The compression is detected by content. Throws Error if the file cannot be opened.
  static TextLines of_file(const std::string& path);
  static TextLines of_memory(std::string_view text, const std::string& name);

  TextLines(TextLines&&) noexcept;
  ~TextLines();

  // The next line, without its end (LF or CRLF); false: there is none. Valid until the next call.
  bool next(std::string_view& line);

  // Returns the last line again.
  void unread() noexcept { is_unread_ = true; }

  // Called with the number of bytes of text read so far, once for each block of them.
  void watch(std::function<void(std::uint64_t)> watcher) { watcher_ = std::move(watcher); }
  // Calls it once more, in long work on what was read.
  void look() const {
    if (watcher_) watcher_(bytes_);
  }

  const std::string& name() const noexcept { return name_; }

  // Throws Error about a column of the last line (from 0 here, from 1 in the message): "file:line:column: what".
  [[noreturn]] void fail(std::size_t column, const std::string& what) const;

 private:
  class Source;
  class FileSource;
  class ArchiveSource;
  class MemorySource;

  TextLines(std::string name, std::unique_ptr<Source> source);
  bool fill();

  std::string name_;
  std::unique_ptr<Source> source_;
  std::function<void(std::uint64_t)> watcher_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // the part of the buffer not returned yet
  std::uint64_t number_ = 0, bytes_ = 0;
  std::string_view line_;
  bool is_unread_ = false, is_at_end_ = false;
};

inline bool is_blank(char letter) noexcept { return letter == ' ' || letter == '\t'; }

// A part of a line for a message: truncated to 40 bytes, unprintable bytes as \xNN.
std::string quoted(std::string_view text);

}  // namespace ps_shm::train
