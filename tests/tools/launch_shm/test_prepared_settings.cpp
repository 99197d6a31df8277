// What launch_shm completes of its settings where workers may be on a GPU.
#include "launch_shm/prepared_settings.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "support/environment.hpp"
#include "support/fake_cuda.hpp"

using namespace ps_shm;
using device::DeviceChoice;
using test::EnvironmentVariable;
using tools::LaunchSettings;

namespace {

const DeviceChoice kAuto{.kind = DeviceChoice::Kind::kAuto, .index = {}}, kCpu{};

LaunchSettings given(const DeviceChoice& device) {
  LaunchSettings settings;
  settings.ps.job.job = "prepared";
  settings.device = device;
  settings.default_threads = settings.default_chunks = true;
  return settings;
}

// So many examples in batches of that size.
struct Examples final : tools::Workload {
  Examples(std::uint64_t count, std::uint64_t batch) : count_(count), batch_(batch) {}

  std::span<const train::ParameterSpec> variables() const override { return {}; }
  report::Metrics evaluate(std::span<const std::span<const float>>) override { return {}; }
  std::uint64_t examples() const override { return count_; }
  std::uint64_t batch() const override { return batch_; }

 private:
  std::uint64_t count_, batch_;
};

std::uint64_t chunk_bytes(const LaunchSettings& settings) {
  return tools::completed(settings, nullptr).ps.job.chunk_bytes;
}

}  // namespace

TEST_CASE("prepared settings: chunks are for GPUs where a worker may pull them by one, unless their size is given") {
  const EnvironmentVariable named("CUDA_VISIBLE_DEVICES", "5,7");  // each worker finds out whether they can be used
  CHECK(chunk_bytes(given(kCpu)) == 0);
  CHECK(chunk_bytes(given(kAuto)) == kChunkBytesForGpu);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{4096}}) {  // 0: auto
    LaunchSettings settings = given(kAuto);
    settings.default_chunks = false;
    settings.ps.job.chunk_bytes = bytes;
    CHECK(chunk_bytes(settings) == bytes);
  }
  LaunchSettings program = given(kAuto);
  program.program = {"python3", "train.py"};
  CHECK(chunk_bytes(program) == 0);
}

TEST_CASE("prepared settings: chunks are for GPUs if one rank of several may pull them by one") {
  const EnvironmentVariable named("CUDA_VISIBLE_DEVICES", "5,7");
  LaunchSettings settings = given(kCpu);
  settings.device_of_rank[2] = kAuto;
  CHECK(chunk_bytes(settings) == kChunkBytesForGpu);
  settings.wire_of_rank[2] = Wire::kBFloat16;  // of gradients
  CHECK(chunk_bytes(settings) == kChunkBytesForGpu);
  settings.ps.job.workers = 2;  // nobody has rank 2
  CHECK(chunk_bytes(settings) == 0);
  settings.ps.job.elastic_min = 1, settings.ps.job.elastic_max = 3;
  CHECK(chunk_bytes(settings) == kChunkBytesForGpu);
}

TEST_CASE(
    "prepared settings: where a kernel reads as fast as the copy engine, threads share all cores, chunks stay small") {
  for (const bool host_page_tables : {true, false}) {
    test::FakeCuda cuda({.host_page_tables = host_page_tables});
    LaunchSettings settings = given(kAuto);
    settings.ps.job.workers = 1;
    const JobConfig job = tools::completed(settings, nullptr, cuda).ps.job;
    CHECK(job.chunk_bytes == (host_page_tables ? 0 : kChunkBytesForGpu));
    CHECK(job.threads == std::min(std::thread::hardware_concurrency(), host_page_tables ? kMaxThreads : 8));
  }
}

TEST_CASE("prepared settings: without a GPU chunks are those of workers on the CPU") {
  const EnvironmentVariable none("CUDA_VISIBLE_DEVICES", "");
  CHECK(chunk_bytes(given(kAuto)) == 0);
}

TEST_CASE("prepared settings: epochs together are rounded up to whole steps, and a schedule keeps to each epoch") {
  struct Case {
    std::uint64_t examples, batch, push_every, epochs;
    std::uint32_t workers;
    Mode mode;
    std::uint64_t steps;
    float steps_per_epoch;
  };
  for (const Case& one :
       {Case{1437, 32, 1, 10, 1, Mode::kAsync, 450, 44.90625F}, Case{1437, 1000, 1, 30, 3, Mode::kAsync, 44, 1.437F},
        Case{1437, 32, 100, 10, 1, Mode::kAsync, 5, 0.4490625F}, Case{1437, 1000, 1, 5, 16, Mode::kSync, 1, 0.0898125F},
        Case{1440, 32, 1, 2, 3, Mode::kSync, 30, 15}, Case{1, 1, 1, 1, 1, Mode::kAsync, 1, 1},
        Case{std::uint64_t{1} << 40, 1 << 20, 1, 1'000'000'000, 1, Mode::kAsync,
             1'000'000'000 * (std::uint64_t{1} << 20), 1 << 20},
        Case{std::uint64_t{1} << 40, 1, 1, 1'000'000'000, 1, Mode::kAsync, std::numeric_limits<std::uint64_t>::max(),
             std::uint64_t{1} << 40}}) {
    CAPTURE(one.examples);
    CAPTURE(one.steps);
    LaunchSettings settings = given(kCpu);
    settings.training.model = "mlp";
    settings.training.push_every = one.push_every;
    settings.training.epochs = one.epochs;
    settings.training.epoch_schedule = "warmup:3+epoch:0.5";
    settings.ps.job.workers = one.workers;
    settings.ps.job.mode = one.mode;
    const Examples workload(one.examples, one.batch);
    const JobConfig job = tools::completed(settings, &workload).ps.job;
    CHECK(job.steps == one.steps);
    CHECK(job.optimizer.schedule == Schedule{Schedule::Kind::kStep, 0.5F, one.steps_per_epoch, 3});
  }
}
