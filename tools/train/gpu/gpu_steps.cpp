#include "train/gpu/gpu_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
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
                   GpuBatches& batches, GpuLink& link, GpuTimeline& timeline)
    : parts_(parts),
      cuda_(*parts.options.gpu->cuda),
      kernels_(*parts.options.gpu->kernels),
      parameters_(parameters),
      gradients_(gradients),
      batches_(batches),
      link_(link),
      timeline_(timeline),
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
  for (Step& step : steps_)
    for (Recorded& recorded : step.graphs) drop(recorded);
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

void GpuSteps::enqueue(std::size_t slot, float rate) {
  Step& step = steps_[slot];
  batches_.await(slot, stream_);
  GpuLinkAccess::watch(link_).set_context("a step without a graph");
  enqueue_kernels(slot, rate);
  step.has_run = true;
  step.ran_at = rate;
}

bool GpuSteps::has_graph(std::size_t slot, float rate) const {
  return graph_of(slot).graph != nullptr && is_current(graph_of(slot), rate);
}

void GpuSteps::enqueue_graph(std::size_t slot, bool waits) {
  Recorded& recorded = steps_[slot].graphs[timeline_.is_sampled() ? 1 : 0];
  if (waits)
    GpuLinkAccess::start_recorded_when_opened(link_);
  else
    GpuLinkAccess::start_recorded(link_);
  batches_.await(slot, stream_);
  GpuLinkAccess::watch(link_).set_context("the graph of a step");
  check(cuda_.launch(recorded.graph, stream_), "launch a graph");
  recorded.was_launched = true;
}

bool GpuSteps::is_current(const Recorded& recorded, float rate) const {
  return recorded.rate == rate && recorded.number == GpuLinkAccess::recording_number(link_);
}

bool GpuSteps::is_known(std::size_t slot, bool is_graph) const {
  return is_graph ? graph_of(slot).was_launched : steps_[0].has_run || steps_[1].has_run;
}

std::size_t GpuSteps::graph_operations() const {
  return std::max(steps_[0].graphs[0].operations, steps_[1].graphs[0].operations);
}

void GpuSteps::capture(std::size_t slot) {
  Step& step = steps_[slot];
  if (!may_capture_ || !step.has_run) return;
  if (!GpuLinkAccess::can_record(link_)) {
    for (Recorded& recorded : step.graphs) drop(recorded);
    return;
  }
  std::string why;
  if (!is_current(step.graphs[0], step.ran_at) && !record(slot, false, why)) {
    may_capture_ = link_.can_wait();
    if (may_capture_) {
      warn("steps are not enqueued ahead, slower, because no CUDA graph can be created with the wait for a step", why);
      GpuLinkAccess::refuse_waits(link_);
      may_capture_ = record(slot, false, why);
    }
    if (!may_capture_)
      return warn("steps are enqueued kernel by kernel because no CUDA graph can be created", why);
  }
  if (!is_current(step.graphs[1], step.ran_at) && !record(slot, true, why))
    warn("steps that are timed are enqueued kernel by kernel because no CUDA graph can be created with events", why);
}

bool GpuSteps::record(std::size_t slot, bool is_timed, std::string& why) {
  Step& step = steps_[slot];
  Recorded& recorded = step.graphs[is_timed ? 1 : 0];
  drop(recorded);
  why.clear();
  const auto mark = [&](GpuTimeline::Mark which) {
    if (is_timed) timeline_.mark_in_graph(which);
  };
  device::CudaError error = cuda_.begin_capture(stream_);
  if (error == device::kSuccess) {
    try {
      GpuLinkAccess::record_step(
          link_, [&] { mark(GpuTimeline::kOpened); },
          [&] {
            mark(GpuTimeline::kPulled);
            enqueue_kernels(slot, step.ran_at);
            mark(GpuTimeline::kComputed);
          });
    } catch (const Error& refused) {
      why = refused.what();
    }
    error = cuda_.end_capture(stream_, recorded.graph, recorded.operations);
  }
  const bool is_recorded = error == device::kSuccess && why.empty();
  if (!is_recorded) {
    static_cast<void>(cuda_.last_error());
    drop(recorded);
    if (why.empty()) why = cuda_.error_text(error);
  }
  recorded.rate = step.ran_at;
  recorded.number = GpuLinkAccess::recording_number(link_);
  return is_recorded;
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
  const float factor = pushed_factor(parts_.worker);
  for (std::size_t i = 0; i < specs.size(); ++i)
    check(kernels_.difference(own_->values()[i], parameters_.values()[i], factor, gradients_.pointers()[i],
                              specs[i].count(), stream_),
          "subtract parameters");
}

}  // namespace ps_shm::train
