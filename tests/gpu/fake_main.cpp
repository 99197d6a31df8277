// The main function of the same tests on the fake.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "gpu/tables.hpp"
#include "support/fake_cuda.hpp"

namespace ps_shm::test {

static FakeCuda& fake() {
  static FakeCuda cuda(FakeBox{.native_atomics = true});
  return cuda;
}

device::CudaCalls& cuda() { return fake(); }
device::TransferKernels& kernels() {
  static FakeKernels kernels(fake());
  return kernels;
}
train::ModelKernels& model_kernels() {
  static FakeModelKernels kernels(fake());
  return kernels;
}

}  // namespace ps_shm::test
