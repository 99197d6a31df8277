// What launch_shm completes of its settings where workers may be on a GPU.
#include "launch_shm/prepared_settings.hpp"

#include <algorithm>
#include <cstdint>
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
