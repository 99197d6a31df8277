// Detects which GPUs this process can use and what they can do with host memory, or why there is none.
//
// All answers come from the driver; nothing is guessed. Detection initialises CUDA, which takes some tenths of a second
// if there are GPUs. A process that forks afterwards must not use them in the child.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda_calls.hpp"

namespace ps_shm::device {

// A GPU, and the driver's answers about it and host memory. -1: the driver does not know the attribute.
struct GpuInfo {
  int device = 0;
  DeviceProperties properties;
  int numa_node = -1;  // of the closest memory: from the driver, else from sysfs
  int host_native_atomics = -1, partial_host_native_atomics = -1;
  std::vector<unsigned> host_atomics;  // of each AtomicOperation; empty: not available (a driver before CUDA 13.0)
  int can_use_host_pointer = -1, host_register_supported = -1, read_only_registration = -1;
  int pageable_access = -1, uses_host_page_tables = -1;
  bool stream_wait = false;  // cuStreamWaitValue32 is available
  std::vector<int> peers;    // GPUs whose memory it can access directly
};

// Why no GPU can be used.
enum class NoGpu { kNotBuilt, kNone, kDriverTooOld, kNoPermission, kHidden, kBroken };

struct GpuProbe {
  std::vector<GpuInfo> gpus;
  std::optional<NoGpu> why_none;
  std::string reason;      // of why_none: one line that says what to do
  int driver_version = 0;  // 12020 for CUDA 12.2; 0: no driver
  int built_for = 0;
  bool is_simulated = false;  // the CPU simulates the GPU: only kSimulated accepts it
};

// A device file of the driver, /dev/nvidia0 or /dev/nvidiactl, and whether this process may open it.
struct DeviceFile {
  std::string path;
  bool may_open = false;
};
std::vector<DeviceFile> nvidia_device_files(const std::string& folder = "/dev");

// The node that sysfs reports for "0000:1b:00.0"; -1 if it reports none.
int numa_node_of(const std::string& pci_address, const std::string& folder = "/sys/bus/pci/devices");

// Probes all GPUs. Does not throw if there is none.
GpuProbe probe_gpus(CudaCalls& cuda, const std::vector<DeviceFile>& files = nvidia_device_files());

// The GPU of that number. Throws Error if there is none.
GpuInfo require_gpu(CudaCalls& cuda, int device);

// --device: cpu, auto, cuda, cuda:N, simulated.
struct DeviceChoice {
  enum class Kind { kCpu, kAuto, kCuda, kSimulated } kind = Kind::kCpu;
  std::optional<std::uint32_t> index;

  bool may_be_cuda() const noexcept { return kind == Kind::kCuda || kind == Kind::kAuto; }
  bool must_be_gpu() const noexcept { return kind == Kind::kCuda || kind == Kind::kSimulated; }
  bool operator==(const DeviceChoice&) const = default;
};
DeviceChoice parse_device(const std::string& text);  // throws Error
std::string to_string(const DeviceChoice& choice);

// The GPU for a worker of this rank: the chosen one, or rank modulo their number; none for the CPU. For kAuto without a
// GPU, `log` receives the reason in one line. Throws Error if kCuda or kSimulated finds none, or not the chosen one.
std::optional<GpuInfo> choose_gpu(const DeviceChoice& choice, const GpuProbe& probe, std::uint32_t rank,
                                  std::string& log);

}  // namespace ps_shm::device
