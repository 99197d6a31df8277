// Snapshots in mode sync: the state between two steps, of the present or of a step that is still to come.
#include <doctest/doctest.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/member.hpp"
#include "support/processes.hpp"
#include "support/rows_job.hpp"
#include "support/snapshot_scene.hpp"

using namespace ps_shm;
using namespace ps_shm::test::snapshots;
using test::kSecond, test::ManualClock;

TEST_CASE("snapshot: sync: the state between two steps") {
  Scene scene(Mode::kSync);
  for (int step = 0; step < 3; ++step) {
    scene.push();
    scene.worker.step();
  }
  scene.push();  // published, not applied
  {
    const Snapshot snapshot = scene.worker.snapshot();
    CHECK(snapshot.global_step() == 3);
    CHECK(are_all(copies(snapshot, specs()), 3));
    scene.worker.step();
    CHECK(are_all(copies(snapshot, specs()), 3));
    scene.push();
    scene.worker.step();
    CHECK(are_all(copies(snapshot, specs()), 3));
    CHECK(snapshot.partial_ranks().empty());
  }
  const Snapshot second = scene.server.snapshot();
  CHECK(second.global_step() == 5);
  scene.push();
  scene.worker.step();
  CHECK(are_all(copies(second, specs()), 5));
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: sync: the state before a step that is still to come, however late its coming is noticed") {
  Scene scene(Mode::kSync);
  const auto step = [&] {
    scene.push();
    scene.worker.step();
  };
  shm::AttachOutcome outcome;
  const auto job = shm::JobSegments::try_attach(scene.name.text(), shm::Access::kReadOnly, outcome);
  const auto when_ordered = [&](const auto& act) {
    while (job->state().snapshot_point.at_step.load_acquire() == 0) std::this_thread::yield();
    act();
  };
  step();
  {
    std::optional<Snapshot> snapshot;
    std::thread taker([&] { snapshot.emplace(scene.server.snapshot({.at_step = 3})); });
    when_ordered([&] {
      for (int steps = 0; steps < 5; ++steps) step();
    });
    taker.join();
    CHECK(snapshot->global_step() == 3);
    CHECK(snapshot->partial_ranks().empty());
    CHECK(are_all(copies(*snapshot, specs()), 3));
    step();
    CHECK(are_all(copies(*snapshot, specs()), 3));
  }
  CHECK_THROWS_WITH_AS(scene.server.snapshot({.at_step = 6}), doctest::Contains("the job is past it"), Error);
  std::atomic<bool> is_given_up = false;
  std::thread taker([&] {
    CHECK_THROWS_AS(scene.server.snapshot({.at_step = 1000, .stop_requested = [&] { return is_given_up.load(); }}),
                    Interrupted);
  });
  when_ordered([&] { is_given_up = true; });
  taker.join();
  step();
  const Snapshot present = scene.server.snapshot();
  CHECK(present.global_step() == 8);
  step();
  CHECK(are_all(copies(present, specs()), 8));
  CHECK(test::is_conserved(scene.name.text()));
  Scene of_async;
  CHECK_THROWS_WITH_AS(of_async.server.snapshot({.at_step = 3}), doctest::Contains("only mode sync"), Error);
}

TEST_CASE("snapshot: sync: a wait for a step ends with the job, and with the death of all its processes") {
  JobConfig config = test::config_of({.mode = Mode::kSync, .steps = 2});
  const auto train = [&](Worker& worker, int steps) {
    const Variable variable = worker.variable(test::vector_of(4), test::zero);
    for (int step = 0; step < steps; ++step) {
      worker.push(variable, std::vector<float>(4, 1.0F));
      worker.step();
    }
  };
  {
    Server server(config);
    Worker worker(test::options(config));
    train(worker, 2);
    CHECK_THROWS_AS(JobView(config.job).snapshot({.at_step = 2}), JobFinished);
  }
  const test::JobName name;
  config.job = name.text();
  const test::Bell trained;
  test::Child child([&] {
    Server server(config);
    Worker worker(test::options(config));
    train(worker, 1);
    trained.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(trained.hear());
  const JobView view(config.job);
  child.kill();
  CHECK_THROWS_WITH_AS(view.snapshot({.at_step = 2}), doctest::Contains("the job is dead"), Error);
}

TEST_CASE("snapshot: sync: each of many in a row is the state between two steps, of all workers") {
  constexpr std::uint32_t kWorkers = 3;
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(to_string(reduce));
    test::Job job({.workers = kWorkers,
                   .max_workers = 4,
                   .mode = Mode::kSync,
                   .reduce = reduce,
                   .chunk_bytes = 1024,
                   .optimizer = {.rule = UpdateRule::kAdd}});
    std::atomic<bool> is_over = false;
    std::vector<std::thread> workers;
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
      workers.emplace_back([&] {
        Worker worker = job.join();
        const std::vector<Variable> variables = worker.variables(specs(), kZeros);
        std::vector<std::vector<float>> ones;
        std::vector<std::span<const float>> gradients;
        for (const VariableSpec& spec : specs()) ones.emplace_back(spec.element_count(), 1.0F);
        gradients.assign(ones.begin(), ones.end());
        for (bool ends = false; !ends;) {
          worker.push(variables, gradients);
          ends = is_over;
          worker.step();
        }
      });
    while (job.server.global_step() < 5) std::this_thread::yield();
    std::uint64_t last = 0;
    for (int round = 0; round < 100; ++round) {
      const Snapshot snapshot = job.server.snapshot({.patience = Seconds(30)});
      REQUIRE(snapshot.partial_ranks().empty());
      REQUIRE(snapshot.global_step() >= last);
      last = snapshot.global_step();
      REQUIRE(are_all(copies(snapshot, specs()), static_cast<float>(kWorkers * last)));
    }
    is_over = true;
    for (std::thread& worker : workers) worker.join();
    CHECK(test::is_conserved(job.name.text()));
  }
}
