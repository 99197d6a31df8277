#include "limits.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "../triad.hpp"
#include "cases.hpp"

namespace ps_shm::bench {
namespace {

enum class Way { kPlain, kAsking, kStreaming };

struct Triad {
  std::uint64_t floats;
  std::size_t arrays = 1;
  bool in_place = false;
  auto operator<=>(const Triad&) const = default;
};

Span limit_span(std::uint64_t floats, int processes) {
  Span span = span_for(floats, processes);
  span.seconds /= 2;
  return span;
}

Work triad_work(const Triad& kind, Way way) {
  const std::uint64_t floats = kind.floats, stride = (floats + 15) / 16 * 16;
  auto out = std::make_shared<PrivateFloats>(stride * kind.arrays), gradient = std::make_shared<PrivateFloats>(floats),
       in = kind.in_place ? out : std::make_shared<PrivateFloats>(stride * kind.arrays);
  const auto rounds = [=, arrays = kind.arrays](std::uint64_t count) -> std::uint64_t {
    for (std::uint64_t round = 0; round < count; ++round) {
      if (way == Way::kStreaming)
        streaming_triad(out->data(), in->data(), gradient->data(), floats, 1.0F);
      else
        (way == Way::kAsking ? asking_triad : triad)(arrays, out->data(), in->data(), stride, gradient->data(), floats,
                                                     1.0F);
      benchmark::ClobberMemory();
    }
    return 0;
  };
  return {.prepare = [=] { rounds(1); }, .rounds = rounds};
}

Work memcpy_work(std::uint64_t floats, const float* from) {
  auto out = std::make_shared<PrivateFloats>(floats);
  const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
    for (std::uint64_t round = 0; round < count; ++round) {
      std::memcpy(out->data(), from, floats * sizeof(float));
      benchmark::ClobberMemory();
    }
    return 0;
  };
  return {.prepare = [=] { rounds(1); }, .rounds = rounds};
}

double rate_of(const Triad& kind, int processes, Way way) {
  return sum_of_rates(
      run_processes(processes, limit_span(kind.floats, processes), [&](int) { return triad_work(kind, way); }));
}

struct Fastest {
  Way way = Way::kPlain;
  double rate = 0;
};

// Which way is the fastest is found out once; then it alone is measured.
Fastest fastest_triad(const Triad& kind, int processes) {
  static std::map<std::pair<Triad, int>, Way> known;
  const auto key = std::pair(kind, processes);
  if (const auto found = known.find(key); found != known.end())
    return {found->second, rate_of(kind, processes, found->second)};
  Fastest best{Way::kPlain, rate_of(kind, processes, Way::kPlain)};
  constexpr std::uint64_t kAlwaysPlain = 100'000;  // floats: in the caches, where the plain loop is the fastest
  for (const Way way : {Way::kAsking, Way::kStreaming}) {
    if (kind.floats <= kAlwaysPlain || (way == Way::kStreaming && (kind.arrays > 1 || kind.in_place))) continue;
    const double rate = rate_of(kind, processes, way);
    if (rate > best.rate) best = {way, rate};
  }
  known[key] = best.way;
  return best;
}

}  // namespace

TriadRates triad_rates(std::uint64_t floats, int processes, std::size_t arrays) {
  return {fastest_triad({floats, arrays, false}, processes).rate,
          fastest_triad({floats, arrays, true}, processes).rate};
}

double memcpy_rate(std::uint64_t floats, int processes) {
  const SharedBytes memory(floats * sizeof(float));
  return sum_of_rates(run_processes(processes, limit_span(floats, processes),
                                    [&](int) { return memcpy_work(floats, memory.as<float>()); }));
}

MixedRates mixed_rates(std::uint64_t floats, int readers, int writers) {
  const Triad kind{floats};
  const Way way = fastest_triad(kind, writers).way;
  const SharedBytes memory(floats * sizeof(float));
  const auto ran = run_processes(readers + writers, limit_span(floats, readers + writers), [&](int number) {
    return number < readers ? memcpy_work(floats, memory.as<float>()) : triad_work(kind, way);
  });
  MixedRates rates;
  for (int number = 0; number < readers + writers; ++number)
    (number < readers ? rates.reads : rates.writes) += ran[std::size_t(number)].rate();
  return rates;
}

}  // namespace ps_shm::bench
