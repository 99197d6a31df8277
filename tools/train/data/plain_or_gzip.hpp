// Reads a file that is plain or compressed by gzip, whatever its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct gzFile_s;

namespace ps_shm::train {

class PlainOrGzip {
 public:
  static constexpr std::size_t kAtOnce = std::size_t{1} << 20;

  // Throws Error if the file cannot be opened.
  explicit PlainOrGzip(const std::string& path);

  // Reads at most kAtOnce bytes of content. If it returns fewer, with room for more in `out`, the content has ended, or
  // `problem` says what is wrong with it.
  std::size_t read(std::span<std::uint8_t> out, std::string& problem);

  // The byte of the content up to which it was read, or found to be wrong.
  std::uint64_t position() const noexcept;

 private:
  struct Close {
    void operator()(gzFile_s* file) const noexcept;
  };

  std::string find_problem() const;

  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace ps_shm::train
