// A fake GPU for the cases of gpu_cases.hpp. Its end checks that it has seen no misuse, and that everything was freed.
#pragma once

#include <doctest/doctest.h>

#include "support/fake_cuda.hpp"
#include "support/gpu_cases.hpp"

namespace ps_shm::test {

struct FakeGpu {
  FakeCuda cuda;
  FakeKernels kernels{cuda};
  GpuBox box{cuda, kernels};

  explicit FakeGpu(const FakeBox& kind = {}) : cuda(kind) {}
  ~FakeGpu() {
    CHECK(cuda.faults().empty());
    CHECK(cuda.live_allocations() == 0);
  }
};

inline JobConfig adding(Layout layout = Layout::kVersioned) {
  return {.workers = 2, .layout = layout, .optimizer = {.rule = UpdateRule::kAdd, .lr = 0.5F}};
}

}  // namespace ps_shm::test
