// A worker as the tables see it: a rank held through its own attachment. Destroying the object corresponds to a death:
// the lock is released without a record; leave() records that the worker leaves.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <vector>

#include "shm/steps/barrier.hpp"
#include "shm/steps/worker_table.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {

struct Member {
  shm::JobSegments segments;
  std::uint32_t rank;
  shm::Barrier barrier;

  explicit Member(const TestJob& job, std::optional<std::uint32_t> wanted = {}, std::uint32_t which = 0)
      : segments(job.attach()), rank(join(segments, wanted)), barrier(segments, rank, which) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void leave() { shm::leave(segments, rank); }

 private:
  static std::uint32_t join(shm::JobSegments& segments, std::optional<std::uint32_t> wanted) {
    std::uint32_t rank = 0;
    if (shm::try_join(segments, wanted, rank) != shm::JoinOutcome::kJoined) throw std::runtime_error("cannot join");
    return rank;
  }
};

inline bool patient(const std::vector<std::uint32_t>&) { return false; }

// Waits until the round is decided, and opens the next one. There is nothing to apply.
template <class EachSlice = decltype(patient)>
void complete(shm::Barrier& barrier, std::uint64_t round, EachSlice&& each_slice = patient) {
  if (barrier.wait_decided(round, each_slice)) barrier.open(round);
}

}  // namespace ps_shm::test
