// The report on GPUs and their absence, with a scripted table of CUDA calls.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "device/probe.hpp"
#include "ps_shm/errors.hpp"
#include "support/environment.hpp"
#include "support/folder.hpp"
#include "support/scripted_cuda.hpp"

using namespace ps_shm::device;
using ps_shm::Error;
using ps_shm::test::EnvironmentVariable;
using ps_shm::test::ScriptedCuda;
using Kind = DeviceChoice::Kind;

namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

const std::vector<DeviceFile> kOpen = {{"/dev/nvidia0", true}, {"/dev/nvidiactl", true}};

// The probe of a machine whose cudaGetDeviceCount returns `error`.
GpuProbe without_gpu(CudaError error, int driver, const std::vector<DeviceFile>& files,
                      const std::optional<std::string>& visible = std::nullopt) {
  const EnvironmentVariable environment(kVisible, visible);
  ScriptedCuda cuda;
  cuda.driver = driver;
  cuda.fail("device_count", 1, error);
  GpuProbe probe = probe_gpus(cuda, files);
  CHECK(probe.gpus.empty());
  CHECK(cuda.pending == 0);
  CHECK(probe.reason.find('\n') == std::string::npos);
  CHECK(cuda.count_of("properties") == 0);
  return probe;
}

void check_reason(const GpuProbe& probe, NoGpu why, const std::vector<std::string>& parts) {
  REQUIRE(probe.why_none.has_value());
  CHECK(int(*probe.why_none) == int(why));
  for (const std::string& part : parts) {
    CAPTURE(part);
    CAPTURE(probe.reason);
    CHECK(probe.reason.find(part) != std::string::npos);
  }
}

std::string error_of(const DeviceChoice& choice, const GpuProbe& probe) {
  std::string log;
  try {
    choose_gpu(choice, probe, 0, log);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

GpuProbe probe_of(int count) {
  ScriptedCuda cuda;
  cuda.devices = count;
  return probe_gpus(cuda, kOpen);
}

}  // namespace

TEST_CASE("probe: a build without CUDA says so and makes no calls") {
  ScriptedCuda cuda;
  cuda.built = false;
  cuda.built_version = 0;
  const GpuProbe probe = probe_gpus(cuda, kOpen);
  check_reason(probe, NoGpu::kNotBuilt, {"this build has no CUDA", "-Dcuda=enabled"});
  CHECK(cuda.calls.empty());
  CHECK(probe.built_for == 0);
}

TEST_CASE("probe: no driver and no device file means no GPU") {
  const GpuProbe probe = without_gpu(kInsufficientDriver, 0, {});
  check_reason(probe, NoGpu::kNone, {"no NVIDIA driver", "install"});
  CHECK(probe.driver_version == 0);
  CHECK(probe.built_for == 13000);
}

TEST_CASE("probe: device files without the driver's library are told apart from a missing driver") {
  check_reason(without_gpu(kInsufficientDriver, 0, kOpen), NoGpu::kNone, {"/dev/nvidia0", "libcuda.so.1"});
}

TEST_CASE("probe: a driver older than the build is reported with both versions") {
  const GpuProbe probe = without_gpu(kInsufficientDriver, 12020, kOpen);
  check_reason(probe, NoGpu::kDriverTooOld, {"too old", "up to 12.2", "13.0", "newer driver"});
  CHECK(probe.driver_version == 12020);
}

TEST_CASE("probe: a driver whose version is unavailable counts as none") {
  ScriptedCuda cuda;
  cuda.fail("driver_version", 1, 999);
  cuda.fail("device_count", 1, kInsufficientDriver);
  const GpuProbe probe = probe_gpus(cuda, {});
  check_reason(probe, NoGpu::kNone, {"no NVIDIA driver"});
  CHECK(probe.driver_version == 0);
  CHECK(cuda.pending == 0);
}

TEST_CASE("probe: a device file that may not be opened is reported as missing permission") {
  check_reason(without_gpu(kNoDevice, 13000, {{"/dev/nvidia0", true}, {"/dev/nvidiactl", false}}), NoGpu::kNoPermission,
               {"/dev/nvidiactl", "may not open", "ask for access"});
  check_reason(
      without_gpu(kNoDevice, 13000, {{"/dev/nvidia0", false}, {"/dev/nvidia1", false}, {"/dev/nvidiactl", true}}),
      NoGpu::kNoPermission, {"/dev/nvidia0", "may not open"});
}

TEST_CASE("probe: missing permission is reported before an environment variable that hides GPUs") {
  check_reason(without_gpu(kNoDevice, 13000, {{"/dev/nvidia0", false}, {"/dev/nvidiactl", true}}, "0"),
               NoGpu::kNoPermission, {"/dev/nvidia0"});
}

TEST_CASE("probe: a CUDA_VISIBLE_DEVICES that hides every GPU is reported with its value, even an empty one") {
  check_reason(without_gpu(kNoDevice, 13000, kOpen, "7"), NoGpu::kHidden, {"CUDA_VISIBLE_DEVICES='7'", "unset"});
  check_reason(without_gpu(kNoDevice, 13000, kOpen, ""), NoGpu::kHidden, {"CUDA_VISIBLE_DEVICES=''", "unset"});
  check_reason(without_gpu(kNoDevice, 13000, {}, "7"), NoGpu::kNone, {"no GPU", "CUDA_VISIBLE_DEVICES='7'"});
}

TEST_CASE("probe: missing permission is not reported if one of several GPUs can be opened") {
  check_reason(
      without_gpu(kNoDevice, 13000, {{"/dev/nvidia0", false}, {"/dev/nvidia1", true}, {"/dev/nvidiactl", true}}),
      NoGpu::kNone, {"finds no GPU", "nvidia-smi"});
}

TEST_CASE("probe: a driver that finds nothing, by error or by a count of 0, has no GPU") {
  check_reason(without_gpu(kNoDevice, 13000, {}), NoGpu::kNone, {"finds no GPU", "nvidia-smi"});
  const EnvironmentVariable environment(kVisible, std::nullopt);
  ScriptedCuda cuda;
  cuda.devices = 0;
  check_reason(probe_gpus(cuda, {}), NoGpu::kNone, {"finds no GPU"});
}

TEST_CASE("probe: any other error is reported as a broken CUDA, with the driver's text and a hint") {
  const std::vector<std::pair<CudaError, std::string>> errors = {{kStubLibrary, "stub"},
                                                                 {kSystemNotReady, "fabricmanager"},
                                                                 {kSystemDriverMismatch, "reboot"},
                                                                 {kCompatNotSupported, "LD_LIBRARY_PATH"},
                                                                 {999, "nvidia-smi"},
                                                                 {3, "nvidia-smi"}};
  for (const auto& [error, advice] : errors)
    check_reason(without_gpu(error, 13000, kOpen), NoGpu::kBroken,
                 {fmt::format("cudaError{}: as scripted", error), advice});
}

TEST_CASE("probe: all properties that the driver reports about a GPU are kept") {
  ScriptedCuda cuda;
  cuda.described[0] = {"NVIDIA H200", "0000:1b:00.0", 9, 0, 132, std::size_t{140} << 30};
  const std::vector<std::pair<Attribute, int>> answers = {{Attribute::kHostNumaNode, 3},
                                                          {Attribute::kHostNativeAtomics, 0},
                                                          {Attribute::kPartialHostNativeAtomics, 1},
                                                          {Attribute::kCanUseHostPointer, 2},
                                                          {Attribute::kHostRegisterSupported, 4},
                                                          {Attribute::kReadOnlyRegistration, 5},
                                                          {Attribute::kPageableAccess, 6},
                                                          {Attribute::kUsesHostPageTables, 7}};
  for (const auto& [attribute, value] : answers) cuda.attributes[{0, attribute}] = value;
  cuda.atomics[0] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const GpuProbe probe = probe_gpus(cuda, kOpen);
  REQUIRE(probe.gpus.size() == 1);
  CHECK_FALSE(probe.why_none.has_value());
  CHECK(probe.reason.empty());
  CHECK(probe.driver_version == 13000);
  const GpuInfo& gpu = probe.gpus[0];
  CHECK(gpu.properties.name == "NVIDIA H200");
  CHECK(gpu.properties.memory_bytes == std::size_t{140} << 30);
  CHECK(gpu.numa_node == 3);
  CHECK(gpu.host_native_atomics == 0);
  CHECK(gpu.partial_host_native_atomics == 1);
  CHECK(gpu.can_use_host_pointer == 2);
  CHECK(gpu.host_register_supported == 4);
  CHECK(gpu.read_only_registration == 5);
  CHECK(gpu.pageable_access == 6);
  CHECK(gpu.uses_host_page_tables == 7);
  CHECK(gpu.host_atomics == cuda.atomics[0]);
  CHECK(gpu.stream_wait);
  CHECK(gpu.peers.empty());
}

TEST_CASE("probe: properties unknown to an older driver are -1 or empty, and leave no pending error") {
  ScriptedCuda cuda;  // knows no attribute
  cuda.has_wait_value = false;
  cuda.fail("properties", 1, 999);
  const GpuProbe probe = probe_gpus(cuda, kOpen);
  REQUIRE(probe.gpus.size() == 1);
  const GpuInfo& gpu = probe.gpus[0];
  for (const int value :
       {gpu.numa_node, gpu.host_native_atomics, gpu.partial_host_native_atomics, gpu.can_use_host_pointer,
        gpu.host_register_supported, gpu.read_only_registration, gpu.pageable_access, gpu.uses_host_page_tables})
    CHECK(value == -1);
  CHECK(gpu.host_atomics.empty());
  CHECK_FALSE(gpu.stream_wait);
  CHECK(gpu.properties.name == "unknown GPU");
  CHECK(cuda.pending == 0);
  CHECK(cuda.count_of("last_error") == 10);  // eight attributes, the properties, the atomics
}

TEST_CASE("probe: one attribute that fails does not affect the others") {
  ScriptedCuda cuda;
  cuda.attributes[{0, Attribute::kHostRegisterSupported}] = 1;
  cuda.attributes[{0, Attribute::kReadOnlyRegistration}] = 1;
  cuda.attributes[{0, Attribute::kHostNativeAtomics}] = 1;
  cuda.fail("attribute", 2, kInvalidValue);  // the native atomics
  const GpuProbe probe = probe_gpus(cuda, kOpen);
  CHECK(probe.gpus.at(0).host_native_atomics == -1);
  CHECK(probe.gpus.at(0).host_register_supported == 1);
  CHECK(probe.gpus.at(0).read_only_registration == 1);
}

TEST_CASE("probe: a GPU's peers are those that it can access") {
  ScriptedCuda cuda;
  cuda.devices = 3;
  cuda.peers = {{{0, 1}, 1}, {{1, 0}, 1}, {{1, 2}, 1}, {{2, 1}, 1}};
  cuda.fail("can_access_peer", 4, 999);  // from 1 to 2
  const GpuProbe probe = probe_gpus(cuda, kOpen);
  REQUIRE(probe.gpus.size() == 3);
  CHECK(probe.gpus[0].peers == std::vector<int>{1});
  CHECK(probe.gpus[1].peers == std::vector<int>{0});
  CHECK(probe.gpus[2].peers == std::vector<int>{1});
  CHECK(probe.gpus[2].device == 2);
}

TEST_CASE("probe: device files are the control file and the numbered ones") {
  const ps_shm::test::Folder folder;
  for (const char* name : {"nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "nvidia0x", "null"})
    folder.write(name, "");
  std::vector<std::string> names;
  for (const DeviceFile& file : nvidia_device_files(folder.path())) {
    names.push_back(std::filesystem::path(file.path).filename().string());
    CHECK(file.may_open);
  }
  CHECK(names == std::vector<std::string>{"nvidia0", "nvidia12", "nvidiactl"});
  CHECK(nvidia_device_files(folder.path("none")).empty());
}

TEST_CASE("probe: a device file without permission is detected") {
  if (geteuid() == 0) return;  // root may open anything
  const ps_shm::test::Folder folder;
  folder.write("nvidia0", "");
  chmod(folder.path("nvidia0").c_str(), 0400);
  CHECK_FALSE(nvidia_device_files(folder.path()).at(0).may_open);
}

TEST_CASE("probe: sysfs gives the memory node, whatever the case of the address") {
  const ps_shm::test::Folder folder;
  folder.write("0000:1b:00.0/numa_node", "1\n");
  folder.write("0000:1c:00.0/numa_node", "-1\n");
  folder.write("0000:1d:00.0/numa_node", "none\n");
  const std::string root = folder.path();
  CHECK(numa_node_of("0000:1B:00.0", root) == 1);
  CHECK(numa_node_of("0000:1c:00.0", root) == -1);
  CHECK(numa_node_of("0000:1d:00.0", root) == -1);
  CHECK(numa_node_of("0000:ff:00.0", root) == -1);
  CHECK(numa_node_of("", root) == -1);
  CHECK(numa_node_of("0000:1b:00.0/../0000:1b:00.0", root) == -1);
}

TEST_CASE("device: each choice is written as it is read") {
  for (const char* text : {"cpu", "auto", "cuda", "cuda:0", "cuda:17"}) CHECK(to_string(parse_device(text)) == text);
  CHECK(parse_device("cpu").kind == Kind::kCpu);
  CHECK(parse_device("auto").kind == Kind::kAuto);
  CHECK_FALSE(parse_device("cuda").index.has_value());
  CHECK(parse_device("cuda:17").index == 17U);
}

TEST_CASE("device: anything else is refused with the accepted values") {
  for (const char* text : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x", "cuda: 1", "cuda:4294967296",
                           "cuda:1:2", "cpu:0", "auto:1", " cpu"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(
        parse_device(text),
        fmt::format("unknown device '{}'; expected cpu, auto, cuda, cuda:N or simulated", text).c_str(), Error);
  }
}

TEST_CASE("device: the CPU has no GPU, whatever the machine has") {
  std::string log;
  CHECK_FALSE(choose_gpu({}, probe_of(2), 0, log).has_value());
  CHECK(log.empty());
}

TEST_CASE("device: workers are assigned to GPUs round robin by rank") {
  const GpuProbe probe = probe_of(3);
  std::string log;
  for (const char* text : {"auto", "cuda"})
    for (std::uint32_t rank = 0; rank < 7; ++rank) {
      const auto gpu = choose_gpu(parse_device(text), probe, rank, log);
      REQUIRE(gpu.has_value());
      CHECK(gpu->device == int(rank % 3));
    }
  CHECK(log.empty());
}

TEST_CASE("device: a numbered GPU is used by every rank") {
  std::string log;
  const auto gpu = choose_gpu(parse_device("cuda:1"), probe_of(2), 4, log);
  REQUIRE(gpu.has_value());
  CHECK(gpu->device == 1);
}

TEST_CASE("device: an unknown number is refused with a list of the existing ones") {
  CHECK(error_of(parse_device("cuda:2"), probe_of(2)) ==
        "device cuda:2: there is no GPU 2; there are: 0 (GPU 0), 1 (GPU 1)");
  CHECK(error_of(parse_device("cuda:4294967295"), probe_of(1)).find("there is no GPU 4294967295") != std::string::npos);
}

TEST_CASE("device: auto without a GPU falls back to the CPU and reports why, cuda fails with the reason") {
  const GpuProbe probe = without_gpu(kInsufficientDriver, 0, {});
  std::string log;
  CHECK_FALSE(choose_gpu(parse_device("auto"), probe, 1, log).has_value());
  CHECK(log == "device auto: continues with the CPU: " + probe.reason);
  CHECK(error_of(parse_device("cuda"), probe) == "device cuda: " + probe.reason);
  CHECK(error_of(parse_device("cuda:0"), probe) == "device cuda:0: " + probe.reason);
}
