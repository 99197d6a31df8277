// A GPU's gradients against the CPU's, on tables that execute on this machine: the order and shapes of the kernels.
#include "train/gpu/gpu_model.hpp"

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"
#include "support/fake_cuda.hpp"
#include "support/gpu_model_check.hpp"

using namespace ps_shm;

TEST_CASE("gpu model: loss and gradients equal the CPU's, for both models and odd sizes") {
  test::FakeCuda cuda;
  test::FakeModelKernels kernels(cuda);
  test::check_gpu_gradients(cuda, kernels);
  CHECK(cuda.faults().empty());
  CHECK(cuda.live_allocations() == 0);
}

TEST_CASE("gpu model: a kernel that cannot be launched is reported as an error") {
  test::FakeCuda cuda;
  test::FakeModelKernels kernels(cuda);
  cuda.fail("relu_gradient", 0, device::kInvalidValue);
  CHECK_THROWS_WITH_AS(test::check_gpu_gradient("mlp", 3, 5, 2, cuda, kernels),
                       doctest::Contains("the GPU cannot compute a gradient: fake error 1"), Error);
  CHECK(cuda.live_allocations() == 0);
}

TEST_CASE("gpu model: a workspace that does not fit is an error and leaves nothing allocated") {
  test::FakeCuda cuda({.memory_bytes = 4096});
  test::FakeModelKernels kernels(cuda);
  const auto model = train::make_model("mlp", 64, 10);
  CHECK_THROWS_WITH_AS(train::GpuModel(*model, 100, cuda, kernels), doctest::Contains("allocate memory"), Error);
  CHECK(cuda.live_allocations() == 0);
}
