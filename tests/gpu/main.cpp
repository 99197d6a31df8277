// The main function of tests that need a GPU: without one it exits with 77, which means skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "gpu/tables.hpp"

namespace ps_shm::test {

device::CudaCalls& cuda() { return device::cuda_calls(); }
device::TransferKernels& kernels() { return device::transfer_kernels(); }
train::ModelKernels& model_kernels() { return train::model_kernels(); }

}  // namespace ps_shm::test

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  ps_shm::device::CudaCalls& cuda = ps_shm::test::cuda();
  int count = 0;
  const ps_shm::device::CudaError error = cuda.device_count(count);
  if (error != ps_shm::device::kSuccess || count == 0) {
    std::printf("skip: no GPU (%s)\n",
                error != ps_shm::device::kSuccess ? cuda.error_text(error).c_str() : "none found");
    return kSkipped;
  }
  if (const ps_shm::device::CudaError failure = cuda.set_device(0); failure != ps_shm::device::kSuccess) {
    std::fprintf(stderr, "cannot use GPU 0: %s\n", cuda.error_text(failure).c_str());
    return 1;
  }
  return doctest::Context(argc, argv).run();
}
