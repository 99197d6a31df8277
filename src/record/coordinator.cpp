#include "record/coordinator.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "config/error_code.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::record {
namespace {

std::size_t bytes_of(std::uint64_t chunks) {
  return sizeof(CoordinatorState) + chunks * sizeof(shm::AtomicShm<std::uint32_t>);
}

[[noreturn]] void fail(const std::string& path) {
  throw Error(
      fmt::format("replay: {}: {}; it belongs to the launcher, which must be alive", path, std::strerror(errno)),
      config::code_of(errno));
}

}  // namespace

ReplayCoordinator::ReplayCoordinator(std::uint64_t chunks) {
  descriptor_ = memfd_create("ps_replay", MFD_CLOEXEC);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(bytes_of(chunks))) != 0) fail("its memory");
  map(chunks);
}

ReplayCoordinator::ReplayCoordinator(const std::string& path, std::uint64_t chunks) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status;
  if (descriptor_ < 0 || fstat(descriptor_, &status) != 0) fail(path);
  if (static_cast<std::size_t>(status.st_size) != bytes_of(chunks)) {
    close(descriptor_);
    throw Error(fmt::format("replay: {} belongs to other recordings", path), ErrorCode::kIncompatible);
  }
  map(chunks);
}

void ReplayCoordinator::map(std::uint64_t chunks) {
  void* const place = mmap(nullptr, bytes_of(chunks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (place == MAP_FAILED) fail(path());
  memory_ = place;
  bytes_ = bytes_of(chunks);
}

ReplayCoordinator::~ReplayCoordinator() {
  munmap(memory_, bytes_);
  close(descriptor_);
}

std::string ReplayCoordinator::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), descriptor_); }

}  // namespace ps_shm::record
