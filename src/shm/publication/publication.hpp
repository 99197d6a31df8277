// Generations: one publisher writes them, subscribers lease the newest one, and neither side waits for the other.
//
// The publisher:  publication.P1 a fence
//                 publication.P2 a record is taken if it is the newest one, or if a lease names it. If all are taken, a
//                    lease counts only if its rank's byte is held, which is queried after the lease was read
//                 publication.P3 a record that is not taken; if there is none, nothing is written
//                 publication.P6 the record says "being written"; then each changed tensor is written into a slot that
//                    no taken record names, and the other tensors keep the slots of the newest record
//                 publication.P7 the record gets the number of its generation
//                 publication.P8 `newest` advances;  publication.P9 waiting processes are woken
//                 publication.P14 a slot gets memory before it is named; memory of slots that no taken record names may
//                    be given back
// A subscriber:   publication.P4 reads `newest`, stores its record into the lease, a fence
//                 publication.P5 `newest` is still the same: the lease holds. Otherwise it tries again
//                 publication.P13 stops waiting for one: the publisher's byte is free, and then `newest` is still old
//                 publication.P12 gives the lease back: stores 0
//                 publication.P15 says which generation it uses
//                 publication.P16 says, under a lease, which rows it has pinned: they keep their memory
// Without lease:  publication.P11 reads the record's stamp before and after what it reads of the record
//
// The two fences: if a publisher advances `newest` and then reads a lease, and a subscriber stores the lease and then
// reads `newest`, one sees the other. So a record confirmed by publication.P5 is not written until its lease is given
// back.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shm/base/clock.hpp"
#include "shm/base/futex.hpp"
#include "shm/publication/bundle.hpp"

namespace ps_shm::shm {

// The publisher's side. Requires: the publisher's byte is held.
class GenerationWriter {
 public:
  explicit GenerationWriter(Bundle& bundle) : bundle_(bundle), has_memory_(bundle.tensors()) {}

  // Chooses a record for the next generation. False: live subscribers lease every record; busy_ranks() names them.
  // Wait-free; queries locks only if every record is leased.
  [[nodiscard]] bool find_record();
  const std::vector<std::uint32_t>& busy_ranks() const noexcept { return busy_ranks_; }

  // Begins the next generation in that record. Until commit() no reader can see it, and a death leaves a record that is
  // nobody's. It may be given up by another find_record(). Requires: find_record() returned true. Wait-free.
  void begin();
  std::uint32_t record() const noexcept { return record_; }
  // Where a tensor of the generation that was begun is to be written; always the same. Wait-free; a system call where a
  // slot is used for the first time. Throws Error if /dev/shm is full.
  std::byte* place(std::uint32_t tensor);
  // Whether every tensor with elements has a place in it, or a generation before it has the others.
  bool is_complete() const noexcept;
  // Publishes it: tensors without a place are shared with the generation before. Returns the generation's number.
  // Requires: is_complete(). Wait-free; a system call only if a subscriber waits.
  std::uint64_t commit(std::uint64_t step, bool is_partial = false);

  // All of it at once: calls fill(tensor, out) for each tensor in `changed`.
  using Fill = std::function<void(std::uint32_t tensor, std::byte* out)>;
  std::uint64_t publish(const std::vector<bool>& changed, std::uint64_t step, const Fill& fill);

  // Gives memory of slots back that neither the newest generation nor a leased one names, outside of rows that a live
  // subscriber has pinned (publication.P14, publication.P16). Returns the
  // number of bytes. What was begun is given up. Lock-free.
  std::uint64_t trim();
  // Gives all slots memory, mapped for this process. Throws Error if /dev/shm is full.
  void populate();

 private:
  using Records = std::bitset<kMaxRecords>;
  void find_taken(bool looks_at_locks);
  Records used_slots(std::uint32_t tensor) const noexcept;

  Bundle& bundle_;
  Records taken_;                      // (publication.P2)
  std::vector<std::uint32_t> living_;  // the same, as numbers
  std::uint32_t record_ = 0;           // (publication.P3)
  std::vector<bool> has_place_;        // the tensors of the generation that was begun
  std::vector<Records> has_memory_;    // the slots of each tensor that this object has allocated (publication.P14)
  std::vector<std::uint32_t> busy_ranks_;
};

// Leases the newest generation above `newer_than`. Returns the word that names it; 0 if there is none. Lock-free:
// repeated only if another generation has been published in the meantime. Requires: the rank's byte is held.
inline std::uint64_t try_lease(const NewestShm& newest, AtomicShm<std::uint64_t>& lease,
                               std::uint64_t newer_than) noexcept {
  for (bool is_first = true;; is_first = false) {
    const std::uint64_t word = newest.newest.load_acquire();  // (publication.P4) pairs with publication.P8
    if (generation_of(word) <= newer_than) {
      if (!is_first) lease.store_release(0);  // (publication.P12) never happens: generations only increase
      return 0;
    }
    lease.store_release(record_of(word) + 1);  // (publication.P4) after the last reads under the previous lease
    fault_point(FaultPoint::kLeaseNoted);
    fence_store_load();                                     // (publication.P4) pairs with publication.P1
    if (newest.newest.load_acquire() == word) return word;  // (publication.P5)
  }
}

// Whether there is no generation above `newer_than`, and no live publisher of one (publication.P13). A system call.
inline bool has_no_more(const Bundle& bundle, std::uint64_t newer_than) noexcept {
  if (bundle.locks().is_any_task_held_by_other()) return false;
  // relaxed: only the number counts, and the free byte shows the last one that its owner has stored
  return generation_of(bundle.newest().newest.load_relaxed()) <= newer_than;
}

inline void give_back(AtomicShm<std::uint64_t>& lease) noexcept {
  lease.store_release(0);  // (publication.P12) after all reads under the lease; pairs with publication.P2
}

// The generations that a subscriber's leases name. One that is taken or given back at this moment may be missing.
std::vector<std::uint64_t> leased_by(const Bundle& bundle, std::uint32_t rank);

// A record as a reader without a lease sees it: complete, or nothing.
struct SeenRecord {
  std::uint64_t generation = 0, step = 0, unix_ns = 0, changed = 0;
  bool is_partial = false;
};
std::optional<SeenRecord> look_at(const Bundle& bundle, std::uint32_t record) noexcept;

// Why `newest` cannot be right; empty if it can be. For processes that attach.
std::string why_newest_is_damaged(const Bundle& bundle);

}  // namespace ps_shm::shm
