// Rounds: several writers fill one generation of a publication, each its own slices. One of them leads: the holder of
// the publisher's byte.
//
// The leader:    round.R8 first closes the round that another leader has left open
//                round.R1 chooses a record and slots, as every publisher does, and opens a round: the word gets the
//                   next attempt
//                round.R4 waits until all writers have done the attempt. If one dies before, or its own deadline is
//                   over, it goes on with round.R6
//                round.R5 publishes the generation, as every publisher does
//                round.R6 closes the round
// Each writer:   round.R2 finds an open round of its step whose attempt it has not done, and notes `newest`
//                round.R3 has written its slices: `done` is the attempt
//                round.R9 when the attempt is over, `newest` says whether it was committed
//                round.R7 keeps `done` as its predecessor has left it
//
// A commit needs the word `done` of each writer for this attempt, and a writer stores it after its last store to a
// slice. So no writer can still write to a generation that is published, and writers need no leases.
#pragma once

#include <cstdint>
#include <optional>

#include "shm/base/atomic.hpp"
#include "shm/publication/bundle.hpp"

namespace ps_shm::shm {

class Round {
 public:
  // Requires: the bundle has several writers, and the writer's byte is held.
  Round(const Bundle& bundle, std::uint32_t writer) noexcept : bundle_(bundle), writer_(writer) {}

  // An attempt in which a writer takes part.
  struct Attempt {
    std::uint64_t round = 0;   // the word
    std::uint64_t newest = 0;  // as it was then
  };

  // ---- the leader. Requires: the publisher's byte is held.

  // Opens a round for the generation that a GenerationWriter has begun in this record. Wait-free, like all of these; a
  // system call only if another process waits.
  Attempt open(std::uint32_t record, std::uint64_t step) noexcept;
  // Whether the writer has done the attempt.
  bool has_done(std::uint32_t writer, const Attempt& attempt) const noexcept {
    // (round.R4) pairs with round.R3
    return bundle_.writer(writer).done.load_acquire() == attempt_of(attempt.round);
  }
  void close() noexcept;

  // ---- a writer

  // Whether there is an open round of this step that it has not done.
  bool try_enter(std::uint64_t step, Attempt& attempt) const noexcept;
  // Says that all of its slices are written.
  void note_done(const Attempt& attempt) noexcept;
  bool is_over(const Attempt& attempt) const noexcept {
    return bundle_.round().round.load_acquire() != attempt.round;  // (round.R9) pairs with round.R6
  }
  // The generation that the attempt has become, if it was committed. Requires: is_over().
  std::optional<std::uint64_t> committed(const Attempt& attempt) const noexcept;

 private:
  const Bundle& bundle_;
  std::uint32_t writer_;
};

}  // namespace ps_shm::shm
