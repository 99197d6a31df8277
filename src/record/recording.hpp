// The interface through which a worker reports its pulls, pushes and steps to a recorder or a replayer. A worker that is
// neither recorded nor replayed has none, and pays nothing: classes of their own report (worker/recorded_state.hpp,
// RecordedSteps).
//
// Used by one thread, in the program's order. Pieces are chunks of versioned variables.
#pragma once

#include <cstdint>
#include <string>

#include "shm/slots/versioned_slot.hpp"

namespace ps_shm::record {

// What the pushes of one update are computed from, besides the gradient.
struct UpdateFacts {
  std::uint64_t step;  // by which the rate is scheduled
  float rate, clip, momentum, beta1;
};

class Recording {
 public:
  virtual ~Recording() = default;

  // The examples that this rank had seen before this life.
  virtual std::uint64_t examples_before(std::uint64_t counted) = 0;

  // Gives the variable the next number.
  virtual void declare(const std::string& name, std::uint64_t pieces, std::uint64_t elements) = 0;

  virtual void begin_pull(std::uint32_t variable) = 0;
  virtual void before_pull(const shm::VersionedVariable& part, std::uint64_t chunk) = 0;
  virtual void pulled(std::uint64_t version) = 0;

  // `now`: the current values. Returns those with which the update is to be computed.
  virtual UpdateFacts begin_update(const UpdateFacts& now) = 0;
  // `check`: the checksum of the gradient.
  virtual void begin_push(std::uint32_t variable, std::uint32_t check, std::uint64_t first_piece) = 0;
  virtual void before_push(const shm::VersionedVariable& part, std::uint64_t chunk) = 0;
  virtual void trying(std::uint64_t version) noexcept = 0;  // before each swap
  virtual void pushed(std::uint64_t version) = 0;

  // Whether the pushes of the step are dropped because of their age (steps.D1). `now`: whether the limit says so.
  virtual bool drops_pushes(bool now) = 0;
  // Of a dropped push, instead of an update and what it pushes. `check`: as for begin_push().
  virtual void dropped(std::uint32_t variable, std::uint32_t check) = 0;

  virtual void before_step() = 0;                // not of a dropped step
  virtual void counted(std::uint64_t step) = 0;  // `step`: the global step after it

  // Whether to tell the program that the job is finished.
  virtual bool is_finished(bool now) noexcept = 0;
  virtual bool waits_for_slowest() const noexcept = 0;

  virtual void leave() noexcept = 0;
};

}  // namespace ps_shm::record
