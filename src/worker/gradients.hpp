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

  // Starts this holder's own segment (L5: a new one per holder). Requires: the predecessor's step is over (B4).
  void create_own();

  // The record's place in the own segment. Throws Error when /dev/shm is full.
  std::span<float> place(const shm::VariableShm& record);

  // Puts the part's gradient for `step` at its place, unless it lies there already; another one of the same step is added
  // to the first.
  // Requires: the step before is over (B6). Throws Error when /dev/shm is full.
  void write(const VariablePart& part, std::uint64_t step, std::span<const float> gradient, Threads& threads);
  void write(const VariablePart& part, std::uint64_t step, GradientSource& gradient, Threads& threads);

  // The own segment. Requires: create_own() has been called.
  const shm::Segment& own() const noexcept { return own_; }

  // What write() has put there. Requires: it has, in this step.
  std::span<const float> written(const shm::VariableShm& record) const noexcept;

  // The squared global norm of all that this worker has written for the step; nothing where the settings that it knows do
  // not ask for one, and whoever finds that they do by now has to compute it. Requires: own segment, before arriving.
  void write_norm(std::optional<double> squared_norm) noexcept;

  // The gradient that `rank` published for `step` of that record, or nullptr if it pushed none.
  // Throws Error if the segment is gone, or cut off, while the step is not over.
  const float* find(std::uint32_t rank, const shm::VariableShm& record, std::uint32_t position, std::uint64_t step);

  // The norm that it published with them, if it did.
  std::optional<double> norm(std::uint32_t rank);

  // Removes this holder's segment, unless a step under way needs it: then the ps does.
  void remove_own() noexcept;

 private:
  // Another rank's, and how much of it is known to exist.
  struct Other {
    std::uint64_t generation = 0;
    shm::Segment segment;
    std::size_t usable_bytes = 0;
  };

  bool is_own(std::uint32_t rank, std::uint64_t generation) const noexcept;
  const shm::Segment& of(std::uint32_t rank);
  Other& map(std::uint32_t rank, std::uint64_t generation);
  static shm::AtomicShm<std::uint64_t>& norm_of(const shm::Segment& segment) noexcept;
  static shm::AtomicShm<std::uint64_t>& pushed(const shm::Segment& segment, std::uint32_t position) noexcept;
  void publish(const VariablePart& part, std::uint64_t step) noexcept;

  shm::JobSegments& job_;
  std::uint32_t rank_;
  shm::Segment own_;
  std::uint64_t own_generation_ = 0;
  std::uint64_t own_bytes_ = 0;            // that it is known to have
  std::map<std::uint32_t, Other> others_;  // by rank
};

}  // namespace ps
