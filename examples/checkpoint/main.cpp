// Keeps a job in a folder, and goes on from there when it is run again.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <ps_shm/checkpoint.hpp>
#include <ps_shm/errors.hpp>
#include <ps_shm/job_view.hpp>
#include <ps_shm/server.hpp>
#include <ps_shm/worker.hpp>

int main() try {
  const std::string folder = "example-checkpoint";
  ps_shm::JobConfig config;
  config.job = "example-checkpoint-" + std::to_string(getpid());
  if (const std::optional<ps_shm::Checkpoint> found = ps_shm::Checkpoint::latest(folder))
    config.restore = found->folder();
  ps_shm::Server server(config);
  ps_shm::Worker worker({.job = config.job});
  const ps_shm::Variable w = worker.variable({.name = "w", .shape = {4}}, [](std::span<float> values) {
    std::fill(values.begin(), values.end(), 0.0F);  // not called where the job begins with a checkpoint
  });
  const std::vector<float> gradient(4, -10.0F);
  std::printf("begins at step %llu\n", static_cast<unsigned long long>(worker.global_step()));
  for (int step = 0; step < 100; ++step) {
    worker.push(w, gradient);
    worker.step();
  }

  const ps_shm::JobView view(config.job);  // any process may open a view, the worker, too
  std::vector<float> values(4);
  {
    const ps_shm::Snapshot snapshot = view.snapshot();  // the workers go on meanwhile
    snapshot.copy("w", values);
    std::printf("a snapshot of step %llu: w[0] = %g\n", static_cast<unsigned long long>(snapshot.global_step()),
                double(values[0]));
  }
  std::printf("written to %s\n", ps_shm::Checkpoint::save(view, folder).c_str());
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "checkpoint: %s\n", error.what());
  return 1;
}
