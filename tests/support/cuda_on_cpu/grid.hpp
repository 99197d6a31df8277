// Runs a kernel's grid on the CPU: the threads of a block are fibers of the OS thread that runs the stream, and take
// turns.
//
// A fiber runs until it reaches a barrier or an exchange of its warp, or ends. PS_SHM_CUDA_ON_CPU_ORDER selects the
// order of fibers and blocks, so that code that only works in one order is noticed:
//   0, or not set   by number
//   1               in reverse order
//   N > 1           at random, with that seed; turns also end at some of the accesses of system scope
// Blocks run one after the other. Misuse that would hang a GPU or give undefined results (a barrier that some threads
// do not reach, an exchange without the whole warp, a misaligned vector access) ends the process with a line that names
// kernel line, block and thread.
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

// The object that a cudaStream_t points to.
class Queue {
 public:
  // `kernel`: the one that is launched; nullptr: none.
  virtual cudaError_t enqueue(std::function<void()> work, const void* kernel) = 0;

 protected:
  ~Queue() = default;
};

// An access of system scope, or a fence, that a kernel is about to perform.
enum class Access { kLoad, kLoadAcquire, kStore, kStoreRelease, kAdd, kFence };
struct Noted {
  Access access;
  const void* address;
  std::size_t bytes;  // of one element of a vector
  unsigned block, thread;
};

// Sets a function that is called before each of these in all kernels that this OS thread, a stream's, runs from now on;
// an empty one removes it. With a watcher, turns end at barriers and exchanges only.
using Watcher = std::function<void(const Noted&)>;
PS_SHM_ON_CPU_EXPORT void watch(Watcher watcher);

// Sets a function that this OS thread calls with each kernel that it loads without a launch; an empty one removes it.
using Loader = std::function<void(const void* kernel)>;
PS_SHM_ON_CPU_EXPORT void watch_loads(Loader loader);

// For cuda_runtime.h and similar headers.
// cudaErrorInvalidValue if there is no stream.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const void* kernel = nullptr);
void load(const void* kernel);
bool may_launch(dim3 grid, dim3 block);
// Each block begins with as much dynamic shared memory, of which all bits are set.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& thread);
std::byte* dynamic_shared();  // a multiple of 128
void note(Access access, const void* address, std::size_t bytes);
const void* whole(const void* address, std::size_t bytes);  // an error if it is not a multiple of `bytes`
bool meet(int line, bool fact);                             // the block's barrier; whether any thread's fact is true
std::uint32_t exchange(int line, unsigned mask, std::uint32_t value, unsigned apart);
bool is_made_at_once();  // an asynchronous copy; in order 0 never, in order 1 always, otherwise by chance
[[noreturn]] void fault(const char* what, int line);

}  // namespace ps_shm::on_cpu
