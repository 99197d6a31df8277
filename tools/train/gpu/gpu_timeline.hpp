// The phases of a step by the GPU's own clock: events on its stream, in one step of 64, because they cost time; with a
// trace in every second one. Such a step is a graph that has the events between its parts, or enqueued in parts.
//
//   end of the previous push | wait (for the step, and its gate) | pull | compute | wait (for the CPU) | push
//
// In a graph there is no wait for the CPU between compute and push.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "device/polling.hpp"
#include "device/resources.hpp"
#include "train/log/span_log.hpp"
#include "train/loop/gpu_place.hpp"

namespace ps_shm::train {

class PS_SHM_HIDDEN GpuTimeline {
 public:
  enum Mark : std::size_t { kBegun, kOpened, kPulled, kComputed, kSending, kPushed };

  GpuTimeline(device::GpuWatch& watch, device::Stream stream, SpanLog* trace)
      : watch_(watch), cuda_(watch.cuda()), stream_(stream), trace_(trace), events_{Timed(cuda_), Timed(cuda_),
                                                                                    Timed(cuda_), Timed(cuda_),
                                                                                    Timed(cuda_), Timed(cuda_)} {}

  // Records an event if the step is sampled. Throws Error, like all functions below.
  void mark(Mark which) {
    if (is_sampled_) device::check(cuda_, cuda_.record(events_[which].get(), stream_), "record an event");
  }

  // Records an event in each launch of the graph that is being recorded, which is for sampled steps.
  void mark_in_graph(Mark which) {
    device::check(cuda_, cuda_.record_in_graph(events_[which].get(), stream_), "record an event");
  }

  bool is_sampled() const { return is_sampled_; }

  // To be recorded by the caller; nullptr if the step is not sampled.
  void* event(Mark which) const { return is_sampled_ ? events_[which].get() : nullptr; }

  // The push is enqueued: what follows on the stream belongs to the next step. `is_in_graph`: the events up to the end
  // of what is computed are those of a graph.
  void end_step(bool is_in_graph);

  // Some work was repeated: this step is not used as a sample.
  void drop() { is_sampled_ = false; }

  // Reads the last sample, if there is a new one, before a third step begins. Waits for its push: call it as soon as
  // the push has finished, since a trace takes this moment for its end.
  void read();

  GpuStepSeconds means() const;

 private:
  static constexpr std::uint64_t kEvery = 64, kTracedEvery = 2;  // a step's events are reused in the next one
  static constexpr std::uint64_t kFirst = 10;                    // graphs are recorded and launched by then

  struct Timed : device::OwnEvent {
    explicit Timed(device::CudaCalls& cuda) : OwnEvent(cuda, true) {}
  };

  double between(Mark begin, Mark end);

  device::GpuWatch& watch_;
  device::CudaCalls& cuda_;
  device::Stream stream_;
  SpanLog* trace_;
  std::array<Timed, 6> events_;
  std::uint64_t steps_ = 0;
  bool is_sampled_ = false, is_unread_ = false, is_in_graph_ = false;
  GpuStepSeconds sums_;
};

}  // namespace ps_shm::train
