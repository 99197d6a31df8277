#include "device/probe.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "ps_shm/errors.hpp"

namespace ps_shm::device {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// A device file that this process may not open and without which it cannot use any GPU; empty if there is none.
std::string forbidden_file(const std::vector<DeviceFile>& files) {
  std::string forbidden;
  bool has_gpu = false, may_open_gpu = false;
  for (const DeviceFile& file : files) {
    const bool is_control = file.path.ends_with("nvidiactl");
    if (is_control && !file.may_open) return file.path;  // it is opened first, for every GPU
    if (is_control) continue;
    if (!has_gpu) forbidden = file.path;
    has_gpu = true;
    may_open_gpu |= file.may_open;
  }
  return may_open_gpu ? "" : forbidden;
}

void set_reason(GpuProbe& probe, NoGpu why, std::string reason) {
  probe.why_none = why;
  probe.reason = std::move(reason);
  std::replace(probe.reason.begin(), probe.reason.end(), '\n', ' ');
}

// There is no driver library, or one that is older than the build.
void explain_driver(GpuProbe& probe, const std::vector<DeviceFile>& files) {
  if (probe.driver_version > 0)
    set_reason(
        probe, NoGpu::kDriverTooOld,
        fmt::format("the NVIDIA driver is too old: it supports CUDA up to {} and this build needs {}; install a newer "
                    "driver, or build with an nvcc no newer than the driver",
                    version_text(probe.driver_version), version_text(probe.built_for)));
  else if (files.empty())
    set_reason(probe, NoGpu::kNone,
               "there is no NVIDIA driver; if there is a GPU, install its driver (in a container: start it with "
               "access to the GPUs)");
  else
    set_reason(probe, NoGpu::kNone,
               fmt::format("there is {}, but not the driver's library libcuda.so.1; install it (in a container: start "
                           "it with access to the GPUs), or put its folder into LD_LIBRARY_PATH",
                           files.front().path));
}

// The driver works but finds no GPU.
void explain_absence(GpuProbe& probe, const std::vector<DeviceFile>& files) {
  const char* visible = std::getenv(kVisible);
  if (const std::string forbidden = forbidden_file(files); !forbidden.empty())
    set_reason(probe, NoGpu::kNoPermission,
               fmt::format("this process may not open {} to read and write; ask for access to /dev/nvidia* (in a "
                           "container: pass these devices in)",
                           forbidden));
  else if (visible != nullptr && !files.empty())
    set_reason(probe, NoGpu::kHidden,
               fmt::format("the environment variable {}='{}' hides every GPU; unset it, or name an existing one",
                           kVisible, visible));
  else
    set_reason(
        probe, NoGpu::kNone,
        fmt::format("the NVIDIA driver finds no GPU; check whether nvidia-smi lists one{}",
                    visible != nullptr ? fmt::format(", and what {}='{}' leaves visible", kVisible, visible) : ""));
}

const char* advice_for(CudaError error) {
  switch (error) {
    case kStubLibrary:
      return "libcuda.so.1 is CUDA's stub for linking: take the folder stubs out of LD_LIBRARY_PATH";
    case kSystemNotReady:
      return "on a machine with NVSwitch check whether nvidia-fabricmanager runs";
    case kSystemDriverMismatch:
      return "the driver's library and its kernel module differ: reboot after an update, or repair the installation";
    case kCompatNotSupported:
      return "this GPU does not work with CUDA's compatibility library: take it out of LD_LIBRARY_PATH, update the "
             "driver";
    default:
      return "check the output of nvidia-smi and the kernel's log";
  }
}

void explain(GpuProbe& probe, CudaError error, const std::string& text, const std::vector<DeviceFile>& files) {
  if (error == kInsufficientDriver) return explain_driver(probe, files);
  if (error == kNoDevice || error == kSuccess) return explain_absence(probe, files);
  set_reason(probe, NoGpu::kBroken,
             fmt::format("CUDA cannot be used: cudaGetDeviceCount says {}; {}", text, advice_for(error)));
}

// Returns -1 if the driver does not know the attribute.
int ask(CudaCalls& cuda, Attribute attribute, int device) {
  int value = -1;
  if (cuda.attribute(attribute, device, value) == kSuccess) return value;
  cuda.last_error();
  return -1;
}

std::vector<unsigned> ask_host_atomics(CudaCalls& cuda, int device) {
  std::array<AtomicOperation, kAtomicOperations> operations;
  for (int i = 0; i < kAtomicOperations; ++i) operations[static_cast<std::size_t>(i)] = static_cast<AtomicOperation>(i);
  std::vector<unsigned> bits(kAtomicOperations, 0U);
  if (cuda.host_atomics(device, operations, bits) == kSuccess) return bits;
  cuda.last_error();
  return {};
}

GpuInfo describe(CudaCalls& cuda, int device, int count) {
  GpuInfo gpu;
  gpu.device = device;
  if (cuda.properties(device, gpu.properties) != kSuccess) {
    cuda.last_error();
    gpu.properties = {};
    gpu.properties.name = "unknown GPU";
  }
  gpu.numa_node = ask(cuda, Attribute::kHostNumaNode, device);
  if (gpu.numa_node < 0) gpu.numa_node = numa_node_of(gpu.properties.pci_address);
  gpu.host_native_atomics = ask(cuda, Attribute::kHostNativeAtomics, device);
  gpu.partial_host_native_atomics = ask(cuda, Attribute::kPartialHostNativeAtomics, device);
  gpu.host_atomics = ask_host_atomics(cuda, device);
  gpu.can_use_host_pointer = ask(cuda, Attribute::kCanUseHostPointer, device);
  gpu.host_register_supported = ask(cuda, Attribute::kHostRegisterSupported, device);
  gpu.read_only_registration = ask(cuda, Attribute::kReadOnlyRegistration, device);
  gpu.pageable_access = ask(cuda, Attribute::kPageableAccess, device);
  gpu.uses_host_page_tables = ask(cuda, Attribute::kUsesHostPageTables, device);
  // With this variable each launch waits for its own completion, which never comes after such a wait.
  const char* blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  const bool blocks = blocking != nullptr && *blocking != '\0' && std::string_view(blocking) != "0";
  gpu.stream_wait = cuda.can_wait_value() && !blocks;
  for (int peer = 0; peer < count; ++peer) {
    int can = 0;
    if (peer == device) continue;
    if (cuda.can_access_peer(device, peer, can) != kSuccess)
      cuda.last_error();
    else if (can != 0)
      gpu.peers.push_back(peer);
  }
  return gpu;
}

bool is_gpu_name(const std::string& name) {
  return name.size() > 6 && name.starts_with("nvidia") &&
         std::all_of(name.begin() + 6, name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::vector<DeviceFile> nvidia_device_files(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == "nvidiactl" || is_gpu_name(name)) paths.push_back(entry->path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<DeviceFile> files;
  for (const std::string& path : paths) files.push_back({path, access(path.c_str(), R_OK | W_OK) == 0});
  return files;
}

int numa_node_of(const std::string& pci_address, const std::string& folder) {
  std::string address = pci_address;
  for (char& c : address) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));  // CUDA writes capitals, sysfs does not
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0 && c != ':' && c != '.') return -1;
  }
  std::ifstream file(folder + "/" + address + "/numa_node");
  int node = -1;
  return file >> node ? node : -1;
}

namespace {

// The number of GPUs; 0, with the reason in `probe`, if none can be used.
int count_gpus(CudaCalls& cuda, const std::vector<DeviceFile>& files, GpuProbe& probe) {
  probe.built_for = cuda.built_for();
  probe.is_simulated = cuda.is_simulated();
  if (!cuda.is_built()) {
    set_reason(probe, NoGpu::kNotBuilt,
               "this build has no CUDA; install nvcc 12.1 or newer and build again with -Dcuda=enabled");
    return 0;
  }
  if (cuda.driver_version(probe.driver_version) != kSuccess) {
    cuda.last_error();
    probe.driver_version = 0;
  }
  int count = 0;
  const CudaError error = cuda.device_count(count);
  if (error != kSuccess || count <= 0) {
    const std::string text = error != kSuccess ? cuda.error_text(error) : "";
    if (error != kSuccess) cuda.last_error();
    explain(probe, error, text, files);
    return 0;
  }
  return count;
}

}  // namespace

GpuProbe probe_gpus(CudaCalls& cuda, const std::vector<DeviceFile>& files) {
  GpuProbe probe;
  const int count = count_gpus(cuda, files, probe);
  for (int device = 0; device < count; ++device) probe.gpus.push_back(describe(cuda, device, count));
  return probe;
}

GpuInfo require_gpu(CudaCalls& cuda, int device) {
  const std::lock_guard lock(cuda.known_gpus->mutex);
  std::shared_ptr<const GpuInfo>& known = cuda.known_gpus->by_device[device];
  if (known) return *known;
  GpuProbe probe;
  const int count = count_gpus(cuda, nvidia_device_files(), probe);
  if (probe.why_none) throw Error(probe.reason, ErrorCode::kDevice);
  if (device < 0 || device >= count)
    throw Error(fmt::format("there is no GPU {}; GPUs are 0 to {}", device, count - 1), ErrorCode::kDevice);
  known = std::make_shared<const GpuInfo>(describe(cuda, device, count));
  return *known;
}

DeviceChoice parse_device(const std::string& text) {
  DeviceChoice choice;
  if (text == "cpu") return choice;
  choice.kind = text == "auto" ? DeviceChoice::Kind::kAuto : DeviceChoice::Kind::kCuda;
  if (text == "auto" || text == "cuda") return choice;
  if (text == "simulated") {
    choice.kind = DeviceChoice::Kind::kSimulated;
    return choice;
  }
  if (constexpr std::string_view kIndexed = "cuda:"; text.starts_with(kIndexed)) {
    std::uint32_t index = 0;
    const char* end = text.data() + text.size();
    const auto [read_to, error] = std::from_chars(text.data() + kIndexed.size(), end, index);
    choice.index = index;
    if (error == std::errc{} && read_to == end) return choice;
  }
  throw Error(fmt::format("unknown device '{}'; expected cpu, auto, cuda, cuda:N or simulated", text));
}

std::string to_string(const DeviceChoice& choice) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kCpu:
      return "cpu";
    case DeviceChoice::Kind::kAuto:
      return "auto";
    case DeviceChoice::Kind::kSimulated:
      return "simulated";
    case DeviceChoice::Kind::kCuda:
      break;
  }
  return choice.index ? fmt::format("cuda:{}", *choice.index) : "cuda";
}

std::optional<GpuInfo> choose_gpu(const DeviceChoice& choice, const GpuProbe& probe, std::uint32_t rank,
                                  std::string& log) {
  if (choice.kind == DeviceChoice::Kind::kCpu) return std::nullopt;
  const bool wants_simulated = choice.kind == DeviceChoice::Kind::kSimulated;
  std::string reason = probe.reason;
  if (probe.is_simulated != wants_simulated)
    reason = wants_simulated ? "this build has no simulated GPU; build with -Dcuda=simulated, as tools/run does for it"
                             : "this build (-Dcuda=simulated) has a simulated GPU only, which is called `simulated`";
  if (probe.gpus.empty() || probe.is_simulated != wants_simulated) {
    if (choice.kind != DeviceChoice::Kind::kAuto)
      throw Error(fmt::format("device {}: {}", to_string(choice), reason), ErrorCode::kDevice);
    log = "device auto: continues with the CPU: " + reason;
    return std::nullopt;
  }
  if (!choice.index) return probe.gpus[rank % probe.gpus.size()];
  std::string there;
  for (const GpuInfo& gpu : probe.gpus) {
    if (gpu.device == static_cast<int>(*choice.index)) return gpu;
    there += fmt::format("{}{} ({})", there.empty() ? "" : ", ", gpu.device, gpu.properties.name);
  }
  throw Error(fmt::format("device {}: there is no GPU {}; there are: {}", to_string(choice), *choice.index, there),
              ErrorCode::kDevice);
}

}  // namespace ps_shm::device
