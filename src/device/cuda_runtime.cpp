// Implements CudaCalls with the CUDA runtime, and with the driver for what the runtime lacks or has only in newer
// versions.
//
// The runtime is linked statically and finds the driver's library when it is first called, so that a program starts
// without a driver. For the same reason the driver's functions come from cudaGetDriverEntryPoint.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

#include "device/cuda_calls.hpp"

namespace ps_shm::device {
namespace {

// The table's numbers are CUDA's.
static_assert(kInvalidValue == cudaErrorInvalidValue && kOutOfMemory == cudaErrorMemoryAllocation &&
              kInsufficientDriver == cudaErrorInsufficientDriver && kStubLibrary == cudaErrorStubLibrary &&
              kNoDevice == cudaErrorNoDevice && kInvalidDevice == cudaErrorInvalidDevice &&
              kNotReady == cudaErrorNotReady && kAlreadyRegistered == cudaErrorHostMemoryAlreadyRegistered &&
              kNotRegistered == cudaErrorHostMemoryNotRegistered && kNotSupported == cudaErrorNotSupported &&
              kSystemNotReady == cudaErrorSystemNotReady && kSystemDriverMismatch == cudaErrorSystemDriverMismatch &&
              kCompatNotSupported == cudaErrorCompatNotSupportedOnDevice);
static_assert(int(Attribute::kHostNativeAtomics) == cudaDevAttrHostNativeAtomicSupported &&
              int(Attribute::kCanUseHostPointer) == cudaDevAttrCanUseHostPointerForRegisteredMem &&
              int(Attribute::kHostRegisterSupported) == cudaDevAttrHostRegisterSupported &&
              int(Attribute::kPageableAccess) == cudaDevAttrPageableMemoryAccess &&
              int(Attribute::kUsesHostPageTables) == cudaDevAttrPageableMemoryAccessUsesHostPageTables &&
              int(Attribute::kReadOnlyRegistration) == cudaDevAttrHostRegisterReadOnlySupported);
static_assert(kRegisterPortable == cudaHostRegisterPortable && kRegisterMapped == cudaHostRegisterMapped &&
              kRegisterReadOnly == cudaHostRegisterReadOnly);
#if CUDART_VERSION >= 13000
static_assert(int(Attribute::kHostNumaNode) == cudaDevAttrHostNumaId &&
              int(Attribute::kPartialHostNativeAtomics) == cudaDevAttrOnlyPartialHostNativeAtomicSupported);
static_assert(int(AtomicOperation::kIntegerAdd) == cudaAtomicOperationIntegerAdd &&
              int(AtomicOperation::kCompareExchange) == cudaAtomicOperationCAS &&
              int(AtomicOperation::kFloatAdd) == cudaAtomicOperationFloatAdd &&
              int(AtomicOperation::kFloatMax) == cudaAtomicOperationFloatMax);
static_assert(kAtomicScalar32 == cudaAtomicCapabilityScalar32 && kAtomicScalar64 == cudaAtomicCapabilityScalar64 &&
              kAtomicVector32x4 == cudaAtomicCapabilityVector32x4);
#endif

// The driver's functions. The version in a function's name fixes its type for good; cuda.h of 12.1 lacks some of them.
using DeviceGet = int (*)(int* device, int ordinal);                                                        // 2.0
using DeviceGetUuid = int (*)(unsigned char* uuid, int device);                                             // 11.4
using StreamWaitValue32 = int (*)(cudaStream_t, unsigned long long address, unsigned, unsigned);            // 11.7
using HostAtomicCapabilities = int (*)(unsigned* bits, const int* operations, unsigned count, int device);  // 13.0

// The preferred location of a managed operand. Zeros: no preference, the only value allowed for other memory.
struct Location {
  int type, id;
};
struct CopyAttributes {
  int source_order;
  Location source, destination;
  unsigned flags;
};
constexpr int kSourceInStreamOrder = 1;
#if CUDART_VERSION >= 12080
static_assert(sizeof(CopyAttributes) == sizeof(cudaMemcpyAttributes) &&
              offsetof(CopyAttributes, flags) == offsetof(cudaMemcpyAttributes, flags) &&
              kSourceInStreamOrder == cudaMemcpySrcAccessOrderStream);
#endif
using CopyBatch = int (*)(unsigned long long* to, unsigned long long* from, std::size_t* bytes, std::size_t count,
                          CopyAttributes*, std::size_t* first_of_attributes, std::size_t attributes,
                          std::size_t* failed, cudaStream_t);  // 12.8; every later driver still has this version

// A function of the driver as of a given version; nullptr, with the reason, if it is not available.
template <class Function>
struct Entry {
  Function function = nullptr;
  CudaError error = kNotSupported;
};

template <class Function>
Entry<Function> find_entry(const char* name, [[maybe_unused]] unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
#else
  // Returns what this build's version of CUDA had.
  if (version > CUDART_VERSION) return {};
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    // This is the answer of a driver that is older than the requested version.
    return {nullptr, error == cudaErrorInvalidValue ? kNotSupported : static_cast<CudaError>(error)};
  }
  if (result != cudaDriverEntryPointSuccess || found == nullptr) return {};
  return {reinterpret_cast<Function>(found), kSuccess};
}

// The version since 11.7, which works on every platform; the previous one needed a module option of the driver.
const Entry<StreamWaitValue32>& find_wait_value() {
  static const auto entry = find_entry<StreamWaitValue32>("cuStreamWaitValue32", 11070);
  return entry;
}

// While any thread records a graph in CUDA's strictest mode, which is PyTorch's, allocations and registrations, and
// looking at a stream or waiting for one, would be refused and would invalidate that graph, although it has nothing to do
// with it. NCCL does the same around its registrations.
class CaptureAllowed {
 public:
  CaptureAllowed() : changed_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
  ~CaptureAllowed() {
    if (changed_) cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  CaptureAllowed(const CaptureAllowed&) = delete;
  CaptureAllowed& operator=(const CaptureAllowed&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // later the previous mode
  bool changed_;
};

cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t raw(Event event) { return reinterpret_cast<cudaEvent_t>(event); }
cudaGraphExec_t raw(Graph graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

template <class Handle, class Raw>
CudaError hand_over(CudaError error, Raw made, Handle& handle) {
  if (error == kSuccess) handle = reinterpret_cast<Handle>(made);
  return error;
}

// "Not ready" is an answer, but it stays the thread's pending error, which a later check would find.
CudaError looked(cudaError_t answer) {
  if (answer == cudaErrorNotReady) static_cast<void>(cudaGetLastError());
  return answer;
}

// For a call that may have written part of its results.
template <class T>
CudaError hand_over_value(CudaError error, T got, T& result) {
  if (error == kSuccess) result = std::move(got);
  return error;
}

const Entry<DeviceGet>& find_device_get() {
  static const auto entry = find_entry<DeviceGet>("cuDeviceGet", 2000);
  return entry;
}

std::array<std::uint64_t, 2> to_words(const unsigned char* bytes) {
  std::array<std::uint64_t, 2> words{};
  for (std::size_t i = 0; i < 16; ++i) words[i / 8] = words[i / 8] << 8 | bytes[i];
  return words;
}

// Since 11.4 the driver's function gives a MIG instance's own UUID; the runtime's properties have that of its GPU.
std::array<std::uint64_t, 2> uuid_of(int device, const cudaDeviceProp& properties) {
  static const auto ask = find_entry<DeviceGetUuid>("cuDeviceGetUuid", 11040);
  int handle = 0;
  std::array<unsigned char, 16> bytes{};
  if (find_device_get().function != nullptr && ask.function != nullptr &&
      find_device_get().function(&handle, device) == kSuccess && ask.function(bytes.data(), handle) == kSuccess)
    return to_words(bytes.data());
  return to_words(reinterpret_cast<const unsigned char*>(properties.uuid.bytes));
}

class RuntimeCalls final : public CudaCalls {
 public:
  bool is_built() const override { return true; }
  int built_for() const override { return CUDART_VERSION; }
  std::string error_text(CudaError error) override {
    const auto number = static_cast<cudaError_t>(error);
    return std::string(cudaGetErrorName(number)) + ": " + cudaGetErrorString(number);
  }
  CudaError last_error() override { return cudaGetLastError(); }

  CudaError driver_version(int& version) override {
    int got = 0;
    return hand_over_value(cudaDriverGetVersion(&got), got, version);
  }
  CudaError device_count(int& count) override {
    int got = 0;
    return hand_over_value(cudaGetDeviceCount(&got), got, count);
  }
  CudaError properties(int device, DeviceProperties& properties) override {
    cudaDeviceProp got{};
    if (const CudaError error = cudaGetDeviceProperties(&got, device); error != kSuccess) return error;
    std::array<char, 32> address{};  // in the format of sysfs
    std::snprintf(address.data(), address.size(), "%04x:%02x:%02x.0", static_cast<unsigned>(got.pciDomainID),
                  static_cast<unsigned>(got.pciBusID), static_cast<unsigned>(got.pciDeviceID));
    properties = {.name = got.name,
                  .pci_address = address.data(),
                  .major = got.major,
                  .minor = got.minor,
                  .multiprocessors = got.multiProcessorCount,
                  .memory_bytes = got.totalGlobalMem,
                  .uuid = uuid_of(device, got)};
    return kSuccess;
  }
  CudaError attribute(Attribute attribute, int device, int& value) override {
    int got = 0;
    return hand_over_value(cudaDeviceGetAttribute(&got, static_cast<cudaDeviceAttr>(attribute), device), got, value);
  }
  CudaError host_atomics(int device, std::span<const AtomicOperation> operations, std::span<unsigned> bits) override {
    if (operations.size() != bits.size()) return kInvalidValue;
    const auto& get = find_device_get();
    static const auto ask = find_entry<HostAtomicCapabilities>("cuDeviceGetHostAtomicCapabilities", 13000);
    if (get.function == nullptr) return get.error;
    if (ask.function == nullptr) return ask.error;
    int handle = 0;
    if (const CudaError error = get.function(&handle, device); error != kSuccess) return error;
    std::vector<int> numbers(operations.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int>(operations[i]);
    std::vector<unsigned> got(bits.size());
    const CudaError error = ask.function(got.data(), numbers.data(), static_cast<unsigned>(numbers.size()), handle);
    if (error == kSuccess) std::copy(got.begin(), got.end(), bits.begin());
    return error;
  }
  CudaError can_access_peer(int device, int peer, int& can) override {
    int got = 0;
    return hand_over_value(cudaDeviceCanAccessPeer(&got, device, peer), got, can);
  }
  CudaError set_device(int device) override { return cudaSetDevice(device); }
  // By default a thread that waits for the GPU spins if there are at least as many cores as contexts, while other
  // workers and the threads that push need the cores. It does not block, because a step's waits are short, and being
  // woken by an interrupt would lengthen each of them.
  CudaError yield_in_waits(int device) override {
    return cudaInitDevice(device, cudaDeviceScheduleYield, cudaInitDeviceFlagsAreValid);
  }
  CudaError memory_info(std::size_t& free_bytes, std::size_t& total_bytes) override {
    std::size_t free = 0, total = 0;
    const CudaError error = cudaMemGetInfo(&free, &total);
    if (error == kSuccess) free_bytes = free, total_bytes = total;
    return error;
  }

  CudaError host_register(void* address, std::size_t bytes, unsigned flags) override {
    const CaptureAllowed allowed;
    return cudaHostRegister(address, bytes, flags);
  }
  CudaError host_unregister(void* address) override {
    const CaptureAllowed allowed;
    return cudaHostUnregister(address);
  }
  CudaError device_address(void* host, void*& device) override {
    void* got = nullptr;
    return hand_over_value(cudaHostGetDevicePointer(&got, host, 0), got, device);
  }
  CudaError allocate(std::size_t bytes, void*& device) override {
    const CaptureAllowed allowed;
    void* got = nullptr;
    return hand_over_value(cudaMalloc(&got, bytes), got, device);
  }
  CudaError release(void* device) override {
    const CaptureAllowed allowed;
    return cudaFree(device);
  }
  CudaError allocate_pinned(std::size_t bytes, void*& host) override {
    const CaptureAllowed allowed;
    void* got = nullptr;
    return hand_over_value(cudaHostAlloc(&got, bytes, cudaHostAllocPortable | cudaHostAllocMapped), got, host);
  }
  CudaError release_pinned(void* host) override {
    const CaptureAllowed allowed;
    return cudaFreeHost(host);
  }

  CudaError create_stream(Stream& stream) override {
    cudaStream_t made{};
    const CudaError error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return hand_over(error, made, stream);
  }
  CudaError destroy_stream(Stream stream) override { return cudaStreamDestroy(raw(stream)); }
  CudaError synchronize(Stream stream) override {
    const CaptureAllowed allowed;
    return cudaStreamSynchronize(raw(stream));
  }
  CudaError query(Stream stream) override {
    const CaptureAllowed allowed;
    return looked(cudaStreamQuery(raw(stream)));
  }
  CudaError create_event(bool keeps_time, Event& event) override {
    cudaEvent_t made{};
    const CudaError error = cudaEventCreateWithFlags(&made, keeps_time ? cudaEventDefault : cudaEventDisableTiming);
    return hand_over(error, made, event);
  }
  CudaError destroy_event(Event event) override { return cudaEventDestroy(raw(event)); }
  CudaError record(Event event, Stream stream) override { return cudaEventRecord(raw(event), raw(stream)); }
  CudaError record_in_graph(Event event, Stream stream) override {
    return cudaEventRecordWithFlags(raw(event), raw(stream), cudaEventRecordExternal);
  }
  CudaError query(Event event) override {
    const CaptureAllowed allowed;
    return looked(cudaEventQuery(raw(event)));
  }
  CudaError synchronize(Event event) override {
    const CaptureAllowed allowed;
    return cudaEventSynchronize(raw(event));
  }
  CudaError wait(Stream stream, Event event) override { return cudaStreamWaitEvent(raw(stream), raw(event), 0); }
  CudaError elapsed_ms(Event begin, Event end, float& milliseconds) override {
    float got = 0.0F;
    return hand_over_value(cudaEventElapsedTime(&got, raw(begin), raw(end)), got, milliseconds);
  }

  CudaError copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, raw(stream));
  }
  CudaError copy_batch(std::span<void* const> to, std::span<const void* const> from, std::span<const std::size_t> bytes,
                       Stream stream) override {
    if (to.size() != from.size() || to.size() != bytes.size()) return kInvalidValue;
    static const auto entry = find_entry<CopyBatch>("cuMemcpyBatchAsync", 12080);
    if (entry.function == nullptr) return entry.error;
    if (to.empty()) return kSuccess;
    // The driver takes non-const arrays.
    std::vector<unsigned long long> targets(to.size()), sources(to.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      targets[i] = reinterpret_cast<unsigned long long>(to[i]);
      sources[i] = reinterpret_cast<unsigned long long>(from[i]);
    }
    std::vector<std::size_t> sizes(bytes.begin(), bytes.end());
    CopyAttributes attributes{.source_order = kSourceInStreamOrder, .source = {}, .destination = {}, .flags = 0};
    std::size_t first = 0, failed = 0;
    return entry.function(targets.data(), sources.data(), sizes.data(), sizes.size(), &attributes, &first, 1, &failed,
                          raw(stream));
  }
  bool can_wait_value() override { return find_wait_value().function != nullptr; }
  CudaError wait_value(Stream stream, void* device_word, std::uint32_t value) override {
    const auto& entry = find_wait_value();
    if (entry.function == nullptr) return entry.error;
    constexpr unsigned kGreaterOrEqual = 0;  // cyclic
    return entry.function(raw(stream), reinterpret_cast<unsigned long long>(device_word), value, kGreaterOrEqual);
  }

  // Only calls of this thread are restricted: other threads may allocate meanwhile.
  CudaError begin_capture(Stream stream) override {
    return cudaStreamBeginCapture(raw(stream), cudaStreamCaptureModeThreadLocal);
  }
  CudaError end_capture(Stream stream, Graph& graph, std::size_t& operations) override {
    cudaGraph_t recorded = nullptr;
    if (const CudaError error = cudaStreamEndCapture(raw(stream), &recorded); error != kSuccess) return error;
    cudaGraphExec_t made{};
    CudaError error = cudaGraphGetNodes(recorded, nullptr, &operations);
    if (error == kSuccess) error = cudaGraphInstantiate(&made, recorded, 0);
    cudaGraphDestroy(recorded);
    return hand_over(error, made, graph);
  }
  CudaError launch(Graph graph, Stream stream) override { return cudaGraphLaunch(raw(graph), raw(stream)); }
  CudaError destroy_graph(Graph graph) override { return cudaGraphExecDestroy(raw(graph)); }
};

}  // namespace

CudaCalls& cuda_calls() {
  static RuntimeCalls calls;
  return calls;
}

}  // namespace ps_shm::device
