#include "cases.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

namespace ps_shm::bench {
namespace {

struct Case {
  std::string name;
  std::function<Figures()> measure;
  std::vector<Figures> repetitions;
  std::string error;
  bool is_skipped = false;  // for the want of room that `error` tells of
};

std::vector<std::unique_ptr<Case>>& cases() {
  static std::vector<std::unique_ptr<Case>> all;
  return all;
}

int failed_cases = 0, skipped_cases = 0;

// By its text: most errors come out of other processes. /dev/shm is named by what the library and SharedBytes throw.
bool is_lack_of_room(const std::string& error) {
  return error.find("/dev/shm") != std::string::npos &&
         (error.find("cannot reserve") != std::string::npos || error.find("no room for") != std::string::npos);
}

void run(benchmark::State& state, Case& one) {
  for (auto _ : state) {
    try {
      const Figures figures = one.measure();
      for (const Figure& figure : figures) state.counters[figure.name] = figure.value;
      one.repetitions.push_back(figures);
    } catch (const std::exception& error) {
      one.is_skipped = !options().by_name && is_lack_of_room(error.what());
      one.error = (one.is_skipped ? "skipped: " : "") + std::string(error.what());
      ++(one.is_skipped ? skipped_cases : failed_cases);
      state.SkipWithError(one.error.c_str());
      return;
    }
  }
}

double spread(const std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const double middle = median(values);
  return middle == 0 ? 0 : (*most - *least) / middle;
}

}  // namespace

Options& options() noexcept {
  static Options all;
  return all;
}

void add_case(const std::string& name, std::function<Figures()> measure) {
  Case& one = *cases().emplace_back(std::make_unique<Case>(Case{name, std::move(measure), {}, {}}));
  // No iterations and no manual time, which would become part of the name: --benchmark_min_time=0 makes it one round.
  benchmark::RegisterBenchmark(name.c_str(), [&one](benchmark::State& state) { run(state, one); })
      ->Unit(benchmark::kMillisecond)
      ->ComputeStatistics("spread", spread, benchmark::StatisticUnit::kPercentage);
}

int failures() noexcept { return failed_cases; }
int skips() noexcept { return skipped_cases; }

void print_medians() {
  fmt::print("medians; spread: (most - least) / median of the first figure\n");
  for (const auto& one : cases()) {
    if (!one->error.empty()) fmt::print("{:<58} {}{}\n", one->name, one->is_skipped ? "" : "ERROR: ", one->error);
    if (one->repetitions.empty()) continue;
    fmt::print("{:<58}", one->name);
    const Figures& first = one->repetitions.front();
    for (std::size_t i = 0; i < first.size(); ++i) {
      std::vector<double> values;
      for (const Figures& figures : one->repetitions) values.push_back(figures[i].value);
      fmt::print(" {} {:.4g}", first[i].name, median(values));
      if (i == 0) fmt::print(" (spread {:.0f} %)", 100 * spread(values));
    }
    fmt::print("\n");
  }
}

std::vector<int> process_counts(std::vector<int> usual) {
  return options().processes.empty() ? std::move(usual) : options().processes;
}

std::vector<std::uint64_t> vector_sizes() {
  std::vector<std::uint64_t> sizes = {1, 1'000, 100'000, 1'000'000, 16'000'000};
  if (options().large) sizes.push_back(268'435'456);
  return sizes;
}

std::uint64_t floats_of(std::uint64_t floats) noexcept {
  constexpr std::uint64_t kSmokeFloats = 50'000;
  return options().smoke ? std::min(floats, kSmokeFloats) : floats;
}

Span span_for(std::uint64_t floats, int processes) noexcept {
  constexpr std::uint64_t kBatchFloats = 16'384;  // a microsecond at least, where a look at the clock takes 0.03
  constexpr std::uint64_t kExact = 1 << 24;
  Span span;
  span.seconds = options().seconds;
  span.batch = std::clamp<std::uint64_t>(kBatchFloats / std::max<std::uint64_t>(1, floats), 1, 256);
  span.least = options().smoke ? 1 : 3;
  span.most = kExact / static_cast<std::uint64_t>(processes) - 2 * span.batch;  // and the warm-up
  return span;
}

std::uint64_t warmups_for(std::uint64_t floats) noexcept { return floats <= 1'000'000 ? 2 : 1; }

Figures rate_with_limit(const std::string& name, double value, double limit) {
  return {{name, value}, {"limit", limit}, {"of_limit", value / limit}};
}

Figures time_with_limit(const std::string& name, double value, double limit) {
  return {{name, value}, {"limit", limit}, {"of_limit", limit / value}};
}

void require_exact(double lost) {
  if (lost != 0) throw std::runtime_error(fmt::format("{:.6f} % of the updates were lost", 100 * lost));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace ps_shm::bench
