// Rounds of a barrier, step by step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "support/member.hpp"

namespace ps_shm::test {

using shm::Decision;

using Ranks = std::vector<std::uint32_t>;

struct Attempt {
  bool decided;
  Ranks missing;
};

inline Attempt decide(Member& member, std::uint64_t round, bool look_at_locks = true) {
  Attempt result;
  result.decided = member.barrier.try_decide(round, look_at_locks, result.missing);
  return result;
}

// The ranks of the round's decision; none: the round is over, or not decided yet.
inline std::optional<Ranks> contributors(const Member& member, std::uint64_t round) {
  Decision decision;
  if (!member.barrier.read_decision(round, decision)) return std::nullopt;
  Ranks ranks;
  for (std::uint32_t rank = 0; rank < shm::kMaxRanks; ++rank)
    if (decision.contributors.contains(rank)) ranks.push_back(rank);
  return ranks;
}

// `member` completes the round alone.
inline void pass(Member& member, std::uint64_t round) {
  member.barrier.arrive(round);
  complete(member.barrier, round);
}

}  // namespace ps_shm::test
