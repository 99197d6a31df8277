// The guard against NaN: a NaN does not spread beyond its worker, and what happens to the job.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "hooks/nan_guard.hpp"
#include "inspection/nan_watch.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "support/looping_worker.hpp"
#include "support/table_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("nan guard: stop reports the worker, step and loss, and pushes nothing") {
  Job job({.workers = 2, .chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker other(job.config, 0), member(job.config, 1);
  other.run({stop_at_step(5)}, falling);
  const auto second = [](std::uint64_t step) { return step == 2 ? INFINITY : 1.0; };
  CHECK_THROWS_WITH_AS(member.run({nan_guard()}, second),
                       doctest::Contains("worker 1 stops: the loss is inf at training step 2 (global step 6)"), Error);
  CHECK(other.run({stop_at_step(8)}, falling).steps == 2);
  CHECK(other.value() == -0.5F * 8);
}

TEST_CASE("nan guard: warn pushes, and warns once") {
  Job job({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  LoopingWorker member(job.config);
  Lines said;
  member.run({nan_guard({.on_nan = OnNan::kWarn, .log = said.log()}), stop_at_step(5)},
             [](std::uint64_t) { return kNan; });
  CHECK(member.value() == -2.5F);
  REQUIRE(said.lines.size() == 1);
  CHECK(is_in("not finite at training step 1", said.lines[0]));
}

TEST_CASE("nan guard: skip pushes all other gradients, and reports skipped ones less and less often") {
  for (const Mode mode : {Mode::kAsync, Mode::kSsp}) {
    Job job({.mode = mode, .chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
    LoopingWorker member(job.config);
    Lines said;
    const StepReport last = member.run({nan_guard({.on_nan = OnNan::kSkip, .log = said.log()}), stop_at_step(20)},
                                       [](std::uint64_t step) { return step % 4 == 0 ? kNan : 1.0; });
    CHECK(last.global_step == 20);
    CHECK(!last.was_pushed);
    CHECK(member.value() == -0.5F * 15);
    REQUIRE(said.lines.size() == 3);  // the 1st, 2nd and 4th of 5
    CHECK(is_in("worker 0: the loss is nan at training step 4 (global step 3): its gradient is not pushed",
                said.lines[0]));
    CHECK(is_in("at training step 16 (global step 15): its gradient is not pushed (4 so far)", said.lines[2]));
  }
}

TEST_CASE("nan guard: in sync mode a step without one worker's gradient uses the mean of the others") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(int(reduce));
    Job job({.workers = 2,
             .mode = Mode::kSync,
             .reduce = reduce,
             .chunk_bytes = 1024,
             .optimizer = {.lr = 0.5F},
             .linger = Seconds(0)});
    std::vector<float> values(2);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        LoopingWorker member(job.config, rank);
        member.gradient = rank == 0 ? 1 : 3;
        Lines said;
        const auto losses = [&](std::uint64_t step) { return rank == 0 && step == 2 ? kNan : 1.0; };
        member.run({nan_guard({.on_nan = OnNan::kSkip, .log = said.log()}), stop_at_step(3)}, losses);
        values[rank] = member.value();
        member.worker.barrier();
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(values == std::vector<float>{-0.5F * (2 + 3 + 2), -0.5F * (2 + 3 + 2)});
  }
}

namespace {

// A job that keeps checkpoints with values of 7 and 8; then all its values become NaN.
struct Diverged {
  JobConfig config;
  Folder folder;
  Server server;
  LoopingWorker member;
  Lines said;
  Variable counter;

  explicit Diverged(UpdateRule rule = UpdateRule::kMomentum)
      : config([&] {
          JobConfig made = config_of(
              {.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = rule, .lr = 0.5F}, .linger = Seconds(0)});
          return made;
        }()),
        server(config),
        member(config),
        counter(member.worker.variable({.name = "n", .dtype = DType::kInt64}, zero)) {
    member.worker.push(member.variable, std::vector<float>(kElements, 1.0F));  // so that slots are not 0
    for (const float value : {7.0F, 8.0F}) {
      member.set(value);
      count(value == 7 ? 70 : 80);
      member.worker.step();
      Checkpoint::save(JobView(config.job), folder.path());
    }
    count(99);
    member.set(NAN);
  }

  void count(std::int64_t value) { member.worker.assign(counter, std::as_bytes(std::span(&value, 1))); }
  std::int64_t counted() {
    std::int64_t value = 0;
    member.worker.pull(counter, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  std::shared_ptr<Hook> guard(std::uint64_t max_restores = 3) {
    return nan_guard(
        {.on_nan = OnNan::kRestore, .dir = folder.path(), .max_restores = max_restores, .log = said.log()});
  }
};

double nan_first(std::uint64_t step) { return step == 1 ? kNan : 1.0; }

}  // namespace

TEST_CASE("nan guard: restore sets the job to its newest checkpoint's values, and resets the optimizer") {
  Diverged job;
  CHECK(JobView(job.config.job).slot("v", "momentum").front() != 0);
  CHECK(job.member.run({job.guard(), stop_at_step(3)}, nan_first).steps == 1);
  CHECK(job.member.value() == 8);
  CHECK(job.counted() == 80);
  const std::vector<float> momentum = JobView(job.config.job).slot("v", "momentum");
  CHECK(std::all_of(momentum.begin(), momentum.end(), [](float one) { return one == 0; }));
  CHECK(job.member.worker.global_step() == 3);
  REQUIRE(job.said.lines.size() == 1);
  CHECK(is_in("worker 0: the loss is nan at training step 1 (global step 2): the job was reset to checkpoint",
              job.said.lines[0]));
  CHECK(is_in("step-2", job.said.lines[0]));
}

TEST_CASE("nan guard: a checkpoint that is damaged, or contains a NaN itself, is skipped") {
  Diverged job;
  Checkpoint::save(JobView(job.config.job), job.folder.path());  // replaces step-2 by one with NaN
  job.member.run({job.guard(), stop_at_step(3)}, nan_first);
  CHECK(job.member.value() == 7);
  REQUIRE(job.said.lines.size() == 2);
  CHECK(is_in("skipped a checkpoint", job.said.lines[0]));
  CHECK(is_in("variable 'v' has values that are not finite", job.said.lines[0]));
  CHECK(is_in("step-1", job.said.lines[1]));
  {
    std::fstream model(job.folder.path("step-1/model.safetensors"), std::ios::binary | std::ios::in | std::ios::out);
    model.seekp(-1, std::ios::end);
    model.put('\x41');  // the sign and exponent of the last value, which stays finite
  }
  CHECK_THROWS_WITH_AS(restore(job.member.worker, job.folder.path()), doctest::Contains("are not what was written"),
                       Error);
  CHECK(job.member.value() == 7);
  fs::remove(job.folder.path("step-1/model.safetensors"));
  CHECK_THROWS_WITH_AS(restore(job.member.worker, job.folder.path()), doctest::Contains("can be restored"), Error);
  fs::remove_all(job.folder.path("step-1"));
  fs::remove_all(job.folder.path("step-2"));
  CHECK_THROWS_WITH_AS(restore(job.member.worker, job.folder.path()), doctest::Contains("it has none yet"), Error);
  CHECK_THROWS_WITH_AS(nan_guard({.on_nan = OnNan::kRestore}), doctest::Contains("give `dir`"), Error);
}

TEST_CASE("nan guard: of two workers that pulled the same NaN one restores, and the other skips") {
  Diverged job;
  LoopingWorker other(job.config, 1);
  Lines said_by_other;
  const Hooks hooks = {nan_guard({.on_nan = OnNan::kRestore, .dir = job.folder.path(), .log = said_by_other.log()}),
                       stop_at_step(4)};
  // The other one pulls; the first one restores and pushes; only then does the other one find its NaN.
  const auto losses = [&](std::uint64_t step) {
    if (step != 1) return 1.0;
    job.member.run({job.guard(), stop_at_step(3)}, nan_first);
    job.member.set(9);
    return kNan;
  };
  const StepReport last = other.run(hooks, losses);
  CHECK(last.global_step == 4);
  CHECK(!last.was_pushed);
  CHECK(job.member.value() == 9);
  CHECK(job.said.lines.size() == 1);
  REQUIRE(said_by_other.lines.size() == 1);
  CHECK(is_in("worker 1: the loss is nan at training step 1", said_by_other.lines[0]));
  CHECK(is_in("not pushed", said_by_other.lines[0]));
  // From now on it pulls values from after the restore: a NaN among them is a new one.
  other.asked = 0;
  other.run({hooks[0], stop_at_step(5)}, nan_first);
  CHECK(job.member.value() == 8);
}

TEST_CASE("nan guard: what was pulled in the very nanosecond of a restore was pulled before it") {
  Diverged job;
  const NanGuardOptions options{.on_nan = OnNan::kRestore, .dir = job.folder.path()};
  const hooks::Moment first = hooks::moment_of(job.member.worker);
  CHECK(hooks::restore_once(job.member.worker, options, first).outcome == hooks::Restored::kHere);
  std::uint64_t instance = 0;
  hooks::Moment restored;
  std::ifstream(job.folder.path(".restored")) >> instance >> restored.ns;
  CHECK(hooks::restore_once(job.member.worker, options, restored).outcome == hooks::Restored::kByAnother);
  ++restored.ns;
  CHECK(hooks::restore_once(job.member.worker, options, restored).outcome == hooks::Restored::kHere);
}

TEST_CASE("nan guard: while another process restores, nothing is restored here") {
  Diverged job;
  const int other = ::open(job.folder.path(".restored").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::flock(other, LOCK_EX | LOCK_NB) == 0);
  const NanGuardOptions options{.on_nan = OnNan::kRestore, .dir = job.folder.path()};
  const hooks::Moment now = hooks::moment_of(job.member.worker);
  CHECK(hooks::restore_once(job.member.worker, options, now).outcome == hooks::Restored::kByAnother);
  CHECK(job.counted() == 99);
  ::close(other);
  CHECK(hooks::restore_once(job.member.worker, options, now).outcome == hooks::Restored::kHere);
}

TEST_CASE("nan guard: what was restored into an earlier job of the folder does not count") {
  Diverged job;
  std::ofstream(job.folder.path(".restored")) << "1 " << INT64_MAX << " 1000 99 " << job.folder.path("step-2") << "\n";
  job.member.run({job.guard(), stop_at_step(3)}, nan_first);
  CHECK(job.member.value() == 8);
}

TEST_CASE("nan guard: a checkpoint that leads to NaN again and again is given up") {
  Diverged job;
  CHECK_THROWS_WITH_AS(job.member.run({job.guard(2)}, [](std::uint64_t) { return kNan; }),
                       doctest::Contains("worker 0 stops: the loss is nan at training step 3"), Error);
  CHECK(job.said.lines.size() == 2);
  CHECK(job.member.value() == 8);
}

TEST_CASE("nan guard: a checkpoint is given up even if nothing can be recorded in its folder") {
  Diverged job;
  fs::create_directory(job.folder.path(".restored"));
  CHECK_THROWS_WITH_AS(job.member.run({job.guard(2), stop_at_step(20)}, [](std::uint64_t) { return kNan; }),
                       doctest::Contains("was restored 2 times"), Error);
}

TEST_CASE("nan guard: a link in place of the record is not followed") {
  Diverged job;
  const std::string precious = job.folder.path("precious");
  std::ofstream(precious) << "kept";
  fs::create_symlink(precious, job.folder.path(".restored"));
  CHECK_THROWS_AS(job.member.run({job.guard(2), stop_at_step(20)}, [](std::uint64_t) { return kNan; }), Error);
  CHECK(fs::file_size(precious) == 4);
}

TEST_CASE("nan guard: nothing is restored from a checkpoint of another model") {
  Diverged job;
  const JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  Server server(config);
  Worker worker(options(config, 0));
  const Variable counter = worker.variable({.name = "n", .dtype = DType::kInt64}, zero);
  static_cast<void>(worker.variable({.name = "v", .shape = {kElements / 2}, .dtype = DType::kFloat64}, zero));
  CHECK_THROWS_WITH_AS(restore(worker, job.folder.path()),
                       doctest::Contains("variable 'v' has another type or size than the job's"), Error);
  std::int64_t count = 1;
  worker.pull(counter, std::as_writable_bytes(std::span(&count, 1)));
  CHECK(count == 0);
}

TEST_CASE("restore: a table has the rows of the checkpoint and no others, and their state is reset") {
  Job job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum, .lr = 0.5F}, .linger = Seconds(0)});
  Worker worker = job.join(0);
  // The table is declared again as JobView describes it.
  Table table = worker.table({.name = "t", .row_size = 2, .max_rows = 64, .ttl = 1000.001});
  const std::vector<std::uint64_t> stored = {3, 4}, all = {3, 4, 5};
  const Folder folder;
  table.push(stored, std::vector<float>{1, 1, 1, 1});  // so that slots are not 0
  table.assign(stored, std::vector<float>{1, 2, 3, 4}, std::vector<float>{9, 9, 9, 9});
  Checkpoint::save(job.view(), folder.path());
  table.assign(all, std::vector<float>(6, NAN));
  CHECK(is_in("step-0", restore(worker, folder.path())));
  std::vector<float> rows(4), state;
  bool found[3];
  CHECK(table.pull(stored, rows) == 2);
  CHECK(rows == std::vector<float>{1, 2, 3, 4});
  CHECK(table.contains(all, found) == 2);
  table.dump(0, [&](const TableRow& row) { state.insert(state.end(), row.state.begin(), row.state.end()); });
  CHECK(state == std::vector<float>(4));
}

TEST_CASE(
    "restore: nothing is assigned if a table is missing, has other rows, or the checkpoint's rows are not finite") {
  const JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  const Folder folder, of_nan;
  const std::vector<std::uint64_t> keys = {1};
  const auto declare = [](Worker& worker, std::uint64_t size) {
    return worker.table({.name = "t", .row_size = size, .max_rows = 64});
  };
  {
    Server server(config);
    Worker worker(options(config, 0));
    Table table = declare(worker, 2);
    table.assign(keys, std::vector<float>{1, 2});
    Checkpoint::save(JobView(config.job), folder.path());
    table.assign(keys, std::vector<float>{1, NAN});
    Checkpoint::save(JobView(config.job), of_nan.path());
    CHECK_THROWS_WITH_AS(restore(worker, of_nan.path()), doctest::Contains("table 't' has values that are not finite"),
                         Error);
  }
  Server server(config);
  Worker worker(options(config, 0));
  CHECK_THROWS_WITH_AS(restore(worker, folder.path()), doctest::Contains("the job has no table 't'"), Error);
  Table table = declare(worker, 3);
  CHECK_THROWS_WITH_AS(restore(worker, folder.path()),
                       doctest::Contains("table 't' has rows of 2 floats, and the job's of 3"), Error);
  CHECK(table.statistics().rows == 0);
}

TEST_CASE("nan guard: restore in sync mode is applied by the step, once, before the others' gradients") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(int(reduce));
    JobConfig config = config_of({.workers = 2,
                                  .mode = Mode::kSync,
                                  .reduce = reduce,
                                  .chunk_bytes = 1024,
                                  .optimizer = {.lr = 0.5F},
                                  .linger = Seconds(0)});
    Folder folder;
    Server server(config);
    std::vector<float> values(2);
    std::vector<std::vector<std::string>> said(2);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        LoopingWorker member(config, rank);
        if (rank == 0) member.set(7);
        member.worker.step();
        member.worker.barrier();
        if (rank == 0) Checkpoint::save(JobView(config.job), folder.path());
        if (rank == 0) member.set(NAN);
        member.worker.step();
        Lines lines;
        const auto guard = nan_guard({.on_nan = OnNan::kRestore, .dir = folder.path(), .log = lines.log()});
        // Both see the NaN in the third step, one of them after the other has restored; in the fourth both push.
        if (rank == 1)
          while (!fs::exists(folder.path(".restored")) || fs::is_empty(folder.path(".restored")))
            std::this_thread::yield();
        member.run({guard, stop_at_step(4)}, nan_first);
        values[rank] = member.value();
        said[rank] = lines.lines;
        member.worker.barrier();
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(values == std::vector<float>{6.5F, 6.5F});
    std::size_t restored = 0;
    for (const auto& lines : said)
      for (const std::string& line : lines) restored += is_in("the job was reset to", line);
    CHECK(restored == 1);
  }
}

TEST_CASE("nan watch: it names the worker of the first NaN, and is certain only if the update before was finite") {
  const JobConfig config =
      config_of({.workers = 2, .chunk_bytes = 1024, .optimizer = {.lr = 0.5F}, .linger = Seconds(0)});
  Server server(config);
  LoopingWorker first(config, 0), second(config, 1);
  const std::vector<float> ones(kElements, 1.0F), nans(kElements, NAN);
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadOnly, outcome);
  REQUIRE(job);
  NanWatch watch(*job);
  second.worker.push(second.variable, ones);
  CHECK_FALSE(watch.look());
  first.worker.push(first.variable, nans);
  second.worker.push(second.variable, ones);
  const std::optional<NanFound> found = watch.look();
  REQUIRE(found);
  CHECK(found->suspects == std::vector<std::uint32_t>{0});
  CHECK(found->is_certain);
  for (int push = 0; push < 20; ++push) second.worker.push(second.variable, ones);  // reuse the buffer of that update
  const std::optional<NanFound> late = NanWatch(*job).look();
  REQUIRE(late);
  CHECK_FALSE(late->is_certain);
}

TEST_CASE("nan watch: in a large table it finds the row within one look at each share of the rows") {
  constexpr std::uint64_t kRows = 64, kRowSize = 1 << 14;  // more than one look takes
  TableJob job({.name = "items", .row_size = kRowSize, .max_rows = kRows});
  Keys keys = some_keys(kRows);
  job.push(keys, 1.0F);
  shm::AttachOutcome outcome;
  auto segments = shm::JobSegments::try_attach(job.config.job, shm::Access::kReadOnly, outcome);
  REQUIRE(segments);
  for (const std::uint64_t key : keys) {
    NanWatch watch(*segments);
    CHECK_FALSE(watch.look());
    std::vector<float> gradient(kRowSize);
    gradient[5] = NAN;
    job.table.push({&key, 1}, gradient);
    std::optional<NanFound> found;
    std::uint64_t looks = 0;
    while (!found && ++looks <= kRows) found = watch.look();
    REQUIRE(found);
    CHECK(found->table == "items");
    CHECK(found->key == key);
    CHECK(found->element == 5);
    CHECK(found->variable.empty());
    job.table.evict({&key, 1});
  }
}
