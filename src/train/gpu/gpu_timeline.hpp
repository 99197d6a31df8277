// What a step consists of, by the GPU's own clock: events on its stream, in one step of 64, for they cost time; with a
// trace in every second one.
//
//   end of the push before | wait (for the step, and its gate) | pull | compute | wait (for the CPU) | push
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/resources.hpp"
#include "train/gpu/gpu_place.hpp"
#include "train/span_log.hpp"

namespace ps::train {

class GpuTimeline {
 public:
  enum Mark : std::size_t { kBegun, kOpened, kPulled, kComputed, kSending, kPushed };

  GpuTimeline(device::CudaCalls& cuda, device::Stream stream, SpanLog* trace)
      : cuda_(cuda), stream_(stream), trace_(trace), events_{Timed(cuda), Timed(cuda), Timed(cuda),
                                                             Timed(cuda), Timed(cuda), Timed(cuda)} {}

  // Records, in a step that is sampled. Throws Error, as all below.
  void mark(Mark which) {
    if (is_sampled_) device::check(cuda_, cuda_.record(events_[which].get(), stream_), "record an event");
  }

  // To be recorded by somebody else; nullptr where the step is not sampled.
  void* event(Mark which) const { return is_sampled_ ? events_[which].get() : nullptr; }

  // The push is enqueued: what comes on the stream belongs to the next step.
  void end_step();

  // Something was done twice: this step is no sample.
  void drop() { is_sampled_ = false; }

  // Reads the last sample, if there is a new one, before a third step begins. Waits for its push: call it at once when
  // that has been finished, since a trace takes this moment for the push's end.
  void read();

  GpuStepSeconds means() const;

 private:
  static constexpr std::uint64_t kEvery = 64, kTracedEvery = 2;  // a step's events are set anew in the next one
  static constexpr std::uint64_t kFirst = 10;                    // graphs are recorded and launched by then

  struct Timed : device::OwnEvent {
    explicit Timed(device::CudaCalls& cuda) : OwnEvent(cuda, true) {}
  };

  double between(Mark begin, Mark end);

  device::CudaCalls& cuda_;
  device::Stream stream_;
  SpanLog* trace_;
  std::array<Timed, 6> events_;
  std::uint64_t steps_ = 0;
  bool is_sampled_ = false, is_unread_ = false;
  GpuStepSeconds sums_;
};

}  // namespace ps::train
