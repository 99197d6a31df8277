// Guests: processes that change variables beside the workers, such as one that exchanges values with another machine.
// Nobody waits for a guest, and each of its changes is made exactly once, whenever it is killed and replaced.
//
// Protocol (docs/protocols.md, guest); a guest has the job's last rank and writes into that rank's entry
//   guest.G1 `guest` = 1, before ranks.J1: it counts as no worker, and no view shows it
//   guest.G2 sync: a step contains what it has published (barrier.A1), but nobody waits for it
//   guest.G3 a change with a new ticket: `attempt` = 0, release; `ticket`, release. Async, ssp: a chunk's buffer carries
//            the highest ticket that it contains in `included_steps`, and a change skips a chunk that has it
//   guest.G4 async, ssp, in-place block b of the change: `attempt` = 2 b + 1, release, before it, and 2 b + 2 after it
//   guest.G5 sync: `attempt` = round + 1, release, before barrier.A1. The change is in the step if the round's decision
//            has this rank (barrier.B11); its successor looks, once the round is over
#pragma once

#include <cstdint>

#include "shm/base/fault_points.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

// Whether the rank's last owner is a guest. Requires: `holders` of its entry was read before (ranks.J4).
inline bool is_guest(const WorkerShm& entry) noexcept {
  return entry.guest.load_relaxed() != 0;  // relaxed: ranks.J1 has published it
}

// guest.G3. Returns the last ticket before; nothing is changed unless `ticket` is greater. The successor of a killed
// guest reads what its predecessor has stored; the lock byte orders the two.
inline std::uint64_t begin_once(WorkerShm& entry, std::uint64_t ticket) noexcept {
  const std::uint64_t before = entry.ticket.load_relaxed();  // relaxed: only the rank's owners write it
  if (ticket > before) {
    entry.attempt.store_release(0);      // (guest.G3)
    entry.ticket.store_release(ticket);  // (guest.G3)
  }
  return before;
}

// Which in-place blocks a guest and its killed predecessors have changed with the present ticket, counted in the order
// in which a change comes to them.
class GuestBlocks {
 public:
  enum class Block { kToDo, kDone, kInDoubt };

  explicit GuestBlocks(WorkerShm& entry) noexcept
      : progress_(entry.attempt), found_(progress_.load_relaxed()) {}  // relaxed: only the rank's owners write it

  // Comes to the next block. end() follows unless it is done.
  Block begin() noexcept {
    const std::uint64_t begun = 2 * next_++ + 1;
    if (found_ > begun) return Block::kDone;
    if (found_ == begun) return Block::kInDoubt;
    progress_.store_release(begun);  // (guest.G4)
    return Block::kToDo;
  }
  void end() noexcept { progress_.store_release(2 * next_); }  // (guest.G4)

 private:
  AtomicShm<std::uint64_t>& progress_;
  std::uint64_t found_, next_ = 0;
};

// guest.G5. The round of the last attempt + 1; 0: there was none with this ticket.
inline std::uint64_t attempted_round(const WorkerShm& entry) noexcept {
  return entry.attempt.load_relaxed();  // relaxed: only the rank's owners write it
}
inline void note_attempt(WorkerShm& entry, std::uint64_t round) noexcept {
  entry.attempt.store_release(round + 1);  // (guest.G5)
}

}  // namespace ps_shm::shm
