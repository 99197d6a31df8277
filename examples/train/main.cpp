// A server and two workers, each a process, fit y = a x + b to points. Asynchronous: no worker waits for another one.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <ps_shm/errors.hpp>
#include <ps_shm/job_view.hpp>
#include <ps_shm/server.hpp>
#include <ps_shm/worker.hpp>

namespace {

void work(const std::string& job) {
  ps_shm::Worker worker({.job = job});  // waits until the job is there
  worker.wait_for_workers();            // else one worker might do all the steps before the other one has joined
  const ps_shm::Variable line = worker.variable(
      {.name = "line", .shape = {2}}, [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); });
  std::mt19937 random(worker.rank());  // each worker has other points
  std::uniform_real_distribution<float> xs(-1, 1);
  while (!worker.finished()) {
    std::array<float, 2> values, gradient{};
    worker.pull(line, values);
    for (int i = 0; i < 32; ++i) {
      const float x = xs(random), y = 3 * x + 1;
      const float error = values[0] * x + values[1] - y;
      gradient[0] += error * x / 32;
      gradient[1] += error / 32;
    }
    worker.push(line, gradient);
    worker.step();
  }
}

}  // namespace

int main() try {
  const std::string job = "example-train-" + std::to_string(getpid());
  int started = 0, failed = 0;
  while (started < 2) {
    const pid_t child = fork();
    if (child < 0) {
      std::perror("train: fork");
      return 1;  // a worker that was started gives up after a minute without a job
    }
    if (child == 0) {
      try {
        work(job);
      } catch (const ps_shm::JobFinished&) {  // the job was over before this worker had joined
      }
      return 0;
    }
    ++started;
  }
  const auto reap = [&](int options) {  // whether a worker has ended
    int status = 0;
    if (waitpid(-1, &status, options) <= 0) return false;
    failed += status != 0;
    return true;
  };
  const ps_shm::JobConfig config{
      .job = job,
      .workers = 2,
      .stale_limit = 100,  // drops what a worker that was held up has computed from values of long ago
      .optimizer = {.lr = 0.1F},
      .steps = 2000,
  };
  ps_shm::Server server(config);
  ps_shm::ServeHooks hooks;
  hooks.stop_requested = [&] {  // one that fails before it has joined would be waited for
    while (reap(WNOHANG)) {
    }
    return failed != 0;
  };
  server.serve(hooks);  // until the last step is done and both workers have left
  while (reap(0)) {
  }
  if (failed != 0) {
    std::fprintf(stderr, "train: a worker has failed\n");
    return 1;
  }
  const std::vector<float> line = ps_shm::JobView(job).values("line");
  std::printf("y = %.1f x + %.1f after %llu steps\n", double(line[0]), double(line[1]),
              static_cast<unsigned long long>(ps_shm::JobView(job).global_step()));
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 1;
}
