// Generations: one publisher writes them, subscribers lease the newest one, and nobody waits for anybody.
//
// The publisher:  publication.P1 a fence
//                 publication.P2 which records are taken: the newest one, and each that a lease names; where all are, a
//                    lease counts only if its rank's byte is held, which is asked after the lease was read
//                 publication.P3 a record that is not taken; nothing is written where there is none
//                 publication.P6 the record says "being written"; then each changed tensor into a slot that no taken
//                    record names, and the slots of the others as the newest record has them
//                 publication.P7 the record says which generation it is
//                 publication.P8 `newest` moves;  publication.P9 whoever sleeps is told
// A subscriber:   publication.P4 reads `newest`, stores its record into the lease, a fence
//                 publication.P5 `newest` is still the same: the lease holds. Otherwise again
//                 publication.P12 gives it back: stores 0
// Without lease:  publication.P11 the stamp before and behind what is read of a record
//
// The two fences: of a publisher that moves `newest` and then reads a lease, and a subscriber that stores the lease and
// then reads `newest`, one sees the other. So a record that publication.P5 has confirmed is not written until it is given back.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shm/bundle.hpp"
#include "shm/clock.hpp"
#include "shm/futex.hpp"

namespace ps::shm {

// The publisher's side. Requires: its byte is held.
class GenerationWriter {
 public:
  explicit GenerationWriter(Bundle& bundle) : bundle_(bundle) {}

  // Finds room for a generation. False: every record is leased by the living; busy_ranks() says by whom.
  // Wait-free; asks for locks only where every record is leased.
  [[nodiscard]] bool find_record();
  const std::vector<std::uint32_t>& busy_ranks() const noexcept { return busy_ranks_; }

  // Publishes what fill(tensor) writes to slot(tensor), which is called for those in `changed`. Returns its number.
  // Requires: find_record(); the first generation changes all.
  using Fill = std::function<void(std::uint32_t tensor, std::byte* out)>;
  std::uint64_t publish(const std::vector<bool>& changed, std::uint64_t step, const Fill& fill);

 private:
  using Records = std::bitset<kMaxRecords>;
  void find_taken(bool looks_at_locks);
  std::uint32_t free_slot(std::uint32_t tensor) const noexcept;

  Bundle& bundle_;
  Records taken_;                      // (publication.P2)
  std::vector<std::uint32_t> living_;  // the records in it that have a generation
  std::uint32_t record_ = 0;           // (publication.P3)
  std::vector<std::uint32_t> busy_ranks_;
};

// Leases the newest generation above `newer_than`. Returns the word that names it; 0: there is none.
// Lock-free: repeated only when another generation has come meanwhile. Requires: the rank's byte is held.
inline std::uint64_t try_lease(const NewestShm& newest, AtomicShm<std::uint64_t>& lease,
                               std::uint64_t newer_than) noexcept {
  for (bool is_first = true;; is_first = false) {
    const std::uint64_t word = newest.newest.load_acquire();  // (publication.P4) pairs with publication.P8
    if (generation_of(word) <= newer_than) {
      if (!is_first) lease.store_release(0);  // (publication.P12) never: generations only go up
      return 0;
    }
    lease.store_release(record_of(word) + 1);  // (publication.P4) after the last reads under this lease
    fault_point(FaultPoint::kLeaseNoted);
    fence_store_load();                                     // (publication.P4) pairs with publication.P1
    if (newest.newest.load_acquire() == word) return word;  // (publication.P5)
  }
}

inline void give_back(AtomicShm<std::uint64_t>& lease) noexcept {
  lease.store_release(0);  // (publication.P12) after all reads under it; pairs with publication.P2
}

// A record as somebody sees it who has no lease: whole, or nothing.
struct SeenRecord {
  std::uint64_t generation = 0, step = 0, unix_ns = 0, changed = 0;
};
std::optional<SeenRecord> look_at(const Bundle& bundle, std::uint32_t record) noexcept;

// Why `newest` cannot be right; empty where it can. For whoever attaches.
std::string why_newest_is_damaged(const Bundle& bundle);

}  // namespace ps::shm
