// The microbenchmarks: every path of the library that has a limit, beside that limit and beside what else one could do.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "../report.hpp"
#include "cases.hpp"

namespace {

using namespace ps_shm::bench;

constexpr char kUsage[] =
    "micro [--smoke] [--large] [--pin] [--seconds=X] [--processes=N,N...] [--benchmark_...]\n"
    "  --smoke      every case once, tiny: whether it works at all; the figures mean nothing\n"
    "  --large      vectors of 1 GiB, too; needs 16 GiB of memory and 3 GiB of /dev/shm\n"
    "  --pin        each process to a core of its own; otherwise wherever the kernel puts it\n"
    "  --seconds=X  of one measurement (0.1)\n"
    "  --processes=N,N...  for so many, 1 to 256: cases of pushes, pulls, scalars, sync steps and linear models\n"
    "  --benchmark_filter=REGEX --benchmark_repetitions=N --benchmark_out=FILE --benchmark_format=json and the rest "
    "of\n"
    "               google-benchmark's; their real_time is a whole case's, preparations and limit included\n"
    "A case for which /dev/shm has no room is skipped and counted; an error where a filter asks for it.\n";

// Shows the head alone: the cases come as a table at the end.
class HeadReporter : public benchmark::ConsoleReporter {
 public:
  bool ReportContext(const Context& context) override {
    PrintBasicContext(&GetErrorStream(), context);
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    if (!runs.empty() && isatty(STDERR_FILENO) != 0) fmt::print(stderr, "{}\n", runs.front().benchmark_name());
  }
};

bool has_room_for_large() {
  constexpr double kGiB = 1 << 30;
  const double memory = double(sysconf(_SC_AVPHYS_PAGES)) * double(sysconf(_SC_PAGESIZE)) / kGiB;
  struct statvfs status = {};
  const bool is_known = statvfs("/dev/shm", &status) == 0;
  const double shared = is_known ? double(status.f_bavail) * double(status.f_frsize) / kGiB : 0;
  if (memory >= 16 && shared >= 3) return true;
  fmt::print(stderr, "micro: --large needs 16 GiB of memory and 3 GiB of /dev/shm; here are {:.1f} and {:.1f} free\n",
             memory, shared);
  return false;
}

// What is no number from 1 to 256 is 0.
std::vector<int> read_counts(const std::string& text) {
  constexpr int kMost = 256;
  std::vector<int> counts;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    int count = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
    counts.push_back(error == std::errc() && end == word.data() + word.size() && count >= 1 && count <= kMost ? count
                                                                                                              : 0);
  }
  return counts.empty() ? std::vector<int>{0} : counts;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<char*> others = {argv[0]};
  bool pins = false, lists = false, has_format = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--smoke")
      options().smoke = true;
    else if (argument == "--large")
      options().large = true;
    else if (argument == "--pin")
      pins = true;
    else if (argument.starts_with("--seconds="))
      options().seconds = std::atof(argument.c_str() + std::string("--seconds=").size());
    else if (argument.starts_with("--processes="))
      options().processes = read_counts(argument.substr(std::string("--processes=").size()));
    else if (argument == "--help")
      return fmt::print("{}", kUsage), 0;
    else
      others.push_back(argv[i]);
    lists = lists || argument.starts_with("--benchmark_list_tests");
    // All that there are, however that is said, is by no name.
    if (argument.starts_with("--benchmark_filter="))
      options().by_name = !argument.ends_with("=") && !argument.ends_with("=all") && !argument.ends_with("=.*");
    has_format = has_format || argument.starts_with("--benchmark_format");
  }
  if (std::count(options().processes.begin(), options().processes.end(), 0) != 0)
    return fmt::print(stderr, "micro: --processes must be numbers from 1 to 256, such as 1,2,8\n"), 2;
  if (!(options().seconds > 0)) return fmt::print(stderr, "micro: --seconds must be greater than 0\n"), 2;
  if (!lists && !may_report("micro")) return 1;
  if (options().large && !lists && !has_room_for_large()) return 1;
  if (options().smoke) options().seconds = 0.001;
  pin_processes(pins);
  set_patience(options().smoke ? 600 : 120);
  end_at_signals();

  add_push_cases();
  add_pull_cases();
  add_mixed_cases();
  add_scalar_cases();
  add_sync_cases();
  add_life_cases();
  add_many_cases();
  add_linear_cases();
  add_publish_cases();

  benchmark::AddCustomContext("smoke", options().smoke ? "yes: the figures mean nothing" : "no");
  HeadReporter head;
  const int code = run_benchmarks(int(others.size()), others.data(), options().smoke ? 1 : 5,
                                  pins ? "each process on a core of its own" : "not pinned", {"--benchmark_min_time=0"},
                                  has_format || lists ? nullptr : &head);
  if (code != 0 || lists) return code;
  if (!has_format) print_medians();
  if (failures() != 0) fmt::print(stderr, "micro: {} measurements failed\n", failures());
  if (skips() != 0) fmt::print(stderr, "micro: {} measurements skipped: no room in /dev/shm\n", skips());
  return failures() == 0 ? 0 : 1;
}
