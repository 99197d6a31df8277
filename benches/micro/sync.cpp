// sync/...: microseconds per step of all processes together: an empty step, a barrier, a step that applies gradients, and
// how long after the arrival that completes a quorum its step is over; against the bare exchanges of exchange.hpp.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>

#include "../triad.hpp"
#include "cases.hpp"
#include "exchange.hpp"
#include "job.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::uint64_t kWarmupSteps = 4;
constexpr Waiting kWaitings[] = {Waiting::kSpin, Waiting::kSpinThenFutex, Waiting::kFutex};

Span step_span(std::uint64_t floats) {
  Span span = span_for(floats, 1);
  span.batch = floats == 0 ? 8 : 1;
  span.in_step = true;
  return span;
}

double microseconds(const std::vector<Ran>& ran) { return 1e6 / ran.front().rate(); }

JobConfig sync_config(int processes) {
  JobConfig config = counting_config(processes);
  config.mode = Mode::kSync;
  return config;
}

double exchange_us(int processes, Waiting waiting) {
  const Exchange exchange(processes, waiting);
  return microseconds(run_processes(processes, step_span(0), [&](int number) {
    auto round = std::make_shared<std::uint32_t>(0);
    const auto rounds = [&, number, round](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) exchange.meet(number, ++*round);
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmupSteps); }, .rounds = rounds};
  }));
}

// The fastest of the exchanges: which one that is depends on whether each process has a core.
double exchange_limit(int processes) {
  double best = std::numeric_limits<double>::infinity();
  for (const Waiting waiting : kWaitings) best = std::min(best, exchange_us(processes, waiting));
  return best;
}

enum class Meeting { kStep, kBarrier };

Figures meet(int processes, Meeting meeting) {
  const double limit = exchange_limit(processes);
  const Job job(sync_config(processes));
  const auto ran = run_processes(processes, step_span(0), [&](int number) {
    auto worker = std::make_shared<Worker>(job.join(number));
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) {
        if (meeting == Meeting::kStep)
          worker->step();
        else
          worker->barrier();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmupSteps); }, .rounds = rounds};
  });
  return time_with_limit("us", microseconds(ran), limit);
}

// The least that a step of so many floats can do: all meet, each applies the mean of all gradients to its share, all meet. Survives nothing.
double bare_step_us(std::uint64_t floats, int processes) {
  const Exchange exchange(processes, Waiting::kSpinThenFutex);
  const std::uint64_t stride = (floats + 15) / 16 * 16, share = stride / std::uint64_t(processes) / 16 * 16;
  const SharedBytes memory(stride * sizeof(float) * std::size_t(processes + 1));
  return microseconds(run_processes(processes, step_span(floats), [&](int number) {
    auto round = std::make_shared<std::uint32_t>(0);
    auto* values = memory.as<float>();
    const auto gradient_of = [=](int rank) { return values + stride * std::uint64_t(rank + 1); };
    const auto rounds = [&, number, round, values, gradient_of](std::uint64_t count) -> std::uint64_t {
      const std::uint64_t begin = share * std::uint64_t(number),
                          size = (number + 1 == processes ? floats : begin + share) - begin;
      const float factor = -1.0F / float(processes);
      while (count-- > 0) {
        exchange.meet(number, ++*round);
        for (std::uint64_t at = 0; at < size; at += 4096)  // piece by piece, so that the values stay in the cache
          for (int rank = 0; rank < processes; ++rank) {
            float* const out = values + begin + at;
            triad(1, out, out, stride, gradient_of(rank) + begin + at, std::min<std::uint64_t>(4096, size - at),
                  factor);
          }
        exchange.meet(number, ++*round);
      }
      return 0;
    };
    const auto prepare = [=] {
      std::fill_n(gradient_of(number), floats, -1.0F);
      rounds(2);
    };
    return Work{.prepare = prepare, .rounds = rounds};
  }));
}

Figures full_step(std::uint64_t floats, int processes) {
  const double limit = bare_step_us(floats, processes);
  const Job job(sync_config(processes));
  const auto ran = run_processes(processes, step_span(floats), [&](int number) {
    auto member = job.join(number, floats);
    const std::span<float> gradient = member->worker.gradient(member->variable);
    std::fill(gradient.begin(), gradient.end(), -1.0F);  // computing it is no part of a step, here as in an all-reduce
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) {
        member->worker.push(member->variable, gradient);
        member->worker.step();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(2); }, .rounds = rounds};
  });
  const double lost = job.lost(ran.front().rounds + 2);  // the mean of gradients of -1, each step
  require_exact(lost);
  Figures figures = time_with_limit("us", microseconds(ran), limit);
  figures.push_back({"lost_%", 100 * lost});
  return figures;
}

using Clock = std::chrono::steady_clock;  // one clock for all processes

double now_us() { return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count(); }

struct Latency {
  double us = 0, own_us = 0;
};

// Process 1 comes `wait_us` later than process 0 to every meeting: how long after that is process 0 through, and itself?
// make(number) returns what meets.
Latency late_arrivals(double wait_us, const std::function<std::function<void()>(int)>& make) {
  constexpr std::uint64_t kMax = 20'000;
  struct Times {
    double arrived, waiter_through, own_through;
  };
  const SharedBytes memory(kMax * sizeof(Times));
  Span span = step_span(0);
  span.batch = 1;
  span.most = kMax - kWarmupSteps;
  span.least = 5;
  const auto ran = run_processes(2, span, [&](int number) {
    auto at = std::make_shared<std::uint64_t>(0);
    const auto rounds = [&, number, at, meet = make(number)](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) {
        Times& times = memory.as<Times>()[(*at)++];
        if (number == 1) {
          const double until = now_us() + wait_us;
          while (now_us() < until) spin_pause();
          times.arrived = now_us();
        }
        meet();
        (number == 1 ? times.own_through : times.waiter_through) = now_us();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmupSteps); }, .rounds = rounds};
  });
  std::vector<double> others, own;
  for (std::uint64_t i = kWarmupSteps; i < kWarmupSteps + ran.front().rounds; ++i) {
    const Times& times = memory.as<Times>()[i];
    others.push_back(times.waiter_through - times.arrived);
    own.push_back(times.own_through - times.arrived);
  }
  return {median(others), median(own)};
}

// Three workers, a quorum of two, one that has joined and never comes.
Figures quorum(double wait_us) {
  const Exchange exchange(2, Waiting::kSpinThenFutex);
  const Latency limit = late_arrivals(wait_us, [&](int number) {
    return [&exchange, number, round = std::make_shared<std::uint32_t>(0)] { exchange.meet(number, ++*round); };
  });
  JobConfig config = sync_config(3);
  config.quorum = 2;
  const Job job(config);
  const Helper never_comes([&] {
    const Worker worker = job.join(2);
    for (;;) pause();
  });
  const Latency latency = late_arrivals(
      wait_us, [&](int number) { return [worker = std::make_shared<Worker>(job.join(number))] { worker->step(); }; });
  Figures figures = time_with_limit("us", latency.us, limit.us);
  figures.push_back({"own_us", latency.own_us});
  figures.push_back({"own_limit", limit.own_us});
  return figures;
}

}  // namespace

void add_sync_cases() {
  for (const int processes : process_counts({2, 3, 4})) {
    add_case(fmt::format("sync/empty/processes:{}", processes), [=] { return meet(processes, Meeting::kStep); });
    add_case(fmt::format("sync/barrier/processes:{}", processes), [=] { return meet(processes, Meeting::kBarrier); });
    for (const Waiting waiting : kWaitings)
      add_case(fmt::format("sync/exchange_{}/processes:{}", to_string(waiting), processes), [=] {
        const double limit = exchange_limit(processes);
        return time_with_limit("us", exchange_us(processes, waiting), limit);
      });
  }
  for (const std::uint64_t said : {1'000, 397'510, 1'000'000, 16'000'000})
    for (const int processes : process_counts({2, 4}))
      add_case(fmt::format("sync/step/floats:{}/processes:{}", said, processes),
               [=] { return full_step(floats_of(said), processes); });
  // Process 0 still spins, or sleeps already, when the quorum is complete.
  for (const int wait_us : {5, 500})
    add_case(fmt::format("sync/quorum/processes:3/waits_us:{}", wait_us), [=] { return quorum(wait_us); });
}

}  // namespace ps_shm::bench
