#include "inspect_shm/processes.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "inspect_shm/jobs.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::inspect {
namespace {

namespace fs = std::filesystem;

// The job of a mapped control segment or shard whose name is gone; empty for other lines. Pure readers of a job, such
// as the inspector, map it read-only.
std::string job_of(const std::string& line) {
  constexpr std::string_view kPrefix = "/dev/shm/ps_shm.", kDeleted = " (deleted)";
  const std::size_t begin = line.find(kPrefix);
  if (begin == std::string::npos || !line.ends_with(kDeleted) || line.find(" rw-s ") == std::string::npos) return {};
  const std::string segment =
      line.substr(begin + kPrefix.size(), line.size() - kDeleted.size() - begin - kPrefix.size());
  const std::string job = segment.substr(0, segment.find('.'));
  const std::string shard = job == segment ? "0" : segment.substr(job.size() + 1);
  const bool is_number = !shard.empty() && shard.find_first_not_of("0123456789") == std::string::npos;
  return is_number && is_job_name(job) ? job : std::string();
}

// Files named NAME.conf in the folders, later folders override earlier ones; in the order of their names.
std::vector<fs::path> conf_files() {
  std::map<std::string, fs::path> files;
  std::error_code missing;
  for (const char* folder :
       {"/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"})
    for (fs::directory_iterator entry(folder, missing), end; entry != end; entry.increment(missing))
      if (entry->path().extension() == ".conf") files[entry->path().filename()] = entry->path();
  std::vector<fs::path> all = {"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"};
  for (const auto& [name, path] : files) all.push_back(path);
  return all;
}

}  // namespace

std::map<std::string, std::set<std::uint32_t>> processes_without_names() {
  std::map<std::string, std::set<std::uint32_t>> jobs;
  std::error_code hidden;  // a process that has ended meanwhile, or that this user may not read
  const fs::directory_iterator end;
  for (fs::directory_iterator process("/proc", hidden); process != end; process.increment(hidden)) {
    const auto pid = static_cast<std::uint32_t>(std::strtoul(process->path().filename().c_str(), nullptr, 10));
    if (pid == 0) continue;
    std::ifstream maps(process->path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (const std::string job = job_of(line); !job.empty()) jobs[job].insert(pid);
  }
  return jobs;
}

bool logind_removes_of(std::uint32_t user) {
  constexpr std::uint32_t kLastSystemUser = 999;
  std::error_code failed;
  if (user <= kLastSystemUser || !fs::exists("/run/systemd/seats", failed)) return false;
  if (fs::exists("/var/lib/systemd/linger/" + user_name(user), failed)) return false;
  bool removes = true;  // the default
  for (const fs::path& path : conf_files()) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      line.erase(std::remove_if(line.begin(), line.end(), [](unsigned char c) { return std::isspace(c) != 0; }),
                 line.end());
      constexpr std::string_view kSetting = "RemoveIPC=";
      if (!line.starts_with(kSetting) || line.size() == kSetting.size()) continue;
      const std::string_view value = std::string_view(line).substr(kSetting.size());
      removes = value == "yes" || value == "true" || value == "on" || value == "1";
    }
  }
  return removes;
}

std::optional<std::uint32_t> user_of(const std::string& segment) {
  struct stat facts;
  return stat(shm::path_of(segment).c_str(), &facts) == 0 ? std::optional(facts.st_uid) : std::nullopt;
}

std::string user_name(std::uint32_t user) {
  const passwd* entry = getpwuid(user);
  return entry != nullptr ? entry->pw_name : fmt::to_string(user);
}

}  // namespace ps_shm::inspect
