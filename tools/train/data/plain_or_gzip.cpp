#include "train/data/plain_or_gzip.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::train {

void PlainOrGzip::Close::operator()(gzFile_s* file) const noexcept { gzclose(file); }

PlainOrGzip::PlainOrGzip(const std::string& path) {
  errno = 0;
  file_.reset(gzopen(path.c_str(), "rbe"));
  if (!file_)
    throw Error(fmt::format("{}: cannot open: {}", path, errno != 0 ? std::strerror(errno) : "out of memory"),
                config::code_of(errno));
  gzbuffer(file_.get(), 1U << 18);  // zlib's default of 8 KiB costs a system call for each
}

// gzread returns what it has before it reports a damaged or truncated stream, so a short read may precede an error.
std::size_t PlainOrGzip::read(std::span<std::uint8_t> out, std::string& problem) {
  const auto wanted = static_cast<unsigned>(std::min(out.size(), kAtOnce));
  const int got = gzread(file_.get(), out.data(), wanted);
  if (got < static_cast<int>(wanted)) problem = find_problem();
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

std::uint64_t PlainOrGzip::position() const noexcept { return static_cast<std::uint64_t>(gztell(file_.get())); }

std::string PlainOrGzip::find_problem() const {
  int code = Z_OK;
  const std::string_view message = gzerror(file_.get(), &code);
  if (code == Z_OK || code == Z_STREAM_END) return {};
  if (code == Z_ERRNO) return fmt::format("cannot read: {}", std::strerror(errno));
  if (code == Z_BUF_ERROR) return "the gzip data ends too early; fetch the file again";
  const std::size_t detail = message.rfind(": ");  // zlib puts the path in front of its message
  return fmt::format("damaged gzip data here or soon after ({}); fetch the file again",
                     detail == message.npos ? message : message.substr(detail + 2));
}

}  // namespace ps_shm::train
