// Reads mapped host memory by bulk copies, to measure how few multiprocessors fill a link in this way. No load of a
// thread is involved, so one thread in each block suffices: it keeps a ring of pieces in shared memory filled from host
// memory, and copies each piece on to device memory when it has arrived.
#include "bulk_copies.cuh"
#include "bulk_reads.hpp"
#include "launch.cuh"

namespace ps_shm::kernels {
namespace {

constexpr std::uint32_t kMostStages = 64;
// What sm_90 and sm_100 have, and less than that on smaller devices.
constexpr std::uint32_t kMostRingBytes = 192 << 10, kRingUnit = 32 << 10;

#if __CUDA_ARCH__ >= 900
__device__ std::uint32_t bytes_at(std::uint64_t offset, std::uint64_t bytes, std::uint32_t piece_bytes) {
  return bytes - offset < piece_bytes ? static_cast<std::uint32_t>(bytes - offset) : piece_bytes;
}

// A place in the ring, and the parity of its arrival's phase.
struct Stage {
  std::uint32_t number = 0, parity = 0;

  __device__ void advance(std::uint32_t stages) {
    if (++number < stages) return;
    number = 0;
    parity ^= 1;
  }
};

// Called by the only thread of the block. Block b copies pieces b, b + blocks, b + 2 blocks and so on.
__device__ void copy_share(const std::byte* from, std::byte* to, std::uint64_t bytes, std::uint32_t piece_bytes,
                           std::uint32_t stages) {
  __shared__ Arrival arrived[kMostStages];
  std::byte* const ring = dynamic_shared();
  for (std::uint32_t i = 0; i < stages; ++i) initialize(arrived + i);
  fence_arrivals();

  const std::uint64_t first = std::uint64_t{blockIdx.x} * piece_bytes;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * piece_bytes;
  std::uint64_t next = first;  // to be loaded
  Stage loaded;
  const auto load_next = [&] {
    bulk_load(ring + loaded.number * piece_bytes, from + next, bytes_at(next, bytes, piece_bytes),
              arrived + loaded.number);
    loaded.advance(stages);
    next += stride;
  };
  for (std::uint32_t i = 0; i < stages && next < bytes; ++i) load_next();

  Stage stored;
  for (std::uint64_t offset = first; offset < bytes; offset += stride) {
    wait_for(arrived + stored.number, stored.parity);
    bulk_store(to + offset, ring + stored.number * piece_bytes, bytes_at(offset, bytes, piece_bytes));
    stored.advance(stages);
    // The next load takes the place of the piece before this one, so this one's store need not be waited for.
    wait_until_read<1>();
    if (offset != first && next < bytes) load_next();
  }
  wait_until_stored();
}
#endif

__global__ void __launch_bounds__(1) bulk_kernel(const std::byte* from, std::byte* to, std::uint64_t bytes,
                                                 std::uint32_t piece_bytes, std::uint32_t stages) {
#if __CUDA_ARCH__ >= 900
  copy_share(from, to, bytes, piece_bytes, stages);
#else
  __trap();  // bulk_read_max_ring() refuses such devices
#endif
}

const Loadable loadable{bulk_kernel};

}  // namespace

int bulk_read_max_ring(std::uint32_t& ring_bytes) noexcept {
  int device = 0, major = 0, shared_bytes = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)) return error;
  if (major < 9) return cudaErrorNotSupported;
  if (const cudaError_t error = cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
    return error;
  const auto left = static_cast<std::uint32_t>(shared_bytes) - kMostStages * std::uint32_t{sizeof(Arrival)};
  const std::uint32_t most = left < kMostRingBytes ? left / kRingUnit * kRingUnit : kMostRingBytes;
  if (const cudaError_t error =
          cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most)))
    return error;
  ring_bytes = most;
  return cudaSuccess;
}

int bulk_read(const std::byte* from, std::byte* to, std::size_t bytes, const BulkReads& how, void* stream) noexcept {
  constexpr std::size_t kUnit = 16;
  if (bytes == 0) return cudaSuccess;
  if (how.blocks == 0 || how.piece_bytes == 0 || how.piece_bytes % kUnit != 0 || bytes % kUnit != 0)
    return cudaErrorInvalidValue;
  const std::uint32_t fit = how.ring_bytes / how.piece_bytes, stages = fit < kMostStages ? fit : kMostStages;
  if (stages < 2 || reinterpret_cast<std::size_t>(from) % kUnit != 0 || reinterpret_cast<std::size_t>(to) % kUnit != 0)
    return cudaErrorInvalidValue;
  const unsigned pieces = blocks_for(bytes, how.piece_bytes);
  cudaLaunchConfig_t config{};
  config.gridDim = pieces < how.blocks ? pieces : how.blocks;
  config.blockDim = 1;
  config.dynamicSmemBytes = how.ring_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  return cudaLaunchKernelEx(&config, bulk_kernel, from, to, std::uint64_t{bytes}, how.piece_bytes, stages);
}

}  // namespace ps_shm::kernels
