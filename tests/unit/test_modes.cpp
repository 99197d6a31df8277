// What a worker promises in each mode: staleness bounds, quorums, atomic reduction, threads, optimizers.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/job_view.hpp"
#include "ps/server.hpp"
#include "ps/worker.hpp"
#include "shm/directory.hpp"
#include "shm/spares.hpp"
#include "support/conservation.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"
#include "update/rules.hpp"

using namespace ps;

namespace {

JobConfig settings(std::uint32_t workers, Mode mode) {
  JobConfig config;
  config.job = test::unique_job_name();
  config.workers = workers;
  config.mode = mode;
  config.step_timeout_seconds = 20;
  return config;
}

WorkerOptions options(const JobConfig& config, std::optional<std::uint32_t> rank = {}, std::uint32_t threads = 1) {
  WorkerOptions given;
  given.job = config.job;
  given.rank = rank;
  given.threads = threads;
  given.notice = [](const std::string&) {};
  return given;
}

void zero(std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); }

VariableSpec vector_of(std::uint64_t elements, UpdateRule rule = UpdateRule::kAdd) {
  return {.name = "v", .shape = {elements}, .rule = rule};
}

WorkerInfo info_of(const JobConfig& config, std::uint32_t rank) {
  for (const WorkerInfo& worker : JobView(config.job).workers())
    if (worker.rank == rank) return worker;
  return {};
}

// A worker's step() that may have to wait, in a thread of its own.
struct Stepping {
  std::atomic<bool> done{false};
  std::chrono::steady_clock::time_point end;
  std::thread thread;

  explicit Stepping(Worker& worker)
      : thread([this, &worker] {
          worker.step();
          end = std::chrono::steady_clock::now();
          done = true;
        }) {}
  ~Stepping() { finish(); }
  void finish() {
    if (thread.joinable()) thread.join();
  }
  bool is_waiting() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));  // four slices
    return !done;
  }
  double milliseconds_since(std::chrono::steady_clock::time_point start) {
    finish();
    return std::chrono::duration<double, std::milli>(end - start).count();
  }
};

constexpr double kSoonMs = 500;  // a slice is 10 ms; the rest is for a busy machine

// Whether of each shard and class every buffer is named once. Requires: nobody pushes.
bool is_conserved(const JobConfig& config) {
  shm::AttachOutcome outcome;
  auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
  const shm::Directory directory(*job);
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const shm::VariableShm*>> classes;
  for (std::uint32_t position = 0; position < directory.count(); ++position)
    classes[{directory.at(position).shard, directory.at(position).buffer_class}].push_back(&directory.at(position));
  for (const auto& [where, records] : classes) {
    std::map<std::uint64_t, int> names;
    const std::uint64_t spares = records.front()->spares_offset >> where.second;
    for (std::uint64_t i = 0; i < job->lanes() * shm::kSparesPerClass; ++i) names[spares + i] = 0;
    for (const shm::VariableShm* record : records)
      for (std::uint64_t chunk = 0; chunk < record->pieces; ++chunk)
        names[(record->data_offset >> where.second) + chunk] = 0;
    for (const shm::VariableShm* record : records) {
      const auto* words =
          reinterpret_cast<const shm::PieceWordShm*>(job->shard_data(where.first) + record->words_offset);
      for (std::uint64_t chunk = 0; chunk < record->pieces; ++chunk)
        ++names[shm::buffer_of(words[chunk].word.load_acquire())];
    }
    for (std::uint32_t lane = 0; lane < job->lanes(); ++lane)
      for (std::uint32_t which = 0; which < shm::kSparesPerClass; ++which) {
        const shm::SpareShm& spare = job->spare_table(where.first, lane).spares[where.second - shm::kMinClass][which];
        ++names[shm::spare_buffer(spare.record.load_acquire(), *records.front(), lane, which)];
      }
    for (const auto& [buffer, times] : names)
      if (times != 1) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("threads: a killed worker's lanes are settled by its successor, and no buffer is lost") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(to_string(reduce));
    JobConfig config = settings(1, reduce == Reduce::kAtomic ? Mode::kSync : Mode::kAsync);
    config.reduce = reduce;
    config.threads = 4;
    Server server(config);
    for (int round = 0; round < 15; ++round) {
      const test::Bell ready;
      test::Child child([&] {
        Worker worker(options(config, 0, 4));
        const Variable variable = worker.variable(vector_of(400'000), zero);
        const std::vector<float> ones(400'000, 1.0F);
        worker.push(variable, ones);
        ready.tell();
        for (;;) {
          worker.step();
          worker.push(variable, ones);
        }
        return 0;
      });
      REQUIRE(ready.hear());
      usleep(static_cast<useconds_t>(500 + 531 * round));
      child.kill();
      { const Worker heir(options(config, 0)); }
      CHECK(is_conserved(config));
    }
  }
}

TEST_CASE("threads: what each lane of a dead rank had in flight is settled, whichever side of its swap it was") {
  JobConfig config = test::with_small_chunks();
  config.threads = 3;
  for (std::uint32_t swapped = 0; swapped < 8; ++swapped) {
    CAPTURE(swapped);
    test::TestJob job(config);
    shm::VariableShm& record = job.declare("v", 2000);
    REQUIRE(record.pieces >= 3);
    for (std::uint32_t thread = 0; thread < 3; ++thread) {
      shm::Spares spares(job.segments, job.segments.lane(5, thread));
      std::uint64_t old = job.word(record, thread).load_acquire();
      const shm::Spare spare = spares.begin(record, record.first_chunk + thread, old);
      job.buffer(record, spare.buffer).stamp.store_release(shm::kBuilding);
      if ((swapped >> thread & 1) == 0) continue;
      const std::uint64_t next = shm::make_word(1, spare.buffer);
      job.buffer(record, spare.buffer).stamp.store_release(shm::make_stamp(record.first_chunk + thread, 1));
      REQUIRE(job.word(record, thread).try_exchange_acq_rel(old, next));
    }
    shm::JobSegments heir = job.attach();
    REQUIRE(heir.locks().try_take(shm::kRankByte + 5));
    shm::settle_spares(heir, 5, heir.locks());
    CHECK(test::is_conserved(job, {&record}));
    for (std::uint32_t thread = 0; thread < 3; ++thread)
      for (std::uint32_t which = 0; which < shm::kSparesPerClass; ++which)
        CHECK((job.spare(record, job.segments.lane(5, thread), which).record.load_acquire() >> 62 & 1) == 0);
  }
}

TEST_CASE("ssp: a bound that is large enough never makes anybody wait") {
  JobConfig config = settings(2, Mode::kSsp);
  config.staleness = 1000;
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  for (int step = 0; step < 1000; ++step) fast.step();
  CHECK(info_of(config, 0).lead_max == 1000);
  Stepping beyond(fast);
  CHECK(beyond.is_waiting());
  CHECK(test::eventually([&] { return info_of(config, 0).waiting_for.find("rank 1") != std::string::npos; }));
  slow.step();
  beyond.finish();
  CHECK(info_of(config, 0).lead_max == 1000);
  CHECK(info_of(config, 1).lead_max == 0);
}

TEST_CASE("ssp: a worker that leaves lets the others go on") {
  JobConfig config = settings(2, Mode::kSsp);
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  Stepping step(fast);
  CHECK(step.is_waiting());
  const auto start = std::chrono::steady_clock::now();
  slow.leave();
  CHECK(step.milliseconds_since(start) < kSoonMs);
}

TEST_CASE("ssp: a stopped worker holds the others up, its death lets them go on") {
  JobConfig config = settings(2, Mode::kSsp);
  config.staleness = 1;
  Server server(config);
  const test::Bell ready;
  test::Child child([&] {
    Worker worker(options(config, 1));
    ready.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(ready.hear());
  Worker worker(options(config, 0));
  worker.step();
  ::kill(child.pid(), SIGSTOP);
  Stepping step(worker);
  CHECK(step.is_waiting());
  const auto start = std::chrono::steady_clock::now();
  child.kill();
  CHECK(step.milliseconds_since(start) < kSoonMs);
  for (int i = 0; i < 100; ++i) worker.step();
}

TEST_CASE("ssp: a late joiner begins where the slowest is, and holds nobody up") {
  JobConfig config = settings(1, Mode::kSsp);
  config.staleness = 2;
  Server server(config);
  Worker first(options(config));
  for (int step = 0; step < 500; ++step) first.step();
  const Worker late(options(config));
  CHECK(info_of(config, 1).clock == 500);
  first.step();
  first.step();
  CHECK(info_of(config, 0).lead_max == 2);
}

TEST_CASE("ssp: a wait beyond the time-out names whom it was for") {
  JobConfig config = settings(2, Mode::kSsp);
  config.step_timeout_seconds = 0.05;
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  CHECK_THROWS_WITH_AS(fast.step(), doctest::Contains("rank 1"), Error);
}

TEST_CASE("ssp: the job's last step and its end wake who waits") {
  JobConfig config = settings(2, Mode::kSsp);
  config.steps = 2;
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  Stepping step(fast);
  CHECK(step.is_waiting());
  slow.step();  // the last step
  step.finish();
  CHECK(fast.finished());
}

TEST_CASE("ssp: a change to async, or of the bound, lets a waiting worker go on") {
  for (const bool to_async : {true, false}) {
    CAPTURE(to_async);
    const JobConfig config = settings(2, Mode::kSsp);
    Server server(config);
    Worker fast(options(config)), slow(options(config));
    Stepping step(fast);
    CHECK(step.is_waiting());
    JobControl control(config.job);
    LiveSettings wanted = control.current();
    if (to_async)
      wanted.mode = Mode::kAsync;
    else
      wanted.staleness = 1;
    const auto start = std::chrono::steady_clock::now();
    control.change(wanted);
    CHECK(step.milliseconds_since(start) < kSoonMs);
  }
}

TEST_CASE("ssp: from async to ssp the steps of before hold nobody up, those since do") {
  const JobConfig config = settings(2, Mode::kAsync);
  Server server(config);
  Worker fast(options(config)), slow(options(config));
  for (int i = 0; i < 50; ++i) fast.step();
  JobControl control(config.job);
  LiveSettings wanted = control.current();
  wanted.mode = Mode::kSsp;
  wanted.staleness = 1;
  control.change(wanted);
  CHECK(fast.live().mode == Mode::kSsp);
  slow.step();  // each enters at the end of its step
  fast.step();
  fast.step();
  Stepping step(fast);
  CHECK(step.is_waiting());
  slow.step();
  step.finish();
  CHECK(info_of(config, 0).lead_max == 1);
}

TEST_CASE("quorum: a gradient that comes too late is dropped, counted, and in no later step") {
  JobConfig config = settings(2, Mode::kSync);
  config.quorum = 1;
  Server server(config);
  Worker first(options(config)), late(options(config));
  const Variable a = first.variable(vector_of(10), zero), b = late.variable(vector_of(10), zero);
  late.push(b, std::vector<float>(10, 100.0F));
  first.push(a, std::vector<float>(10, 1.0F));
  CHECK(first.step() == 1);
  CHECK(JobView(config.job).values("v") == std::vector<float>(10, 1.0F));
  CHECK(late.step() == 1);
  CHECK(info_of(config, 1).dropped == 1);
  CHECK(info_of(config, 0).dropped == 0);
  late.push(b, std::vector<float>(10, 2.0F));
  CHECK(late.step() == 2);
  CHECK(JobView(config.job).values("v") == std::vector<float>(10, 3.0F));
  first.push(a, std::vector<float>(10, 4.0F));
  CHECK(first.step() == 3);
  CHECK(JobView(config.job).values("v") == std::vector<float>(10, 7.0F));
  CHECK(info_of(config, 1).dropped == 1);
}

TEST_CASE("quorum: a job has as many steps as it was given, also for a worker that comes too late for the last one") {
  JobConfig config = settings(2, Mode::kSync);
  config.quorum = 1;
  config.steps = 3;
  Server server(config);
  Worker first(options(config)), late(options(config));
  const Variable a = first.variable(vector_of(4), zero), b = late.variable(vector_of(4), zero);
  REQUIRE_FALSE(late.finished());
  for (int step = 0; step < 3; ++step) {
    first.push(a, std::vector<float>(4, 1.0F));
    first.step();
  }
  late.push(b, std::vector<float>(4, 100.0F));
  late.step();
  CHECK(server.global_step() == 3);
  CHECK(JobView(config.job).values("v") == std::vector<float>(4, 3.0F));
}

TEST_CASE("quorum: with fewer alive than the quorum the steps go on, and that is one event") {
  JobConfig config = settings(3, Mode::kSync);
  config.quorum = 3;
  Server server(config);
  Worker a(options(config));
  { const Worker left(options(config)), gone(options(config)); }
  const Variable variable = a.variable(vector_of(4), zero);
  for (int step = 0; step < 5; ++step) {
    a.push(variable, std::vector<float>(4, 1.0F));
    a.step();
  }
  CHECK(JobView(config.job).values("v") == std::vector<float>(4, 5.0F));
  int told = 0;
  for (const Event& event : JobView(config.job).events()) told += event.kind == "short-quorum";
  CHECK(told == 1);
}

TEST_CASE("reduce atomic: a late gradient changes nothing of a later step") {
  JobConfig config = settings(2, Mode::kSync);
  config.quorum = 1;
  config.reduce = Reduce::kAtomic;
  Server server(config);
  Worker first(options(config)), late(options(config));
  const Variable a = first.variable(vector_of(3000), zero), b = late.variable(vector_of(3000), zero);
  first.push(a, std::vector<float>(3000, 1.0F));
  first.step();
  late.push(b, std::vector<float>(3000, 8.0F));  // for step 1, in time
  first.push(a, std::vector<float>(3000, 2.0F));
  first.step();
  CHECK(JobView(config.job).values("v") == std::vector<float>(3000, 11.0F));
  late.step();
  CHECK(info_of(config, 1).dropped == 1);  // it was in the sum, not in the decision
  first.push(a, std::vector<float>(3000, 4.0F));
  first.step();
  CHECK(JobView(config.job).values("v") == std::vector<float>(3000, 15.0F));
}

TEST_CASE("reduce atomic: the mean is over those who pushed, a variable that nobody pushed stays") {
  JobConfig config = settings(3, Mode::kSync);
  config.reduce = Reduce::kAtomic;
  config.optimizer.learning_rate = 1.0F;
  Server server(config);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      Worker worker(options(config, rank));
      const Variable all = worker.variable(vector_of(5000, UpdateRule::kSgd), zero);
      const Variable two = worker.variable({.name = "two", .shape = {5}, .rule = UpdateRule::kSgd}, zero);
      worker.variable({.name = "none", .shape = {5}, .rule = UpdateRule::kSgd}, zero);
      for (int step = 0; step < 10; ++step) {
        worker.push(all, std::vector<float>(5000, float(3 * rank)));
        if (rank != 0) worker.push(two, std::vector<float>(5, float(4 * rank)));
        worker.push(all, std::vector<float>(5000, 1.0F));  // a second one counts as the same contributor
        worker.step();
      }
    });
  for (std::thread& thread : threads) thread.join();
  const JobView view(config.job);
  CHECK(view.values("v") == std::vector<float>(5000, -40.0F));
  CHECK(view.values("two") == std::vector<float>(5, -60.0F));
  CHECK(view.values("none") == std::vector<float>(5, 0.0F));
  CHECK(shm::list_segments(shm::control_name(config.job) + ".w").empty());
  CHECK(is_conserved(config));
}

TEST_CASE("threads: pulls, pushes and steps give the same values with any number of threads, and lose no buffer") {
  struct Kind {
    Mode mode;
    Reduce reduce;
    Placement placement;
    Layout layout;
  };
  for (const Kind& kind : {Kind{Mode::kAsync, Reduce::kOrdered, Placement::kRoundRobin, Layout::kVersioned},
                           Kind{Mode::kAsync, Reduce::kOrdered, Placement::kRoundRobin, Layout::kInplace},
                           Kind{Mode::kSync, Reduce::kOrdered, Placement::kPartition, Layout::kVersioned},
                           Kind{Mode::kSync, Reduce::kAtomic, Placement::kPartition, Layout::kVersioned}}) {
    std::vector<float> first;
    for (std::uint32_t threads = 1; threads <= 4; ++threads) {
      CAPTURE(threads);
      JobConfig config = settings(1, kind.mode);
      config.reduce = kind.reduce;
      config.placement = kind.placement;
      config.tasks = 2;
      config.layout = kind.layout;
      config.threads = threads;
      const UpdateRule rule = kind.layout == Layout::kInplace ? UpdateRule::kSgd : UpdateRule::kMomentum;
      config.optimizer.rule = rule;
      Server server(config);
      Worker worker(options(config, 0, threads));
      const Variable variable = worker.variable(vector_of(400'003, rule), [](std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = float(i % 1009) / 7;
      });
      std::vector<float> values(400'003);
      for (int step = 0; step < 4; ++step) {
        worker.pull(variable, values);
        for (float& value : values) value = value / 3 + float(step);
        worker.push(variable, values);
        worker.push(variable, values);
        worker.step();
      }
      worker.pull(variable, values);
      CHECK(values == JobView(config.job).values("v"));
      if (threads == 1) first = values;
      CHECK(values == first);
      if (kind.layout == Layout::kVersioned) CHECK(is_conserved(config));
    }
  }
}

TEST_CASE("threads: several workers with several threads each lose no push and no buffer") {
  JobConfig config = settings(3, Mode::kAsync);
  config.threads = 3;
  Server server(config);
  std::vector<std::thread> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    workers.emplace_back([&, rank] {
      Worker worker(options(config, rank, 1 + rank));
      const Variable variable = worker.variable(vector_of(300'000), zero);
      const std::vector<float> ones(300'000, 1.0F);
      std::vector<float> out(300'000);
      for (int step = 0; step < 20; ++step) {
        worker.push(variable, ones);
        worker.pull(variable, out);
      }
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(JobView(config.job).values("v") == std::vector<float>(300'000, 60.0F));
  CHECK(is_conserved(config));
}

TEST_CASE("threads: more than the job allows is refused, naming the option") {
  JobConfig config = settings(1, Mode::kAsync);
  config.threads = 2;
  Server server(config);
  CHECK_THROWS_WITH_AS(Worker(options(config, {}, 3)), doctest::Contains("--threads 3"), Error);
  CHECK_NOTHROW(Worker(options(config, {}, 2)));
  CHECK_NOTHROW(Worker(options(config, {}, 0)));
}

namespace {

constexpr std::uint64_t kElements = 3001;
constexpr UpdateRule kOptimizers[] = {UpdateRule::kSgd,     UpdateRule::kMomentum, UpdateRule::kNesterov,
                                      UpdateRule::kAdagrad, UpdateRule::kRmsProp,  UpdateRule::kAdam,
                                      UpdateRule::kAdamW,   UpdateRule::kFtrl};

float first_value(std::size_t i) { return float(int(i % 13) - 6) / 5; }
float gradient_at(std::uint32_t rank, int step, std::size_t i) {
  return float(int((i * 7 + static_cast<std::size_t>(step) * 31 + rank * 17) % 101) - 50) / 40;
}

std::vector<float> gradient(std::uint32_t rank, int step) {
  std::vector<float> out(kElements);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = gradient_at(rank, step, i);
  return out;
}

JobConfig optimizing(std::uint32_t workers, Mode mode, UpdateRule rule) {
  JobConfig config = settings(workers, mode);
  config.optimizer.rule = rule;
  config.optimizer.learning_rate = 0.05F;
  config.optimizer.schedule = Schedule::parse("exp:0.5:4");
  config.optimizer.l1 = 0.01F;
  config.optimizer.l2 = 0.02F;
  config.optimizer.weight_decay = 0.03F;
  config.optimizer.clip_value = 1.0F;
  config.optimizer.ema = 0.7F;
  return config;
}

VariableSpec regular(UpdateRule rule) {
  VariableSpec spec = vector_of(kElements, rule);
  spec.regularize = true;
  return spec;
}

void first_values(std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = first_value(i);
}

// The same variable in private memory.
struct Twin {
  update::Settings settings;
  std::size_t arrays;
  std::vector<float> now, next;

  Twin(const JobConfig& config, UpdateRule rule)
      : settings(update::settings_of(config.optimizer, rule, true)), arrays(1 + update::slots_per_element(settings)) {
    now.resize(arrays * kElements);
    next.resize(arrays * kElements);
    first_values(std::span(now).first(kElements));
    update::initialise_slots(settings, 0.05F, now.data(), now.data() + kElements, kElements, kElements);
  }
  std::vector<float> array(std::size_t which) const {
    return {now.begin() + static_cast<std::ptrdiff_t>(which * kElements),
            now.begin() + static_cast<std::ptrdiff_t>((which + 1) * kElements)};
  }
};

}  // namespace

TEST_CASE("optimizers: one worker in async mode does what the formula says, step by step, bit for bit") {
  for (const UpdateRule rule : kOptimizers) {
    const std::string name = to_string(rule);
    CAPTURE(name);
    const JobConfig config = optimizing(1, Mode::kAsync, rule);
    Server server(config);
    Worker worker(options(config));
    const Variable variable = worker.variable(regular(rule), first_values);
    Twin twin(config, rule);
    std::vector<float> out(kElements);
    for (int step = 0; step < 6; ++step) {
      const std::vector<float> g = gradient(0, step);
      worker.push(variable, g);
      const float rate = 0.05F * config.optimizer.schedule.factor(static_cast<std::uint64_t>(step));
      update::apply(twin.settings, {rate, static_cast<std::uint64_t>(step)}, twin.next.data(), twin.now.data(),
                    kElements, g.data(), 1.0F, kElements);
      twin.now.swap(twin.next);
      worker.step();
      worker.pull(variable, out);
      CHECK(out == twin.array(0));
      worker.pull_average(variable, out);
      CHECK(out == twin.array(twin.arrays - 1));
    }
    CHECK(JobView(config.job).averages("v") == twin.array(twin.arrays - 1));
    CHECK(JobView(config.job).variables()[0].slots.size() == twin.arrays - 1);
  }
}

TEST_CASE("optimizers: three workers in sync mode do what the combined formula says, bit for bit") {
  for (const UpdateRule rule : kOptimizers) {
    const std::string name = to_string(rule);
    CAPTURE(name);
    JobConfig config = optimizing(3, Mode::kSync, rule);
    config.optimizer.clip_norm = 20;
    Server server(config);
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        Worker worker(options(config, rank));
        const Variable variable = worker.variable(regular(rule), first_values);
        for (int step = 0; step < 6; ++step) {
          worker.push(variable, gradient(rank, step));
          worker.step();
        }
      });
    for (std::thread& thread : threads) thread.join();
    Twin twin(config, rule);
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<float>> gradients;
      std::vector<update::Contribution> contributions;
      for (std::uint32_t rank = 0; rank < 3; ++rank) gradients.push_back(gradient(rank, step));
      for (const std::vector<float>& g : gradients) {
        const float scale = update::clip_scale(update::squared_norm(g.data(), g.size()), 20);
        CHECK(scale < 1);
        contributions.push_back({g.data(), scale});
      }
      const float rate = 0.05F * config.optimizer.schedule.factor(static_cast<std::uint64_t>(step));
      update::apply_combined(twin.settings, {rate, static_cast<std::uint64_t>(step)}, twin.next.data(), twin.now.data(),
                             kElements, contributions, kElements);
      twin.now.swap(twin.next);
    }
    CHECK(JobView(config.job).values("v") == twin.array(0));
    CHECK(JobView(config.job).averages("v") == twin.array(twin.arrays - 1));
  }
}

TEST_CASE("optimizers: no average is kept of a job without, nor of a variable that is added to") {
  JobConfig config = settings(1, Mode::kAsync);
  Server server(config);
  Worker worker(options(config));
  const Variable plain = worker.variable(vector_of(4, UpdateRule::kSgd), zero);
  std::vector<float> out(4);
  CHECK_THROWS_WITH_AS(worker.pull_average(plain, out), doctest::Contains("average"), Error);
  CHECK_THROWS_WITH_AS(JobView(config.job).averages("v"), doctest::Contains("average"), Error);
  JobConfig averaging = settings(1, Mode::kAsync);
  averaging.optimizer.ema = 0.9F;
  Server other(averaging);
  Worker second(options(averaging));
  const Variable added = second.variable(vector_of(4, UpdateRule::kAdd), zero);
  CHECK_THROWS_AS(second.pull_average(added, out), Error);
  CHECK_THROWS_AS(JobView(averaging.job).averages("v"), Error);
}

TEST_CASE("optimizers: the norm is over all variables of one push, those that are added to apart") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic})
    for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
      if (mode == Mode::kAsync && reduce == Reduce::kAtomic) continue;
      JobConfig config = settings(1, mode);
      config.reduce = reduce;
      config.optimizer.learning_rate = 1.0F;
      config.optimizer.clip_norm = 10;
      Server server(config);
      Worker worker(options(config));
      const VariableSpec specs[] = {{.name = "a", .shape = {4}, .rule = UpdateRule::kSgd},
                                    {.name = "b", .shape = {1}, .rule = UpdateRule::kSgd},
                                    {.name = "n", .shape = {1}, .rule = UpdateRule::kAdd}};
      const std::vector<Variable> variables =
          worker.variables(specs, [](std::size_t, std::span<float> out) { zero(out); });
      const std::vector<float> a(4, 20.0F), b(1, 30.0F), n(1, 1000.0F);  // norm sqrt(1600 + 900) = 50
      const std::span<const float> gradients[] = {a, b, n};
      worker.push(variables, gradients);
      worker.step();
      const JobView view(config.job);
      CHECK(view.values("a") == std::vector<float>(4, -20.0F * 0.2F));
      CHECK(view.values("b") == std::vector<float>(1, -30.0F * 0.2F));
      CHECK(view.values("n") == std::vector<float>(1, 1000.0F));
    }
}

TEST_CASE("optimizers: ordered sync clips over all pushes of a step, as their sum") {
  JobConfig config = settings(1, Mode::kSync);
  config.optimizer.learning_rate = 1.0F;
  config.optimizer.clip_norm = 10;
  Server server(config);
  Worker worker(options(config));
  const Variable a = worker.variable({.name = "a", .shape = {4}, .rule = UpdateRule::kSgd}, zero);
  const Variable b = worker.variable({.name = "b", .shape = {1}, .rule = UpdateRule::kSgd}, zero);
  worker.push(a, std::vector<float>(4, 5.0F));
  worker.push(b, std::vector<float>(1, 30.0F));
  worker.push(a, std::vector<float>(4, 15.0F));
  worker.step();
  CHECK(JobView(config.job).values("a") == std::vector<float>(4, -20.0F * 0.2F));
  CHECK(JobView(config.job).values("b") == std::vector<float>(1, -30.0F * 0.2F));
}

TEST_CASE("optimizers: a push with another number of gradients than variables is refused and pushes nothing") {
  const JobConfig config = settings(1, Mode::kAsync);
  Server server(config);
  Worker worker(options(config));
  const Variable variables[] = {worker.variable(vector_of(4), zero)};
  const std::vector<float> ones(4, 1.0F), five(5, 1.0F);
  const std::span<const float> two[] = {ones, ones}, wrong[] = {five};
  CHECK_THROWS_AS(worker.push(variables, two), Error);
  CHECK_THROWS_AS(worker.push(variables, wrong), Error);
  CHECK(JobView(config.job).values("v") == std::vector<float>(4, 0.0F));
}

TEST_CASE("optimizers: staleness scaling divides the rate by one more than the staleness that was measured") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    JobConfig config = settings(2, Mode::kAsync);
    config.layout = layout;
    config.optimizer.learning_rate = 1.0F;
    config.optimizer.staleness_scaling = true;
    Server server(config);
    Worker first(options(config)), second(options(config));
    const Variable a = first.variable(vector_of(4, UpdateRule::kSgd), zero);
    const Variable b = second.variable(vector_of(4, UpdateRule::kSgd), zero);
    const std::vector<float> nothing(4, 0.0F), one(4, 1.0F);
    std::vector<float> out(4);
    first.push(a, one);  // nothing pulled: the rate as it is
    first.pull(a, out);
    CHECK(out[0] == -1.0F);
    for (int i = 0; i < 3; ++i) second.push(b, nothing);
    first.push(a, one);
    CHECK(JobView(config.job).values("v")[3] == -1.25F);
    first.push(a, one);  // one's own push is not staleness
    CHECK(JobView(config.job).values("v")[3] == -1.5F);
    CHECK(first.staleness().max == 3);
    first.pull(a, out);
    first.push(a, one);
    CHECK(JobView(config.job).values("v")[3] == -2.5F);
  }
}

TEST_CASE("optimizers: in-place variables have every rule, and no average") {
  for (const UpdateRule rule : kOptimizers) {
    CAPTURE(std::string(to_string(rule)));
    JobConfig job = settings(1, Mode::kAsync);
    job.layout = Layout::kInplace;
    job.optimizer.rule = rule;
    CHECK_NOTHROW(check(job));
    job.optimizer.ema = 0.5F;
    CHECK_THROWS_AS(check(job), Error);
  }
  JobConfig averaging = settings(1, Mode::kAsync);
  averaging.optimizer.ema = 0.5F;
  Server other(averaging);
  Worker second(options(averaging));
  VariableSpec spec{.name = "v", .shape = {4}, .rule = UpdateRule::kSgd, .layout = Layout::kInplace};
  CHECK_THROWS_AS(second.variable(spec, zero), Error);
}

TEST_CASE("live: a changed learning rate and clipping hold from the next step on") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    JobConfig config = settings(1, mode);
    config.optimizer.learning_rate = 1.0F;
    Server server(config);
    Worker worker(options(config));
    const Variable variable = worker.variable(vector_of(1, UpdateRule::kSgd), zero);
    const float four = 4.0F;
    worker.push(variable, {&four, 1});
    worker.step();
    JobControl control(config.job);
    LiveSettings wanted = control.current();
    wanted.learning_rate = 0.5F;
    wanted.clip_norm = 1;
    control.change(wanted);
    worker.step();
    worker.push(variable, {&four, 1});
    worker.step();
    CHECK(JobView(config.job).values("v")[0] == -4.5F);
  }
}
