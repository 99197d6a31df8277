#include "report/devices.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "device/strategy.hpp"

namespace ps_shm::report {
namespace {

using Json = nlohmann::ordered_json;
using device::GpuInfo;
using device::PullPath;
using device::PushPath;
using device::Strategy;

Json version_of(int version) {
  return version == 0 ? Json() : Json(fmt::format("{}.{}", version / 1000, version % 1000 / 10));
}

Json answer(int value) { return value < 0 ? Json() : Json(value); }

// Of large variables: with the smallest chunks that they have without `chunk-bytes`, and with large ones.
Json strategy_of(const GpuInfo& gpu, bool is_additive_inplace) {
  constexpr std::size_t kLargePull = device::kKernelPullBytes + 1;
  device::StrategyInput input{.pull_bytes = kLargePull, .has_additive_inplace = is_additive_inplace};
  const Strategy strategy = choose_strategy(gpu, input);
  if (!is_additive_inplace) input.large_chunk_bytes = kLargePull;  // a kernel always pulls in-place variables
  const PullPath large_chunk_pull = choose_strategy(gpu, input).pull;
  return {{"pull", to_string(strategy.pull)},
          {"large_chunk_pull", to_string(large_chunk_pull)},
          {"push", to_string(strategy.push)},
          {"native_adds", strategy.native_adds},
          {"wide_adds", strategy.wide_adds},
          {"read_only", strategy.read_only},
          {"stream_waits", strategy.stream_waits},
          {"reasons",
           {{"pull", strategy.pull_reason},
            {"push", strategy.push_reason},
            {"native_adds", strategy.native_reason},
            {"registration", strategy.registration_reason},
            {"stream_waits", strategy.wait_reason}}}};
}

Json float_add_of(const GpuInfo& gpu) {
  constexpr auto kFloatAdd = static_cast<std::size_t>(device::AtomicOperation::kFloatAdd);
  if (gpu.host_atomics.size() <= kFloatAdd) return nullptr;
  const unsigned bits = gpu.host_atomics[kFloatAdd];
  return {{"bits", bits},
          {"scalar32", (bits & device::kAtomicScalar32) != 0},
          {"vector32x4", (bits & device::kAtomicVector32x4) != 0}};
}

Json gpu_of(const GpuInfo& gpu) {
  return {{"device", gpu.device},
          {"name", gpu.properties.name},
          {"pci_address", gpu.properties.pci_address},
          {"numa_node", answer(gpu.numa_node)},
          {"memory_bytes", gpu.properties.memory_bytes},
          {"compute_capability", fmt::format("{}.{}", gpu.properties.major, gpu.properties.minor)},
          {"multiprocessors", gpu.properties.multiprocessors},
          {"host_native_atomics", answer(gpu.host_native_atomics)},
          {"partial_host_native_atomics", answer(gpu.partial_host_native_atomics)},
          {"float_add", float_add_of(gpu)},
          {"host_register_supported", answer(gpu.host_register_supported)},
          {"read_only_registration", answer(gpu.read_only_registration)},
          {"can_use_host_pointer", answer(gpu.can_use_host_pointer)},
          {"pageable_access", answer(gpu.pageable_access)},
          {"uses_host_page_tables", answer(gpu.uses_host_page_tables)},
          {"stream_wait", gpu.stream_wait},
          {"peers", gpu.peers},
          {"strategy", {{"versioned", strategy_of(gpu, false)}, {"additive_inplace", strategy_of(gpu, true)}}}};
}

std::string yes_or_no(const Json& value) {
  if (value.is_null()) return "unknown";
  return (value.is_boolean() ? value.get<bool>() : value.get<int>() != 0) ? "yes" : "no";
}

std::string number(const Json& value) { return value.is_null() ? "unknown" : value.dump(); }

std::string float_add_as_text(const Json& float_add) {
  if (float_add.is_null()) return "unknown to this driver";
  if (!float_add["scalar32"].get<bool>()) return fmt::format("no (bits {})", float_add["bits"].dump());
  return fmt::format("yes{} (bits {})", float_add["vector32x4"].get<bool>() ? ", also vectors of 4" : "",
                     float_add["bits"].dump());
}

std::string strategy_as_text(const char* job, const Json& strategy) {
  const std::string pull = strategy["pull"].get<std::string>(),
                    of_large = strategy["large_chunk_pull"].get<std::string>();
  std::string text = fmt::format("  {}: pulls: {}{}; pushes: {}{}\n", job, pull,
                                 of_large == pull ? ""
                                                  : fmt::format(", of chunks of {} KiB or more: {}",
                                                                device::kCopyEngineChunkBytes >> 10, of_large),
                                 strategy["push"].get<std::string>(),
                                 strategy["native_adds"].get<bool>() ? ", in-place variables updated by the GPU" : "");
  for (const auto& reason : strategy["reasons"]) text += fmt::format("    {}\n", reason.get<std::string>());
  return text;
}

std::string gpu_as_text(const Json& gpu) {
  const auto word = [&](const char* key) { return gpu[key].get<std::string>(); };
  std::string text = fmt::format(
      "GPU {}: {} at {}, memory node {}, {:.1f} GiB, compute capability {}, {} multiprocessors\n", gpu["device"].dump(),
      word("name"), word("pci_address").empty() ? "?" : word("pci_address"), number(gpu["numa_node"]),
      gpu["memory_bytes"].get<double>() / (1 << 30), word("compute_capability"), gpu["multiprocessors"].dump());
  text += fmt::format("  native atomics on host memory: {} (only some: {}); float add: {}\n",
                      yes_or_no(gpu["host_native_atomics"]), yes_or_no(gpu["partial_host_native_atomics"]),
                      float_add_as_text(gpu["float_add"]));
  std::string peers;
  for (const auto& peer : gpu["peers"]) {
    if (!peers.empty()) peers += ',';
    peers += peer.dump();
  }
  text += fmt::format("  registers host memory: {}, read-only: {}; stream memory waits: {}; peers: {}\n",
                      yes_or_no(gpu["host_register_supported"]), yes_or_no(gpu["read_only_registration"]),
                      yes_or_no(gpu["stream_wait"]), peers.empty() ? "none" : peers);
  text += strategy_as_text("versioned job", gpu["strategy"]["versioned"]);
  return text + strategy_as_text("in-place job with optimizer add", gpu["strategy"]["additive_inplace"]);
}

std::string zones_as_text(const Json& zones) {
  std::string text, after;
  for (const auto& zone : zones) {
    const auto name = zone["zone"].get<std::string>();
    text += fmt::format("{}{} of node {} {:.1f} GiB", text.empty() ? "zones of memory: " : ", ", name,
                        zone["node"].dump(), zone["bytes"].get<double>() / (1 << 30));
    if (name == "Movable") after = "; a driver may refuse to register memory of Movable, or take long";
  }
  return text.empty() ? text : text + after + '\n';
}

}  // namespace

Json to_json(const device::GpuProbe& probe) {
  Json found = {{"built_for", version_of(probe.built_for)},
                {"driver", version_of(probe.driver_version)},
                {"no_gpu", probe.why_none ? Json(probe.reason) : Json()},
                {"gpus", Json::array()}};
  std::ifstream zoneinfo("/proc/zoneinfo");
  std::string zones;
  for (std::string line; std::getline(zoneinfo, line);) zones += line + '\n';
  found["memory_zones"] = zones_of(zones, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  if (probe.is_simulated) found["no_gpu"] = "this build simulates one (-Dcuda=simulated), on the CPU";
  if (!probe.is_simulated)
    for (const GpuInfo& gpu : probe.gpus) found["gpus"].push_back(gpu_of(gpu));
  return found;
}

Json zones_of(const std::string& zoneinfo, std::size_t page_bytes) {
  Json zones = Json::array();
  std::istringstream lines(zoneinfo);
  int node = 0;
  std::string zone;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second;
    std::size_t pages = 0;
    words >> first;
    if (first == "Node") {  // "Node 0, zone   Normal"
      words >> node >> second >> second >> zone;
    } else if (first == "present" && words >> pages && pages != 0) {
      zones.push_back({{"node", node}, {"zone", zone}, {"bytes", pages * page_bytes}});
    }
  }
  return zones;
}

bool has_gpu_device() { return !device::nvidia_device_files().empty(); }

std::string devices_as_text(const Json& found) {
  const auto version = [&](const char* key, const char* otherwise) {
    return found[key].is_null() ? std::string(otherwise) : "for " + found[key].get<std::string>();
  };
  std::string text =
      fmt::format("CUDA: build {}; driver {}\n", version("built_for", "without"), version("driver", "none"));
  if (!found["no_gpu"].is_null()) text += fmt::format("no GPU: {}\n", found["no_gpu"].get<std::string>());
  for (const auto& gpu : found["gpus"]) text += gpu_as_text(gpu);
  if (!found["gpus"].empty()) text += zones_as_text(found["memory_zones"]);
  return text;
}

}  // namespace ps_shm::report
