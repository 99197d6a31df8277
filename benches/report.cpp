#include "report.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "commit.hpp"

namespace ps_shm::bench {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  return "unknown";
}

std::string cores() {
  cpu_set_t allowed;
  const bool is_known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  return fmt::format("{} online, {} allowed", sysconf(_SC_NPROCESSORS_ONLN), is_known ? CPU_COUNT(&allowed) : 0);
}

std::string caches() {
  std::string all;
  for (int index = 0;; ++index) {
    const std::string cache = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    if (!std::filesystem::exists(cache)) return all.empty() ? "unknown" : all;
    all += fmt::format("{}L{} {} {} of cores {}", all.empty() ? "" : ", ", read_line(cache + "level"),
                       read_line(cache + "type"), read_line(cache + "size"), read_line(cache + "shared_cpu_list"));
  }
}

std::string memory() {
  std::ifstream file("/proc/meminfo");
  std::string total = "unknown";
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("MemTotal:")) total = line.substr(line.find_first_not_of(' ', 9));
  struct statvfs status = {};
  const bool is_known = statvfs("/dev/shm", &status) == 0;
  return fmt::format("{}, {} MiB free in /dev/shm", total, is_known ? status.f_bavail * status.f_frsize >> 20 : 0);
}

std::string huge_pages() {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  return fmt::format("private {}; shared {}", read_line(folder + "enabled"), read_line(folder + "shmem_enabled"));
}

}  // namespace

std::string read_line(const std::string& path, const std::string& otherwise) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : otherwise;
}

bool may_report(const char* name) {
  const std::string build = PS_SHM_BUILDTYPE, sanitize = PS_SHM_SANITIZE;
#ifdef __OPTIMIZE__
  const bool is_optimized = true;
#else
  const bool is_optimized = false;
#endif
  if (build != "debug" && sanitize == "none" && is_optimized) return true;
  fmt::print(stderr, "{}: a {} build with sanitizer {}{} measures nothing; configure with -Dbuildtype=release\n", name,
             build, sanitize, is_optimized ? "" : " and without optimisation");
  return false;
}

std::vector<std::pair<std::string, std::string>> environment(const std::string& where) {
  utsname system;
  uname(&system);
#ifdef NDEBUG
  const char* const asserts = "off";
#else
  const char* const asserts = "on: figures are lower than a release build's";
#endif
  return {{"cpu", cpu_model()},
          {"cores", cores()},
          {"cpu_caches", caches()},
          {"numa_nodes", read_line("/sys/devices/system/node/online")},
          {"memory", memory()},
          {"huge_pages", huge_pages()},
          {"kernel", system.release},
          {"compiler", PS_SHM_COMPILER},
          {"flags", PS_SHM_FLAGS},
          {"build", PS_SHM_BUILDTYPE},
          {"asserts", asserts},
          {"commit", PS_SHM_COMMIT},
          {"load_average", read_line("/proc/loadavg")},
          {"where", where}};
}

void add_context(const std::string& where) {
  for (const auto& [key, value] : environment(where)) benchmark::AddCustomContext(key, value);
}

int run_benchmarks(int argc, char** argv, int repetitions, const std::string& where,
                   const std::vector<std::string>& more, benchmark::BenchmarkReporter* display) {
  std::vector<std::string> defaults = {fmt::format("--benchmark_repetitions={}", repetitions),
                                       "--benchmark_enable_random_interleaving=true",
                                       "--benchmark_report_aggregates_only=true", "--benchmark_counters_tabular=true"};
  defaults.insert(defaults.end(), more.begin(), more.end());
  std::vector<char*> arguments = {argv[0]};
  for (std::string& argument : defaults) arguments.push_back(argument.data());
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = static_cast<int>(arguments.size());
  add_context(where);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  if (display != nullptr)
    benchmark::RunSpecifiedBenchmarks(display);
  else
    benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace ps_shm::bench
