#include "launch_shm/visible_gpus.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>

namespace ps_shm::tools {
namespace {

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

// Like CUDA, stops at the first invalid entry.
std::vector<std::string> named_gpus(const std::string& names) {
  std::vector<std::string> gpus;
  std::istringstream rest(names);
  for (std::string name; std::getline(rest, name, ',') && !name.empty() && name.front() != '-';) gpus.push_back(name);
  return gpus;
}

std::string output_of(const char* command) {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  const std::unique_ptr<FILE, decltype(close)> pipe(popen(command, "re"), close);
  std::string output;
  std::array<char, 4096> part;
  while (pipe && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) output += part.data();
  return output;
}

}  // namespace

std::vector<std::string> listed_gpus(const std::string& listing) {
  constexpr std::string_view kBefore = "(UUID: ";
  std::vector<std::string> gpus;
  bool is_whole = false;  // the last GPU: none of its instances has been listed yet
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.rfind(kBefore), end = line.rfind(')');
    if (begin == std::string::npos || end == std::string::npos || end < begin) continue;
    const std::string name = line.substr(begin + kBefore.size(), end - begin - kBefore.size());
    const bool is_instance = name.starts_with("MIG-");
    if (is_instance && is_whole) gpus.pop_back();
    is_whole = !is_instance;
    gpus.push_back(name);
  }
  return gpus;
}

std::vector<std::string> visible_gpus(device::CudaCalls& cuda) {
  if (const char* names = std::getenv(kVisible)) return named_gpus(names);
  std::vector<std::string> gpus = listed_gpus(output_of("timeout 10 nvidia-smi -L 2>/dev/null"));
  if (!gpus.empty()) return gpus;
  const device::GpuProbe probe = device::probe_gpus(cuda);
  if (!probe.is_simulated)
    for (const device::GpuInfo& gpu : probe.gpus) gpus.push_back(std::to_string(gpu.device));
  return gpus;
}

std::vector<std::string> show_one_gpu(const std::vector<std::string>& gpus, std::uint32_t process,
                                      device::DeviceChoice& choice) {
  if (gpus.empty() || !choice.may_be_cuda()) return {};
  if (choice.index && *choice.index >= gpus.size()) return {};  // the worker reports which GPUs exist
  const std::string variable = std::string(kVisible) + "=" + gpus[choice.index ? *choice.index : process % gpus.size()];
  if (choice.index) choice.index = 0;
  return {variable};
}

}  // namespace ps_shm::tools
