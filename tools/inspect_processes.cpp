#include "inspect_processes.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string_view>
#include <vector>

#include "inspect_jobs.hpp"
#include "shm/names.hpp"

namespace ps::inspect {
namespace {

namespace fs = std::filesystem;

// The job of a control segment or shard that is mapped and has no name any more; of other lines nothing. Who only looks
// at a job, as the inspector does, maps it read-only.
std::string job_of(const std::string& line) {
  if (!line.ends_with(" (deleted)") || line.find(" rw-s ") == std::string::npos ||
      line.find("/dev/shm/ps.") == std::string::npos)
    return {};
  static const std::regex deleted(R"(/dev/shm/ps\.([^ .]+)(\.[0-9]+)? \(deleted\)$)");
  std::smatch match;
  return std::regex_search(line, match, deleted) && is_job_name(match[1]) ? match[1].str() : std::string();
}

// Files named NAME.conf of the folders, later folders in the place of earlier ones; in the order of their names.
std::vector<fs::path> conf_files() {
  std::map<std::string, fs::path> files;
  std::error_code missing;
  for (const char* folder :
       {"/usr/lib/systemd/logind.conf.d", "/run/systemd/logind.conf.d", "/etc/systemd/logind.conf.d"})
    for (const auto& entry : fs::directory_iterator(folder, missing))
      if (entry.path().extension() == ".conf") files[entry.path().filename()] = entry.path();
  std::vector<fs::path> all = {"/usr/lib/systemd/logind.conf", "/etc/systemd/logind.conf"};
  for (const auto& [name, path] : files) all.push_back(path);
  return all;
}

}  // namespace

char process_state(std::uint32_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(file, line)) return 0;
  const auto name_end = line.rfind(") ");  // a name may have parentheses
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

std::map<std::string, std::set<std::uint32_t>> processes_without_names() {
  std::map<std::string, std::set<std::uint32_t>> jobs;
  std::error_code hidden;  // a process that has ended meanwhile, or that is not ours to look at
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
      static const std::regex setting(R"(^\s*RemoveIPC\s*=\s*(\w+))");
      std::smatch match;
      if (!std::regex_search(line, match, setting)) continue;
      const std::string value = match[1];
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

}  // namespace ps::inspect
