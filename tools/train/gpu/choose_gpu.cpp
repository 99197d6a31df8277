#include "train/gpu/choose_gpu.hpp"
#include "device/resources.hpp"
#include "train/gpu/model_kernels.hpp"

#include <numa.h>
#include <sched.h>

#include <mutex>

namespace ps_shm::train {

void run_near(const device::GpuInfo& gpu) {
  if (numa_available() < 0 || numa_max_node() == 0 || gpu.numa_node < 0 || gpu.numa_node > numa_max_node()) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  bitmask* near = numa_allocate_cpumask();
  if (numa_node_to_cpus(gpu.numa_node, near) == 0) {
    // Not numa_run_on_node(): that would restore processors that were taken from this process (taskset).
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (cpu >= near->size || numa_bitmask_isbitset(near, cpu) == 0) CPU_CLR(cpu, &allowed);
    if (CPU_COUNT(&allowed) > 0) static_cast<void>(sched_setaffinity(0, sizeof allowed, &allowed));  // only for speed
  }
  numa_free_cpumask(near);
}

void yield_in_waits_once(device::CudaCalls& cuda, int device) {
  const std::lock_guard lock(cuda.known_gpus->mutex);
  if (cuda.known_gpus->yielding.contains(device)) return;
  device::check(cuda, cuda.yield_in_waits(device), "be used");
  cuda.known_gpus->yielding.insert(device);
}

std::optional<GpuPlace> choose_gpu_place(const device::DeviceChoice& choice, std::uint32_t rank, std::string& log) {
  if (choice.kind == device::DeviceChoice::Kind::kCpu) return {};
  device::CudaCalls& cuda = device::cuda_calls();
  const std::optional<device::GpuInfo> gpu = device::choose_gpu(choice, device::probe_gpus(cuda), rank, log);
  if (!gpu) return {};
  run_near(*gpu);
  yield_in_waits_once(cuda, gpu->device);  // this process is a worker_shm
  GpuPlace place;
  place.gpu = *gpu;
  place.cuda = &cuda;
  place.transfers = &device::transfer_kernels();
  place.kernels = &model_kernels();
  return place;
}

}  // namespace ps_shm::train
