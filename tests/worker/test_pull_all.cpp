// Pulling several variables as one consistent state, and pulling only what has changed.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/server.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/barrier.hpp"
#include "support/job.hpp"
#include "support/sanitizers.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr std::uint64_t kElements = 600;  // three chunks

// Variables, and memory for their pulled values.
struct Several {
  std::vector<Variable> variables;
  std::vector<std::vector<float>> values;
  std::vector<std::span<float>> outs;
  std::vector<std::span<const float>> ones;
  const std::vector<float> one = std::vector<float>(kElements, 1.0F);

  Several(Worker& worker, std::size_t count) {
    std::vector<VariableSpec> specs;
    for (std::size_t i = 0; i < count; ++i) specs.push_back({.name = "v" + std::to_string(i), .shape = {kElements}});
    variables = worker.variables(specs, [](std::size_t, std::span<float> out) { zero(out); });
    values.assign(count, std::vector<float>(kElements, -1.0F));
    for (std::vector<float>& variable : values) outs.emplace_back(variable);
    ones.assign(count, one);
  }

  void add_scalar(Worker& worker) {
    variables.push_back(worker.variable({.name = "scalar", .shape = {}, .layout = Layout::kInplace}, zero));
    values.emplace_back(1);
    outs.emplace_back(values.back());
    ones.push_back(std::span(one).first(1));
  }

  // Whether all elements of all variables are equal.
  bool are_alike() const {
    return std::all_of(values.begin(), values.end(), [&](const std::vector<float>& variable) {
      return std::all_of(variable.begin(), variable.end(), [&](float value) { return value == values[0][0]; });
    });
  }
};

const std::string kStopped = "is stopped in the middle of a push; continue or end it";

}  // namespace

TEST_CASE("several variables are pulled in their current state, with the step that it belongs to") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    Job job({.mode = mode, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
    Worker worker = job.join();
    Several all(worker, 3);
    CHECK(worker.pull_all(all.variables, all.outs) == 0);
    CHECK(all.values[2] == std::vector<float>(kElements, 0.0F));
    worker.push(all.variables, all.ones);
    worker.step();
    CHECK(worker.pull_all(all.variables, all.outs) == 1);
    CHECK(all.values[2] == all.one);
    CHECK(worker.pull_all({}, {}) == 1);
  }
}

TEST_CASE("others' pushes since a pull of several variables count as staleness") {
  Job job({.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join(), other = job.join();
  Several mine(worker, 2), theirs(other, 2);
  worker.pull_all(mine.variables, mine.outs);
  other.push(theirs.variables, theirs.ones);
  other.push(theirs.variables, theirs.ones);
  worker.push(mine.variables, mine.ones);
  CHECK(worker.staleness().max == 2);
}

TEST_CASE("a pull of several variables never sees part of a push or step, whether or not others pause") {
  constexpr int kPulls = kIsSanitized ? 50 : 200, kPauseSpins = 600;
  for (const auto& way : {std::pair(Mode::kAsync, true), std::pair(Mode::kAsync, false), std::pair(Mode::kSync, true),
                          std::pair(Mode::kSync, false)}) {
    const Mode mode = way.first;
    const bool pauses = way.second;
    CAPTURE(to_string(mode));
    CAPTURE(pauses);
    JobConfig settings{.workers = 3, .mode = mode, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}};
    if (mode == Mode::kSync) settings.quorum = 2;  // so that steps continue during the pulls
    Job job(settings);
    std::atomic<bool> is_over{false};
    std::atomic<int> begun{0};
    std::vector<std::thread> pushers;
    for (std::uint32_t rank = 1; rank < 3; ++rank)
      pushers.emplace_back([&, rank, pauses = pauses] {
        Worker worker = job.join(rank);
        Several all(worker, 4);
        if (mode == Mode::kAsync) all.add_scalar(worker);
        for (++begun; !is_over;) {
          worker.push(all.variables, all.ones);
          worker.step();
          if (pauses)
            for (int spin = 0; spin < kPauseSpins; ++spin) shm::spin_pause();
        }
      });
    {
      Worker worker = job.join(0);
      Several all(worker, 4);
      if (mode == Mode::kAsync) all.add_scalar(worker);
      worker.step();  // the first one waits for all workers
      float last = 0;
      for (int pulled = 0; pulled < kPulls || last == 0; ++pulled) {
        const std::uint64_t step = worker.pull_all(all.variables, all.outs);
        REQUIRE(all.are_alike());
        REQUIRE(all.values[0][0] >= last);
        last = all.values[0][0];
        if (mode == Mode::kSync) REQUIRE(float(2 * step) >= last);  // each step adds two gradients
      }
    }
    is_over = true;
    for (std::thread& pusher : pushers) pusher.join();
  }
}

TEST_CASE("a pull of several variables is of one moment, even if each push is to a single chunk") {
  Job job({.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  std::atomic<bool> is_over{false}, has_begun{false};
  const auto declare = [](Worker& worker, const char* name, std::uint64_t elements = 1) {
    return worker.variable({.name = name, .shape = {elements}}, zero);
  };
  std::thread pusher([&] {
    Worker worker = job.join(1);
    const Variable first = declare(worker, "first"), second = declare(worker, "second");
    for (has_begun = true; !is_over;)
      for (const Variable& one : {first, second}) {
        worker.push(one, 1.0F);
        for (int spin = 0; spin < 400; ++spin) shm::spin_pause();
      }
  });
  Worker worker = job.join(0);
  const std::vector<Variable> all = {declare(worker, "first"), declare(worker, "between", 20'000),
                                     declare(worker, "second")};  // the copies of the two are some microseconds apart
  while (!has_begun) std::this_thread::yield();
  float first = 0, second = 0;
  std::vector<float> between(20'000);
  const std::vector<std::span<float>> outs = {{&first, 1}, between, {&second, 1}};
  int split = 0;
  for (int pulled = 0; pulled < 2000 || first == 0; ++pulled) {
    worker.pull_all(all, outs);
    split += first != second && first != second + 1;
  }
  is_over = true;
  pusher.join();
  CHECK(split == 0);
}

TEST_CASE("a pull waits for a live worker inside a push and then names it, a dead one is not waited for") {
  const JobConfig config = config_of({.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Server server(config);
  Worker worker(options(config, 0));
  Several all(worker, 3);
  shm::JobSegments job = attach(config.job);
  job.worker(1).pushing.store_release(1);  // nobody holds the rank
  CHECK(worker.pull_all(all.variables, all.outs) == 0);
  CHECK(shm::epoch_of(job.state().snapshot_point.word.load_acquire()) == 0);  // without a snapshot
  {
    Worker other(options(config, 1));
    CHECK(job.worker(1).pushing.load_acquire() == 0);
    job.worker(1).pushing.store_release(1);
    CHECK_THROWS_WITH_AS(worker.pull_all(all.variables, all.outs), doctest::Contains(("worker 1 " + kStopped).c_str()),
                         Error);
    Several theirs(other, 3);
    other.push(theirs.variables, theirs.ones);  // clears the mark at its end
    CHECK(worker.pull_all(all.variables, all.outs) == 0);
    CHECK(all.values[0] == all.one);
  }
}

TEST_CASE("a pull waits for a sync step that is decided and not yet open") {
  const JobConfig config =
      config_of({.mode = Mode::kSync, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Server server(config);
  Worker worker(options(config, 0));
  Several all(worker, 3);
  worker.step();
  shm::JobSegments job = attach(config.job);
  const std::uint64_t decision = job.barrier(0).decision.load_acquire();
  job.barrier(0).decision.store_release(shm::make_decision(2, 0, 0));  // of step 1
  CHECK_THROWS_WITH_AS(worker.pull_all(all.variables, all.outs), doctest::Contains(kStopped.c_str()), Error);
  job.barrier(0).decision.store_release(decision);
  CHECK(worker.pull_all(all.variables, all.outs) == 1);
}

TEST_CASE("in place, a variable of one element is one word; larger ones are refused") {
  Job job({.workers = 2, .layout = Layout::kInplace, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join(), other = job.join();
  const Variable count = worker.variable({.name = "count", .shape = {}}, zero), theirs = other.variable("count");
  const Variable table = worker.variable({.name = "table", .shape = {2}}, zero);
  other.push(theirs, 2.0F);
  float value = 0;
  std::vector<float> two(2);
  const std::vector<std::span<float>> to_count = {{&value, 1}}, to_table = {two};
  CHECK(worker.pull_all({&count, 1}, to_count) == 0);
  CHECK(value == 2.0F);
  Versions since;
  CHECK(worker.pull_if_changed(count, {&value, 1}, since) == 1);
  CHECK(worker.pull_if_changed(count, {&value, 1}, since) == 0);
  other.add(theirs, 1.0F);
  CHECK(worker.pull_if_changed(count, {&value, 1}, since) == 1);
  CHECK(value == 3.0F);
  CHECK_THROWS_WITH_AS(worker.pull_all({&table, 1}, to_table),
                       "pull_all of variable 'table': it is in-place, so its elements change one by one; "
                       "declare it versioned",
                       Error);
  CHECK_THROWS_AS(worker.pull_if_changed(table, two, since), Error);
}

TEST_CASE("output spans that do not fit are an error") {
  Job job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join();
  Several all(worker, 2);
  Versions since;
  CHECK_THROWS_WITH_AS(worker.pull_all(all.variables, std::span(all.outs).first(1)),
                       "pull of 2 variables into 1 buffers: give one for each", Error);
  const std::vector<std::span<float>> short_one = {all.outs[0], all.outs[1].first(5)};
  CHECK_THROWS_AS(worker.pull_all(all.variables, short_one), Error);
  CHECK_THROWS_AS(worker.pull_if_changed(all.variables[0], all.outs[0].first(5), since), Error);
}

TEST_CASE("only chunks that have changed are copied again") {
  const JobConfig config = config_of({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Server server(config);
  Worker worker(options(config));
  Several all(worker, 1);
  const Variable variable = all.variables[0];
  std::vector<float>& out = all.values[0];
  Versions since;
  CHECK(worker.pull_if_changed(variable, out, since) == 3);
  CHECK(out == std::vector<float>(kElements, 0.0F));
  CHECK(worker.pull_if_changed(variable, out, since) == 0);
  worker.push(variable, all.one);
  std::fill(out.begin(), out.end(), -1.0F);
  CHECK(worker.pull_if_changed(variable, out, since) == 3);
  CHECK(out == all.one);

  shm::JobSegments job = attach(config.job);
  const shm::VariableShm& record = shm::Directory(job).at(0);
  shm::VersionedVariable chunks(job.shard(0), record);
  shm::FreeBuffers free_buffers(job, 1);
  chunks.push_chunk(1, free_buffers, {},
                    [&](float* to, const float*, shm::ChunkPast) { std::fill_n(to, record.piece_elements, 5.0F); });
  CHECK(worker.pull_if_changed(variable, out, since) == 1);
  for (std::size_t i = 0; i < kElements; ++i) CHECK(out[i] == (i / record.piece_elements == 1 ? 5.0F : 1.0F));
  CHECK(since.of_chunks == std::vector<std::uint64_t>{1, 2, 1});
}

TEST_CASE("the versions that an assignment returns stand for the values that it assigned") {
  Job job({.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join(), other = job.join();
  Several all(worker, 1), theirs(other, 1);
  std::vector<float> values(kElements, 4.0F);
  Versions since = worker.assign(all.variables[0], values);
  CHECK(worker.pull_if_changed(all.variables[0], values, since) == 0);
  other.add(theirs.variables[0], all.one);
  CHECK(worker.pull_if_changed(all.variables[0], values, since) == 3);
  CHECK(values == std::vector<float>(kElements, 5.0F));
  CHECK(worker.pull_if_changed(all.variables[0], values, since) == 0);
  other.add(theirs.variables[0], all.one);
  worker.add(all.variables[0], all.one);
  CHECK(worker.staleness().max == 1);  // since its last pull, which copied nothing
}

TEST_CASE("a push that copies back leaves to the pull behind it what others have changed") {
  Job job({.workers = 2, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join(), other = job.join();
  Several all(worker, 2), theirs(other, 2);
  std::vector<Versions> since(2);
  worker.push(all.variables, all.ones, all.outs, since);
  for (const std::vector<float>& values : all.values) CHECK(values == std::vector<float>(kElements, 1.0F));
  CHECK(since[1].of_chunks == std::vector<std::uint64_t>(3, 1));
  other.push(theirs.variables[1], all.one);
  worker.step();
  CHECK(worker.pull_if_changed(all.variables[0], all.outs[0], since[0]) == 0);
  CHECK(worker.pull_if_changed(all.variables[1], all.outs[1], since[1]) == 3);
  CHECK(all.values[0] == std::vector<float>(kElements, 1.0F));
  CHECK(all.values[1] == std::vector<float>(kElements, 2.0F));
  worker.push(all.variables, all.ones, all.outs, since);
  other.push(theirs.variables[0], all.one);
  worker.push(all.variables, all.ones, all.outs, since);  // the copy counts as a pull for the staleness
  CHECK(worker.staleness().max == 1);
  CHECK(all.values[0] == std::vector<float>(kElements, 4.0F));
}

TEST_CASE("a push that copies back is completed by a pull in every mode") {
  for (const Mode mode : {Mode::kAsync, Mode::kSsp, Mode::kSync})
    for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
      if (reduce == Reduce::kAtomic && mode != Mode::kSync) continue;
      CAPTURE(std::string(to_string(mode)));
      Job job({.mode = mode, .reduce = reduce, .chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
      Worker worker = job.join();
      Several all(worker, 2);
      if (mode != Mode::kSync) all.add_scalar(worker);
      std::vector<Versions> since(all.variables.size());
      for (int step = 1; step <= 3; ++step) {
        worker.push(all.variables, all.ones, all.outs, since);
        worker.step();
        for (std::size_t i = 0; i < all.variables.size(); ++i) {
          worker.pull_if_changed(all.variables[i], all.outs[i], since[i]);
          CHECK(all.values[i] == std::vector<float>(all.values[i].size(), float(step)));
        }
      }
    }
}

TEST_CASE("a push that copies back needs a buffer of its size and versions for each variable, and chunks") {
  Job job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kAdd}});
  Worker worker = job.join();
  Several all(worker, 2);
  std::vector<Versions> since(2);
  const std::vector<std::span<float>> short_one = {all.outs[0], all.outs[1].first(5)};
  CHECK_THROWS_AS(worker.push(all.variables, all.ones, short_one, since), Error);
  CHECK_THROWS_WITH_AS(worker.push(all.variables, all.ones, all.outs, std::span(since).first(1)),
                       doctest::Contains("give one for each"), Error);
  const Variable table = worker.variable({.name = "table", .shape = {kElements}, .layout = Layout::kInplace}, zero);
  all.variables[1] = table;
  CHECK_THROWS_WITH_AS(worker.push(all.variables, all.ones, all.outs, since),
                       doctest::Contains("push that copies back of variable 'table': it is in-place"), Error);
  std::vector<float> out(kElements);
  worker.pull(all.variables[0], out);
  CHECK(out == std::vector<float>(kElements, 0.0F));  // nothing was pushed
}
