// What the benchmarks' mains have in common: who may report, the environment, the way repetitions are run.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace benchmark {
class BenchmarkReporter;
}

namespace ps_shm::bench {

// False, with a line on stderr: a build whose figures mean nothing.
bool may_report(const char* name);

// What the figures are measured on and with. `where`: processes and pinning.
std::vector<std::pair<std::string, std::string>> environment(const std::string& where);

// The same into the report's head.
void add_context(const std::string& where);

// Runs the registered benchmarks: medians of repetitions in random order, so that no case has a quiet machine to itself.
// `where`: processes and pinning; `more`: arguments that the command line may still overrule; `display`: what writes to
// stdout, none: google-benchmark's own. Returns the program's exit code.
int run_benchmarks(int argc, char** argv, int repetitions, const std::string& where,
                   const std::vector<std::string>& more = {}, benchmark::BenchmarkReporter* display = nullptr);

// A line of the machine's description, as text.
std::string read_line(const std::string& path, const std::string& otherwise = "unknown");

}  // namespace ps_shm::bench
