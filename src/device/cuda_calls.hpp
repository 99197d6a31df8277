// The calls of the CUDA runtime and driver that this project makes, behind a table that tests replace.
//
// One function for each call. Each returns the number of a cudaError_t, 0 for success, and changes its results only on
// success. Addresses are those that the call takes: a registered range has a separate device address. Nothing here
// throws or retries. Calls newer than CUDA 12.1 are looked up at run time; if the driver lacks one, it returns
// kNotSupported.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "shm/base/atomic.hpp"

namespace ps_shm::device {

using CudaError = int;
inline constexpr CudaError kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kInsufficientDriver = 35,
                           kStubLibrary = 34, kNoDevice = 100, kInvalidDevice = 101, kNotReady = 600,
                           kAlreadyRegistered = 712, kNotRegistered = 713, kNotSupported = 801, kSystemNotReady = 802,
                           kSystemDriverMismatch = 803, kCompatNotSupported = 804;

// cudaStream_t, cudaEvent_t and cudaGraphExec_t.
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Graph = struct GraphHandle*;

// The numbers of cudaDeviceAttr.
enum class Attribute : int {
  kHostNativeAtomics = 86,
  kCanUseHostPointer = 91,  // of registered memory, on the device
  kHostRegisterSupported = 99,
  kPageableAccess = 88,
  kUsesHostPageTables = 100,
  kReadOnlyRegistration = 113,
  kHostNumaNode = 134,
  kPartialHostNativeAtomics = 147
};

// The numbers of cudaAtomicOperation, all thirteen.
enum class AtomicOperation : int {
  kIntegerAdd,
  kIntegerMin,
  kIntegerMax,
  kIntegerIncrement,
  kIntegerDecrement,
  kAnd,
  kOr,
  kXor,
  kExchange,
  kCompareExchange,
  kFloatAdd,
  kFloatMin,
  kFloatMax
};
inline constexpr int kAtomicOperations = 13;

// The bits of cudaAtomicOperationCapability.
inline constexpr unsigned kAtomicScalar32 = 8, kAtomicScalar64 = 16, kAtomicVector32x4 = 64;

// The flags of cudaHostRegister.
inline constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2, kRegisterReadOnly = 8;

struct DeviceProperties {
  std::string name, pci_address;  // "NVIDIA H200", "0000:1b:00.0"
  int major = 0, minor = 0;       // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
  // As nvidia-smi prints it, most significant byte first; of a MIG instance its own.
  std::array<std::uint64_t, 2> uuid{};
};

struct GpuInfo;

class CudaCalls {
 public:
  virtual ~CudaCalls() = default;

  // What is known of the GPUs. A cache of require_gpu (probe.hpp), which probes each GPU once: the properties of a GPU do
  // not change.
  struct KnownGpus {
    std::mutex mutex;
    std::map<int, std::shared_ptr<const GpuInfo>> by_device;
    std::set<int> yielding;                       // see yield_in_waits_once (train/gpu/choose_gpu.cpp)
    shm::AtomicShm<std::uint32_t> is_given_up{};  // see give_up()
  };
  const std::shared_ptr<KnownGpus> known_gpus = std::make_shared<KnownGpus>();

  // A device that does not answer is given up: from now on nobody waits for it, so that its process can end. What the
  // device may still use (memory, registrations, streams, events, graphs) is not released until then.
  // Relaxed: a thread that sees it late waits a little longer.
  void give_up() noexcept { known_gpus->is_given_up.store_relaxed(1); }
  bool is_given_up() const noexcept { return known_gpus->is_given_up.load_relaxed() != 0; }

  // Whether this build has CUDA. Without it every call returns kInsufficientDriver.
  virtual bool is_built() const = 0;
  virtual bool is_simulated() const { return false; }   // whether the CPU simulates the GPU, for tests and debuggers
  virtual int built_for() const = 0;                    // 13000 for CUDA 13.0; 0: not built
  virtual std::string error_text(CudaError error) = 0;  // "cudaErrorNoDevice: no CUDA-capable device is detected"
  virtual CudaError last_error() = 0;                   // clears it, too

  virtual CudaError driver_version(int& version) = 0;  // 0: no driver
  virtual CudaError device_count(int& count) = 0;
  virtual CudaError properties(int device, DeviceProperties& properties) = 0;
  virtual CudaError attribute(Attribute attribute, int device, int& value) = 0;
  virtual CudaError host_atomics(int device, std::span<const AtomicOperation> operations, std::span<unsigned> bits) = 0;
  virtual CudaError can_access_peer(int device, int peer, int& can) = 0;
  virtual CudaError set_device(int device) = 0;
  // Threads of this process that wait for the GPU yield their cores from now on. Only for programs of this project: the
  // setting is that of all libraries of the process, such as PyTorch.
  virtual CudaError yield_in_waits(int device) = 0;
  virtual CudaError memory_info(std::size_t& free_bytes, std::size_t& total_bytes) = 0;

  virtual CudaError host_register(void* address, std::size_t bytes, unsigned flags) = 0;
  virtual CudaError host_unregister(void* address) = 0;
  virtual CudaError device_address(void* host, void*& device) = 0;  // of registered or pinned memory
  virtual CudaError allocate(std::size_t bytes, void*& device) = 0;
  virtual CudaError release(void* device) = 0;
  virtual CudaError allocate_pinned(std::size_t bytes, void*& host) = 0;  // portable, mapped
  virtual CudaError release_pinned(void* host) = 0;

  virtual CudaError create_stream(Stream& stream) = 0;  // does not wait for the default stream
  virtual CudaError destroy_stream(Stream stream) = 0;
  virtual CudaError synchronize(Stream stream) = 0;
  virtual CudaError query(Stream stream) = 0;  // kNotReady: work is in progress
  virtual CudaError create_event(bool keeps_time, Event& event) = 0;
  virtual CudaError destroy_event(Event event) = 0;
  virtual CudaError record(Event event, Stream stream) = 0;
  // As a part of the graph that is being recorded: each launch of it records the event.
  virtual CudaError record_in_graph(Event event, Stream stream) = 0;
  virtual CudaError query(Event event) = 0;
  virtual CudaError synchronize(Event event) = 0;
  virtual CudaError wait(Stream stream, Event event) = 0;
  virtual CudaError elapsed_ms(Event begin, Event end, float& milliseconds) = 0;

  // In stream order. Either side may be host memory, by its host address; with pageable memory the call may wait.
  virtual CudaError copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  // Several copies, in no particular order; sources are read in stream order.
  virtual CudaError copy_batch(std::span<void* const> to, std::span<const void* const> from,
                               std::span<const std::size_t> bytes, Stream stream) = 0;
  virtual bool can_wait_value() = 0;  // whether wait_value() is available
  // The stream continues when the word, at a device address, is `value` or up to 2^31 - 1 more (cuStreamWaitValue32).
  virtual CudaError wait_value(Stream stream, void* device_word, std::uint32_t value) = 0;

  // What is enqueued between these two calls is recorded instead of run; launch() runs it. `operations` is how many
  // kernels and copies were recorded.
  virtual CudaError begin_capture(Stream stream) = 0;
  virtual CudaError end_capture(Stream stream, Graph& graph, std::size_t& operations) = 0;
  virtual CudaError launch(Graph graph, Stream stream) = 0;
  virtual CudaError destroy_graph(Graph graph) = 0;
};

// The real calls.
CudaCalls& cuda_calls();

}  // namespace ps_shm::device
