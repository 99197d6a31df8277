#include "launch_shm/prepared_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/checkpoint_dir.hpp"
#include "common/warm_start.hpp"
#include "config/spelling.hpp"
#include "device/strategy.hpp"
#include "launch_shm/child_arguments.hpp"
#include "launch_shm/visible_gpus.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/names.hpp"
#include "train/loop/count_model.hpp"

namespace ps_shm::tools {
namespace {

// Detects the GPUs once for all workers. If auto finds none, it reports that, and the workers compute on the CPU;
// if some are listed but cannot be used, each worker reports why.
// Throws Error if a requested GPU does not exist.
void choose_devices(LaunchSettings& settings, device::CudaCalls& cuda) {
  using Kind = device::DeviceChoice::Kind;
  std::optional<device::GpuProbe> probe;
  bool has_said = false;
  const auto settle = [&](device::DeviceChoice& choice, std::uint32_t rank) {
    if (choice.kind == Kind::kCpu) return;
    if (!probe) probe = device::probe_gpus(cuda);
    std::string log;
    if (device::choose_gpu(choice, *probe, rank, log) || !visible_gpus(cuda).empty()) return;
    choice = {};
    if (!std::exchange(has_said, true)) fmt::print(stderr, "launch_shm: {}\n", log);
  };
  settle(settings.device, 0);
  for (auto& [rank, choice] : settings.device_of_rank) settle(choice, rank);
}

// One process of workers for each GPU or MIG instance that there is.
void choose_workers(LaunchSettings& settings, device::CudaCalls& cuda) {
  if (!settings.one_worker_per_gpu) return;
  const std::size_t per_gpu = std::max(settings.workers_per_process, 1U),
                    workers = std::min<std::size_t>(visible_gpus(cuda).size() * per_gpu, kMaxWorkers);
  if (workers != 0) settings.ps.job.workers = static_cast<std::uint32_t>(workers);
}

// The number of GPUs or MIG instances on which the workers compute; 0: they compute on the CPU.
std::size_t used_gpus(const device::DeviceChoice& choice, device::CudaCalls& cuda) {
  if (choice.kind == device::DeviceChoice::Kind::kCpu) return 0;
  if (choice.index) return 1;
  return choice.may_be_cuda() ? visible_gpus(cuda).size() : device::probe_gpus(cuda).gpus.size();
}

// Requires: the devices are chosen.
void choose_processes(LaunchSettings& settings, device::CudaCalls& cuda) {
  const std::uint32_t workers = settings.ps.job.workers, most = settings.workers_per_process;
  settings.worker_processes = most != 0 ? (workers + most - 1) / most : workers;
  if (most != 0) return;
  const std::size_t gpus = used_gpus(settings.device, cuda);
  if (gpus != 0) settings.worker_processes = static_cast<std::uint32_t>(std::min<std::size_t>(gpus, workers));
}

// Whether the machine's GPUs have a link over which a kernel reads host memory as fast as the copy engine.
bool have_fast_link(device::CudaCalls& cuda) {
  const device::GpuProbe probe = device::probe_gpus(cuda);
  return std::any_of(probe.gpus.begin(), probe.gpus.end(), device::reads_as_fast_by_kernel);
}

// A push is applied by the worker's threads, and a link brings several times what one thread applies. A worker runs on
// the cores next to its GPU, so the workers share the cores of the machine. Eight have enough for a link of PCIe.
void choose_threads(LaunchSettings& settings, device::CudaCalls& cuda) {
  if (!settings.default_threads || !settings.device.may_be_cuda()) return;
  const std::uint32_t most = have_fast_link(cuda) ? kMaxThreads : 8;
  const std::uint32_t cores = std::thread::hardware_concurrency();
  settings.ps.job.threads = std::clamp(cores / settings.ps.job.workers, 1U, most);
}

// Whether a worker may be on a GPU whose copy engine reads the job's chunks.
bool may_pull_by_engine(const LaunchSettings& settings, device::CudaCalls& cuda) {
  const std::uint32_t workers = std::max(settings.ps.job.workers, settings.ps.job.elastic_max);
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    if (worker_settings(settings, rank, false).device.may_be_cuda()) return !have_fast_link(cuda);
  }
  return false;
}

}  // namespace

LaunchSettings completed(LaunchSettings settings, const Workload* workload, device::CudaCalls& cuda) {
  choose_workers(settings, cuda);
  TrainingSettings& training = settings.training;
  if (workload != nullptr)
    complete_job(workload->examples(), workload->batch(), training, settings.ps.job);
  else if (training.steps == 0 && settings.program.empty())
    training.steps = kDefaultCountSteps;
  constexpr std::uint64_t kReportPoints = 40;
  if (workload != nullptr && !settings.report.empty() && settings.curve_points == 0 && !training.sparse.keyed)
    settings.curve_points = kReportPoints;
  if (settings.program.empty()) {  // another program chooses for itself
    choose_devices(settings, cuda);
    choose_threads(settings, cuda);
    if (settings.default_chunks && may_pull_by_engine(settings, cuda)) settings.ps.job.chunk_bytes = kChunkBytesForGpu;
  }
  choose_processes(settings, cuda);
  return settings;
}

void check_places(const JobConfig& job, const Workload* workload) {
  std::vector<std::string> names;
  if (workload == nullptr) names.emplace_back(train::kCountVariable);
  if (workload != nullptr)
    for (const train::ParameterSpec& variable : workload->variables()) names.push_back(variable.name);
  for (const auto& [name, shard] : job.place)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error(fmt::format("--place {}={}: the model has no variable '{}'; it has {}{}", name, shard, name,
                              fmt::join(names, ", "), config::did_you_mean(name, names)));
}

void check_room(const LaunchSettings& settings, const Workload* workload) {
  if (workload == nullptr || !shm::list_segments(shm::control_name(settings.ps.job.job)).empty()) return;
  std::size_t bytes = 0;
  for (const train::ParameterSpec& variable : workload->variables())
    bytes += variable.count() * bytes_of(settings.training.dtype);
  if (const std::size_t free = shm::shm_free_bytes(); bytes > free)
    throw Error(fmt::format("the parameters of the model take {:.1f} MiB, of which /dev/shm has {:.1f} left; free some "
                            "(inspect_shm ls), or enlarge it (mount -o remount,size=..., a container's `shm-size`)",
                            double(bytes) / 1048576, double(free) / 1048576),
                ErrorCode::kNoSpace);
}

std::optional<Checkpoint> checked_beginning(const LaunchSettings& settings, const Workload* workload) {
  std::optional<Checkpoint> checkpoint = find_beginning(settings.ps.checkpoint, {});
  if (checkpoint && workload != nullptr)
    checkpoint->require(train::variables_of(workload->variables(), settings.training.dtype));
  return checkpoint;
}

}  // namespace ps_shm::tools
