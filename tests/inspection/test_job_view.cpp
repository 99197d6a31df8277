// JobView on jobs that this process creates: what it shows, and that damage gives an error.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/worker_table.hpp"
#include "support/error_text.hpp"
#include "support/test_job.hpp"

namespace {

using namespace ps_shm;
using shm::VariableShm;
using test::contains, test::error_of;

// A job whose variables the test itself initialises and pushes to.
struct ViewedJob : test::TestJob {
  using TestJob::TestJob;

  VariableShm& declare(const std::string& variable, std::uint64_t elements, Layout layout = Layout::kVersioned) {
    VariableSpec spec;
    spec.name = variable;
    spec.shape = {elements};
    spec.rule = UpdateRule::kAdd;
    spec.layout = layout;
    shm::Directory directory(segments);
    return directory.at(directory.declare(spec, 0, shm::kTaskByte).front());
  }
  std::vector<float> initialise(VariableShm& record, float first) {
    std::vector<float> values(record.elements);
    std::iota(values.begin(), values.end(), first);
    if (record.layout == static_cast<std::uint32_t>(Layout::kInplace)) {
      std::copy(values.begin(), values.end(), shm::InplaceVariable(segments.shard_data(0), record).elements());
    } else {
      shm::VersionedVariable variable(segments.shard(0), record);
      for (std::uint64_t chunk = 0; chunk < variable.chunks(); ++chunk)
        variable.initialise_chunk(chunk,
                                  std::span(values).subspan(variable.chunk_begin(chunk), variable.chunk_size(chunk)));
    }
    record.init.store_release(shm::kInitialised);
    return values;
  }

  // One push of 1 to every element.
  void push_ones(VariableShm& record) {
    shm::VersionedVariable variable(segments.shard(0), record);
    shm::FreeBuffers free_buffers(segments, 0);
    const std::size_t floats = record.piece_elements;
    for (std::uint64_t chunk = 0; chunk < variable.chunks(); ++chunk)
      variable.push_chunk(chunk, free_buffers, {}, [&](float* out, const float* in, shm::ChunkPast) {
        for (std::size_t i = 0; i < floats; ++i) out[i] = in[i] + 1;
      });
  }
};

// A worker of the job with its own locks.
struct TestWorker {
  shm::JobSegments segments;
  std::uint32_t rank = 0;

  explicit TestWorker(const ViewedJob& job) : segments(job.attach()) {
    REQUIRE(shm::try_join(segments, std::nullopt, rank) == shm::JoinOutcome::kJoined);
  }
  shm::WorkerShm& entry() { return segments.worker(rank); }
};

}  // namespace

TEST_CASE("job view: a job that does not exist gives an error from the constructor and nothing from try_open") {
  const std::string job = fmt::format("test-{}-none", getpid());
  CHECK(contains(error_of([&] { JobView view(job); }), "there is no job '" + job + "'"));
  CHECK_FALSE(JobView::try_open(job).has_value());
}

TEST_CASE("job view: a name that would lead outside /dev/shm is refused") {
  CHECK(contains(error_of([] { JobView::try_open("../x"); }), "cannot name a job"));
}

TEST_CASE("job view: a sample has whole pieces from the entire variable, all of it if it is small") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    ViewedJob job;
    constexpr std::uint64_t kElements = 1'000'003;  // the last piece is shorter
    const std::vector<float> values = job.initialise(job.declare("w", kElements, layout), 0);
    const JobView view(job.name.text());
    const auto sampled = [&](std::uint64_t most) {
      const std::vector<std::byte> bytes = view.sample("w", most);
      std::vector<float> floats(bytes.size() / sizeof(float));
      std::memcpy(floats.data(), bytes.data(), bytes.size());
      return floats;
    };
    CHECK(sampled(kElements) == values);
    CHECK(sampled(2 * kElements) == values);
    const std::uint64_t piece = view.variables().front().parts.front().chunk_elements;
    const std::vector<float> one = sampled(1);
    REQUIRE(one.size() == piece);
    CHECK(std::equal(one.begin(), one.end(), values.begin()));
    const std::vector<float> some = sampled(kElements / 8);
    CHECK(some.size() > kElements / 16);
    CHECK(some.size() <= kElements / 8 + piece);
    for (std::size_t i = 0; i < some.size(); ++i) REQUIRE(some[i] == some[i - i % piece] + float(i % piece));
    CHECK(some.back() > 0.8F * kElements);
  }
}

TEST_CASE("job view: settings, sizes and owner are those that the ps has set") {
  ViewedJob job({.workers = 3, .optimizer = {.lr = 0.25F}, .steps = 70});
  const JobInfo info = JobView(job.name.text()).info();
  CHECK(info.config.job == job.name.text());
  CHECK(info.config.workers == 3);
  CHECK(info.config.max_workers == 16);
  CHECK(info.config.steps == 70);
  CHECK(info.config.optimizer.lr == 0.25F);
  CHECK(info.served);
  CHECK(info.ps_pid == static_cast<std::uint32_t>(getpid()));
  CHECK(info.instance == job.segments.instance());
  CHECK(info.bytes.control == job.segments.control().file_bytes());
  CHECK(info.bytes.total() == job.segments.control().file_bytes() + job.segments.shard(0).file_bytes());
  CHECK(info.bytes.values == 0);
  CHECK(info.bytes.free_buffers == job.segments.shard_data_offset());
  CHECK(info.global_step == 0);
  CHECK_FALSE(info.finished);
}

TEST_CASE("job view: once another job has the name, its snapshot is refused") {
  const test::JobName name;
  JobConfig config;
  config.job = name.text();
  std::optional<Server> server(config);
  const JobView view(name.text());
  server.reset();
  server.emplace(config);
  CHECK_THROWS_WITH_AS(view.snapshot(), doctest::Contains("has been replaced by another job"), Error);
}

TEST_CASE("job view: a job whose ps is gone is shown as not served") {
  ViewedJob job;
  job.segments.locks().release_all();
  CHECK_FALSE(JobView(job.name.text()).info().served);
}

TEST_CASE("job view: the job is finished when the global step has reached its last") {
  ViewedJob job({.steps = 5});
  job.segments.global_step().store_release(5);
  const JobInfo info = JobView(job.name.text()).info();
  CHECK(info.global_step == 5);
  CHECK(info.finished);
}

TEST_CASE("job view: values of both layouts, of one chunk and of many, are those that were written") {
  ViewedJob job;
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace})
    for (const std::uint64_t elements : {1, 7, 4096, 100003}) {
      VariableShm& record = job.declare(fmt::format("{}/{}", to_string(layout), elements), elements, layout);
      const std::vector<float> expected = job.initialise(record, 0.5F);
      CHECK(JobView(job.name.text()).values(record.name) == expected);
    }
}

TEST_CASE("job view: a push changes values, updates and digest") {
  ViewedJob job;
  VariableShm& record = job.declare("w", 1000);
  std::vector<float> expected = job.initialise(record, 1);
  const JobView view(job.name.text());
  const std::uint64_t before = view.digest();
  CHECK(view.digest() == before);
  CHECK(view.variables()[0].updates == 0);
  job.push_ones(record);
  for (float& value : expected) value += 1;
  CHECK(view.values("w") == expected);
  CHECK(view.variables()[0].updates == 1);
  CHECK(view.digest() != before);
}

TEST_CASE("job view: the digest depends on names and values, not on the order of declaration") {
  ViewedJob first, second, third;
  first.initialise(first.declare("a", 10), 1), first.initialise(first.declare("b", 20), 2);
  second.initialise(second.declare("b", 20), 2), second.initialise(second.declare("a", 10), 1);
  third.initialise(third.declare("a", 10), 1), third.initialise(third.declare("c", 20), 2);
  const std::uint64_t digest = JobView(first.name.text()).digest();
  CHECK(JobView(second.name.text()).digest() == digest);
  CHECK(JobView(third.name.text()).digest() != digest);
}

TEST_CASE("job view: an uninitialised variable is marked and its values are refused") {
  ViewedJob job;
  job.declare("later", 10);
  const JobView view(job.name.text());
  const std::vector<VariableInfo> variables = view.variables();
  REQUIRE(variables.size() == 1);
  CHECK(variables[0].name == "later");
  CHECK(variables[0].shape == std::vector<std::uint64_t>{10});
  CHECK(variables[0].bytes == 40);
  CHECK_FALSE(variables[0].initialised);
  CHECK(error_of([&] { view.values("later"); }) == "variable 'later' is not initialised yet");
  CHECK_NOTHROW(view.digest());
  CHECK(view.info().bytes.free_buffers == job.segments.shard_data_offset() + ((16ULL * shm::kFreeBuffersPerClass)
                                                                              << job.segments.record(0).buffer_class));
}

TEST_CASE("job view: an unknown variable's error lists the existing ones") {
  ViewedJob job;
  const JobView view(job.name.text());
  CHECK(contains(error_of([&] { view.values("x"); }), "has none"));
  job.declare("weights", 4);
  job.declare("bias", 4);
  CHECK(contains(error_of([&] { view.values("x"); }), "has weights, bias"));
}

TEST_CASE("job view: ranks that were never used are not listed; live, left and dead workers are told apart") {
  ViewedJob job;
  const JobView view(job.name.text());
  CHECK(view.workers().empty());
  TestWorker alive(job), gone(job);
  {
    TestWorker killed(job);  // closes its descriptor, which drops its lock as a death does
  }
  shm::leave(gone.segments, gone.rank);
  const std::vector<WorkerInfo> workers = view.workers();
  REQUIRE(workers.size() == 3);
  CHECK(workers[0].state == WorkerState::kAlive);
  CHECK(workers[1].state == WorkerState::kLeft);
  CHECK(workers[2].state == WorkerState::kDead);
  CHECK(workers[0].pid == static_cast<std::uint32_t>(getpid()));
  CHECK(workers[0].owners == 1);
}

TEST_CASE("job view: counters and staleness are those of the worker") {
  ViewedJob job;
  TestWorker worker(job);
  shm::counter(worker.entry(), shm::Counter::kPushes).bump_relaxed(12);
  shm::counter(worker.entry(), shm::Counter::kLossBits).store_relaxed(std::bit_cast<std::uint64_t>(0.75));
  for (const std::uint64_t staleness : {0, 1, 5}) shm::record_staleness(worker.entry(), staleness);
  const JobView view(job.name.text());
  const WorkerInfo info = view.workers().at(0);
  CHECK(info.pushes == 12);
  CHECK(info.loss == 0.75);
  CHECK(info.staleness.count == 3);
  CHECK(info.staleness.mean == doctest::Approx(2));
  CHECK(info.staleness.p50 == 1);
  CHECK(info.staleness.max == 5);
  CHECK(view.staleness().p99 == 5);
  const std::vector<StalenessCount> counts = view.staleness_counts();
  REQUIRE(counts.size() == 3);
  CHECK(counts[2].least == 5);
  CHECK(counts[2].count == 1);
}

TEST_CASE("job view: what a worker waits for is reported with the missing ranks") {
  ViewedJob job({.workers = 2});
  job.declare("w", 4);
  TestWorker first(job);
  const JobView view(job.name.text());
  const auto waiting = [&](shm::WaitingFor what, std::uint64_t on) {
    first.entry().waiting_on.store_relaxed(on);
    first.entry().waiting_for.store_release(static_cast<std::uint32_t>(what));
    return view.workers().at(0).waiting_for;
  };
  first.entry().barriers[0].published.store_release(1);
  CHECK(waiting(shm::WaitingFor::kNothing, 0).empty());
  CHECK(waiting(shm::WaitingFor::kStep, 0) == "step 0: 1 more to join");
  TestWorker second(job);
  CHECK(waiting(shm::WaitingFor::kStep, 0) == "step 0: rank 1");
  second.entry().barriers[0].published.store_release(1);
  CHECK(waiting(shm::WaitingFor::kStep, 0) == "step 0");
  CHECK(waiting(shm::WaitingFor::kBarrier, 0) == "barrier 0: ranks 0, 1");
  CHECK(waiting(shm::WaitingFor::kInitialised, 0) == "variable w to be initialised");
  CHECK(waiting(shm::WaitingFor::kInitialised, ~0ULL) == "a variable to be initialised");
  CHECK(waiting(shm::WaitingFor::kData, 0) == "the shared data to be loaded");
  CHECK(waiting(shm::WaitingFor::kVariable, 0) == "a variable to be declared");
  CHECK(waiting(shm::WaitingFor::kOthersLeft, 0) == "the other workers to leave");
  CHECK(waiting(shm::WaitingFor::kGpu, 0) == "gpu");
  CHECK(waiting(shm::WaitingFor::kSnapshotPoint, 7) == "snapshot 7");
  second.entry().pushing.store_release(8);  // after that snapshot point
  CHECK(waiting(shm::WaitingFor::kSnapshotPoint, 7) == "snapshot 7");
  second.entry().pushing.store_release(7);
  CHECK(waiting(shm::WaitingFor::kSnapshotPoint, 7) == "snapshot 7, for the push of rank 1");
  first.entry().pushing.store_release(1);
  CHECK(waiting(shm::WaitingFor::kSnapshotPoint, 7) == "snapshot 7, for the push of ranks 0, 1");
  CHECK(waiting(static_cast<shm::WaitingFor>(99), 0) == "something unknown");
}

TEST_CASE("job view: no worker is said to wait for a dead one") {
  ViewedJob job({.workers = 2});
  TestWorker waiting(job);
  { const TestWorker dead(job); }
  waiting.entry().barriers[0].published.store_release(1);
  waiting.entry().waiting_for.store_release(static_cast<std::uint32_t>(shm::WaitingFor::kStep));
  CHECK(JobView(job.name.text()).workers().at(0).waiting_for == "step 0");
}

TEST_CASE("job view: a job that can only be read can be viewed") {
  ViewedJob job;
  const std::vector<float> expected = job.initialise(job.declare("w", 100), 3);
  for (const std::string& name : {shm::control_name(job.name.text()), shm::shard_name(job.name.text(), 0)})
    REQUIRE(chmod(("/dev/shm/" + name).c_str(), 0400) == 0);
  CHECK(JobView(job.name.text()).values("w") == expected);
}

TEST_CASE("job view: a damaged control segment is refused") {
  ViewedJob job;
  shm::HeaderShm& header = job.segments.control().header();
  const auto alter = [&](const char* setting, const char* value) { test::alter_setting(job.segments, setting, value); };
  const auto refusal = [&] { return error_of([&] { JobView view(job.name.text()); }); };
  REQUIRE(refusal() == "none");

  SUBCASE("magic") { header.magic = 0; }
  SUBCASE("initial size beyond the file") { header.initial_bytes = header.reserved_bytes = 1ULL << 40; }
  SUBCASE("initial size below a header") { header.initial_bytes = 8; }
  SUBCASE("more ranks than the table has") { alter("max-workers", "255"); }
  SUBCASE("an impossible number of ranks") { alter("max-workers", "4294967295"); }
  SUBCASE("no shards") { alter("ps-tasks", "0"); }
  SUBCASE("an unknown mode") { alter("mode", "99"); }
  SUBCASE("a setting without a value") { alter("mode", ""); }
  SUBCASE("a value out of range") { alter("threads", "65"); }
  SUBCASE("an invalid value") { alter("momentum", "nan"); }
  SUBCASE("an empty value") { alter("lr", ""); }
  SUBCASE("bytes that are not text") { alter("place", "w\x1b[2J=0"); }
  SUBCASE("a zero byte") { job.segments.settings().text[3] = '\0'; }
  SUBCASE("a setting of another name") { job.segments.settings().text[0] = 'W'; }
  SUBCASE("the last line is truncated") { --job.segments.settings().bytes; }
  SUBCASE("the last setting is missing") {
    std::uint32_t& bytes = job.segments.settings().bytes;
    for (--bytes; job.segments.settings().text[bytes - 1] != '\n';) --bytes;
  }
  SUBCASE("too many settings") { alter("ema", "0\nema=0"); }
  SUBCASE("no settings") { job.segments.settings().bytes = 0; }
  SUBCASE("more text than fits") { job.segments.settings().bytes = sizeof(shm::SettingsShm); }
  CHECK(contains(refusal(), "is damaged"));
}

TEST_CASE("job view: a job of another version is refused with that reason") {
  ViewedJob job;
  job.segments.control().header().layout_version.store_release(shm::kLayoutVersion + 1);
  CHECK(contains(error_of([&] { JobView view(job.name.text()); }), "a layout version that differs"));
}

TEST_CASE("job view: numbers that point outside the segments are damage, not a crash") {
  ViewedJob job;
  VariableShm& record = job.declare("w", 100000);
  job.initialise(record, 1);
  const JobView view(job.name.text());
  REQUIRE(error_of([&] { view.values("w"); }) == "none");

  SUBCASE("words offset") { record.words_offset = 1ULL << 50; }
  SUBCASE("words offset that overflows") { record.words_offset = ~0ULL - 63; }
  SUBCASE("data offset") { record.data_offset = 1ULL << 50; }
  SUBCASE("elements") { record.elements = 1ULL << 39; }
  SUBCASE("elements and extent") { record.elements = record.extents[0] = 1ULL << 39; }
  SUBCASE("elements, extent and pieces") {
    record.elements = record.extents[0] = 1ULL << 39;
    record.pieces = (record.elements - 1) / record.piece_elements + 1;
  }
  SUBCASE("no elements") { record.elements = record.extents[0] = 0; }
  SUBCASE("pieces") { record.pieces = 1ULL << 60; }
  SUBCASE("no elements in a piece") { record.piece_elements = 0; }
  SUBCASE("slots") { record.slots = ~0ULL; }
  SUBCASE("pieces larger than a buffer") { record.piece_elements = 100000, record.pieces = 1; }
  SUBCASE("buffer class") { record.buffer_class = 63; }
  SUBCASE("axes") { record.axes = 1000; }
  SUBCASE("shard") { record.shard = 1; }
  SUBCASE("layout") { record.layout = 7; }
  SUBCASE("dtype") { record.dtype = 0; }
  SUBCASE("a dtype of another size") { record.dtype = std::uint32_t(DType::kInt64); }
  SUBCASE("a rule that the dtype does not support") {
    record.dtype = std::uint32_t(DType::kInt32), record.rule = std::uint32_t(UpdateRule::kSgd);
  }
  SUBCASE("a name without a terminator") { std::memset(record.name, 'x', sizeof record.name); }
  SUBCASE("index") { job.segments.index(0).store_release(5000); }
  SUBCASE("an index that names an empty record") { job.segments.index(1).store_release(9); }
  SUBCASE("the file is truncated") { REQUIRE(ftruncate(job.segments.shard(0).descriptor(), 4096) == 0); }
  SUBCASE("the control segment's file is truncated") {
    REQUIRE(ftruncate(job.segments.control().descriptor(), 4096) == 0);
    CHECK(contains(error_of([&] { view.workers(); }), "is damaged"));
    CHECK(contains(error_of([&] { view.staleness(); }), "is damaged"));
  }
  CHECK(contains(error_of([&] { view.values("w"); }), "is damaged"));
  CHECK(contains(error_of([&] { view.variables(); }), "is damaged"));
  CHECK(contains(error_of([&] { view.info(); }), "is damaged"));
  CHECK(contains(error_of([&] { view.digest(); }), "is damaged"));
}

TEST_CASE("job view: a word that names a buffer outside the shard is damage") {
  ViewedJob job;
  VariableShm& record = job.declare("w", 100000);
  job.initialise(record, 1);
  job.word(record, 2).store_release(shm::make_word(0, shm::kBufferMask));
  CHECK(contains(error_of([&] { JobView(job.name.text()).values("w"); }), "is damaged: chunk 2 of variable 'w'"));
}

TEST_CASE("job view: a chunk whose stamp never matches its word is torn, after a bounded time") {
  ViewedJob job;
  VariableShm& record = job.declare("w", 100000);
  job.initialise(record, 1);
  job.word(record, 1).store_release(shm::make_word(77, shm::buffer_of(job.word(record, 1).load_acquire())));
  CHECK(contains(error_of([&] { JobView(job.name.text()).values("w"); }), "chunk 1 of variable 'w' is torn"));
}
