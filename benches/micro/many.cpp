// many/...: jobs of many variables: declaring them by several workers at once, attaching to them, and steps that pull and
// push them all, by the number of variables.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "cases.hpp"
#include "job.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::uint64_t kFloats = 256;  // of one variable: the cost is that of there being one

using Clock = std::chrono::steady_clock;
double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

std::uint32_t count_of(std::uint32_t variables) { return options().smoke ? std::min(variables, 300U) : variables; }

std::vector<VariableSpec> specs_of(std::uint32_t variables) {
  std::vector<VariableSpec> specs(variables, Job::spec(kFloats));
  for (std::uint32_t i = 0; i < variables; ++i) specs[i].name = fmt::format("layer{}/block{}/weight", i / 16, i % 16);
  return specs;
}

void fill_zero(std::size_t, std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }

Span one_round() { return {.seconds = 0, .most = 1}; }

// Declared and initialised by all workers at once, in one call each; `us` is until the last one has them all.
Figures declare(std::uint32_t variables, int processes) {
  const Job job(counting_config(processes));
  const auto ran = run_processes(processes, one_round(), [&](int number) {
    auto worker = std::make_shared<Worker>(job.join(number));
    auto specs = std::make_shared<std::vector<VariableSpec>>(specs_of(variables));
    return Work{.rounds = [=](std::uint64_t) -> std::uint64_t {
      worker->variables(*specs, fill_zero);
      return 0;
    }};
  });
  double us = 0;
  for (const Ran& one : ran) us = std::max(us, 1e6 * one.seconds);
  return {{"us", us}, {"us_each", us / variables}, {"control_kib", double(job.view().info().bytes.control) / 1024}};
}

// By one more worker of a job that has them: to join, which checks all records and chunks, and to find all of them again;
// and one look of the inspector at them.
Figures attach(std::uint32_t variables) {
  const Job job(counting_config(2));
  const SharedBytes times(3 * sizeof(double));
  const std::vector<VariableSpec> specs = specs_of(variables);
  const auto rounds = [&](std::uint64_t) -> std::uint64_t {
    Worker first = job.join(0);
    first.variables(specs, fill_zero);
    std::vector<double> joins, finds, looks;
    for (int round = 0; round < (options().smoke ? 1 : 9); ++round) {
      const auto begin = Clock::now();
      Worker second = job.join(1);
      joins.push_back(microseconds_since(begin));
      const auto joined = Clock::now();
      second.variables(specs, fill_zero);
      finds.push_back(microseconds_since(joined));
      const auto found = Clock::now();
      static_cast<void>(JobView(job.config().job).variables());
      looks.push_back(microseconds_since(found));
    }
    auto* out = times.as<double>();
    out[0] = median(joins), out[1] = median(finds), out[2] = median(looks);
    return 0;
  };
  run_processes(1, one_round(), [&](int) { return Work{.rounds = rounds}; });
  const auto* out = times.as<double>();
  return {{"join_us", out[0]}, {"find_us", out[1]}, {"look_us", out[2]}};
}

// Every worker pulls all variables, pushes all in one call, and steps.
Figures step(std::uint32_t variables, Mode mode) {
  constexpr int kProcesses = 2;
  JobConfig config = counting_config(kProcesses);
  config.mode = mode;
  const Job job(config);
  Span span = {.seconds = options().seconds, .least = options().smoke ? 1U : 3U, .in_step = mode == Mode::kSync};
  const auto ran = run_processes(kProcesses, span, [&](int number) {
    struct Mine {
      Worker worker;
      std::vector<Variable> variables;
      std::vector<float> values = std::vector<float>(kFloats), gradient = std::vector<float>(kFloats, -1.0F);
      std::vector<std::span<const float>> gradients;
    };
    auto mine = std::make_shared<Mine>(Mine{.worker = job.join(number), .variables = {}, .gradients = {}});
    mine->variables = mine->worker.variables(specs_of(variables), fill_zero);
    mine->gradients.assign(variables, mine->gradient);
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) {
        for (const Variable& variable : mine->variables) mine->worker.pull(variable, mine->values);
        mine->worker.push(mine->variables, mine->gradients);
        mine->worker.step();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(1); }, .rounds = rounds};
  });
  const double us = 1e6 / (sum_of_rates(ran) / kProcesses);
  return {{"us", us}, {"us_each", us / variables}};
}

}  // namespace

void add_many_cases() {
  for (const std::uint32_t said : {1, 1'000, 16'000}) {
    for (const int processes : {1, 2, 4})
      add_case(fmt::format("many/declare/variables:{}/processes:{}", said, processes),
               [=] { return declare(count_of(said), processes); });
    add_case(fmt::format("many/attach/variables:{}", said), [=] { return attach(count_of(said)); });
  }
  for (const std::uint32_t said : {1'000, 10'000})
    for (const Mode mode : {Mode::kAsync, Mode::kSync})
      add_case(fmt::format("many/step/{}/variables:{}/processes:2", to_string(mode), said),
               [=] { return step(count_of(said), mode); });
}

}  // namespace ps_shm::bench
