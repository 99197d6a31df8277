// pull/<who>/floats:<n>/processes:<p>: GB/s of parameters, summed over the processes, that copy one vector to memory of
// their own; alone, and beside a process that pushes to it all the time.
#include <fmt/format.h>

#include <memory>

#include "cases.hpp"
#include "job.hpp"
#include "limits.hpp"
#include "rivals.hpp"
#include "socket_rival.hpp"

namespace ps_shm::bench {
namespace {

JobConfig config_of(Layout layout, int processes) {
  JobConfig config = counting_config(processes);
  config.layout = layout;
  return config;
}

Figures figures_of(std::uint64_t floats, double rate, double limit) {
  return rate_with_limit("GB/s", gigabytes_per_second(floats, rate), gigabytes_per_second(floats, limit));
}

Figures pull_job(Layout layout, std::uint64_t floats, int processes) {
  const double limit = memcpy_rate(floats, processes);
  const Job job(config_of(layout, processes));
  const auto ran = run_processes(processes, span_for(floats, processes),
                                 [&](int number) { return pull_work(job.join(number, floats), floats); });
  Figures figures = figures_of(floats, sum_of_rates(ran), limit);
  figures.push_back({"retries", job.retries_per_pull()});
  return figures;
}

// One pulls, the other one pushes; the limit is the share of one of two that memcpy.
Figures pull_beside_pusher(Layout layout, std::uint64_t floats) {
  const double limit = memcpy_rate(floats, 2) / 2;
  const Job job(config_of(layout, 2));
  const auto ran = run_processes(2, span_for(floats, 2), [&](int number) {
    auto member = job.join(number, floats);
    return number == 0 ? pull_work(std::move(member), floats) : push_work(std::move(member), floats);
  });
  require_exact(job.lost(ran[1].rounds + warmups_for(floats)));
  Figures figures = figures_of(floats, ran[0].rate(), limit);
  figures.push_back({"push_GB/s", gigabytes_per_second(floats, ran[1].rate())});
  figures.push_back({"lost_%", 0});
  figures.push_back({"retries", job.retries_per_pull()});
  return figures;
}

Figures pull_socket(std::uint64_t floats, int processes) {
  const double limit = memcpy_rate(floats, processes);
  RivalVector vector(floats);
  const SocketServer server(vector, processes);
  const auto ran = run_processes(processes, span_for(floats, processes), [&](int number) {
    auto out = std::make_shared<PrivateFloats>(floats);
    const auto rounds = [&, number, out](std::uint64_t count) -> std::uint64_t {
      for (std::uint64_t round = 0; round < count; ++round) server.pull(number, out->data());
      return 0;
    };
    return Work{.prepare = [=] { rounds(warmups_for(floats)); }, .rounds = rounds};
  });
  return figures_of(floats, sum_of_rates(ran), limit);
}

// The limit against itself: how far figures of this machine can be believed.
Figures pull_memcpy(std::uint64_t floats, int processes) {
  const double limit = memcpy_rate(floats, processes);
  return figures_of(floats, memcpy_rate(floats, processes), limit);
}

void add_pull(const std::string& who, const std::vector<int>& counts,
              const std::function<Figures(std::uint64_t, int)>& pull) {
  for (const std::uint64_t said : vector_sizes())
    for (const int processes : counts)
      add_case(fmt::format("pull/{}/floats:{}/processes:{}", who, said, processes),
               [=] { return pull(floats_of(said), processes); });
}

}  // namespace

void add_pull_cases() {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    add_pull(to_string(layout), process_counts({1, 2, 4}),
             [=](std::uint64_t floats, int processes) { return pull_job(layout, floats, processes); });
    add_pull(fmt::format("{}_beside_pusher", to_string(layout)), {2},
             [=](std::uint64_t floats, int) { return pull_beside_pusher(layout, floats); });
  }
  add_pull("memcpy", process_counts({1, 2, 4}), pull_memcpy);
  add_pull("socket", process_counts({1, 2, 4}), pull_socket);
}

}  // namespace ps_shm::bench
