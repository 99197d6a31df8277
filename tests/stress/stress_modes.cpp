// Many steps of workers that are threads, with random delays: the staleness bound as seen by a separate observer,
// settings that change meanwhile, and quorums whose result is computed a second time from the recorded contributors.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/job_segments.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "support/stress.hpp"

using namespace ps_shm;
using test::config_of, test::Job, test::options;

namespace {

constexpr std::uint32_t kWorkers = 4;

// Makes some workers slower now and then. No result depends on how long it takes.
void dawdle(std::mt19937_64& random, unsigned one_in, unsigned most_us) {
  if (random() % one_in == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % most_us));
}

// Counts what the workers have done themselves. `done` is raised before the step that publishes it, so another worker's
// count is never behind what that worker has published.
struct Observer {
  static constexpr std::uint64_t kGone = ~std::uint64_t{0};
  std::atomic<std::uint64_t> done[kWorkers] = {};
  std::atomic<std::uint64_t> violations{0}, worst{0};

  bool is_ahead(std::uint64_t steps) const {
    return std::any_of(std::begin(done), std::end(done), [&](std::uint64_t theirs) { return theirs > steps; });
  }
  void begin(std::uint32_t rank, std::uint64_t bound) {
    const std::uint64_t mine = done[rank];
    for (std::uint32_t other = 0; other < kWorkers; ++other) {
      const std::uint64_t theirs = done[other];
      if (theirs >= mine) continue;  // workers that have left, too
      violations += mine - theirs > bound;
      std::uint64_t before = worst;
      while (before < mine - theirs && !worst.compare_exchange_weak(before, mine - theirs)) {
      }
    }
  }
};

// All workers go through `steps`; rank 3 leaves half-way.
void run_bounded(std::uint64_t bound, std::uint64_t steps, std::uint64_t seed) {
  CAPTURE(bound);
  Job job({.workers = kWorkers, .mode = Mode::kSsp, .staleness = bound});
  Observer observer;
  std::vector<Worker> workers;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) workers.emplace_back(job.options(rank));
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      const std::uint64_t mine = rank == 3 ? steps / 2 : steps;
      for (std::uint64_t step = 0; step < mine; ++step) {
        observer.begin(rank, bound);
        dawdle(random, rank == 0 ? 4 : 16, 300);
        // Once, rank 0 waits until it blocks another worker, so that the full bound is used.
        if (rank == 0 && step == steps / 4) CHECK(test::eventually([&] { return observer.is_ahead(step + bound); }));
        ++observer.done[rank];
        workers[rank].step();
      }
      observer.done[rank] = Observer::kGone;
      workers[rank].leave();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(observer.violations == 0);
  CHECK(observer.worst <= bound);
  std::uint64_t most = 0;
  for (const WorkerInfo& worker : job.view().workers()) {
    CHECK(worker.max_clock_skew <= bound);
    most = std::max(most, worker.max_clock_skew);
  }
  CHECK(most == bound);  // the full bound was used
  CHECK(job.server.global_step() == 3 * steps + steps / 2);
}

}  // namespace

TEST_CASE("ssp: no worker begins a step more than the bound ahead of the slowest") {
  const std::uint64_t seed = test::stress_seed(), steps = test::stress_rounds(1'000);
  for (const std::uint64_t bound : {0, 1, 3}) run_bounded(bound, steps, seed);
}

TEST_CASE("ssp: workers that join and leave all the time neither break the bound for good nor block anybody") {
  const std::uint64_t seed = test::stress_seed(), wanted = test::stress_rounds(300);
  constexpr std::uint64_t kBound = 2;
  Job job({.workers = kWorkers, .mode = Mode::kSsp, .staleness = kBound});
  std::atomic<std::uint64_t> visits{0}, behind{0};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      Worker worker = job.join(rank);
      while (visits < wanted) {
        dawdle(random, 8, 200);
        worker.step();
      }
    });
  for (std::uint32_t rank = 2; rank < 5; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      for (; visits < wanted; ++visits) {
        std::uint64_t fastest = 0, mine = 0;
        for (const WorkerInfo& info : job.view().workers())
          if (info.rank < 2 && info.state == WorkerState::kAlive) fastest = std::max(fastest, info.clock);
        Worker worker = job.join(rank);
        bool had_company = false;  // at the end there is nobody to catch up with
        for (const WorkerInfo& info : job.view().workers()) {
          if (info.rank == rank) mine = info.clock;
          had_company = had_company || (info.rank < 2 && info.state == WorkerState::kAlive);
        }
        behind += had_company && mine + kBound + 1 < fastest;  // a waiting worker is one ahead of the bound
        for (std::uint64_t step = random() % 4; step != 0; --step) worker.step();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(behind == 0);
  for (const WorkerInfo& worker : job.view().workers()) CHECK(worker.max_clock_skew <= kBound);
}

TEST_CASE("ssp: changes to and from async during a run leave nobody waiting, and the bound holds again after each") {
  const std::uint64_t seed = test::stress_seed(), changes = test::stress_rounds(60);
  Job job({.workers = kWorkers});
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> done[kWorkers] = {};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      Worker worker = job.join(rank);
      while (!stop) {
        dawdle(random, 4, 100 * (rank + 1));
        worker.step();
        ++done[rank];
      }
    });
  JobControl control(job.name.text());
  const auto wait_for_progress = [&](std::uint64_t steps) {
    std::uint64_t before[kWorkers];
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) before[rank] = done[rank];
    return test::eventually([&] {
      bool all = true;
      for (std::uint32_t rank = 0; rank < kWorkers; ++rank) all = all && done[rank] >= before[rank] + steps;
      return all;
    });
  };
  std::uint64_t too_far = 0;
  const JobView view = job.view();
  for (std::uint64_t i = 0; i < changes; ++i) {
    control.change([&](LiveSettings& settings) {
      settings.mode = i % 2 == 0 ? Mode::kSsp : Mode::kAsync;
      settings.staleness = i % 6 / 2;
    });
    REQUIRE(wait_for_progress(2));
    const LiveSettings wanted = control.current();
    if (wanted.mode != Mode::kSsp) continue;
    for (int look = 0; look < 5; ++look) {
      // Clocks only grow: a later reading of the first one is no less than its value when the others were read.
      const std::vector<WorkerInfo> first = view.workers(), second = view.workers();
      for (const WorkerInfo& slow : second)
        for (const WorkerInfo& fast : first)
          too_far += fast.clock > slow.clock && fast.clock - slow.clock > wanted.staleness + 1;
    }
  }
  stop = true;
  control.change([](LiveSettings& settings) { settings.mode = Mode::kAsync; });
  for (std::thread& thread : threads) thread.join();
  CHECK(too_far == 0);
  std::uint64_t sum = 0;
  for (const auto& steps : done) sum += steps;
  CHECK(job.server.global_step() == sum);
}

namespace {

constexpr std::uint64_t kElements = 3000;

float gradient_of(std::uint32_t rank, std::uint64_t push, std::uint64_t element) {
  std::uint64_t mixed =
      (rank + 1) * 0x9e3779b97f4a7c15ULL ^ push * 0xbf58476d1ce4e5b9ULL ^ element * 0x94d049bb133111ebULL;
  mixed ^= mixed >> 29;
  return float(int(mixed % 2001) - 1000) / 700.0F;
}

float start_of(std::uint64_t element) { return float(element % 17) / 3.0F; }

// Goes through `steps` with the quorum; each rank's pushes are numbered. Then computes the same again from the events
// alone.
void run_quorum(UpdateRule rule, std::uint32_t quorum, std::uint64_t steps, std::uint64_t seed) {
  const std::string rule_name = to_string(rule);
  CAPTURE(rule_name);
  CAPTURE(quorum);
  JobConfig config =
      config_of({.workers = kWorkers, .mode = Mode::kSync, .quorum = quorum, .optimizer = {.rule = rule, .lr = 0.05F}});
  Server server(config);
  std::vector<std::uint64_t> included[kWorkers];  // numbers of the pushes that were not dropped, in order
  std::uint64_t pushed[kWorkers] = {};
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937_64 random(seed + rank);
      Worker worker(options(config, rank));
      shm::AttachOutcome outcome;
      const auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadOnly, outcome);
      const Variable variable = worker.variable({.name = "v", .shape = {kElements}}, [](std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = start_of(i);
      });
      std::vector<float> gradient(kElements);
      std::uint64_t dropped = 0;
      for (std::uint64_t push = 0; worker.global_step() < steps; ++push) {
        for (std::uint64_t i = 0; i < kElements; ++i) gradient[i] = gradient_of(rank, push, i);
        dawdle(random, rank + 1, 200);
        worker.push(variable, gradient);
        ++pushed[rank];
        dawdle(random, rank + 1, 200);
        worker.step();
        const std::uint64_t now = shm::counter(std::as_const(job->worker(rank)), shm::Counter::kDropped);
        if (now == dropped) included[rank].push_back(push);
        dropped = now;
      }
    });
  for (std::thread& thread : threads) thread.join();

  const JobView view(config.job);
  std::map<std::uint64_t, std::vector<std::uint32_t>> sets;
  for (const Event& event : view.events())
    if (event.kind == "decided") {
      CHECK(sets.emplace(event.step, event.ranks).second);
    }
  const std::uint64_t total = server.global_step();
  REQUIRE(sets.size() == total);
  std::vector<float> values(kElements), momentum(kElements, 0.0F);
  for (std::uint64_t i = 0; i < kElements; ++i) values[i] = start_of(i);
  std::uint64_t next[kWorkers] = {}, contributions = 0, small = 0;
  for (std::uint64_t step = 0; step < total; ++step) {
    const std::vector<std::uint32_t>& ranks = sets.at(step);
    contributions += ranks.size();
    small += ranks.size() < kWorkers;
    std::vector<std::uint64_t> pushes;
    for (const std::uint32_t rank : ranks) {
      REQUIRE(next[rank] < included[rank].size());
      pushes.push_back(included[rank][next[rank]++]);
    }
    for (std::uint64_t i = 0; i < kElements; ++i) {
      float sum = gradient_of(ranks[0], pushes[0], i);
      for (std::size_t k = 1; k < ranks.size(); ++k) sum += gradient_of(ranks[k], pushes[k], i);
      const float mean = sum * (1.0F / float(ranks.size()));
      momentum[i] = 0.9F * momentum[i] + mean;
      values[i] -= 0.05F * (rule == UpdateRule::kMomentum ? momentum[i] : mean);
    }
  }
  const std::vector<float> found = view.values("v");
  std::uint64_t different = 0;
  for (std::uint64_t i = 0; i < kElements; ++i) different += found[i] != values[i];
  CHECK(different == 0);
  std::uint64_t all_pushed = 0, all_dropped = 0;
  for (const WorkerInfo& worker : view.workers()) {
    CHECK(next[worker.rank] == included[worker.rank].size());
    CHECK(worker.pushes == pushed[worker.rank]);
    all_pushed += worker.pushes;
    all_dropped += worker.dropped;
  }
  CHECK(contributions + all_dropped == all_pushed);
  MESSAGE(rule_name << ", quorum " << quorum << ": " << total << " steps, " << small << " without somebody, "
                    << all_dropped << " gradients dropped");
  if (quorum != 0) CHECK(all_dropped > 0);
}

}  // namespace

TEST_CASE("quorum: the recorded contributors, and nothing else, give the values, bit for bit") {
  const std::uint64_t seed = test::stress_seed(), steps = std::min<std::uint64_t>(test::stress_rounds(400), 1000);
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum}) run_quorum(rule, 2, steps, seed);
  run_quorum(UpdateRule::kMomentum, 3, steps, seed);
  run_quorum(UpdateRule::kMomentum, 0, steps / 4 + 1, seed);
}
