// Snapshots and checkpoints while another process acts at a chosen moment of theirs.
#include <doctest/doctest.h>

#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "support/folder.hpp"
#include "support/looks.hpp"
#include "support/manual_clock.hpp"
#include "support/worker_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

TEST_CASE("moments: a snapshot whose point a waiter has opened is taken again (snapshot.C11)") {
  JobConfig config = settings(3, Mode::kAsync);
  Server server(config);
  Worker taker(options(config, 0)), pusher(options(config, 1)), waiter(options(config, 2));
  taker.variable(vector_of(10), zero);
  AttachOutcome outcome;
  auto job = JobSegments::try_attach(config.job, Access::kReadWrite, outcome);
  REQUIRE(job);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  job->worker(1).pushing.store_release(1);
  int points = 0;
  const Looks watch([&](FaultPoint point) {
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

TEST_CASE("moments: the step of a snapshot counts no step that was done after the snapshot point (snapshot.C13)") {
  for (const FaultPoint moment : {FaultPoint::kSnapshotReady, FaultPoint::kSnapshotBegun, FaultPoint::kSnapshotMoved}) {
    CAPTURE(std::uint64_t(moment));
    const JobConfig config = settings(1, Mode::kAsync);
    Server server(config);
    Worker worker(options(config, 0));
    const Variable variable = worker.variable(vector_of(10), zero);
    const std::vector<float> ones(10, 1.0F);
    int steps = 0;
    const auto make_step = [&] { worker.push(variable, ones), worker.step(), ++steps; };
    make_step();
    const JobView view(config.job);
    int looks = 0;
    const Looks watch([&](FaultPoint point) {
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

TEST_CASE("moments: a checkpoint counts no example whose push its snapshot does not contain") {
  const Folder folder;
  JobConfig config = settings(1, Mode::kAsync);
  Server server(config);
  Worker worker(options(config, 0));
  worker.variable(vector_of(10), zero);
  worker.report(1.0, 32);
  const Looks watch([&](FaultPoint point) {
    if (point == FaultPoint::kSnapshotBegun) worker.report(1.0, 64);
  });
  const std::string saved = Checkpoint::save(JobView(config.job), folder.path());
  CHECK(Checkpoint(saved).examples() == std::vector<std::uint64_t>{32});
}

TEST_CASE("moments: each snapshot contains all of a restore or nothing of it") {
  const Folder folder;
  JobConfig config = settings(1, Mode::kAsync);
  Server server(config);
  Worker worker(options(config, 0));
  const auto declare = [&](const char* name) { return worker.variable({.name = name, .shape = {10}}, zero); };
  const Variable first = declare("first"), second = declare("second");
  const JobView view(config.job);
  Checkpoint::save(view, folder.path());
  for (const Variable& one : {first, second}) worker.assign(one, std::vector<float>(10, 1.0F));
  int looks = 0;
  const Looks watch([&](FaultPoint point) {
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
