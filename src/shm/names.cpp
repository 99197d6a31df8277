#include "shm/names.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <poll.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shm/futex.hpp"

namespace ps::shm {

std::string control_name(const std::string& job) { return "ps." + job; }
std::string shard_name(const std::string& job, std::uint32_t shard) { return fmt::format("ps.{}.{}", job, shard); }
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation) {
  return fmt::format("{}{}", gradient_prefix(job, rank), generation);
}
std::string gradient_prefix(const std::string& job, std::uint32_t rank) { return fmt::format("ps.{}.w{}.", job, rank); }
std::string data_name(const std::string& job) { return fmt::format("ps.{}.data", job); }
std::string bundle_name(const std::string& publication) { return kBundlePrefix + publication; }

bool unlink_segment(const std::string& name) noexcept {
  return ::unlink(path_of(name).c_str()) == 0 || errno == ENOENT;
}

bool leads_to(const std::string& name, int descriptor) noexcept {
  struct stat opened, named;
  return fstat(descriptor, &opened) == 0 && lstat(path_of(name).c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

std::string owner_of(const std::string& name) {
  struct stat status;
  if (lstat(path_of(name).c_str(), &status) != 0) return "nobody";
  const passwd* user = getpwuid(status.st_uid);
  return user != nullptr ? fmt::format("user {}", user->pw_name) : fmt::format("user {}", status.st_uid);
}

std::vector<std::string> list_segments(const std::string& prefix) {
  std::vector<std::string> names;
  if (DIR* directory = opendir(kDirectory)) {
    while (const dirent* entry = readdir(directory))
      if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) == 0) names.emplace_back(entry->d_name);
    closedir(directory);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::size_t shm_capacity_bytes() {
  struct statvfs status;
  if (statvfs(kDirectory, &status) == 0 && status.f_blocks != 0) return status.f_blocks * status.f_frsize;
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t shm_free_bytes() {
  struct statvfs status;
  if (statvfs(kDirectory, &status) == 0 && status.f_blocks != 0) return status.f_bavail * status.f_frsize;
  return shm_capacity_bytes();  // a tmpfs without a limit
}

void NameWait::pause() noexcept {
  poll(nullptr, 0, milliseconds_);
  milliseconds_ = std::min(2 * milliseconds_, kWaitSliceMs);
}

}  // namespace ps::shm
