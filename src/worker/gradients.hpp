// Gradient segments (sync mode): the one that this worker writes, and those of the others, mapped as they are needed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "shm/job_segments.hpp"
#include "worker/threads.hpp"
#include "worker/variable_state.hpp"

namespace ps {

class GradientSegments {
 public:
  GradientSegments(shm::JobSegments& job, std::uint32_t rank) noexcept : job_(job), rank_(rank) {}

  // Starts this holder's own segment (locks.L5). Requires: the predecessor's step is over (barrier.B4).
  void create_own();

  // The record's place in the own segment. Throws Error when /dev/shm is full.
  std::span<float> place(const shm::VariableShm& record);

  // Puts the part's gradient for `step`, or what is to be added or assigned, at its place, unless it lies there already.
  // Another one of the same step is added to the first; values replace those before.
  // Requires: the step before is over (barrier.B6), what is pushed of a part in one step is of one kind, kAssign and
  // kReset being one. Throws Error when /dev/shm is full.
  void write(const VariablePart& part, std::uint64_t step, update::Change how, const GradientInput& given,
             Threads& threads);

  // The own segment. It is mapped once create_own() has been called.
  const shm::Segment& own() const noexcept { return own_; }

  // What write() has put there. Requires: it has, in this step.
  std::span<const float> written(const shm::VariableShm& record) const noexcept;

  // The squared global norm of all that this worker has written for the step; nothing where the settings that it knows do
  // not ask for one, and whoever finds that they do by now has to compute it. Requires: own segment, before arriving.
  void write_norm(std::optional<double> squared_norm) noexcept;

  // What `rank` published for `step` of that record. Without numbers: it pushed nothing.
  // Throws Error if the segment is gone, or cut off, while the step is not over.
  struct Pushed {
    const float* numbers = nullptr;
    update::Change how = update::Change::kStep;
  };
  Pushed find(std::uint32_t rank, const shm::VariableShm& record, std::uint32_t position, std::uint64_t step);

  // The norm that it published with them, if it did.
  std::optional<double> norm(std::uint32_t rank);

  // Removes this holder's segment, unless a step under way needs it (barrier.B4): then the rank's next holder does, or
  // the removal of the job.
  void remove_own() noexcept;

 private:
  // Another rank's, and how much of it is known to exist.
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
  std::uint64_t own_bytes_ = 0;            // that it is known to have
  std::map<std::uint32_t, Other> others_;  // by rank
};

}  // namespace ps
