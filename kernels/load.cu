// Loads all kernels. Otherwise CUDA loads a kernel at its first launch, and may wait for all work in progress on the
// device (CUDA programming guide, lazy loading): for ever, if a stream waits for a word that the launching thread
// stores later.
#include "launch.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {

cudaError_t load_all() {
  for (const Loadable* one = Loadable::first; one != nullptr; one = one->next) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, one->kernel)) return error;
  }
  return cudaSuccess;
}

}  // namespace ps_shm::kernels
