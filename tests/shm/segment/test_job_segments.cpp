// Creating, attaching and removing a job, also while other processes do the same.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::Bell;
using test::Child;
using test::JobName;
using test::TestJob;

namespace {

JobSegments create(const JobName& name) { return JobSegments::create(test::with_name({}, name.text())); }

// A job whose ps has been killed, with a gradient segment that nobody has removed.
void leave_dead_job(const JobName& name) {
  const Bell ready;
  Child ps([&] {
    const JobSegments job = create(name);
    Segment gradients = Segment::create(SegmentKind::kGradient, 2, name.text(), job.instance(), 4096, 4096);
    if (!gradients.link(gradient_name(name.text(), 2, 7))) return 1;
    ready.tell();
    test::sleep_forever();
  });
  REQUIRE(ready.hear());
  ps.kill();
}

void touch(const std::string& segment) { ::close(::open(("/dev/shm/" + segment).c_str(), O_CREAT | O_WRONLY, 0600)); }

}  // namespace

TEST_CASE("job: a created one has a control segment and a shard of one instance, its ps alive") {
  const TestJob job;
  CHECK(job.name.segments() == std::vector{job.name.control(), shard_name(job.name.text(), 0)});
  const JobSegments other = job.attach();
  CHECK(other.instance() == job.segments.instance());
  CHECK(other.instance() != 0);
  CHECK(other.locks().is_held_by_other(kTaskByte));
}

TEST_CASE("job: the settings are read back as they were given") {
  JobConfig config;
  config.workers = 3, config.max_workers = 9, config.mode = Mode::kSync, config.layout = Layout::kVersioned;
  config.adds = Adds::kRacy, config.steps = 1234, config.optimizer.lr = 0.75F, config.optimizer.l2 = 0.125F,
  config.seed = 99;
  config.optimizer.schedule = {Schedule::Kind::kExponential, 0.5F, 100.0F, 7.0F};
  config.linger = Seconds(1.5), config.step_timeout = Seconds(2.5), config.chunk_bytes = 4096;
  config.numa = Numa::kNodes, config.numa_nodes = {0, 0, 0}, config.place = {{"v", 0}, {"w/b:1", 0}};
  const TestJob job(config);
  config.job = job.name.text();
  config.optimizer.weight_decay = 0.0F;  // sgd's, filled in
  CHECK(job.segments.config() == config);
  CHECK(job.attach(Access::kReadOnly).config() == config);
}

TEST_CASE("job: the maximum number of variables can be placed by hand, with the longest names") {
  JobConfig config;
  config.ps_tasks = 64;
  for (std::uint32_t number = 0; number < 64; ++number)
    config.place[fmt::format("{:0123}", number).replace(0, 121, 121, 'x')] = number;
  const TestJob job(config);
  AttachOutcome outcome;
  CHECK(JobSegments::try_attach_control(job.name.text(), outcome)->config().place == config.place);
}

TEST_CASE("job: by default the limit of workers is sixteen or twice the number it starts with") {
  JobConfig config;
  CHECK(TestJob(config).segments.ranks() == 16);
  config.workers = 100;
  CHECK(TestJob(config).segments.ranks() == 200);
  config.workers = 200;
  CHECK(TestJob(config).segments.ranks() == kMaxRanks);
}

TEST_CASE("job: a second ps of a live one is refused and changes nothing") {
  const TestJob job;
  CHECK_THROWS_WITH_AS(create(job.name), doctest::Contains("already has a ps"), Error);
  CHECK(job.attach().instance() == job.segments.instance());
}

TEST_CASE("job: one without a ps whose workers are alive is not begun again") {
  const JobName name;
  leave_dead_job(name);
  AttachOutcome outcome;
  const auto worker = JobSegments::try_attach(name.text(), Access::kReadWrite, outcome);
  REQUIRE(worker);
  REQUIRE(worker->locks().try_take(kRankByte));
  CHECK_THROWS_WITH_AS(create(name), doctest::Contains("take it over"), Error);
}

TEST_CASE("job: a dead one's name is reclaimed, and nothing of it is left") {
  const JobName name;
  leave_dead_job(name);
  REQUIRE(name.segments().size() == 3);
  const JobSegments job = create(name);
  CHECK(name.segments() == std::vector{name.control(), shard_name(name.text(), 0)});
}

TEST_CASE("job: one that died before it was published is reclaimed") {
  const JobName name;
  {
    Segment half = Segment::create(SegmentKind::kControl, 0, name.text(), 5, 4096, 4096);
    REQUIRE(half.link(name.control()));
  }
  CHECK_NOTHROW(create(name));
}

TEST_CASE("job: a damaged control segment that nobody holds is reclaimed") {
  const JobName name;
  touch(name.control());
  CHECK_NOTHROW(create(name));
}

TEST_CASE("job: shards left without a control segment are reclaimed") {
  const JobName name;
  touch(shard_name(name.text(), 0));
  touch(gradient_name(name.text(), 1, 1));
  const JobSegments job = create(name);
  CHECK(name.segments().size() == 2);
}

TEST_CASE("job: if several ps start at once over a dead job exactly one gets it") {
  const JobName name;
  leave_dead_job(name);
  constexpr int kCreators = 8;
  const Bell go, done, end;
  std::vector<std::unique_ptr<Child>> creators;
  for (int i = 0; i < kCreators; ++i)
    creators.push_back(std::make_unique<Child>([&] {
      if (!go.hear()) return 2;
      try {
        const JobSegments job = create(name);
        done.tell();
        return end.hear() ? 0 : 2;  // alive until all have tried
      } catch (const Error&) {
        done.tell();
        return 1;
      }
    }));
  for (int i = 0; i < kCreators; ++i) go.tell();
  for (int i = 0; i < kCreators; ++i) CHECK(done.hear());
  CHECK(name.segments().size() == 2);
  end.tell();
  std::vector<int> codes;
  for (auto& creator : creators) codes.push_back(creator->join());
  CHECK(std::count(codes.begin(), codes.end(), 0) == 1);
  CHECK(std::count(codes.begin(), codes.end(), 1) == kCreators - 1);
}

TEST_CASE("job: removing an absent one is reported") {
  const JobName name;
  CHECK(remove_job(name.text()) == RemoveOutcome::kAbsent);
}

TEST_CASE("job: removing a live one is refused") {
  const TestJob job;
  CHECK(remove_job(job.name.text()) == RemoveOutcome::kAlive);
  CHECK(job.name.segments().size() == 2);
}

TEST_CASE("job: removing a dead one leaves nothing") {
  const JobName name;
  leave_dead_job(name);
  CHECK(remove_job(name.text()) == RemoveOutcome::kRemoved);
  CHECK(name.segments().empty());
}

TEST_CASE("job: its ps removes it through its own descriptor") {
  const TestJob job;
  CHECK(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kRemoved);
  CHECK(job.name.segments().empty());
}

TEST_CASE("job: a process that has removed it does not hold its bytes any more (names.N3)") {
  const TestJob job;
  const JobSegments latecomer = job.attach();
  REQUIRE(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kRemoved);
  CHECK_FALSE(latecomer.locks().is_being_removed());
  CHECK_FALSE(latecomer.locks().is_held_by_other(kTaskByte));
  CHECK_FALSE(latecomer.locks().is_held_by_other(kRankByte));
}

TEST_CASE("job: nobody can serve a task of one that has lost its name (names.N3)") {
  const TestJob job;
  JobSegments successor = job.attach();
  REQUIRE(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kRemoved);
  CHECK_FALSE(successor.try_add_task(0, {}));
  CHECK_FALSE(job.segments.locks().is_held_by_other(kTaskByte));
}

TEST_CASE("job: its ps does not remove it while a worker is alive") {
  const TestJob job;
  const JobSegments worker = job.attach();
  REQUIRE(worker.locks().try_take(kRankByte));
  CHECK(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kAlive);
}

// Regression: the removal through an own descriptor did not check which job the name refers to.
TEST_CASE("job: a ps whose segments were deleted by hand does not remove the next job of that name") {
  const TestJob job;
  for (const std::string& segment : job.name.segments()) unlink_segment(segment);
  const JobSegments next = create(job.name);
  CHECK(remove_job(job.name.text(), job.segments.control().descriptor()) == RemoveOutcome::kAbsent);
  CHECK(job.name.segments().size() == 2);
}

TEST_CASE("job: removing it does not affect jobs whose names have its name as a prefix") {
  const JobName name;
  leave_dead_job(name);
  const JobName longer(name.text() + "-b"), digits(name.text() + "0");
  const JobSegments with_dash = create(longer), with_digit = create(digits);
  CHECK(remove_job(name.text()) == RemoveOutcome::kRemoved);
  CHECK(longer.segments().size() == 2);
  CHECK(digits.segments().size() == 2);
}

TEST_CASE("job: removing it does not affect files that are not its segments") {
  const JobName name;
  leave_dead_job(name);
  const std::vector<std::string> strangers = {name.control() + ".w1",   name.control() + ".w.1", name.control() + ".x",
                                              name.control() + ".w1.x", name.control() + ".1.1", name.control() + "."};
  for (const std::string& stranger : strangers) touch(stranger);
  CHECK(remove_job(name.text()) == RemoveOutcome::kRemoved);
  CHECK(name.segments().size() == strangers.size());
}

TEST_CASE("job: attaching to one that is absent or incomplete can be retried") {
  const JobName name;
  AttachOutcome outcome;
  CHECK_FALSE(JobSegments::try_attach(name.text(), Access::kReadWrite, outcome));
  CHECK(outcome == AttachOutcome::kAbsent);
  Segment half = Segment::create(SegmentKind::kControl, 0, name.text(), 5, 4096, 4096);
  REQUIRE(half.link(name.control()));
  CHECK_FALSE(JobSegments::try_attach(name.text(), Access::kReadWrite, outcome));
  CHECK(outcome == AttachOutcome::kBeingCreated);
}

TEST_CASE("job: attaching to one of another build is an error") {
  const TestJob job;
  job.segments.control().header().fingerprint ^= 1;
  CHECK_THROWS_WITH_AS(job.attach(), doctest::Contains("structures differ"), Error);
}

TEST_CASE("job: a shard of another instance is not attached to") {
  TestJob job;
  job.segments.shard(0).header().instance ^= 2;
  AttachOutcome outcome = AttachOutcome::kReady;
  CHECK_FALSE(JobSegments::try_attach(job.name.text(), Access::kReadWrite, outcome));
  CHECK(outcome == AttachOutcome::kShardMissing);
}

TEST_CASE("job: attaching to a table that its file cannot hold is an error") {
  const TestJob job;
  test::alter_setting(job.segments, "max-workers", "256");
  CHECK_THROWS_WITH_AS(job.attach(), doctest::Contains("damaged"), Error);
}

TEST_CASE("job: it is finished at its last step, and over once its ps was told to end") {
  const TestJob job({.steps = 2});
  job.segments.global_step().store_release(1);
  CHECK_FALSE(job.segments.is_over());
  job.segments.global_step().store_release(2);
  CHECK(job.segments.is_finished());
  const TestJob endless;
  endless.segments.global_step().store_release(1'000'000);
  CHECK_FALSE(endless.segments.is_over());
  endless.segments.state().ended.store_release(1);
  CHECK(endless.segments.is_over());
  CHECK_FALSE(endless.segments.is_finished());
}

TEST_CASE("settings that do not fit in the job's segment are refused") {
  JobConfig config;
  config.restore.assign(sizeof(SettingsShm::text), 'x');
  CHECK_THROWS_WITH_AS(TestJob{config}, doctest::Contains("the maximum is 12284"), Error);
}
