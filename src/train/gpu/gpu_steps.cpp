#include "train/gpu/gpu_steps.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "ps_shm/errors.hpp"
#include "train/loop/local_steps.hpp"
#include "update/rules.hpp"

namespace ps_shm::train {

GpuArrays::GpuArrays(std::span<const ParameterSpec> specs, device::CudaCalls& cuda) {
  constexpr std::size_t kFloats = 256 / sizeof(float);
  std::size_t total = 0;
  std::vector<std::size_t> begins;
  for (const ParameterSpec& spec : specs) {
    begins.push_back(total);
    total += (spec.count() + kFloats - 1) / kFloats * kFloats;
  }
  memory_ = {cuda, total};
  for (const std::size_t begin : begins) arrays_.push_back(memory_.on_device() + begin);
}

GpuSteps::GpuSteps(const EngineParts& parts, const GpuArrays& parameters, const GpuArrays& gradients,
                   GpuBatches& batches, device::Stream stream)
    : parts_(parts),
      cuda_(*parts.options.gpu->cuda),
      kernels_(*parts.options.gpu->kernels),
      parameters_(parameters),
      gradients_(gradients),
      batches_(batches),
      stream_(stream),
      model_(parts.model, parts.batch(), cuda_, kernels_),
      losses_(cuda_, GpuBatches::kSlots),
      may_capture_(!has_changing_rates()) {
  if (parts.has_local_steps()) own_.emplace(parts.model.parameters(), cuda_);
  check(kernels_.load(), "load the model's kernels");
  kernels_.prepare_products(stream);
}

GpuSteps::~GpuSteps() {
  static_cast<void>(cuda_.synchronize(stream_));
  for (Step& step : steps_) drop_graph(step);
  kernels_.release_products(stream_);
}

void GpuSteps::drop_graph(Step& step) {
  if (step.graph != nullptr) static_cast<void>(cuda_.destroy_graph(std::exchange(step.graph, nullptr)));
  step.operations = 0;
  step.was_launched = false;
}

bool GpuSteps::has_changing_rates() const {
  const Schedule& schedule = parts_.worker.config().optimizer.schedule;
  return parts_.has_local_steps() && (schedule.kind != Schedule::Kind::kConstant || schedule.warmup_steps > 0);
}

void GpuSteps::enqueue(std::size_t slot, float rate) {
  Step& step = steps_[slot];
  batches_.await(slot, stream_);
  if (step.graph != nullptr && step.rate == rate) {
    check(cuda_.launch(step.graph, stream_), "launch a graph");
    step.was_launched = true;
    return;
  }
  enqueue_kernels(slot, rate);
  step.has_run = true;
  step.ran_at = rate;
}

bool GpuSteps::is_known(std::size_t slot, float rate) const {
  const Step& step = steps_[slot];
  if (step.graph != nullptr && step.rate == rate) return step.was_launched;
  return steps_[0].has_run || steps_[1].has_run;
}

void GpuSteps::capture(std::size_t slot) {
  Step& step = steps_[slot];
  if (!may_capture_ || !step.has_run || (step.graph != nullptr && step.rate == step.ran_at)) return;
  drop_graph(step);
  std::string why;
  device::CudaError error = cuda_.begin_capture(stream_);
  if (error == device::kSuccess) {
    try {
      enqueue_kernels(slot, step.ran_at);
    } catch (const Error& refused) {
      why = refused.what();
    }
    error = cuda_.end_capture(stream_, step.graph, step.operations);
  }
  step.rate = step.ran_at;
  if (error == device::kSuccess && why.empty()) return;
  static_cast<void>(cuda_.last_error());
  may_capture_ = false;
  drop_graph(step);
  if (why.empty()) why = cuda_.error_text(error);
  if (parts_.options.warn)
    parts_.options.warn(
        fmt::format("worker {}: GPU steps are enqueued kernel by kernel because no CUDA graph can be created: {}",
                    parts_.worker.rank(), why));
}

void GpuSteps::enqueue_kernels(std::size_t slot, float rate) {
  if (own_)
    enqueue_local_steps(slot, rate);
  else
    model_.enqueue(parameters_.values(), batches_.in(slot), gradients_.pointers(), losses_.on_device() + slot, stream_);
}

void GpuSteps::enqueue_local_steps(std::size_t slot, float rate) {
  const std::span<const ParameterSpec> specs = parts_.model.parameters();
  const device::DeviceMemory<float>& own = own_->memory();
  check(cuda_.copy(own.on_device(), parameters_.memory().on_device(), own.bytes(), stream_), "copy parameters");
  GpuBatch batch = batches_.in(slot);
  batch.count = parts_.batch();
  for (std::uint64_t k = 0; k < parts_.push_every(); ++k) {
    model_.enqueue(own_->values(), batch, gradients_.pointers(), losses_.on_device() + slot, stream_);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      const update::Settings settings =
          update::settings_of(parts_.worker.config().optimizer, UpdateRule::kSgd, specs[i].regularize);
      check(kernels_.sgd_step(own_->pointers()[i], gradients_.values()[i], specs[i].count(), rate, settings.l2,
                              settings.weight_decay, settings.clip_value, stream_),
            "take a local step");
    }
    batch.images += batch.count * parts_.data.features;
    batch.labels += batch.count;
  }
  const float factor = pushed_factor(parts_.worker.config());
  for (std::size_t i = 0; i < specs.size(); ++i)
    check(kernels_.difference(own_->values()[i], parameters_.values()[i], factor, gradients_.pointers()[i],
                              specs[i].count(), stream_),
          "subtract parameters");
}

}  // namespace ps_shm::train
