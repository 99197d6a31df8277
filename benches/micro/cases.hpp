// How the microbenchmarks' cases are made: options, registration, and what their figures are called.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "../processes.hpp"

namespace ps_shm::bench {

struct Options {
  bool smoke = false;            // every case once, tiny: does it work at all
  bool large = false;            // vectors of 1 GiB, too
  bool by_name = false;          // a filter says which cases
  double seconds = 0.1;          // of one measurement
  std::vector<int> processes{};  // for how many; where empty, for a case's usual numbers
};
Options& options() noexcept;

struct Figure {
  std::string name;
  double value;
};
using Figures = std::vector<Figure>;

// A case: measure() runs once per repetition and returns its figures; what it throws makes the case an error.
void add_case(const std::string& name, std::function<Figures()> measure);

// How many cases failed so far, and how many were skipped: those for which /dev/shm has no room, unless cases were
// asked for by name, which makes them failures.
int failures() noexcept;
int skips() noexcept;

// The medians of every case, and how far its first figure spread, on stdout.
void print_medians();

// The cases of each file.
void add_push_cases();
void add_pull_cases();
void add_mixed_cases();
void add_scalar_cases();
void add_sync_cases();
void add_life_cases();
void add_many_cases();
void add_linear_cases();
void add_publish_cases();

// For how many processes a case is made: what --processes says, or else the `usual` numbers.
std::vector<int> process_counts(std::vector<int> usual);

// The sizes of vectors for pushes and pulls.
std::vector<std::uint64_t> vector_sizes();

// What is measured where a case says so many floats: a smoke run cuts large ones.
std::uint64_t floats_of(std::uint64_t floats) noexcept;

// The span for rounds over so many floats: the clock is looked at often enough and costs nothing; `processes` together
// stay below 2^24 rounds, so that float32 counts them exactly.
Span span_for(std::uint64_t floats, int processes) noexcept;

// Warm-up rounds of a vector of that size, before the clock starts.
std::uint64_t warmups_for(std::uint64_t floats) noexcept;

inline double gigabytes_per_second(std::uint64_t floats, double rate) noexcept {
  return double(floats) * sizeof(float) * rate * 1e-9;
}

// {name, value}, {"limit", limit}, {"of_limit", value / limit}: of a rate.
Figures rate_with_limit(const std::string& name, double value, double limit);
// The same of a time, for which of_limit is limit / value: 1 is best in both.
Figures time_with_limit(const std::string& name, double value, double limit);

// Throws std::runtime_error unless the share of lost updates is 0.
void require_exact(double lost);

double median(std::vector<double> values);

}  // namespace ps_shm::bench
