// Snapshots, checkpoints and pulls while another process acts at chosen moments of theirs.
#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "support/fault_calls.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

TEST_CASE("stopped between: a snapshot whose point a waiter has opened is taken again (snapshot.C11)") {
  JobConfig config = config_of({.workers = 3});
  Server server(config);
  Worker taker(options(config, 0)), pusher(options(config, 1)), waiter(options(config, 2));
  taker.variable(vector_of(10), zero);
  AttachOutcome outcome;
  auto job = JobSegments::try_attach(config.job, Access::kReadWrite, outcome);
  REQUIRE(job);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  job->worker(1).pushing.store_release(1);
  int points = 0;
  const FaultCalls watch([&](FaultPoint point) {
    if (point != FaultPoint::kSnapshotBegun) return;
    if (++points == 1)
      wait_until_open(*job, 2, 1);  // until the waiter runs out of patience, as if the taker were stopped here
    else
      job->worker(1).pushing.store_release(0);
  });
  const Snapshot snapshot = taker.snapshot({.patience = Seconds(1)});
  CHECK(snapshot.epoch() == 2);
  CHECK(snapshot.partial_ranks().empty());
}

TEST_CASE(
    "stopped between: the step of a snapshot counts no step that was done after the snapshot point (snapshot.C13)") {
  for (const FaultPoint moment : {FaultPoint::kSnapshotReady, FaultPoint::kSnapshotBegun, FaultPoint::kSnapshotMoved}) {
    CAPTURE(std::uint64_t(moment));
    Job job;
    Worker worker = job.join(0);
    const Variable variable = worker.variable(vector_of(10), zero);
    const std::vector<float> ones(10, 1.0F);
    int steps = 0;
    const auto make_step = [&] { worker.push(variable, ones), worker.step(), ++steps; };
    make_step();
    const JobView view = job.view();
    int looks = 0;
    const FaultCalls watch([&](FaultPoint point) {
      if (point != moment) return;
      ++looks;
      for (int more = 0; more < 3; ++more) make_step();
    });
    const Snapshot snapshot = view.snapshot();
    std::vector<float> values(10);
    snapshot.copy("v", values);
    CHECK(snapshot.global_step() == std::uint64_t(values.front()));
    CHECK(looks == 1);
    CHECK(steps == 4);
  }
}

TEST_CASE("stopped between: a checkpoint counts no example whose push its snapshot does not contain") {
  const Folder folder;
  Job job;
  Worker worker = job.join(0);
  worker.variable(vector_of(10), zero);
  worker.report(1.0, 32);
  const FaultCalls watch([&](FaultPoint point) {
    if (point == FaultPoint::kSnapshotBegun) worker.report(1.0, 64);
  });
  const std::string saved = Checkpoint::save(job.view(), folder.path());
  CHECK(Checkpoint(saved).examples() == std::vector<std::uint64_t>{32});
}

TEST_CASE("stopped between: each snapshot contains all of a restore or nothing of it") {
  const Folder folder;
  Job job;
  Worker worker = job.join(0);
  const auto declare = [&](const char* name) { return worker.variable({.name = name, .shape = {10}}, zero); };
  const Variable first = declare("first"), second = declare("second");
  const JobView view = job.view();
  Checkpoint::save(view, folder.path());
  for (const Variable& one : {first, second}) worker.assign(one, std::vector<float>(10, 1.0F));
  int looks = 0;
  const FaultCalls watch([&](FaultPoint point) {
    if (point != FaultPoint::kPushOver) return;
    const Snapshot snapshot = view.snapshot();
    std::vector<float> of_first(10), of_second(10);
    snapshot.copy("first", of_first);
    snapshot.copy("second", of_second);
    CHECK(of_first == of_second);
    ++looks;
  });
  restore(worker, folder.path());
  CHECK(looks >= 1);
}

TEST_CASE("stopped between: a pull of several variables never sees a part of a group of pushes (state.R2, state.R3)") {
  Job job({.workers = 2});
  Worker puller = job.join(0), pusher = job.join(1);
  std::array<float, 4> first{}, second{}, ones{1, 1, 1, 1};
  const std::array<std::span<float>, 2> outs = {first, second};
  std::vector<Variable> mine, theirs;
  for (const char* name : {"first", "second"}) {
    mine.push_back(puller.variable({.name = name, .shape = {4}, .rule = UpdateRule::kAdd}, zero));
    theirs.push_back(pusher.variable({.name = name, .shape = {4}, .rule = UpdateRule::kAdd}, zero));
  }
  // The group begins before access `from` of the pull, with the first variable, and ends before access `to`.
  std::optional<PushGroup> group;
  const auto end_group = [&] { pusher.push(theirs[1], ones), group.reset(); };
  const auto pull_beside_group = [&](int from, int to) {
    int accesses = 0;
    {
      const FaultCalls watch([](FaultPoint) {},
                        [&](const void*) {
                          if (++accesses == from) group.emplace(pusher.group_pushes()), pusher.push(theirs[0], ones);
                          if (accesses == to) end_group();
                        });
      static_cast<void>(puller.pull_all(mine, outs));
    }
    if (group) end_group();
    return accesses;
  };
  const int accesses = pull_beside_group(-1, -1);
  REQUIRE(accesses > 10);
  for (int from = 1; from <= accesses; ++from)
    for (int to = from; to <= accesses + 1; ++to) {
      CAPTURE(from);
      CAPTURE(to);
      pull_beside_group(from, to);
      CHECK(first == second);
    }
}

TEST_CASE("stopped between: a step counted after a pull has begun makes its gradient older (steps.D1)") {
  Job job({.workers = 2, .stale_limit = 1});
  Worker puller = job.join(0), other = job.join(1);
  const Variable mine = puller.variable(vector_of(4), zero), theirs = other.variable(vector_of(4), zero);
  std::array<float, 4> out{}, ones{1, 1, 1, 1};
  const std::span<float> outs[] = {out};
  Versions since;
  const JobView view = job.view();
  std::uint64_t dropped = 0;
  const std::function<void()> pulls[] = {[&] { puller.pull(mine, out); },
                                         [&] { puller.pull_all(std::span(&mine, 1), outs); },
                                         [&] { puller.pull_if_changed(mine, out, since); }};
  for (const std::function<void()>& pull : pulls) {
    const std::uint64_t dropped_before = dropped;
    for (int moment = 1, accesses = 1; moment <= accesses; ++moment) {
      CAPTURE(&pull - pulls);
      CAPTURE(moment);
      accesses = 0;
      {
        const FaultCalls watch([](FaultPoint) {},
                          [&](const void*) {
                            if (++accesses == moment) other.push(theirs, ones), other.step();
                          });
        pull();
      }
      const bool is_old = out[0] < view.values("v")[0];
      puller.push(mine, ones);
      puller.step();
      const bool is_dropped = view.workers().at(0).dropped == dropped + 1;
      CHECK((is_dropped || !is_old));
      dropped += is_dropped;
    }
    CHECK(dropped > dropped_before);
  }
}
