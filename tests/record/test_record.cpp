#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/snapshot.hpp"
#include "ps_shm/worker.hpp"
#include "record/folder.hpp"
#include "record/order.hpp"
#include "record/recorder.hpp"
#include "record/replayer.hpp"
#include "support/folder.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

namespace {

using namespace ps_shm;
using record::Cursor;
using record::Order;
using record::Recorder;
using test::kSecond, test::ManualClock;
using What = record::Event::What;

// A recorder that is told about chunks of one variable, without a job.
class Told {
 public:
  Told(const std::string& folder, std::uint32_t rank, std::uint64_t pieces = 1) : recorder_(folder, rank) {
    recorder_.examples_before(0);
    recorder_.declare("w", pieces, 10 * pieces);
  }

  Told& pull(std::uint64_t version) {
    recorder_.begin_pull(0);
    recorder_.pulled(version);
    return *this;
  }
  Told& try_push(std::uint64_t version) {
    recorder_.begin_push(0, 7, 0);
    recorder_.before_push(part_, 0);
    recorder_.trying(version);
    return *this;
  }
  Told& push(std::uint64_t version) {
    try_push(version);
    recorder_.pushed(version);
    return *this;
  }
  Recorder& recorder() { return recorder_; }

 private:
  Recorder recorder_;
  shm::VariableShm variable_{};
  shm::Segment shard_;
  shm::VersionedVariable part_{shard_, variable_};
};

Order order_of(const std::string& folder) { return record::Records(folder).order(); }

TEST_CASE("record: what was written is read, even while its writer lives") {
  const test::Folder folder;
  Told told(folder.path(), 3, 2);
  Recorder& recorder = told.recorder();
  recorder.begin_pull(0);
  recorder.pulled(5);
  recorder.pulled(1000);
  recorder.begin_update({40, 0.5F, 1.0F, 0.9F, 0.8F});
  recorder.begin_push(0, 0xffffffff, 1);
  const shm::VariableShm variable{};
  const shm::Segment shard;
  recorder.before_push({shard, variable}, 1);
  recorder.trying(1001);
  recorder.trying(1700);
  recorder.pushed(1700);
  recorder.before_step();
  recorder.counted(41);
  CHECK(recorder.is_finished(true));
  const record::MappedFile file(record::file_of(folder.path(), 3, 1));
  Cursor cursor("", file.bytes());
  CHECK(cursor.header().rank == 3);
  CHECK(cursor.peek().what == What::kVariable);
  CHECK(cursor.variables().back().name == "w");
  cursor.next();
  CHECK(cursor.peek().what == What::kBeginPull);
  cursor.next();
  CHECK(cursor.peek().version == 5);
  cursor.next();
  CHECK(cursor.peek().version == 1000);
  CHECK(cursor.peek().piece == 1);
  cursor.next();
  CHECK(cursor.peek().what == What::kRates);
  CHECK(cursor.peek().facts.rate == 0.5F);
  CHECK(cursor.peek().facts.clip == 1.0F);
  CHECK(cursor.peek().facts.momentum == 0.9F);
  CHECK(cursor.peek().facts.beta1 == 0.8F);
  cursor.next();
  CHECK(cursor.peek().step == 40);
  cursor.next();
  CHECK(cursor.peek().check == 0xffffffff);
  cursor.next();
  CHECK(cursor.peek().what == What::kPush);
  CHECK(cursor.peek().version == 1700);
  CHECK_FALSE(cursor.peek().is_tried);
  // The push's second piece has no event.
  CHECK_THROWS_WITH_AS(cursor.next(), doctest::Contains("never tried"), Error);
}

TEST_CASE("record: a killed worker's last push counts if another has seen it, and only then") {
  for (const bool was_seen : {false, true}) {
    const test::Folder folder;
    Told killed(folder.path(), 0), other(folder.path(), 1);
    killed.pull(0).push(0).try_push(1);
    other.pull(was_seen ? 2 : 1);
    const Order order = order_of(folder.path());
    CHECK(order.pushes() == (was_seen ? 2 : 1));
    CHECK(order.was_made(0, 1, 0) == was_seen);
    CHECK(order.pulls(0, was_seen ? 2 : 1) == 1);
  }
}

TEST_CASE("record: a worker killed within any chunk of a variable leaves a readable record") {
  for (const std::uint64_t pieces : {1, 2, 3})
    for (std::uint64_t done = 0; done < pieces; ++done) {
      const test::Folder folder;
      Told killed(folder.path(), 0, pieces);
      killed.recorder().begin_push(0, 7, 0);
      shm::VariableShm variable{};
      const shm::Segment shard;
      const shm::VersionedVariable part(shard, variable);
      for (std::uint64_t piece = 0; piece <= done; ++piece) {
        killed.recorder().before_push(part, piece);
        killed.recorder().trying(0);
        if (piece < done) killed.recorder().pushed(0);
      }
      CHECK(order_of(folder.path()).pushes() == done);
      const std::string file = record::file_of(folder.path(), 0, 1);
      std::ifstream written(file, std::ios::binary);
      std::string bytes(std::istreambuf_iterator<char>(written), {});
      bytes.resize(bytes.find_last_not_of('\0') + 1);
      std::ofstream(file, std::ios::binary) << bytes << '\x05';  // followed by one more byte
      CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("goes on after a push"), Error);
    }
}

TEST_CASE("record: of two killed workers' last pushes the one whose version is missing counts") {
  const test::Folder folder;
  Told first(folder.path(), 0), second(folder.path(), 1);
  first.push(0).try_push(2);
  second.push(1).push(3).try_push(4);
  const Order order = order_of(folder.path());
  CHECK(order.was_made(0, 2, 0));
  CHECK_FALSE(order.was_made(0, 4, 1));
}

TEST_CASE("record: a killed worker's last step fills a gap if its lives' steps allow it, else ends its record") {
  const test::Folder folder;
  Told first(folder.path(), 0), other(folder.path(), 1);
  const auto step = [](Told& told, std::uint64_t behind) {
    told.recorder().before_step();
    told.recorder().counted(behind);
  };
  step(first, 1);
  first.recorder().before_step();
  Told second(folder.path(), 0);
  step(second, 2);
  other.recorder().before_step();
  Told last(folder.path(), 1);
  step(last, 4);
  const Order order = order_of(folder.path());
  CHECK_FALSE(order.last_step(0));  // its next life has counted the only step that was free for it
  CHECK(order.last_step(2) == 2);
}

TEST_CASE("record: a call that has thrown is the last event in its record") {
  const test::Folder folder;
  {
    Told told(folder.path(), 0, 2);
    told.recorder().begin_pull(0);
    told.recorder().pulled(0);
    CHECK(told.recorder().is_finished(true));
    told.recorder().leave();
  }
  CHECK(order_of(folder.path()).pulls(0, 0) == 1);
}

TEST_CASE("record: a forked child does not change its parent's record") {
  const test::Folder folder;
  std::optional<Recorder> recorder(std::in_place, folder.path(), 0);
  const std::string path = record::file_of(folder.path(), 0, 1);
  const auto size = std::filesystem::file_size(path);
  const pid_t child = fork();
  if (child == 0) {
    recorder.reset();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  CHECK(std::filesystem::file_size(path) == size);
  recorder.reset();
  CHECK(std::filesystem::file_size(path) < size);
}

TEST_CASE("record: all variables together have no more chunks than a reader accepts") {
  const test::Folder folder;
  Told told(folder.path(), 0, record::kMaxPieces - 1);
  CHECK_THROWS_WITH_AS(told.recorder().declare("v", 2, 20), doctest::Contains("too many chunks"), Error);
  told.recorder().declare("v", 1, 10);
  CHECK_NOTHROW(Cursor("", record::MappedFile(record::file_of(folder.path(), 0, 1)).bytes()).next());
}

TEST_CASE("record: impossible orders are refused") {
  const test::Folder folder;
  SUBCASE("a version made twice") {
    Told(folder.path(), 0).push(0);
    Told(folder.path(), 1).push(0);
    CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("twice"), Error);
  }
  SUBCASE("a pulled version that no push made") {
    Told(folder.path(), 0).pull(1);
    CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("no push has made"), Error);
  }
  SUBCASE("each waits for a later event of the other") {
    Told(folder.path(), 0).push(1).pull(0);
    Told(folder.path(), 1).push(0);
    CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("waits for a later event"), Error);
  }
  SUBCASE("a step that nobody has counted") {
    Told told(folder.path(), 0);
    told.recorder().before_step();
    told.recorder().counted(2);
    CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("a step is in none"), Error);
  }
  SUBCASE("a missing life") {
    Told(folder.path(), 0).push(0);
    std::filesystem::rename(record::file_of(folder.path(), 0, 1), record::file_of(folder.path(), 0, 2));
    CHECK_THROWS_WITH_AS(order_of(folder.path()), doctest::Contains("worker-0.1"), Error);
  }
}

TEST_CASE("record: a job without a recordable order is refused, with the reason") {
  const test::Folder folder;
  JobConfig config = test::config_of();
  std::uint32_t threads = 1;
  const char* reason = nullptr;
  SUBCASE("synchronous steps") { config.mode = Mode::kSync, reason = "mode sync has no order"; }
  SUBCASE("threads") { config.threads = threads = 2, reason = "`threads` 2 have no order"; }
  SUBCASE("as many threads as the job allows") {
    config.threads = 3, threads = 0, reason = "`threads` 3 have no order";
  }
  SUBCASE("a checkpoint") {
    JobConfig first = test::config_of();
    const Server server(first);
    Worker worker(test::options(first, 0));
    worker.variable(test::vector_of(10), test::zero);
    config.restore = Checkpoint::save(JobView(first.job), folder.path("checkpoints"));
    reason = "needs a job that starts from scratch";
  }
  SUBCASE("none") {}
  Server server(config);
  const auto join = [&] {
    WorkerOptions options = test::options(config, 0, threads);
    options.record = folder.path();
    return Worker(options);
  };
  if (reason != nullptr) {
    CHECK_THROWS_WITH_AS(join(), doctest::Contains(reason), Error);
    return;
  }
  Worker worker = join();
  VariableSpec spec = test::vector_of(10);
  const Variable variable = worker.variable(spec, test::zero);
  std::vector<float> out(10);
  Versions since;
  CHECK_THROWS_WITH_AS(worker.snapshot(), doctest::Contains("a snapshot cannot be recorded or replayed"), Error);
  CHECK_THROWS_WITH_AS(worker.pull_if_changed(variable, out, since), doctest::Contains("pull_if_changed cannot be"),
                       Error);
  CHECK_THROWS_WITH_AS(worker.pull_all(std::array{variable}, std::array{std::span<float>(out)}),
                       doctest::Contains("pull_all cannot be"), Error);
  CHECK_THROWS_WITH_AS(worker.push(std::array{variable}, std::array{std::span<const float>(out)},
                                   std::array{std::span<float>(out)}, std::span(&since, 1)),
                       doctest::Contains("a push that copies back cannot be"), Error);
  spec.name = "inplace", spec.layout = Layout::kInplace;
  CHECK_THROWS_WITH_AS(worker.variable(spec, test::zero), doctest::Contains("declare it versioned"), Error);
}

TEST_CASE("record: assignments and sums are recorded in order") {
  const test::Folder folder;
  const JobConfig config = test::config_of();
  {
    Server server(config);
    WorkerOptions given = test::options(config, 0);
    given.record = folder.path();
    Worker worker(given);
    const Variable variable = worker.variable(test::vector_of(10), test::zero);
    worker.assign(variable, std::vector<float>(10, 4.0F));
    worker.add(variable, std::vector<float>(10, 0.5F));
    std::vector<float> out(10);
    worker.pull(variable, out);
    CHECK(out == std::vector<float>(10, 4.5F));
  }
  const Order order = order_of(folder.path());
  CHECK(order.pushes() == 2);
  CHECK(order.pulls(0, 2) == 1);
}

TEST_CASE("record: a recorded worker's reset sets adam's count to zero (slot.V15)") {
  const test::Folder folder;
  const JobConfig config =
      test::config_of({.optimizer = {.rule = UpdateRule::kAdam, .lr = 0.5F, .beta1 = 0.5F, .beta2 = 0.75F}});
  Server server(config);
  WorkerOptions given = test::options(config, 0);
  given.record = folder.path();
  Worker worker(given);
  const Variable variable = worker.variable(test::vector_of(10, std::nullopt), test::zero);
  const std::vector<float> gradient(10, 3.0F);
  for (int push = 0; push < 3; ++push) worker.push(variable, gradient);
  worker.assign(variable, std::vector<float>(10, 8.0F), Slots::kReset);
  worker.push(variable, gradient);
  worker.add(variable, std::vector<float>(10, 0.0F));
  worker.push(variable, gradient);
  for (const float value : test::pulled(worker, variable)) CHECK(value == doctest::Approx(7).epsilon(1e-5));
}

TEST_CASE("record: a recording longer than what is mapped at a time is complete") {
  const test::Folder folder;
  constexpr std::uint64_t kPushes = 300'000;  // of 5 bytes or more
  {
    Told told(folder.path(), 0);
    for (std::uint64_t version = 0; version < kPushes; ++version) told.push(version);
  }
  CHECK(order_of(folder.path()).pushes() == kPushes);
}

TEST_CASE("record: a header with another rank, life or number of examples than was written is refused") {
  const test::Folder folder;
  Told(folder.path(), 0).recorder().examples_before(1'000'000);
  const std::string path = record::file_of(folder.path(), 0, 1);
  std::ifstream in(path, std::ios::binary);
  const std::string written{std::istreambuf_iterator<char>(in), {}};
  CHECK(Cursor(path, std::as_bytes(std::span(written))).header().examples_before() == 1'000'000);
  for (std::size_t byte = 0; byte < sizeof(record::Header); ++byte) {
    std::string damaged = written;
    damaged[byte] ^= 0x10;
    CHECK_THROWS_AS(Cursor(path, std::as_bytes(std::span(damaged))), Error);
  }
}

TEST_CASE("record: a worker that was killed before its first event is left out") {
  const test::Folder folder;
  std::ofstream(record::file_of(folder.path(), 0, 1)).flush();
  Told(folder.path(), 0).push(0);
  const record::Records records(folder.path());
  CHECK(records.lives_of(0) == 1);
  CHECK(records.cursor(*records.find(0, 1)).header().life == 2);
}

}  // namespace
