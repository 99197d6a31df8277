// Prints the workers and the variables of a job: `inspector JOB`, or without an argument those of a job of its own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include <ps_shm/errors.hpp>
#include <ps_shm/job_view.hpp>
#include <ps_shm/server.hpp>
#include <ps_shm/worker.hpp>

namespace {

void print(const ps_shm::JobView& view) {
  const ps_shm::JobInfo info = view.info();
  std::printf("job %s: mode %s, step %llu, %.1f KiB\n", info.config.job.c_str(), to_string(info.live.mode),
              static_cast<unsigned long long>(info.global_step), double(info.bytes.total()) / 1024);
  for (const ps_shm::WorkerInfo& worker : view.workers())
    std::printf("worker %u: %s, process %u, %llu pushes\n", worker.rank, to_string(worker.state), worker.pid,
                static_cast<unsigned long long>(worker.pushes));
  for (const ps_shm::VariableInfo& variable : view.variables()) {
    if (variable.dtype != ps_shm::DType::kFloat32 || !variable.initialised) continue;
    const std::vector<float> values = view.values(variable.name);
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
    std::printf("variable %s: %zu values, mean %g, %llu updates\n", variable.name.c_str(), values.size(), mean,
                static_cast<unsigned long long>(variable.updates));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc > 1) {
    print(ps_shm::JobView(argv[1]));
    return 0;
  }
  ps_shm::JobConfig config;
  config.job = "example-inspector-" + std::to_string(getpid());
  ps_shm::Server server(config);
  ps_shm::Worker worker({.job = config.job});
  const ps_shm::Variable w = worker.variable(
      {.name = "w", .shape = {8}}, [](std::span<float> values) { std::fill(values.begin(), values.end(), 2.0F); });
  const std::vector<float> gradient(8, 1.0F);
  worker.push(w, gradient);
  worker.step();
  print(ps_shm::JobView(config.job));
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "inspector: %s\n", error.what());
  return 1;
}
