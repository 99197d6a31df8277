#include "train/count_model.hpp"

#include <algorithm>
#include <chrono>
#include <memory>

#include "config/modes.hpp"
#include "device/gpu_link.hpp"
#include "device/resources.hpp"
#include "ps/errors.hpp"
#include "train/straggler.hpp"

namespace ps::train {
namespace {

// Ones in a GPU's memory, pushed from there.
class GpuOnes {
 public:
  GpuOnes(Worker& worker, const Variable& variable, const CountOptions& options)
      : cuda_(*options.gpu->cuda), name_(options.gpu->gpu.properties.name) {
    device::check(cuda_, cuda_.set_device(options.gpu->gpu.device), "be used");
    const std::size_t count = variable.element_count();
    ones_ = {cuda_, count};
    pulled_ = {cuda_, count};
    float* const to = pulled_.on_device();
    const float* const from = ones_.on_device();
    GpuOptions link_options;
    link_options.device = options.gpu->gpu.device;
    link_options.wire = options.gpu->wire;
    link_options.warn = options.warn;
    link_ = device::make_gpu_link(worker, {&variable, 1}, {&to, 1}, {&from, 1}, link_options, cuda_,
                                  *options.gpu->transfers);
    device::check(
        cuda_, options.gpu->kernels->fill(ones_.on_device(), 1.0F, count, static_cast<device::Stream>(link_->stream())),
        "fill memory");
  }

  void push() {
    link_->start_push();
    link_->finish_push();
  }

  GpuReport report() const {
    GpuReport made;
    made.device = name_;
    made.transfers = link_->transfers();
    return made;
  }

 private:
  device::CudaCalls& cuda_;
  std::string name_;
  device::DeviceMemory<float> ones_, pulled_;
  std::unique_ptr<GpuLink> link_;
};

}  // namespace

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
  std::unique_ptr<GpuOnes> gpu;
  if (options.gpu)
    gpu = std::make_unique<GpuOnes>(worker, variable, options);
  else
    ones.assign(options.size, 1.0F);

  CountResult result;
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
        began += end - begin;  // the others had to come
      worker.report(0.0, 0);
      if (options.report && end - reported >= kReportPeriod) {
        options.report(result.steps, global_steps);
        reported = end;
      }
      if (options.interval_seconds > 0 && result.steps < options.steps) wait_seconds(options.interval_seconds, is_over);
    }
  } catch (const JobFinished&) {  // its ps was told to end while we waited
  } catch (const Interrupted&) {
  }
  result.is_interrupted = is_stop_requested();
  result.seconds = std::chrono::duration<double>(Clock::now() - began).count();
  result.began_unix =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - result.seconds;
  if (gpu) result.gpu = gpu->report();
  gpu.reset();
  result.values.resize(options.size);
  worker.pull(variable, result.values);
  return result;
}

}  // namespace ps::train
