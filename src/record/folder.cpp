#include "record/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::record {
namespace {

constexpr std::string_view kPrefix = "worker-";

// Parses "worker-2.1". False: the name has another form.
bool read_name(std::string_view name, Life& life) {
  if (!name.starts_with(kPrefix)) return false;
  const char* const end = name.data() + name.size();
  const auto rank = std::from_chars(name.data() + kPrefix.size(), end, life.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != '.') return false;
  const auto number = std::from_chars(rank.ptr + 1, end, life.life);
  return number.ec == std::errc() && number.ptr == end;
}

}  // namespace

std::string file_of(const std::string& folder, std::uint32_t rank, std::uint32_t life) {
  return fmt::format("{}/{}{}.{}", folder, kPrefix, rank, life);
}

MappedFile::MappedFile(const std::string& path) {
  const auto fail = [&] {
    throw Error(fmt::format("recording {}: {}", path, std::strerror(errno)), config::code_of(errno));
  };
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail();
  struct stat status;
  if (fstat(descriptor, &status) != 0) status.st_size = 0;
  if (status.st_size == 0) {
    ::close(descriptor);
    return;
  }
  void* const place = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
  ::close(descriptor);
  if (place == MAP_FAILED) fail();
  bytes_ = {static_cast<const std::byte*>(place), static_cast<std::size_t>(status.st_size)};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

std::vector<Life> lives_in(const std::string& folder) {
  std::error_code error;
  std::vector<Life> lives;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (Life life{}; read_name(entry->path().filename().string(), life)) lives.push_back(life);
  if (error) throw Error(fmt::format("recording {}: {}", folder, error.message()), config::code_of(error.value()));
  std::sort(lives.begin(), lives.end(),
            [](const Life& a, const Life& b) { return std::pair(a.rank, a.life) < std::pair(b.rank, b.life); });
  std::uint32_t rank = 0, last = 0;
  for (const Life& one : lives) {
    if (one.rank != std::exchange(rank, one.rank)) last = 0;
    if (one.life != ++last)
      throw Error(fmt::format("recording {}: the file {} is missing", folder, file_of("", rank, last)),
                  ErrorCode::kNotFound);
  }
  if (lives.empty())
    throw Error(fmt::format("recording {}: it contains no worker's recording", folder), ErrorCode::kNotFound);
  return lives;
}

}  // namespace ps_shm::record
