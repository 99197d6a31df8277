#include "train/gpu_place.hpp"

#include <numa.h>
#include <sched.h>

namespace ps::train {

void run_near(const device::GpuInfo& gpu) {
  if (numa_available() < 0 || numa_max_node() == 0 || gpu.numa_node < 0 || gpu.numa_node > numa_max_node()) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  bitmask* near = numa_allocate_cpumask();
  if (numa_node_to_cpus(gpu.numa_node, near) == 0) {
    // Not numa_run_on_node(): that would give back processors that somebody has taken from this process (taskset).
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (cpu >= near->size || numa_bitmask_isbitset(near, cpu) == 0) CPU_CLR(cpu, &allowed);
    if (CPU_COUNT(&allowed) > 0) static_cast<void>(sched_setaffinity(0, sizeof allowed, &allowed));  // only speed
  }
  numa_free_cpumask(near);
}

}  // namespace ps::train
