// What the benchmarks' mains have in common: who may report, the environment, the way repetitions are run.
#pragma once

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <string>
#include <vector>

namespace ps::bench {

// False, with a line on stderr: a build whose figures mean nothing.
inline bool may_report(const char* name) {
  const std::string build = PS_BUILDTYPE, sanitize = PS_SANITIZE;
  if (build != "debug" && sanitize == "none") return true;
  fmt::print(stderr, "{}: a {} build with sanitizer {} measures nothing; configure with -Dbuildtype=release\n", name,
             build, sanitize);
  return false;
}

// Runs the registered benchmarks: medians of repetitions in random order, so that no case has a quiet machine to itself.
// `where`: processes and pinning. Returns the program's exit code.
inline int run_benchmarks(int argc, char** argv, int repetitions, const std::string& where) {
  std::vector<std::string> defaults = {fmt::format("--benchmark_repetitions={}", repetitions),
                                       "--benchmark_enable_random_interleaving=true",
                                       "--benchmark_report_aggregates_only=true", "--benchmark_counters_tabular=true"};
  std::vector<char*> arguments = {argv[0]};
  for (std::string& argument : defaults) arguments.push_back(argument.data());
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = static_cast<int>(arguments.size());
  utsname system;
  uname(&system);
  benchmark::AddCustomContext("kernel", system.release);
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::AddCustomContext("build", PS_BUILDTYPE);
  benchmark::AddCustomContext("commit", PS_COMMIT);
  benchmark::AddCustomContext("where", where);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace ps::bench
