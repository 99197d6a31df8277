// Snapshots: a consistent state of all variables, between pushes, whatever happens concurrently.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstddef>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "support/conservation.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/member.hpp"
#include "support/processes.hpp"
#include "support/rows_job.hpp"
#include "support/snapshot_scene.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test::snapshots;
using test::kSecond, test::ManualClock;

TEST_CASE("snapshot: it shows the state when it was taken, whatever is pushed afterwards") {
  Scene scene;
  for (int push = 0; push < 3; ++push) scene.push();
  {
    const Snapshot snapshot = scene.worker.snapshot();
    CHECK(snapshot.epoch() == 1);
    CHECK(snapshot.partial_ranks().empty());
    CHECK(snapshot.variables() == std::vector<std::string>{"a", "b", "c"});
    CHECK(are_all(copies(snapshot, specs()), 3));
    for (int push = 0; push < 10; ++push) {
      scene.push();
      CHECK(are_all(copies(snapshot, specs()), 3));
    }
  }
  CHECK(test::is_conserved(scene.name.text()));
  const Snapshot next = scene.server.snapshot();
  CHECK(next.epoch() == 2);
  scene.push();
  CHECK(are_all(copies(next, specs()), 13));
  std::vector<float> now(10);
  scene.worker.pull(scene.variables[1], now);
  CHECK(now.front() == 14);
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: many of them, each a consistent state") {
  Scene scene;
  float pushed = 0;
  for (int round = 0; round < 50; ++round) {
    for (int push = 0; push < round % 4; ++push, ++pushed) scene.push();
    const Snapshot snapshot = scene.worker.snapshot();
    for (int push = 0; push < round % 3; ++push) scene.push();
    CHECK(are_all(copies(snapshot, specs()), pushed));
    pushed += static_cast<float>(round % 3);
  }
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: variables declared later are in the next one") {
  Scene scene;
  scene.push();
  {
    const Snapshot snapshot = scene.worker.snapshot();
    const VariableSpec late{.name = "late", .shape = {100}};
    const Variable variable =
        scene.worker.variable(late, [](std::span<float> values) { std::fill(values.begin(), values.end(), 5.0F); });
    scene.worker.push(variable, std::vector<float>(100, 1.0F));
    CHECK(snapshot.variables().size() == 3);
    std::vector<float> out(100);
    CHECK_THROWS_WITH_AS(snapshot.copy("late", out), doctest::Contains("no variable 'late'"), Error);
  }
  const Snapshot snapshot = scene.worker.snapshot();
  std::vector<float> out(100);
  snapshot.copy("late", out);
  CHECK(out.back() == 6);
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: sizes and slots that do not exist are refused") {
  Scene scene;
  const Snapshot snapshot = scene.worker.snapshot();
  std::vector<float> out(11);
  CHECK_THROWS_WITH_AS(snapshot.copy("b", out), doctest::Contains("it has 10 elements, the span has 11"), Error);
  out.resize(10);
  CHECK_THROWS_WITH_AS(snapshot.copy("b", out, "m"), doctest::Contains("variable 'b' has no slot 'm'; it has none"),
                       Error);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(out));
  CHECK_THROWS_WITH_AS(snapshot.copy("b", bytes.first(39)), doctest::Contains("it has 40 bytes, the span has 39"),
                       Error);
  for (const std::uint64_t begin : {2, 4, 44})  // within a float, beyond the end by 4 bytes, entirely
    CHECK_THROWS_WITH_AS(snapshot.read("b", begin, bytes), doctest::Contains("it has 40 bytes, but 40 bytes from"),
                         Error);
}

TEST_CASE("snapshot: bytes from any offset are those of the whole, whatever the parts") {
  JobConfig config = test::row_config(UpdateRule::kRowwiseAdagrad);
  config.ps_tasks = 3;
  config.chunk_bytes = 1024;
  config.placement = Placement::kPartition;
  for (const PartitionBy by : {PartitionBy::kRange, PartitionBy::kHash}) {
    config.partition_by = by;
    config.job = test::unique_job_name();
    test::RowsJob job(config, {500, 3});
    job.worker.variable({.name = "dense", .shape = {3000}, .rule = UpdateRule::kAdd, .layout = Layout::kVersioned},
                        [](std::span<float> out) { std::iota(out.begin(), out.end(), 0.0F); });
    job.push({1, 7, 499}, std::vector<float>(9, 0.5F));
    Snapshot taken = job.worker.snapshot();
    const Snapshot snapshot = std::move(taken);
    std::mt19937_64 random(5);
    for (const auto& [name, slot, floats] :
         {std::tuple("table", "", 1500), std::tuple("table", "n of row", 500), std::tuple("dense", "", 3000)}) {
      std::vector<float> whole(std::size_t(floats), 0.0F);
      snapshot.copy(name, whole, slot);
      for (int i = 0; i < 50; ++i) {
        const std::size_t begin = i == 0 ? 0 : random() % whole.size(), size = random() % (whole.size() - begin + 1);
        std::vector<float> some(size);
        snapshot.read(name, begin * sizeof(float), std::as_writable_bytes(std::span(some)), slot);
        REQUIRE(std::equal(some.begin(), some.end(), whole.begin() + std::ptrdiff_t(begin)));
      }
    }
  }
}

TEST_CASE("snapshot: a job has one at a time") {
  Scene scene;
  const ManualClock clock(ManualClock::Sleeps::kPass);
  const SnapshotOptions patient{.wait = Seconds(10)};
  {
    const Snapshot first = scene.worker.snapshot();
    CHECK_THROWS_WITH_AS(scene.worker.snapshot(patient), doctest::Contains("release the one that this object has"),
                         Error);
    CHECK_THROWS_WITH_AS(scene.server.snapshot(patient), doctest::Contains("one snapshot at a time"), Timeout);
    CHECK_THROWS_WITH_AS(JobView(scene.name.text()).snapshot(patient), doctest::Contains("one snapshot at a time"),
                         Timeout);
  }
  CHECK(clock.passed_ns() == 2 * 10 * kSecond);  // a process that has it itself would wait for ever, so it fails
  CHECK(scene.server.snapshot(patient).epoch() == 2);
  CHECK(JobView(scene.name.text()).snapshot(patient).epoch() == 3);
}

TEST_CASE("snapshot: a group of pushes is atomic") {
  Scene scene;
  std::atomic<bool> has_snapshot = false;
  std::thread taker;
  {
    const PushGroup group = scene.worker.group_pushes();
    scene.worker.push(scene.variables[0], scene.gradients[0]);
    taker = std::thread([&] {
      const Snapshot snapshot = scene.server.snapshot({.patience = Seconds(20)});
      has_snapshot = true;
      CHECK(snapshot.partial_ranks().empty());
      CHECK(are_all(copies(snapshot, specs()), 1));
    });
    shm::AttachOutcome outcome;
    const auto job = shm::JobSegments::try_attach(scene.name.text(), shm::Access::kReadOnly, outcome);
    while (shm::snapshot_state(job->state().snapshot_point.word.load_acquire()) == shm::SnapshotState::kOpen)
      std::this_thread::yield();
    CHECK_THROWS_WITH_AS(scene.worker.snapshot(), doctest::Contains("within a PushGroup"), Error);
    scene.worker.push(scene.variables[1], scene.gradients[1]);
    scene.worker.push(scene.variables[2], scene.gradients[2]);
    CHECK_FALSE(has_snapshot);
  }
  taker.join();
  scene.push();
}

TEST_CASE("snapshot: a push that does not end is waited for with patience, once") {
  Scene scene;
  Worker stopped = scene.join();
  const Variable theirs = stopped.variable("a");
  const ManualClock clock(ManualClock::Sleeps::kPass);
  {
    const PushGroup group = stopped.group_pushes();
    stopped.push(theirs, scene.gradients[0]);
    const SnapshotOptions soon{.patience = Seconds(1)};
    CHECK(scene.worker.snapshot(soon).partial_ranks() == std::vector<std::uint32_t>{1});
    const std::uint64_t waited = clock.passed_ns();
    CHECK(waited >= kSecond);
    const SnapshotOptions late{.patience = Seconds(1000)};
    CHECK(scene.worker.snapshot(late).partial_ranks() ==
          std::vector<std::uint32_t>{1});  // stuck since before the last one
    scene.push();
    CHECK(scene.worker.snapshot(late).partial_ranks() == std::vector<std::uint32_t>{1});
    CHECK(clock.passed_ns() - waited < kSecond);
    Worker second = scene.join();
    const PushGroup also = second.group_pushes();
    CHECK(scene.worker.snapshot(soon).partial_ranks() == std::vector<std::uint32_t>{1, 2});
    // A mark that a dead owner has left counts for nothing.
    shm::AttachOutcome outcome;
    const auto job = shm::JobSegments::try_attach(scene.name.text(), shm::Access::kReadWrite, outcome);
    job->worker(3).pushing.store_release(shm::epoch_of(job->state().snapshot_point.word.load_acquire()) + 1);
    CHECK(scene.worker.snapshot(soon).partial_ranks() == std::vector<std::uint32_t>{1, 2});
  }
  CHECK(scene.worker.snapshot().partial_ranks().empty());
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: a waiter does not end a drain beside a push that an earlier snapshot has given up (snapshot.C8)") {
  test::TestJob job;
  test::Member stuck(job), waiter(job);
  const ManualClock clock(ManualClock::Sleeps::kPass);
  shm::SnapshotPointShm& point = job.segments.state().snapshot_point;
  REQUIRE(job.segments.locks().try_take(shm::kSnapshotByte));
  job.segments.worker(stuck.rank).pushing.store_release(1);
  const shm::SnapshotPoint first = shm::SnapshotPointMaker(job.segments).drain(0, false, {});
  REQUIRE(first.partial_ranks.contains(stuck.rank));
  // The next maker is stopped within its drain. Only it can report the rank, so nobody ends the drain in good order.
  point.word.store_release(shm::make_snapshot_word(first.epoch + 1, shm::SnapshotState::kDraining));
  shm::wait_until_open(waiter.segments, waiter.rank, first.epoch + 1);
  CHECK(point.forced.load_acquire() == first.epoch + 1);
}

TEST_CASE("snapshot: a maker that was stopped while copying learns that its point was opened (snapshot.C11)") {
  test::TestJob job;
  test::Member waiter(job);
  REQUIRE(job.segments.locks().try_take(shm::kSnapshotByte));
  shm::SnapshotPointMaker maker(job.segments);
  const shm::SnapshotPointShm& point = job.segments.state().snapshot_point;
  const shm::SnapshotPoint first = maker.drain(0, true, {});
  REQUIRE(shm::snapshot_state(point.word.load_acquire()) == shm::SnapshotState::kCopying);
  CHECK_FALSE(first.is_forced);
  shm::wait_until_open(waiter.segments, waiter.rank, first.epoch);  // runs out of patience
  CHECK(shm::snapshot_state(point.word.load_acquire()) == shm::SnapshotState::kOpen);
  CHECK_FALSE(maker.open(first.epoch));
  const shm::SnapshotPoint next = maker.drain(0, true, {});
  CHECK_FALSE(next.is_forced);
  CHECK(maker.open(next.epoch));
}

TEST_CASE("snapshot: the next maker first ends a dead one's pause (snapshot.C8)") {
  for (const shm::SnapshotState left : {shm::SnapshotState::kDraining, shm::SnapshotState::kDrainingToCopy,
                                        shm::SnapshotState::kCopying, shm::SnapshotState::kOpen}) {
    CAPTURE(std::uint64_t(left));
    test::TestJob job;
    shm::SnapshotPointShm& point = job.segments.state().snapshot_point;
    point.word.store_release(shm::make_snapshot_word(7, left));
    REQUIRE(job.segments.locks().try_take(shm::kSnapshotByte));
    const shm::SnapshotPointMaker maker(job.segments);
    CHECK(point.word.load_acquire() == shm::make_snapshot_word(7, shm::SnapshotState::kOpen));
  }
}

TEST_CASE("snapshot: optimizer slots and moving averages are of the same moment") {
  test::Job job({.max_workers = 4, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum, .ema = 0.5F}});
  Worker worker = job.join();
  const Variable variable = worker.variable(
      {.name = "v", .shape = {2000}}, [](std::span<float> values) { std::fill(values.begin(), values.end(), 1.0F); });
  const std::vector<float> gradient(2000, 1.0F);
  worker.push(variable, gradient);
  JobView view = job.view();
  const std::vector<float> values = view.values("v"), slot = view.slot("v", "momentum"), averages = view.averages("v");
  const Snapshot snapshot = worker.snapshot();
  worker.push(variable, gradient);
  std::vector<float> out(2000);
  snapshot.copy("v", out);
  CHECK(out == values);
  snapshot.copy("v", out, "momentum");
  CHECK(out == slot);
  snapshot.copy("v", out, "ema");
  CHECK(out == averages);
  CHECK(view.values("v") != values);
}

TEST_CASE("snapshot: small in-place variables are exact, large ones are reported as not point-in-time") {
  std::vector<VariableSpec> declared = specs();
  declared.push_back({.name = "rows", .shape = {100, 4}, .layout = Layout::kInplace});
  declared.push_back({.name = "table", .shape = {100000}, .layout = Layout::kInplace});
  declared.push_back({.name = "count", .shape = {}, .layout = Layout::kInplace});
  Scene scene(Mode::kAsync, declared);
  scene.push();
  const Snapshot snapshot = scene.worker.snapshot();
  scene.push();
  CHECK(snapshot.is_point_in_time("a"));
  CHECK(snapshot.is_point_in_time("rows"));
  CHECK(snapshot.is_point_in_time("count"));
  CHECK_FALSE(snapshot.is_point_in_time("table"));
  std::vector<VariableSpec> exact(declared.begin(), declared.begin() + 4);
  exact.push_back(declared[5]);
  CHECK(are_all(copies(snapshot, exact), 1));
  CHECK(are_all(copies(snapshot, {declared[4]}), 2));
}

TEST_CASE("snapshot: in-place variables of a Hogwild! job are never called point-in-time") {
  test::Job job({.chunk_bytes = 1024, .adds = Adds::kRacy, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join();
  worker.variable({.name = "rows", .shape = {100, 4}, .layout = Layout::kInplace}, [](std::span<float>) {});
  worker.variable({.name = "dense", .shape = {100}}, [](std::span<float>) {});
  const Snapshot snapshot = worker.snapshot();
  CHECK_FALSE(snapshot.is_point_in_time("rows"));
  CHECK(snapshot.is_point_in_time("dense"));
}

TEST_CASE("snapshot: a variable is in it once all of its parts have values, and can only then be saved") {
  const test::Folder folder;
  test::Job job({.max_workers = 4,
                 .chunk_bytes = 1024,
                 .optimizer = {.rule = UpdateRule::kAdd},
                 .ps_tasks = 2,
                 .placement = Placement::kPartition});
  Worker worker = job.join();
  worker.variable({.name = "parted", .shape = {3000}}, [](std::span<float>) {});
  worker.variable({.name = "small", .shape = {10}}, [](std::span<float>) {});
  shm::JobSegments segments = job.attach();
  const shm::Directory directory(segments);
  const std::vector<std::uint32_t> parts = directory.parts(directory.find("parted"));
  REQUIRE(parts.size() == 2);
  for (const std::uint32_t part : parts) {
    auto& init = directory.at(part).init;
    init.store_release(0);
    CHECK(worker.snapshot().variables() == std::vector<std::string>{"small"});
    const std::vector<StoredVariable> saved = Checkpoint(Checkpoint::save(job.view(), folder.path())).variables();
    CHECK(saved.size() == 1);
    init.store_release(shm::kInitialised);
  }
  CHECK(worker.snapshot().variables() == std::vector<std::string>{"parted", "small"});
}

TEST_CASE("snapshot: if its owner is the last process of an ended job, it removes the job (names.N9)") {
  const JobConfig config = test::config_of();
  const test::JobName name(config.job);
  std::optional<Server> server(config);
  std::optional<Worker> worker(test::options(config));
  worker->variable({.name = "v", .shape = {10}}, [](std::span<float>) {});
  const JobView view(name.text());
  std::optional<Snapshot> snapshot(view.snapshot());
  worker.reset();
  server->serve({});  // ends the job, as all workers have left
  server.reset();
  CHECK_FALSE(name.segments().empty());
  snapshot.reset();
  CHECK(name.segments().empty());
}

TEST_CASE("snapshot: each of many in a row contains a prefix of each worker's pushes") {
  constexpr std::uint32_t kPushers = 3;
  std::vector<VariableSpec> declared;
  for (std::uint32_t rank = 0; rank < kPushers; ++rank)  // of each pusher: versioned ones, and a small in-place one
    for (const char* what : {"x", "y"})
      declared.push_back({.name = what + std::to_string(rank), .shape = {rank == 0 ? 2000U : 40U}});
  for (std::uint32_t rank = 0; rank < kPushers; ++rank)
    declared.push_back({.name = "z" + std::to_string(rank), .shape = {8, 2}, .layout = Layout::kInplace});
  Scene scene(Mode::kAsync, declared);
  std::atomic<bool> is_over = false;
  std::vector<std::atomic<std::uint64_t>> begun(kPushers), done(kPushers);
  std::vector<std::thread> pushers;
  for (std::uint32_t rank = 0; rank < kPushers; ++rank)
    pushers.emplace_back([&, rank] {
      Worker worker = scene.join();
      std::vector<Variable> mine;
      std::vector<std::span<const float>> gradients;
      for (const std::size_t which :
           {std::size_t{2 * rank}, std::size_t{2 * rank + 1}, std::size_t{2 * kPushers + rank}}) {
        mine.push_back(worker.variable(declared[which].name));
        gradients.push_back(scene.ones[which]);
      }
      while (!is_over) {
        ++begun[rank];
        worker.push(mine, gradients);
        ++done[rank];
      }
    });
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> before(kPushers);
    for (std::uint32_t rank = 0; rank < kPushers; ++rank) before[rank] = done[rank];
    const Snapshot snapshot = scene.worker.snapshot({.patience = Seconds(30)});
    REQUIRE(snapshot.partial_ranks().empty());
    for (std::uint32_t rank = 0; rank < kPushers; ++rank) {
      const auto values = copies(snapshot, {declared[2 * rank], declared[2 * rank + 1], declared[2 * kPushers + rank]});
      const float count = values[0][0];
      REQUIRE(are_all(values, count));
      REQUIRE(static_cast<std::uint64_t>(count) >= before[rank]);
      REQUIRE(static_cast<std::uint64_t>(count) <= begun[rank]);
    }
  }
  is_over = true;
  for (std::thread& pusher : pushers) pusher.join();
  CHECK(test::is_conserved(scene.name.text()));
}

TEST_CASE("snapshot: if only some of its copies fit it is refused, and frees all that it used of /dev/shm") {
  test::Child child([] {
    const std::vector<VariableSpec> wanted = {{.name = "a", .shape = {250'000}},
                                              {.name = "b", .shape = {250'000}},
                                              {.name = "c", .shape = {250'000}},
                                              {.name = "d", .shape = {250'000}}};
    Scene scene(Mode::kAsync, wanted);
    const auto shard = [&] {
      struct stat status {};
      stat(("/dev/shm/ps_shm." + scene.name.text() + ".0").c_str(), &status);
      return status;
    };
    const struct stat before = shard();
    rlimit usual;
    getrlimit(RLIMIT_FSIZE, &usual);
    const rlimit tight{.rlim_cur = static_cast<rlim_t>(before.st_size) + 2'500'000, .rlim_max = usual.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    for (int attempt = 0; attempt < 2; ++attempt) try {  // the second one finds what the first has declared
        static_cast<void>(scene.worker.snapshot());
        return 1;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNoSpace) return 2;
        if (shard().st_blocks > before.st_blocks + 64) return 3;  // in units of 512 bytes: pages shared by two reserves
      }
    setrlimit(RLIMIT_FSIZE, &usual);
    scene.push();
    const Snapshot snapshot = scene.worker.snapshot();
    scene.push();
    return are_all(copies(snapshot, wanted), 1.0F) ? 0 : 4;
  });
  CHECK(child.join() == 0);
}

TEST_CASE("snapshot: without space for its copies it is refused, and succeeds once there is some") {
  test::Child child([] {
    Scene scene(Mode::kAsync, {{.name = "a", .shape = {1'000'000}}});
    rlimit usual;
    getrlimit(RLIMIT_FSIZE, &usual);
    const rlimit tight{.rlim_cur = 1 << 20, .rlim_max = usual.rlim_max};
    std::signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &tight);
    std::string refusal;
    try {
      static_cast<void>(scene.worker.snapshot());
    } catch (const Error& error) {
      refusal = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &usual);
    if (refusal.find("the first one needs ") == std::string::npos) return 1;
    return scene.worker.snapshot().variables().size() == 1 ? 0 : 2;
  });
  CHECK(child.join() == 0);
}
