#include "train/gpu/gpu_steps.hpp"

#include <fmt/format.h>

#include <string>

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
                   GpuBatches& batches, GpuLink& link)
    : parts_(parts),
      cuda_(*parts.options.gpu->cuda),
      kernels_(*parts.options.gpu->kernels),
      parameters_(parameters),
      gradients_(gradients),
      batches_(batches),
      link_(link),
      stream_(static_cast<device::Stream>(link.stream())),
      model_(parts.model, parts.batch(), cuda_, kernels_),
      losses_(cuda_, GpuBatches::kSlots),
      may_capture_(parts.options.gpu->enqueue != Enqueue::kKernels && !has_changing_rates()) {
  if (parts.has_local_steps()) own_.emplace(parts.model.parameters(), cuda_);
  check(kernels_.load(), "load the model's kernels");
  kernels_.prepare_products(stream_);
}

GpuSteps::~GpuSteps() {
  GpuLinkAccess::watch(link_).settle(stream_);
  if (cuda_.is_given_up()) return;
  for (Step& step : steps_) {
    drop(step.computed);
    drop(step.whole);
  }
  kernels_.release_products(stream_);
}

void GpuSteps::drop(Recorded& recorded) {
  if (recorded.graph != nullptr) static_cast<void>(cuda_.destroy_graph(recorded.graph));
  recorded = {};
}

bool GpuSteps::has_changing_rates() const {
  const Schedule& schedule = parts_.worker.config().optimizer.schedule;
  return parts_.has_local_steps() && (schedule.kind != Schedule::Kind::kConstant || schedule.warmup_steps > 0);
}

void GpuSteps::launch(Recorded& recorded, const char* what) {
  GpuLinkAccess::watch(link_).set_context(what);
  check(cuda_.launch(recorded.graph, stream_), "launch a graph");
  recorded.was_launched = true;
}

void GpuSteps::enqueue(std::size_t slot, float rate) {
  Step& step = steps_[slot];
  batches_.await(slot, stream_);
  if (step.computed.is_for(rate)) return launch(step.computed, "the graph of what a step computes");
  GpuLinkAccess::watch(link_).set_context("a step without a graph");
  enqueue_kernels(slot, rate);
  step.has_run = true;
  step.ran_at = rate;
}

bool GpuSteps::has_whole(std::size_t slot, float rate) const {
  const Step& step = steps_[slot];
  return step.whole.is_for(rate) && step.computed.was_launched &&
         step.whole.number == GpuLinkAccess::recording_number(link_);
}

void GpuSteps::enqueue_whole(std::size_t slot, bool waits) {
  Recorded& whole = steps_[slot].whole;
  if (waits)
    GpuLinkAccess::start_recorded_when_opened(link_, whole.has_gate);
  else
    GpuLinkAccess::start_recorded(link_);
  batches_.await(slot, stream_);
  launch(whole, "the graph of a step");
}

bool GpuSteps::is_known(std::size_t slot, float rate, bool is_whole) const {
  const Recorded& recorded = is_whole ? steps_[slot].whole : steps_[slot].computed;
  if (recorded.is_for(rate)) return recorded.was_launched;
  return steps_[0].has_run || steps_[1].has_run;
}

GraphScope GpuSteps::graph_scope() const {
  if (steps_[0].whole.operations + steps_[1].whole.operations > 0) return GraphScope::kStep;
  return steps_[0].computed.operations + steps_[1].computed.operations > 0 ? GraphScope::kCompute : GraphScope::kNone;
}

std::size_t GpuSteps::graph_operations() const {
  const auto largest = [this](Recorded Step::*which) {
    return std::max((steps_[0].*which).operations, (steps_[1].*which).operations);
  };
  return largest(graph_scope() == GraphScope::kStep ? &Step::whole : &Step::computed);
}

void GpuSteps::capture(std::size_t slot, bool whole) {
  if (!may_capture_ || !steps_[slot].has_run) return;
  capture_computed(slot);
  if (!GpuLinkAccess::can_record(link_)) return drop(steps_[slot].whole);
  if (whole && may_capture_ && may_capture_whole_) capture_whole(slot);
}

void GpuSteps::capture_computed(std::size_t slot) {
  Step& step = steps_[slot];
  if (step.computed.is_for(step.ran_at)) return;
  std::string why;
  if (record(step.computed, step.ran_at, why, [&] { enqueue_kernels(slot, step.ran_at); })) return;
  may_capture_ = false;
  warn("GPU steps are enqueued kernel by kernel because no CUDA graph can be created", why);
}

void GpuSteps::capture_whole(std::size_t slot) {
  Step& step = steps_[slot];
  if (step.whole.is_for(step.ran_at) && step.whole.number == GpuLinkAccess::recording_number(link_)) return;
  const auto try_with = [&](bool has_gate, std::string& why) {
    const bool is_recorded = record(step.whole, step.ran_at, why, [&] {
      GpuLinkAccess::record_step(link_, has_gate, [&] { enqueue_kernels(slot, step.ran_at); });
    });
    step.whole.number = GpuLinkAccess::recording_number(link_);
    step.whole.has_gate = has_gate;
    return is_recorded;
  };
  std::string why;
  if (link_.can_wait() && may_capture_gate_) {
    if (try_with(true, why)) return;
    may_capture_gate_ = false;
    warn("the wait for a step stands before its CUDA graph, which cannot have it", why);
  }
  if (try_with(false, why)) return;
  may_capture_whole_ = false;
  warn("a step's pull and push are launched by themselves because no CUDA graph with them can be created", why);
}

bool GpuSteps::record(Recorded& recorded, float rate, std::string& why, const std::function<void()>& enqueue_all) {
  drop(recorded);
  why.clear();
  device::CudaError error = cuda_.begin_capture(stream_);
  if (error == device::kSuccess) {
    try {
      enqueue_all();
    } catch (const Error& refused) {
      why = refused.what();
    }
    error = cuda_.end_capture(stream_, recorded.graph, recorded.operations);
  }
  recorded.rate = rate;
  if (error == device::kSuccess && why.empty()) return true;
  static_cast<void>(cuda_.last_error());
  drop(recorded);
  if (why.empty()) why = cuda_.error_text(error);
  return false;
}

void GpuSteps::warn(const std::string& what, const std::string& why) const {
  if (parts_.options.warn) parts_.options.warn(fmt::format("worker {}: {}: {}", parts_.worker.rank(), what, why));
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
