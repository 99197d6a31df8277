// Single-writer variables: pushes in place have the bits of other pushes, and leave snapshots alone. Their deaths are in
// tests/faults.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/snapshot.hpp"
#include "support/error_text.hpp"
#include "support/sanitizers.hpp"
#include "support/single_writer_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("single-writer: every rule has the bits of a versioned variable, and chunks stay where they are") {
  for (const UpdateRule rule :
       {UpdateRule::kAdd, UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdagrad,
        UpdateRule::kRmsProp, UpdateRule::kAdam, UpdateRule::kAdamW, UpdateRule::kFtrl})
    for (const bool is_plain : {true, false}) {
      CAPTURE(to_string(rule));
      CAPTURE(is_plain);
      JobConfig config = single_writer_config(rule);
      if (!is_plain) config.optimizer.clip_value = 0.2F, config.optimizer.l2 = 0.01F;
      if (!is_plain && rule == UpdateRule::kAdd) continue;
      const SingleWriterJob job(config);
      Worker worker(options(config));
      const Variable v = job.declare(worker);
      CHECK(v.layout() == Layout::kSingleWriter);
      const std::vector<std::uint64_t> before = job.words();
      for (int i = 0; i < 3; ++i) worker.push(v, numbers(kElements, 0.001F * float(i + 1)));
      const std::vector<std::uint64_t> now = job.words();
      for (std::size_t chunk = 0; chunk < now.size(); ++chunk) {
        CHECK(shm::buffer_of(now[chunk]) == shm::buffer_of(before[chunk]));
        CHECK(shm::version_of(now[chunk]) == 3);
      }
      JobConfig versioned = config;
      versioned.layout = Layout::kVersioned;
      CHECK(job.arrays() == arrays_after(versioned, 3));
      job.check();
    }
}

TEST_CASE("single-writer: what cannot change in place is swapped, with the same bits") {
  struct Way {
    const char* what;
    void (*set)(JobConfig&);
    std::uint64_t elements;
  };
  for (const Way& way : {Way{"a moving average", [](JobConfig& config) { config.optimizer.ema = 0.9F; }, kElements},
                         Way{"short chunks", [](JobConfig& config) { config.chunk_bytes = 4096; }, 3000}}) {
    CAPTURE(way.what);
    JobConfig config = single_writer_config(UpdateRule::kAdam);
    way.set(config);
    const SingleWriterJob job(config, way.elements);
    Worker worker(options(config));
    const Variable v = job.declare(worker);
    const std::vector<std::uint64_t> before = job.words();
    for (int i = 0; i < 3; ++i) worker.push(v, numbers(way.elements, 0.001F * float(i + 1)));
    CHECK(shm::buffer_of(job.words()[0]) != shm::buffer_of(before[0]));
    config.layout = Layout::kVersioned;
    CHECK(job.arrays() == arrays_after(config, 3, way.elements));
  }
}

TEST_CASE("single-writer: large variables have the largest chunks, whatever their optimizer") {
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam}) {
    JobConfig config = single_writer_config(rule);
    config.chunk_bytes = 0;
    const SingleWriterJob small(config, 20'000);
    config.job = unique_job_name();
    const SingleWriterJob large(config, (2 << 20) + 1);
    for (const SingleWriterJob* job : {&small, &large}) {
      Worker worker(options(job->config));
      job->declare(worker);
    }
    CHECK(small.record().buffer_class == 13);
    CHECK(large.record().buffer_class == shm::kMaxClass);
  }
}

TEST_CASE("single-writer: a snapshot keeps its values while pushes go on in place") {
  const JobConfig config = single_writer_config(UpdateRule::kAdam);
  const SingleWriterJob job(config);
  Worker worker(options(config));
  const Variable v = job.declare(worker);
  std::vector<float> then(kElements), kept(kElements);
  std::uint64_t whole = 0;
  for (int round = 0; round < 3; ++round) {
    worker.push(v, numbers(kElements, 0.01F));
    worker.pull(v, then);
    const Snapshot snapshot = worker.snapshot();
    const std::vector<std::uint64_t> before = job.words();
    for (int i = 0; i < 3; ++i) worker.push(v, numbers(kElements, 0.003F));
    for (std::size_t chunk = 0; chunk < before.size(); ++chunk) {
      const bool is_swapped = shm::buffer_of(job.words()[chunk]) != shm::buffer_of(before[chunk]);
      CHECK(is_swapped);  // once: the buffer of before is the snapshot's
    }
    snapshot.copy("v", kept);
    CHECK(kept == then);
    whole += snapshot.global_step() == 0;
  }
  CHECK(whole == 3);
  job.check();
}

TEST_CASE("single-writer: needs a job that can have one worker, and a mode without common steps") {
  JobConfig config = single_writer_config(UpdateRule::kAdam);
  config.max_workers = 2;
  CHECK(error_of([&] { Server server(config); }) ==
        "`layout` single-writer needs a job that can have one worker only: use `workers` 1 and `max-workers` 1, or "
        "layout "
        "versioned");
  config.max_workers = 0;
  {
    const Server server(config);
    CHECK(Worker(options(config)).config().max_workers == 1);
  }
  config.mode = Mode::kSync;
  CHECK(error_of([&] { Server server(config); }) ==
        "`layout` single-writer needs `mode` async or ssp: in mode sync a step belongs to all workers; use layout "
        "versioned");

  Job several({.workers = 2});
  Worker worker = several.join();
  CHECK(error_of([&] { worker.variable({.name = "v", .shape = {10}, .layout = Layout::kSingleWriter}, zero); }) ==
        "variable 'v' needs a job that can have one worker only: use `workers` 1 and `max-workers` 1, or layout "
        "versioned");
}

TEST_CASE("single-writer: a guest in the place of the worker reads such a variable, and cannot change it") {
  const JobConfig config = single_writer_config(UpdateRule::kAdam);
  const SingleWriterJob job(config);
  job.declare(*std::make_unique<Worker>(options(config)));
  WorkerOptions of_guest = options(config);
  of_guest.guest = true;
  Worker guest(of_guest);
  const Variable v = guest.variable("v");
  CHECK(pulled(guest, v) == numbers(kElements, 0.25F));
  const std::vector<std::byte> delta(kElements * sizeof(float));
  const std::span<const std::byte> of_v = delta;
  CHECK(error_of([&] {
          guest.add_once(1, {&v, 1}, {&of_v, 1});
        }) ==
        fmt::format("variable 'v' has layout single-writer: no guest of job '{}' can change it; declare it versioned",
                    config.job));
}

TEST_CASE("single-writer: a second worker or guest is told that the job allows one at a time") {
  JobConfig config = single_writer_config(UpdateRule::kAdam);
  const auto refused = [&](auto set) {
    return error_of([&] {
      WorkerOptions wanted = options(config);
      set(wanted);
      Worker{wanted};
    });
  };
  for (const Layout of_job : {Layout::kSingleWriter, Layout::kVersioned}) {
    config.layout = of_job;
    const Server server(config);
    Worker worker(options(config));
    worker.variable({.name = "v", .shape = {10}, .layout = Layout::kSingleWriter}, zero);
    CHECK(refused([](WorkerOptions&) {}) ==
          fmt::format("job '{}' has 1 worker already; `layout` single-writer allows one worker or guest at a time",
                      config.job));
    CHECK(refused([](WorkerOptions& wanted) { wanted.rank = 1; }) ==
          fmt::format("rank 1 is out of range: job '{}' has ranks 0 to 0; `layout` single-writer allows one worker or "
                      "guest at a time",
                      config.job));
    CHECK(refused([](WorkerOptions& wanted) { wanted.guest = true; }) ==
          fmt::format("rank 0 of job '{}' is taken by process {}; a guest has the last rank; `layout` single-writer "
                      "allows one worker or guest at a time",
                      config.job, getpid()));
  }
}

TEST_CASE("single-writer: a reader beside pushes gets whole blocks, of one push or of two that follow each other") {
  JobConfig config = single_writer_config(UpdateRule::kAdd);
  const SingleWriterJob job(config, 10 * kElements);
  const std::vector<float> ones(10 * kElements, 1.0F);
  Worker worker(options(config));
  const Variable v = worker.variable(job.spec, zero);
  std::atomic<bool> stops = false;
  const auto all_are = [](std::span<const float> some, float wanted) {
    return std::all_of(some.begin(), some.end(), [&](float value) { return value == wanted; });
  };
  std::thread reader([&] {
    const shm::VariableShm& record = job.record();
    const shm::VersionedVariable chunks(job.segments.shard(record.shard), record);
    std::vector<float> values(record.piece_elements);
    while (!stops)
      for (std::uint64_t chunk = 0; chunk < chunks.chunks(); ++chunk) {
        std::uint64_t retries = 0;
        const std::uint64_t version = chunks.pull_chunk(chunk, values.data(), retries);
        const auto found = std::span(values).first(chunks.chunk_size(chunk));
        const bool is_whole = all_are(found, float(version));
        for (std::uint64_t at = 0; at < found.size() && !is_whole; at += kBlock) {
          const auto block = found.subspan(at, std::min(kBlock, found.size() - at));
          CHECK(all_are(block, block[0]));
          CHECK((block[0] == found[0] || block[0] == found[0] - 1));
          CHECK((shm::make_word(std::uint64_t(found[0]) - version, 0) >> 24) <= 2);
        }
      }
  });
  const int pushes = kIsSanitized ? 100 : 2000;
  for (int i = 0; i < pushes; ++i) worker.push(v, ones);
  stops = true;
  reader.join();
  std::vector<float> values = pulled(worker, v);
  CHECK(all_are(values, float(pushes)));
}
