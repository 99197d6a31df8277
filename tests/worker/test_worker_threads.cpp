// A worker with several threads: the same values, and no buffer is lost, not even those of a killed worker.
#include <doctest/doctest.h>

#include <random>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/slots/recovery.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"
#include "support/processes.hpp"
#include "support/single_writer_job.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

struct Chunks {
  std::uint64_t count = 0, applied = 0;
};

// How many chunks the job's only variable has, and how often one of them was replaced.
Chunks chunks_of(const std::string& job) {
  shm::JobSegments segments = attach(job);
  const shm::VariableShm& record = shm::Directory(segments).at(0);
  const shm::VersionedVariable variable(segments.shard(0), record);
  Chunks chunks{.count = record.pieces};
  for (std::uint64_t chunk = 0; chunk < chunks.count; ++chunk) chunks.applied += variable.version(chunk);
  return chunks;
}

}  // namespace

TEST_CASE("threads: the free lists of a killed worker's threads are recovered, and no buffer is lost") {
  for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
    CAPTURE(to_string(reduce));
    Job job({.threads = 4, .mode = reduce == Reduce::kAtomic ? Mode::kSync : Mode::kAsync, .reduce = reduce});
    std::minstd_rand random(1);
    for (int round = 0; round < 15; ++round) {
      const test::Bell ready;
      test::Child child([&] {
        Worker worker = job.join(0, 4);
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
      const Chunks before = chunks_of(job.name.text());
      const std::uint64_t more = random() % (3 * before.count);
      while (chunks_of(job.name.text()).applied < before.applied + more) shm::spin_pause();
      child.kill();
      { const Worker successor = job.join(0); }
      CHECK(test::is_conserved(job.name.text()));
    }
  }
}

TEST_CASE("threads: what each thread of a dead rank had in flight is recovered, before and after its swap") {
  JobConfig config = config_of({.threads = 3, .chunk_bytes = 1024});
  for (std::uint32_t swapped = 0; swapped < 8; ++swapped) {
    CAPTURE(swapped);
    test::TestJob job(config);
    shm::VariableShm& record = job.declare("v", 2000);
    REQUIRE(record.pieces >= 3);
    for (std::uint32_t thread = 0; thread < 3; ++thread) {
      shm::FreeBuffers free_buffers(job.segments, job.segments.lane(5, thread));
      std::uint64_t old = job.word(record, thread).load_acquire();
      const shm::FreeBuffer free_buffer =
          free_buffers.begin(record, record.first_chunk + thread, old, shm::buffer_of(old));
      job.buffer(record, free_buffer.buffer).stamp.store_release(shm::kBuilding);
      if ((swapped >> thread & 1) == 0) continue;
      const std::uint64_t next = shm::make_word(1, free_buffer.buffer);
      job.buffer(record, free_buffer.buffer).stamp.store_release(shm::make_stamp(record.first_chunk + thread, 1));
      REQUIRE(job.word(record, thread).try_exchange_acq_rel(old, next));
    }
    shm::JobSegments successor = job.attach();
    REQUIRE(successor.locks().try_take(shm::kRankByte + 5));
    shm::recover_buffers(successor, 5, successor.locks());
    CHECK(test::is_conserved(job.segments, {&record}));
    for (std::uint32_t thread = 0; thread < 3; ++thread)
      for (std::uint32_t which = 0; which < shm::kFreeBuffersPerClass; ++which)
        CHECK((job.free_buffer(record, job.segments.lane(5, thread), which).record.load_acquire() >> 62 & 1) == 0);
  }
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
      JobConfig config = config_of({.threads = threads,
                                    .mode = kind.mode,
                                    .reduce = kind.reduce,
                                    .layout = kind.layout,
                                    .ps_tasks = 2,
                                    .placement = kind.placement});
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
      if (kind.layout == Layout::kVersioned) CHECK(test::is_conserved(config.job));
    }
  }
}

TEST_CASE("threads: several workers with several threads each lose no push and no buffer") {
  Job job({.workers = 3, .threads = 3});
  std::vector<std::thread> workers;
  for (std::uint32_t rank = 0; rank < 3; ++rank)
    workers.emplace_back([&, rank] {
      Worker worker = job.join(rank, 1 + rank);
      const Variable variable = worker.variable(vector_of(300'000), zero);
      const std::vector<float> ones(300'000, 1.0F);
      std::vector<float> out(300'000);
      for (int step = 0; step < 20; ++step) {
        worker.push(variable, ones);
        worker.pull(variable, out);
      }
    });
  for (std::thread& worker : workers) worker.join();
  CHECK(job.view().values("v") == std::vector<float>(300'000, 60.0F));
  CHECK(test::is_conserved(job.name.text()));
}

TEST_CASE("threads: adds and assignments are divided up, and of values for one row the last ones win") {
  for (const Layout layout : {Layout::kVersioned, Layout::kInplace}) {
    Job job({.threads = 4, .layout = layout});
    Worker worker = job.join(0, 4);
    constexpr std::size_t kElements = 400'000;
    const Variable variable = worker.variable(vector_of(kElements), zero);
    std::vector<float> given(kElements), out(kElements), sum(kElements);
    for (std::size_t i = 0; i < kElements; ++i) given[i] = float(i % 1000), sum[i] = given[i] + 1;
    worker.assign(variable, given, Slots::kReset);
    worker.add(variable, std::vector<float>(kElements, 1.0F));
    Versions since;
    if (layout == Layout::kVersioned) {
      const std::uint64_t copied = worker.pull_if_changed(variable, out, since);
      CHECK(copied == since.of_chunks.size());
      CHECK(out == sum);
      continue;
    }
    worker.pull(variable, out);
    CHECK(out == sum);
    std::vector<std::uint32_t> ids(kElements);
    for (std::size_t i = 0; i < kElements; ++i) ids[i] = std::uint32_t(i % 50);  // the last is i = kElements - 50 + id
    for (std::size_t i = 0; i < kElements; ++i) given[i] = float(i);
    worker.assign_rows(variable, ids, given);
    worker.pull(variable, out);
    for (std::size_t id = 0; id < 50; ++id) CHECK(out[id] == float(kElements - 50 + id));
  }
}

TEST_CASE("threads: more than the job allows is refused, naming the option") {
  JobConfig config = config_of({.threads = 2});
  Server server(config);
  CHECK_THROWS_WITH_AS(Worker(options(config, {}, 3)), doctest::Contains("`threads` 3"), Error);
  CHECK_NOTHROW(Worker(options(config, {}, 2)));
  CHECK_NOTHROW(Worker(options(config, {}, 0)));
}

TEST_CASE("threads: a damaged chunk ends a worker's call with an Error, whichever thread meets it") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync})
    for (const std::uint32_t threads : {1U, 3U}) {
      CAPTURE(to_string(mode));
      CAPTURE(threads);
      Job job({.threads = threads, .mode = mode});
      Worker worker = job.join(0, threads);
      std::vector<float> values(400'000);
      const Variable variable = worker.variable(vector_of(values.size()), zero);
      shm::AttachOutcome outcome;
      auto segments = shm::JobSegments::try_attach(job.name.text(), shm::Access::kReadWrite, outcome);
      REQUIRE(segments);
      const shm::VariableShm& record = shm::Directory(*segments).at(0);
      auto* const words = reinterpret_cast<shm::PieceWordShm*>(segments->shard_data(0) + record.words_offset);
      words[record.pieces / 2].word.store_release(shm::make_word(0, shm::kBufferMask));
      const auto code_of = [](auto&& call) {
        try {
          call();
        } catch (const Error& error) {
          return error.code();
        }
        return ErrorCode::kInvalidArgument;
      };
      CHECK(code_of([&] { worker.pull(variable, values); }) == ErrorCode::kDamaged);
      CHECK(code_of([&] {
              worker.push(variable, values);
              worker.step();
            }) == ErrorCode::kDamaged);
    }
}

TEST_CASE("worker threads: pushes in place have the bits of a single thread") {
  JobConfig config = test::single_writer_config(UpdateRule::kAdam);
  constexpr std::uint64_t kMany = 20 * test::kElements;
  config.threads = 3;
  const test::SingleWriterJob job(config, kMany);
  Worker worker(options(config, {}, 3));
  const Variable v = job.declare(worker);
  for (int i = 0; i < 3; ++i) worker.push(v, test::numbers(kMany, 0.001F * float(i + 1)));
  config.layout = Layout::kVersioned;
  config.threads = 1;
  CHECK(job.arrays() == test::arrays_after(config, 3, kMany));
}
