// scalar/...: variables of one element, ns per operation of one process. An exact add against a bare compare-exchange loop
// on four bytes; a pull against a call of memcpy for four bytes.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "cases.hpp"
#include "job.hpp"
#include "rivals.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::uint64_t kWarmups = 256;

Span scalar_span(int processes) {
  Span span = span_for(1, processes);
  span.most -= kWarmups;
  return span;
}

double nanoseconds(const std::vector<Ran>& ran) { return 1e9 * double(ran.size()) / sum_of_rates(ran); }

struct Added {
  double ns = 0, lost = 0, retries = 0;
};

Added bare_exchange(int processes) {
  RivalVector vector(1);
  const auto ran = run_processes(processes, scalar_span(processes), [&](int) {
    const auto rounds = [&](std::uint64_t count) {
      std::uint64_t retries = 0;
      for (std::uint64_t round = 0; round < count; ++round) retries += exchange_add(*vector.values(), 1.0F);
      return retries;
    };
    return Work{.prepare = [=] { rounds(kWarmups); }, .rounds = rounds};
  });
  const double lost = vector.lost(sum_of_rounds(ran) + ran.size() * kWarmups);
  require_exact(lost);
  return {nanoseconds(ran), lost, retries_per_round(ran)};
}

JobConfig scalar_config(Layout layout, int processes) {
  JobConfig config = counting_config(processes);
  config.layout = layout;
  config.optimizer.rule = UpdateRule::kAdd;
  return config;
}

Figures add_figures(int processes) {
  const double limit = bare_exchange(processes).ns;
  const Job job(scalar_config(Layout::kInplace, processes));
  const auto ran = run_processes(processes, scalar_span(processes), [&](int number) {
    auto member = job.join(number, 1);
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      for (std::uint64_t round = 0; round < count; ++round) member->worker.push(member->variable, 1.0F);
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmups); }, .rounds = rounds};
  });
  const double lost = job.lost(sum_of_rounds(ran) + ran.size() * kWarmups);
  require_exact(lost);
  Figures figures = time_with_limit("ns", nanoseconds(ran), limit);
  figures.push_back({"lost_%", 100 * lost});
  return figures;
}

Figures bare_figures(int processes) {
  const double limit = bare_exchange(processes).ns;
  const Added added = bare_exchange(processes);
  Figures figures = time_with_limit("ns", added.ns, limit);
  figures.push_back({"lost_%", 100 * added.lost});
  figures.push_back({"retries", added.retries});
  return figures;
}

double memcpy4(int processes) {
  const SharedBytes memory(sizeof(float));
  return nanoseconds(run_processes(processes, scalar_span(processes), [&](int) {
    const auto rounds = [&](std::uint64_t count) -> std::uint64_t {
      void* (*volatile copy)(void*, const void*, std::size_t) = std::memcpy;  // a call, which nobody can replace
      for (std::uint64_t round = 0; round < count; ++round) {
        float out;
        benchmark::DoNotOptimize(copy(&out, memory.as<float>(), sizeof out));
        benchmark::ClobberMemory();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmups); }, .rounds = rounds};
  }));
}

Figures pull_figures(Layout layout, int processes) {
  const double limit = memcpy4(processes);
  const Job job(scalar_config(layout, processes));
  const auto ran = run_processes(processes, scalar_span(processes), [&](int number) {
    auto member = job.join(number, 1);
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      for (std::uint64_t round = 0; round < count; ++round) {
        float out;
        out = member->worker.pull(member->variable);
        benchmark::DoNotOptimize(out);
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmups); }, .rounds = rounds};
  });
  return time_with_limit("ns", nanoseconds(ran), limit);
}

}  // namespace

void add_scalar_cases() {
  for (const int processes : process_counts({1, 2})) {
    const auto add = [&](const std::string& what, const std::function<Figures(int)>& measure) {
      add_case(fmt::format("scalar/{}/processes:{}", what, processes), [=] { return measure(processes); });
    };
    add("add", add_figures);
    add("bare_exchange", bare_figures);
    for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
      add(fmt::format("pull/{}", to_string(layout)), [=](int count) { return pull_figures(layout, count); });
    add("memcpy4", [](int count) { return time_with_limit("ns", memcpy4(count), memcpy4(count)); });
  }
}

}  // namespace ps_shm::bench
