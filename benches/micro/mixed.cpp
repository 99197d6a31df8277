// mixed/<who>/floats:<n>/readers:<r>/writers:<w>: some processes pull a vector while others push to it. The limit is what
// as many processes copy, and as many others add on private memory, at the same time.
#include <fmt/format.h>

#include <cstring>
#include <memory>

#include "cases.hpp"
#include "job.hpp"
#include "limits.hpp"
#include "rivals.hpp"

namespace ps_shm::bench {
namespace {

struct Mix {
  std::uint64_t floats;
  int readers, writers;
  int processes() const noexcept { return readers + writers; }
};

Figures figures_of(const Mix& mix, const MixedRates& limit, const std::vector<Ran>& ran, double lost) {
  MixedRates rates;
  std::uint64_t pulls = 0;
  for (int number = 0; number < mix.processes(); ++number) {
    const Ran& one = ran[std::size_t(number)];
    (number < mix.readers ? rates.reads : rates.writes) += one.rate();
    if (number < mix.readers) pulls += one.rounds;
  }
  const auto speed = [&](double rate) { return gigabytes_per_second(mix.floats, rate); };
  Figures figures = rate_with_limit("GB/s", speed(rates.reads + rates.writes), speed(limit.reads + limit.writes));
  const Figures more = {{"pull_GB/s", speed(rates.reads)},
                        {"pull_limit", speed(limit.reads)},
                        {"push_GB/s", speed(rates.writes)},
                        {"push_limit", speed(limit.writes)},
                        {"lost_%", 100 * lost}};
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

std::uint64_t pushes_of(const Mix& mix, const std::vector<Ran>& ran) {
  return sum_of_rounds({ran.begin() + mix.readers, ran.end()}) + std::uint64_t(mix.writers) * warmups_for(mix.floats);
}

Figures mix_job(Layout layout, const Mix& mix) {
  const MixedRates limit = mixed_rates(mix.floats, mix.readers, mix.writers);
  JobConfig config = counting_config(mix.processes());
  config.layout = layout;
  const Job job(config);
  const auto ran = run_processes(mix.processes(), span_for(mix.floats, mix.processes()), [&](int number) {
    auto member = job.join(number, mix.floats);
    return number < mix.readers ? pull_work(std::move(member), mix.floats) : push_work(std::move(member), mix.floats);
  });
  const double lost = job.lost(pushes_of(mix, ran));
  require_exact(lost);
  Figures figures = figures_of(mix, limit, ran, lost);
  figures.push_back({"pull_retries", job.retries_per_pull()});
  if (layout == Layout::kVersioned) figures.push_back({"retries", job.retries_per_push()});
  return figures;
}

Figures mix_rival(const std::string& name, const Mix& mix) {
  const MixedRates limit = mixed_rates(mix.floats, mix.readers, mix.writers);
  RivalVector vector(mix.floats);
  const Rival& writer = rival(name);
  const auto ran = run_processes(mix.processes(), span_for(mix.floats, mix.processes()), [&](int number) {
    const bool reads = number < mix.readers;
    auto mine = std::make_shared<PrivateFloats>(mix.floats, 1.0F);
    const std::uint64_t start = reads ? 0 : start_of(vector, number - mix.readers, mix.writers);
    const auto rounds = [&, reads, mine, start](std::uint64_t count) {
      std::uint64_t retries = 0;
      for (std::uint64_t round = 0; round < count; ++round) {
        if (!reads)
          retries += writer.add(vector, mine->data(), start);
        else if (writer.is_exact)
          locked_copy(vector, mine->data());
        else
          std::memcpy(mine->data(), vector.values(), mix.floats * sizeof(float));
      }
      return retries;
    };
    return Work{.prepare = [=] { rounds(warmups_for(mix.floats)); }, .rounds = rounds};
  });
  const double lost = vector.lost(pushes_of(mix, ran));
  if (writer.is_exact) require_exact(lost);
  Figures figures = figures_of(mix, limit, ran, lost);
  if (writer.is_exact) figures.push_back({"retries", retries_per_round({ran.begin() + mix.readers, ran.end()})});
  return figures;
}

}  // namespace

void add_mixed_cases() {
  const auto add = [](const std::string& who, const std::function<Figures(const Mix&)>& measure) {
    for (const std::uint64_t said : {1'000, 100'000, 1'000'000, 16'000'000})
      for (const auto& [readers, writers] : {std::pair{1, 1}, std::pair{3, 1}})
        add_case(fmt::format("mixed/{}/floats:{}/readers:{}/writers:{}", who, said, readers, writers), [=] {
          return measure({floats_of(said), readers, writers});
        });
  };
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    add(to_string(layout), [=](const Mix& mix) { return mix_job(layout, mix); });
  for (const std::string name : {"racy_simd", "block_lock"})
    add(name, [=](const Mix& mix) { return mix_rival(name, mix); });
}

}  // namespace ps_shm::bench
