// Runs the same work in several real processes that start together, and measures each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace ps::bench {

// Zeroed memory that forked processes share; lives until the process ends.
void* shared_bytes(std::size_t bytes);

// What one process does: prepare() is not timed, work() is.
struct Task {
  std::function<void()> prepare = [] {};
  std::function<void()> work;
};

// Forks `count` processes, each makes its task by make(number), prepares, waits for the others and works.
// Returns the seconds that each one's work took; empty when one of them failed.
std::vector<double> run_processes(int count, const std::function<Task(int)>& make);

}  // namespace ps::bench
