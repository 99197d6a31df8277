#include "train/gpu/gpu_timeline.hpp"

#include <cstdint>

#include "train/log/train_log.hpp"

namespace ps_shm::train {

void GpuTimeline::end_step(bool is_in_graph) {
  mark(kPushed);
  is_in_graph_ = is_in_graph;
  is_unread_ = is_sampled_;
  const std::uint64_t every = trace_ != nullptr ? kTracedEvery : kEvery;
  is_sampled_ = ++steps_ >= kFirst && steps_ % every == kFirst % every;
  mark(kBegun);
}

void GpuTimeline::read() {
  if (!is_unread_) return;
  is_unread_ = false;
  device::wait_until_done(watch_, events_[kPushed].get(), "finish a step");
  const double pull = between(kOpened, kPulled), compute = between(kPulled, kComputed);
  const Mark sending = is_in_graph_ ? kComputed : kSending;
  const double held = between(kComputed, sending), push = between(sending, kPushed);
  sums_.wait += between(kBegun, kOpened) + held;
  sums_.pull += pull;
  sums_.compute += compute;
  sums_.push += push;
  ++sums_.sampled;
  if (trace_ == nullptr) return;
  // The GPU has a clock of its own: its times are shifted so that they end now.
  std::uint64_t end = PhaseTimer::ns(PhaseTimer::Clock::now());
  const auto add = [&](const char* name, double seconds) {
    const auto begin = end - static_cast<std::uint64_t>(seconds * 1e9);
    if (name != nullptr) trace_->add(name, begin, end, SpanLog::Track::kGpu);
    end = begin;
  };
  add("push", push);
  add(nullptr, held);
  add("compute", compute);
  add("pull", pull);
}

double GpuTimeline::between(Mark begin, Mark end) {
  float milliseconds = 0.0F;
  device::check(cuda_, cuda_.elapsed_ms(events_[begin].get(), events_[end].get(), milliseconds),
                "measure the time between events");
  return double(milliseconds) * 1e-3;
}

GpuStepSeconds GpuTimeline::means() const {
  GpuStepSeconds means = sums_;
  if (sums_.sampled == 0) return means;
  const auto count = double(sums_.sampled);
  means.wait /= count;
  means.pull /= count;
  means.compute /= count;
  means.push /= count;
  return means;
}

}  // namespace ps_shm::train
