// A training loop with hooks: two of the library, and one of the program's own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ps_shm/errors.hpp>
#include <ps_shm/hooks.hpp>
#include <ps_shm/server.hpp>
#include <ps_shm/worker.hpp>

namespace {

class PrintLoss final : public ps_shm::Hook {
 public:
  void after_step(ps_shm::StepLoop&, const ps_shm::StepReport& report) override {
    if (report.steps % 10 == 0)
      std::printf("step %llu: loss %.4f\n", static_cast<unsigned long long>(report.global_step), report.loss);
  }
};

}  // namespace

int main() try {
  ps_shm::JobConfig config;
  config.job = "example-hooks-" + std::to_string(getpid());
  config.optimizer.lr = 0.05F;
  ps_shm::Server server(config);
  ps_shm::Worker worker({.job = config.job});
  const ps_shm::Variable w = worker.variable(
      {.name = "w", .shape = {10}}, [](std::span<float> values) { std::fill(values.begin(), values.end(), 1.0F); });
  std::vector<float> values(10), gradient(10);
  const ps_shm::StepReport last = ps_shm::run_steps(
      worker, {ps_shm::stop_at_loss(0.01), ps_shm::nan_guard(), std::make_shared<PrintLoss>()},
      [&] {  // pulls, computes the gradient, returns the loss
        worker.pull(w, values);
        double loss = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          loss += double(values[i]) * double(values[i]);
          gradient[i] = 2 * values[i];
        }
        return loss;
      },
      [&] { worker.push(w, gradient); });
  std::printf("reached a loss of %.4f at step %llu\n", last.loss, static_cast<unsigned long long>(last.global_step));
} catch (const ps_shm::Error& error) {
  std::fprintf(stderr, "hooks: %s\n", error.what());
  return 1;
}
