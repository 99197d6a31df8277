// The interface through which a GPU link accesses its worker; a link uses nothing else of it. The Python package uses
// refresh_optimizer(). The states of variables,
// whose chunks links copy, are in variable_state.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/segment.hpp"
#include "worker/gradient_input.hpp"
#include "worker/threads.hpp"

namespace ps_shm {

struct TableState;

namespace device {
class ShardMemory;
}

// Cheap to copy. The worker must outlive it.
class PS_SHM_HIDDEN DevicePort {
 public:
  explicit DevicePort(Worker& worker) noexcept : worker_(*worker.impl_) {}

  shm::JobSegments& job() const noexcept;
  const JobConfig& config() const noexcept;
  std::uint32_t rank() const noexcept;
  Threads& threads() const noexcept;

  // For long waits: the worker's log callback and stop request, and what its table entry says that it waits for.
  void log(const std::string& line) const;
  bool is_stop_requested() const;
  void mark_gpu_wait(bool is_waiting) const noexcept;

  // The runtime settings that the worker applies in this step, and the scheduled learning rate.
  const LiveSettings& live() const noexcept;
  // Applies a change of the learning rate, momentum, beta1 or clip_norm from the next push on, and not from the next step
  // on as other changes, for whoever has made it and is about to push. Mode sync: does nothing, as a step belongs to all.
  void refresh_optimizer() const noexcept;
  float lr() const noexcept;

  // The job's shards that are registered with CUDA. All links of the worker share them.
  std::weak_ptr<device::ShardMemory>& shards() const noexcept;

  // The state of a table of this worker.
  TableState& table(const std::string& name) const noexcept;

  // Throws Error if the worker is recorded or replayed: pulls of a GPU cannot be recorded.
  void refuse_recorded() const;

  // Whether the worker has a GpuLink. A worker has at most one.
  bool has_link() const noexcept;
  void set_link(bool has_link) const noexcept;

  // Whether work that waits for GpuLink::open() is enqueued on the link's stream.
  bool has_closed_gate() const noexcept;
  void set_closed_gate(bool is_closed) const noexcept;

  // To be called at the start of a pull: gradients pushed later may be computed from its values.
  void note_pull() const noexcept;
  void count_pulls(std::uint64_t variables) const noexcept;
  void count_pull_retries(std::uint64_t retries) const noexcept;

  // Throws Error if the worker cannot push now. To be called before landing_place() is filled, unless that waits for the
  // end of a step.
  void check_push() const;

  // As Worker::push, with gradients that may still be arriving. Requires: one for each variable, of the variable's
  // size.
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) const;

  // This worker's gradient segment, if the mode has one. Pushing a gradient that lies there copies nothing.
  const shm::Segment* landing() const noexcept;
  // The record's place in that segment. Requires: there is one. Throws Error if /dev/shm is full.
  std::span<float> landing_place(const shm::VariableShm& record) const;

 private:
  Worker::Impl& worker_;
};

}  // namespace ps_shm
