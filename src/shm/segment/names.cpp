#include "shm/segment/names.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "shm/base/clock.hpp"
#include "shm/base/futex.hpp"

namespace ps_shm::shm {

std::string control_name(const std::string& job) { return kJobPrefix + job; }
std::string shard_name(const std::string& job, std::uint32_t shard) {
  return fmt::format("{}.{}", control_name(job), shard);
}
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation) {
  return fmt::format("{}{}", gradient_prefix(job, rank), generation);
}
std::string gradient_prefix(const std::string& job, std::uint32_t rank) {
  return fmt::format("{}.w{}.", control_name(job), rank);
}
std::string table_name(const std::string& job, std::uint32_t table, std::uint32_t part) {
  return fmt::format("{}.t{}.{}", control_name(job), table, part);
}
std::string data_name(const std::string& job) { return control_name(job) + ".data"; }
std::string bridge_name(const std::string& job) { return control_name(job) + ".bridge"; }
std::string job_of(const std::string& segment) {
  if (!segment.starts_with(kJobPrefix)) return {};
  const std::string rest = segment.substr(sizeof kJobPrefix - 1);
  return rest.substr(0, rest.find('.'));
}
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
  return shm_capacity_bytes();  // a tmpfs without a size limit
}

void NameWait::pause() noexcept {
  sleep_ns(static_cast<std::uint64_t>(milliseconds_) * 1'000'000U);
  milliseconds_ = std::min(2 * milliseconds_, kWaitSliceMs);
}

}  // namespace ps_shm::shm
