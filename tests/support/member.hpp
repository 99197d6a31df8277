// A worker as the tables see it: a rank held through an attachment of its own. Its object's end is its death: the lock
// goes, and nothing is said; leave() says it.
#pragma once

#include <optional>
#include <stdexcept>

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

}  // namespace ps_shm::test
