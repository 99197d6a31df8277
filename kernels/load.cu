// Loads all kernels. CUDA does it at a kernel's first launch, for which it may wait for all that the device has under
// way (CUDA programming guide, lazy loading): for ever, where a stream waits for a word that the launching thread is to
// store afterwards.
#include "launch.cuh"
#include "transfer_launchers.hpp"

namespace ps::kernels {

cudaError_t load_all() {
  for (const Loadable* one = Loadable::first; one != nullptr; one = one->next) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, one->kernel)) return error;
  }
  return cudaSuccess;
}

}  // namespace ps::kernels
