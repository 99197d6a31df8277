// Pushes of one vector by two processes: versioned and in-place slots against racy SIMD adds and element-wise atomics.
//
// Each figure is GB/s of gradient, summed over the processes; beside it `limit`, the rate of the same SIMD addition on
// private memory by as many processes, measured immediately before. Lost updates are counted in every case.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "processes.hpp"
#include "ps/job_view.hpp"
#include "ps/server.hpp"
#include "ps/worker.hpp"
#include "report.hpp"
#include "update/rules.hpp"

namespace ps::bench {
namespace {

constexpr int kWriters = 2;
constexpr double kGiga = 1e-9;

double rate(const std::vector<double>& seconds, std::size_t count, std::size_t rounds) {
  double sum = 0;
  for (const double s : seconds) sum += double(count) * sizeof(float) * double(rounds) / s * kGiga;
  return sum;
}

std::size_t rounds_for(std::size_t count) { return std::max<std::size_t>(8, 200'000'000 / count); }

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
__attribute__((target_clones("default", "avx2", "avx512f")))  // the same widths as the library's own rules
#endif
void racy_add(float* target, const float* delta, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) target[i] += delta[i];
}

double private_limit(std::size_t count) {
  const std::size_t rounds = rounds_for(count) / 4 + 1;
  const auto seconds = run_processes(kWriters, [&](int) {
    auto target = std::make_shared<std::vector<float>>(count, 0.0F),
         ones = std::make_shared<std::vector<float>>(count, 1.0F);
    return Task{.work = [=] {
      for (std::size_t round = 0; round < rounds; ++round) {
        racy_add(target->data(), ones->data(), count);
        benchmark::ClobberMemory();
      }
    }};
  });
  return rate(seconds, count, rounds);
}

struct Measured {
  double gbs = 0;
  double lost = 0;  // share of the updates
};

// Two workers of a real job; what is measured is Worker::push.
Measured measure_job(Layout layout, std::size_t count, std::size_t rounds) {
  JobConfig config;
  config.job = fmt::format("bench-{}", getpid());
  config.workers = kWriters;
  config.layout = layout;
  Server server(config);
  const JobView view(config.job);
  const auto seconds = run_processes(kWriters, [&](int number) {
    auto worker = std::make_shared<Worker>(
        WorkerOptions{.job = config.job, .rank = std::uint32_t(number), .stop_requested = {}, .notice = {}});
    const Variable variable = worker->variable({.name = "v", .shape = {count}, .rule = UpdateRule::kAdd, .layout = {}},
                                               [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
    auto ones = std::make_shared<std::vector<float>>(count, 1.0F);
    return Task{.prepare = [=] { worker->push(variable, *ones); },  // first touch
                .work =
                    [=] {
                      for (std::size_t round = 0; round < rounds; ++round) worker->push(variable, *ones);
                    }};
  });
  double sum = 0;
  for (const float value : view.values("v")) sum += value;
  return {rate(seconds, count, rounds), 1 - sum / double(count) / double(kWriters * (rounds + 1))};
}

template <class Add>
Measured measure_raw(std::size_t count, std::size_t rounds, Add add) {
  auto* target = static_cast<float*>(shared_bytes(count * sizeof(float)));
  const auto seconds = run_processes(kWriters, [&](int) {
    auto ones = std::make_shared<std::vector<float>>(count, 1.0F);
    return Task{.prepare = [=] { add(target, ones->data(), count); },
                .work =
                    [=] {
                      for (std::size_t round = 0; round < rounds; ++round) add(target, ones->data(), count);
                    }};
  });
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += target[i];
  munmap(target, count * sizeof(float));
  return {rate(seconds, count, rounds), 1 - sum / double(count) / double(kWriters * (rounds + 1))};
}

void atomic_add(float* target, const float* delta, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    std::atomic_ref<float>(target[i]).fetch_add(delta[i], std::memory_order_relaxed);
}

std::map<std::string, std::map<std::size_t, std::vector<double>>> figures;  // by case and size, for the ratios

void run_case(benchmark::State& state, const std::string& name) {
  const auto count = static_cast<std::size_t>(state.range(0));
  const bool is_slow = name == "atomic_ref" || name == "inplace";
  const std::size_t rounds = is_slow ? rounds_for(count) / 20 + 1 : rounds_for(count);
  const bool must_be_exact = name != "racy_simd";
  for (auto _ : state) {
    const double limit = private_limit(count);
    const Measured measured = name == "versioned"   ? measure_job(Layout::kVersioned, count, rounds)
                              : name == "inplace"   ? measure_job(Layout::kInplace, count, rounds)
                              : name == "racy_simd" ? measure_raw(count, rounds, racy_add)
                                                    : measure_raw(count, rounds, atomic_add);
    if (measured.gbs == 0) return state.SkipWithError("a process failed");
    if (must_be_exact && measured.lost != 0) return state.SkipWithError("updates were lost");
    state.SetIterationTime(double(count) * sizeof(float) * kGiga / measured.gbs);
    state.counters["GB/s"] = measured.gbs;
    state.counters["limit"] = limit;
    state.counters["of_limit"] = measured.gbs / limit;
    state.counters["lost_%"] = 100 * measured.lost;
    figures[name][count].push_back(measured.gbs);
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace
}  // namespace ps::bench

int main(int argc, char** argv) {
  using namespace ps::bench;
  if (!may_report("push")) return 1;
  for (const std::string name : {"versioned", "racy_simd", "atomic_ref", "inplace"})
    benchmark::RegisterBenchmark(("push/" + name).c_str(), [name](benchmark::State& state) { run_case(state, name); })
        ->Arg(1 << 20)
        ->UseManualTime()
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  const int code = run_benchmarks(argc, argv, 5, fmt::format("{} processes, not pinned", kWriters));
  if (code != 0) return code;
  for (const auto& [size, versioned] : figures["versioned"])
    fmt::print(
        "{} floats, {} writers, medians: versioned {:.1f} GB/s = {:.2f} x racy_simd ({:.1f}), {:.1f} x atomic_ref "
        "({:.2f})\n",
        size, kWriters, median(versioned), median(versioned) / median(figures["racy_simd"][size]),
        median(figures["racy_simd"][size]), median(versioned) / median(figures["atomic_ref"][size]),
        median(figures["atomic_ref"][size]));
}
