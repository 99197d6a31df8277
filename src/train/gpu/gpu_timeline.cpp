#include "train/gpu/gpu_timeline.hpp"

namespace ps::train {

void GpuTimeline::end_step() {
  mark(kPushed);
  is_unread_ = is_sampled_;
  is_sampled_ = ++steps_ % kEvery == kFirst;
  mark(kBegun);
}

void GpuTimeline::read() {
  if (!is_unread_) return;
  is_unread_ = false;
  device::check(cuda_, cuda_.synchronize(events_[kPushed].get()), "wait for an event");
  sums_.wait += between(kBegun, kOpened) + between(kComputed, kSending);
  sums_.pull += between(kOpened, kPulled);
  sums_.compute += between(kPulled, kComputed);
  sums_.push += between(kSending, kPushed);
  ++sums_.sampled;
}

double GpuTimeline::between(Mark begin, Mark end) {
  float milliseconds = 0.0F;
  device::check(cuda_, cuda_.elapsed_ms(events_[begin].get(), events_[end].get(), milliseconds), "tell the time");
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

}  // namespace ps::train
