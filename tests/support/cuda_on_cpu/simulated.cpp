// The programs' tables in a build with -Dcuda=simulated, with a GPU that is simulated on this machine's processor.
#include "support/cuda_on_cpu/tables.hpp"
#include "support/fake_cuda.hpp"

namespace ps_shm {

device::CudaCalls& device::cuda_calls() {
  static auto* calls = new test::FakeCuda({.name = "simulated GPU: kernels run on the CPU",
                                           .is_simulated = true,
                                           .memory_bytes = std::size_t{16} << 30});  // not destroyed: streams may run
  return *calls;
}

device::TransferKernels& device::transfer_kernels() { return on_cpu::transfer_kernels(); }

train::ModelKernels& train::model_kernels() { return on_cpu::model_kernels(); }

}  // namespace ps_shm
