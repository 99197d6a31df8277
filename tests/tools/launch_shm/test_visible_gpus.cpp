// Which GPUs launch_shm spreads processes over, where no program says which there are.
#include "launch_shm/visible_gpus.hpp"

#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/environment.hpp"
#include "support/fake_cuda.hpp"
#include "support/folder.hpp"

using namespace ps_shm;
using device::DeviceChoice;
using test::EnvironmentVariable;
using tools::show_one_gpu;
using tools::visible_gpus;

TEST_CASE("visible GPUs: without CUDA_VISIBLE_DEVICES and nvidia-smi there are those that CUDA finds, one a process") {
  const test::Folder empty;
  const EnvironmentVariable path("PATH", empty.path());
  const EnvironmentVariable none("CUDA_VISIBLE_DEVICES", std::nullopt);
  test::FakeCuda cuda({.devices = 2});
  const std::vector<std::string> gpus = visible_gpus(cuda);
  CHECK(gpus == std::vector<std::string>{"0", "1"});
  DeviceChoice choice{.kind = DeviceChoice::Kind::kCuda, .index = {}};
  CHECK(show_one_gpu(gpus, 0, choice) == std::vector<std::string>{"CUDA_VISIBLE_DEVICES=0"});
  CHECK(show_one_gpu(gpus, 3, choice) == std::vector<std::string>{"CUDA_VISIBLE_DEVICES=1"});
  choice.index = 1;
  CHECK(show_one_gpu(gpus, 0, choice) == std::vector<std::string>{"CUDA_VISIBLE_DEVICES=1"});
  CHECK(choice.index == 0);  // as which the worker sees it
}

TEST_CASE("visible GPUs: a simulated one is not CUDA's") {
  const test::Folder empty;
  const EnvironmentVariable path("PATH", empty.path());
  const EnvironmentVariable none("CUDA_VISIBLE_DEVICES", std::nullopt);
  test::FakeCuda cuda({.is_simulated = true});
  CHECK(visible_gpus(cuda).empty());
}

TEST_CASE("visible GPUs: those that the variable names, whatever there is") {
  const EnvironmentVariable named("CUDA_VISIBLE_DEVICES", "GPU-11,MIG-aa,-1,5");
  test::FakeCuda cuda;
  CHECK(visible_gpus(cuda) == std::vector<std::string>{"GPU-11", "MIG-aa"});
}
