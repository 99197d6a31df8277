// What the links to a GPU may ask of the worker that they belong to, and all they may: they see nothing else of it.
// Variables' states, whose chunks they copy, are in variable_state.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ps/worker.hpp"
#include "shm/job_segments.hpp"
#include "shm/segment.hpp"
#include "worker/gradient_input.hpp"
#include "worker/threads.hpp"

namespace ps {

namespace device {
class ShardMemory;
}

// Cheap to copy; the worker outlives it.
class PS_HIDDEN DevicePort {
 public:
  explicit DevicePort(Worker& worker) noexcept : worker_(*worker.impl_) {}

  shm::JobSegments& job() const noexcept;
  const JobConfig& config() const noexcept;
  std::uint32_t rank() const noexcept;
  Threads& threads() const noexcept;

  // The settings as the worker goes by them in this step, and the scheduled learning rate.
  const LiveSettings& live() const noexcept;
  float learning_rate() const noexcept;

  // The job's shards as far as they are registered with CUDA: the worker's links share them.
  std::weak_ptr<device::ShardMemory>& shards() const noexcept;

  // Throws Error where the worker is recorded or replayed: a GPU's pulls are not.
  void refuse_taped() const;

  // Whether the worker has a GpuLink: it may have one.
  bool has_link() const noexcept;
  void set_link(bool has_link) const noexcept;

  // A pull begins: what is pushed next may be computed of its values.
  void note_pull() const noexcept;
  void count_pulls(std::uint64_t variables) const noexcept;
  void count_pull_retries(std::uint64_t retries) const noexcept;

  // Throws Error where the worker may not push now. To be asked before landing_place() is filled.
  void check_push() const;

  // As Worker::push, with gradients that may still be arriving. Requires: one for each variable, of its size.
  void push(std::span<const Variable> variables, std::span<const GradientInput> gradients) const;

  // The segment of this worker's gradients, where the mode has one: a push of a gradient that lies there copies nothing.
  const shm::Segment* landing() const noexcept;
  // The record's place in it. Requires: there is one. Throws Error when /dev/shm is full.
  std::span<float> landing_place(const shm::VariableShm& record) const;

 private:
  Worker::Impl& worker_;
};

}  // namespace ps
