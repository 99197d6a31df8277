// A job of one worker with a single-writer variable, and what its pushes make of it.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/checks/validation.hpp"
#include "shm/segment/directory.hpp"
#include "support/conservation.hpp"
#include "support/job.hpp"

namespace ps_shm::test {

inline constexpr std::uint64_t kBlock = shm::UndoLog::kBlock;
// Three chunks with adam, the last one shorter and with a block that is not full.
inline constexpr std::uint64_t kElements = 2 * 2720 + 1007;

inline JobConfig single_writer_config(UpdateRule rule, Layout layout = Layout::kSingleWriter) {
  return config_of({.max_workers = 1,
                    .layout = layout,
                    .chunk_bytes = 32 << 10,
                    .optimizer = {.rule = rule, .lr = 0.01F},
                    .linger = Seconds(1000)});
}

inline std::vector<float> numbers(std::uint64_t count, float scale) {
  std::vector<float> all(count);
  for (std::uint64_t i = 0; i < count; ++i) all[i] = scale * float(int(i * 7919 % 1001) - 500);
  return all;
}

// A job with the variable "v", and a look at its chunks.
struct SingleWriterJob : Job {
  mutable shm::JobSegments segments = attach();
  VariableSpec spec;

  explicit SingleWriterJob(const JobConfig& given, std::uint64_t elements = kElements)
      : Job(given), spec{.name = "v", .shape = {elements}} {}

  Variable declare(Worker& worker) const {
    return worker.variable(spec, [](std::span<float> out) {
      const std::vector<float> first = numbers(out.size(), 0.25F);
      std::copy(first.begin(), first.end(), out.begin());
    });
  }
  const shm::VariableShm& record() const {
    const shm::Directory directory(segments);
    return directory.at(directory.find("v"));
  }
  std::vector<std::uint64_t> words() const {
    const shm::VariableShm& record = this->record();
    const shm::VersionedVariable chunks(segments.shard(record.shard), record);
    std::vector<std::uint64_t> all;
    for (std::uint64_t chunk = 0; chunk < chunks.chunks(); ++chunk) all.push_back(chunks.word(chunk));
    return all;
  }
  // The values and the slots, one array after the other, as anybody may read them.
  std::vector<float> arrays() const {
    const shm::VariableShm& record = this->record();
    const shm::VersionedVariable chunks(segments.shard(record.shard), record);
    std::vector<float> all;
    for (std::uint64_t array = 0; array <= record.slots; ++array)
      for (std::uint64_t chunk = 0; chunk < chunks.chunks(); ++chunk) {
        std::vector<float> of_chunk(chunks.array_size(chunk, array));
        REQUIRE(chunks.try_pull_chunk(chunk, of_chunk.data(), array) == shm::PullResult::kWhole);
        std::uint64_t retries = 0;
        std::vector<float> again(of_chunk.size());
        chunks.pull_chunk(chunk, again.data(), retries, array);
        CHECK(again == of_chunk);
        all.insert(all.end(), of_chunk.begin(), of_chunk.end());
      }
    return all;
  }

  // Everything in shared memory is sound, and each buffer has one name.
  void check() const {
    shm::check_job(segments);
    CHECK(is_conserved(config.job));
  }
};

// What `pushes` pushes make of a new variable of the same settings, in the job's arrays.
inline std::vector<float> arrays_after(JobConfig config, int pushes, std::uint64_t elements = kElements) {
  config.job = unique_job_name();
  const SingleWriterJob job(config, elements);
  Worker worker(options(config));
  const Variable v = job.declare(worker);
  for (int i = 0; i < pushes; ++i) worker.push(v, numbers(elements, 0.001F * float(i + 1)));
  return job.arrays();
}

}  // namespace ps_shm::test
