#include "train/loop/count_model.hpp"

#include <algorithm>
#include <chrono>
#include <memory>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "train/log/straggler.hpp"

namespace ps_shm::train {
CountResult count_up(Worker& worker, const CountOptions& options) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kReportPeriod = std::chrono::seconds(2);
  VariableSpec spec;
  spec.name = kCountVariable;
  if (options.size > 1) spec.shape = {options.size};
  spec.rule = UpdateRule::kAdd;
  const Variable variable =
      worker.variable(spec, [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
  std::vector<float> ones;
  std::unique_ptr<GpuCounter> gpu;
  if (options.gpu)
    gpu = make_gpu_counter(worker, variable, options);
  else
    ones.assign(options.size, 1.0F);

  CountResult result;
  result.values.resize(options.size);
  const auto is_stop_requested = [&] { return options.stop_requested && options.stop_requested(); };
  const auto is_over = [&] { return worker.finished() || is_stop_requested(); };
  Clock::time_point began = Clock::now(), reported = began;
  try {
    while (result.steps < options.steps && !is_over()) {
      if (gpu)
        gpu->push();
      else
        worker.push(variable, ones);
      const Clock::time_point begin = Clock::now();
      const std::uint64_t global_steps = worker.step();
      const Clock::time_point end = Clock::now();
      if (++result.steps == 1 && traits_of(worker.config().mode).steps_together())
        began += end - begin;  // waited for the other workers to join
      worker.report(0.0, 0);
      if (options.report && end - reported >= kReportPeriod) {
        worker.pull(variable, result.values);
        options.report(result.steps, global_steps, result.values);
        reported = end;
      }
      if (options.interval_seconds > 0 && result.steps < options.steps) wait_seconds(options.interval_seconds, is_over);
    }
  } catch (const JobFinished&) {  // the ps was told to end while this worker waited
  } catch (const Interrupted&) {
  }
  result.is_interrupted = is_stop_requested();
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  result.began_unix =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - result.seconds;
  if (gpu) result.gpu = gpu->report();
  gpu.reset();
  worker.pull(variable, result.values);
  return result;
}

}  // namespace ps_shm::train
