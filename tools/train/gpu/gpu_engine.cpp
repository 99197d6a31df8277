// The engine of a worker with a GPU, a pipeline: while the CPU applies a gradient and waits for the step, the next pull
// and compute are already enqueued on the GPU's stream, behind a gate that opens with the step.
//
//   stream   push k | gate ...................... | pull k+1 | compute k+1 | push k+1
//   CPU             | apply pieces | step() | open | (next batch) | apply ...
//
// Where possible, all of step k+1 is one graph, or one with events if it is timed; behind the gate nobody reads what push k has sent any more. A torn pull
// is repaired by the link; the computation based on it is repeated, and then sent by itself.
#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <utility>

#include "device/gpu_link.hpp"
#include "ps_shm/errors.hpp"
#include "train/gpu/gpu_batches.hpp"
#include "train/gpu/gpu_steps.hpp"
#include "train/gpu/gpu_timeline.hpp"
#include "train/loop/engine.hpp"
#include "train/loop/local_steps.hpp"

namespace ps_shm::train {
namespace {

// Local steps behind the gate: some 24 launches each, and about a thousand fill the queue. Then the launching thread,
// which has to open the gate, would block.
constexpr std::uint64_t kMaxGatedSteps = 8;

device::CudaCalls& use_device(const GpuPlace& place) {
  device::check(*place.cuda, place.cuda->set_device(place.gpu.device), "be used");
  return *place.cuda;
}

GpuOptions link_options(const TrainOptions& options) {
  GpuOptions made;
  made.device = options.gpu->gpu.device;
  made.wire = options.gpu->wire;
  made.stream_waits = options.gpu->enqueue == Enqueue::kAhead;
  made.warn = options.warn;
  return made;
}

class GpuEngine final : public Engine {
 public:
  explicit GpuEngine(const EngineParts& parts)
      : parts_(parts),
        place_(*parts.options.gpu),
        cuda_(use_device(place_)),
        parameters_(parts.model.parameters(), cuda_),
        gradients_(parts.model.parameters(), cuda_),
        link_(device::make_gpu_link(parts.worker, parts.variables, parameters_.pointers(), gradients_.values(),
                                    link_options(parts.options), cuda_, *place_.transfers)),
        stream_(static_cast<device::Stream>(link_->stream())),
        watch_(GpuLinkAccess::watch(*link_)),
        batches_(parts.data, parts.batch() * parts.push_every(), parts.seed(), parts.worker.rank(),
                 parts.worker.examples_before(), place_.resident_share, watch_, *place_.kernels),
        timeline_(watch_, stream_, parts.options.trace),
        steps_(parts, parameters_, gradients_, batches_, *link_, timeline_) {
    batches_.prepare(slot_);
  }

  ~GpuEngine() override { cancel(); }  // otherwise the stream would never finish

  void pull() override {
    if (!is_enqueued_) {
      rate_ = present_rate();
      is_whole_ = steps_.has_graph(slot_, rate_);
      if (is_whole_) {
        steps_.enqueue_graph(slot_, false);
      } else {
        timeline_.mark(GpuTimeline::kOpened);
        link_->start_pull();
        enqueue_compute();
      }
    }
    const bool has_moved = link_->finish_pull();
    // Behind a gate the rate is that of before the step; the runtime settings may have changed it.
    if (has_moved || (was_gated_ && rate_ != present_rate())) {
      timeline_.drop();
      if (std::exchange(is_whole_, false)) GpuLinkAccess::discard_recorded_push(*link_);
      rate_ = present_rate();
      enqueue_compute();
    }
    is_enqueued_ = was_gated_ = false;
  }

  // The kernels are on the stream already; the work here is done while the GPU computes.
  bool compute(const Pause& pause) override {
    if (!pause) start_push();
    const std::size_t next = other(slot_);
    batches_.prepare(next);
    if (!pause) {  // otherwise no step is a graph: its gradient is not to be sent before the pause
      steps_.capture(next);
      return true;
    }
    device::wait_until_done(watch_, stream_, "finish its work");  // a straggler's delay follows the GPU work
    loss_ = steps_.loss(slot_);
    for (std::uint64_t k = 0; k < parts_.push_every(); ++k)
      if (!pause()) return false;
    return true;
  }

  void push() override {
    const std::size_t done = slot_;
    if (!is_push_started_) start_push();
    is_push_started_ = false;
    slot_ = other(slot_);
    rate_ = present_rate();
    is_whole_ = steps_.has_graph(slot_, rate_);
    if (link_->can_wait() && parts_.push_every() <= kMaxGatedSteps && !steps_.has_changing_rates() &&
        steps_.is_known(slot_, is_whole_)) {
      is_gate_closed_ = is_enqueued_ = was_gated_ = true;
      if (is_whole_) {
        steps_.enqueue_graph(slot_, true);
      } else {
        link_->start_pull_when_opened(timeline_.event(GpuTimeline::kOpened));
        enqueue_compute();
      }
    }
    link_->finish_push();
    timeline_.read();
    loss_ = steps_.loss(done);
  }

  void skip() override {
    timeline_.drop();
    slot_ = other(slot_);
  }

  void begin_next() override { open(); }
  float loss() const override { return loss_; }

  // With pause, the interval from pull() to pause() is exactly the GPU's work.
  double work_seconds() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  void finish(TrainResult& result) override {
    cancel();
    if (!cuda_.is_given_up()) {
      if (is_enqueued_) static_cast<void>(link_->finish_pull());  // discarded
      is_enqueued_ = false;
      device::wait_until_done(watch_, stream_, "finish its work");
      timeline_.read();
    }
    GpuReport& report = result.gpu.emplace();
    report.device = place_.gpu.properties.name;
    report.transfers = link_->transfers();
    report.step = timeline_.means();
    report.is_resident = batches_.is_resident();
    report.graph_operations = steps_.graph_operations();
  }

 private:
  static std::size_t other(std::size_t slot) { return (slot + 1) % GpuBatches::kSlots; }

  // One rate for all of this step's local steps: the GPU does not see changes of the global step meanwhile.
  float present_rate() const {
    return parts_.has_local_steps() ? local_rate(parts_.worker, parts_.options, parts_.worker.global_step()) : 0.0F;
  }

  void enqueue_compute() {
    timeline_.mark(GpuTimeline::kPulled);
    steps_.enqueue(slot_, rate_);
    timeline_.mark(GpuTimeline::kComputed);
  }

  void start_push() {
    const bool was_whole = std::exchange(is_whole_, false);
    if (was_whole) {
      GpuLinkAccess::start_recorded_push(*link_);
    } else {
      timeline_.mark(GpuTimeline::kSending);
      link_->start_push();
    }
    timeline_.end_step(was_whole);
    is_push_started_ = true;
  }

  void open() {
    if (is_gate_closed_) link_->open();
    is_gate_closed_ = false;
  }

  // The stream gets to its end, but stores nothing where others may still read the last gradient.
  void cancel() {
    if (is_gate_closed_) GpuLinkAccess::cancel(*link_);
    is_gate_closed_ = false;
  }

  EngineParts parts_;
  const GpuPlace& place_;
  device::CudaCalls& cuda_;
  GpuArrays parameters_, gradients_;
  std::unique_ptr<GpuLink> link_;
  device::Stream stream_;
  device::GpuWatch& watch_;
  GpuBatches batches_;
  GpuTimeline timeline_;
  GpuSteps steps_;
  std::size_t slot_ = 0;      // of the step in progress
  bool is_enqueued_ = false;  // its pull and compute
  bool is_whole_ = false;     // with its push, in one graph
  bool was_gated_ = false, is_gate_closed_ = false, is_push_started_ = false;
  float rate_ = 0.0F;  // with which it was enqueued
  float loss_ = 0.0F;
};

}  // namespace

std::unique_ptr<Engine> make_gpu_engine(const EngineParts& parts) { return std::make_unique<GpuEngine>(parts); }

}  // namespace ps_shm::train
