// Gradient segments (sync mode): the one that this worker writes, and those of other workers, mapped when needed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "shm/segment/job_segments.hpp"
#include "worker/threads.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

class GradientSegments {
 public:
  GradientSegments(shm::JobSegments& job, std::uint32_t rank) noexcept : job_(job), rank_(rank) {}

  // Creates this owner's segment (locks.L5). Requires: the step of the rank's previous owner is over (barrier.B4).
  void create_own();

  // The record's place in the own segment. Throws Error if /dev/shm is full.
  std::span<float> place(const shm::VariableShm& record);

  // Stores the part's gradient for `step`, or the values to be added or assigned, at its place, unless it lies there
  // already. A second gradient or add of the same step is summed with the first; assigned values replace earlier ones.
  // Requires: the previous step is over (barrier.B6); everything pushed for a part in one step is of one kind, where
  // kAssign and kReset count as one kind. Throws Error if /dev/shm is full.
  void write(const VariablePart& part, std::uint64_t step, update::Change how, const GradientInput& given,
             Threads& threads);

  // The own segment. It is mapped after create_own().
  const shm::Segment& own() const noexcept { return own_; }

  // What write() has stored there. Requires: it was called in this step.
  std::span<const float> written(const shm::VariableShm& record) const noexcept;

  // Stores the squared global norm of everything that this worker has written for the step. Nothing is stored if the
  // settings that this worker knows do not limit the norm; a worker that finds a limit later then computes the norm
  // itself. Requires: own segment, before arriving.
  void write_norm(std::optional<double> squared_norm) noexcept;

  // What `rank` published for this record in step `step`; `numbers` is null if it pushed nothing. Throws Error if the
  // segment disappears or is truncated before the step is over.
  struct Pushed {
    const float* numbers = nullptr;
    update::Change how = update::Change::kStep;
  };
  Pushed find(std::uint32_t rank, const shm::VariableShm& record, std::uint32_t position, std::uint64_t step);

  // The norm that the rank published with its gradients, if it did.
  std::optional<double> norm(std::uint32_t rank);

  // Removes this owner's segment, unless the step under way needs it (barrier.B4). Then the rank's next owner or the
  // removal of the job removes it.
  void remove_own() noexcept;

 private:
  // The segment of another rank, and how many of its bytes are known to exist.
  struct Other {
    std::uint64_t generation = 0;
    shm::Segment segment;
    std::size_t usable_bytes = 0;
  };

  bool is_own(std::uint32_t rank, std::uint64_t generation) const noexcept;
  std::uint64_t generation_of(std::uint32_t rank) const noexcept;
  const shm::Segment& of(std::uint32_t rank);
  Other& map(std::uint32_t rank, std::uint64_t generation);
  static shm::AtomicShm<std::uint64_t>& norm_of(const shm::Segment& segment) noexcept;
  static shm::AtomicShm<std::uint64_t>& pushed(const shm::Segment& segment, std::uint32_t position) noexcept;
  void publish(const VariablePart& part, std::uint64_t tag) noexcept;

  shm::JobSegments& job_;
  std::uint32_t rank_;
  shm::Segment own_;
  std::uint64_t own_generation_ = 0;
  std::uint64_t own_bytes_ = 0;            // known size of the file
  std::map<std::uint32_t, Other> others_;  // by rank
};

}  // namespace ps_shm
