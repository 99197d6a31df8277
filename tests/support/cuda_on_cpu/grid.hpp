// Runs a kernel's grid on the CPU: a block's threads are fibers of the OS thread that runs the stream, and take turns.
//
// A fiber has its turn until it comes to a barrier or an exchange of its warp, or ends. PS_SHM_CUDA_ON_CPU_ORDER says in
// which order fibers and blocks have theirs, so that what only works in one of them shows:
//   0, or not set   by number
//   1               the last one first
//   N > 1           at random, from that seed; and turns end, too, at some of the accesses of system scope
// Blocks run one behind the other. A misuse that a GPU answers with a hang or with nonsense (a barrier that some threads
// do not come to, an exchange without the whole warp, a vector access that is not aligned) ends the process with a line
// that names kernel line, block and thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "cuda_runtime_api.h"

#define PS_SHM_ON_CPU_EXPORT __attribute__((visibility("default")))

namespace ps_shm::on_cpu {

struct Index {
  unsigned x, y, z;
};
extern constinit thread_local Index threadIdx, blockIdx, blockDim, gridDim;

// What a cudaStream_t points to.
class Queue {
 public:
  virtual cudaError_t enqueue(std::function<void()> work) = 0;

 protected:
  ~Queue() = default;
};

// An access of system scope, or a fence, that a kernel is about to make.
enum class Access { kLoad, kLoadAcquire, kStore, kStoreRelease, kAdd, kFence };
struct Noted {
  Access access;
  const void* address;
  std::size_t bytes;  // of one element of a vector
  unsigned block, thread;
};

// Called before each of them in all kernels that this OS thread, a stream's, runs from now on. An empty one: no more.
// While a watcher looks on, turns end at barriers and exchanges only.
using Watcher = std::function<void(const Noted&)>;
PS_SHM_ON_CPU_EXPORT void watch(Watcher watcher);

// For cuda_runtime.h and its like.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);  // cudaErrorInvalidValue where there is no stream
bool may_launch(dim3 grid, dim3 block);
void run_grid(dim3 grid, dim3 block, const std::function<void()>& thread);
void note(Access access, const void* address, std::size_t bytes);
const void* whole(const void* address, std::size_t bytes);  // a fault where it is no multiple of `bytes`
bool meet(int line, bool fact);                             // the block's barrier; whether anybody's fact is true
std::uint32_t exchange(int line, unsigned mask, std::uint32_t value, unsigned apart);

}  // namespace ps_shm::on_cpu
