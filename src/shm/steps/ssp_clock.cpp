#include "shm/steps/ssp_clock.hpp"

#include <algorithm>

#include "shm/base/futex.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kEntering = std::uint64_t{1} << 47;

constexpr std::uint64_t make_clock(std::uint32_t epoch, std::uint64_t steps) noexcept {
  return std::uint64_t{epoch} << 48 | steps;
}

}  // namespace

std::optional<std::uint64_t> SspClock::clock_of(std::uint32_t rank, std::uint32_t epoch, bool look_at_locks) noexcept {
  const WorkerShm& worker = job_.worker(rank);
  std::uint64_t holder, clock;
  RankState state;
  do {  // until all three belong to one owner: a successor clears the clock before it increments `holders`
    holder = worker.holders.load_acquire();  // (ranks.J4)
    if (holder == 0 || known_dead_[rank] == holder) return std::nullopt;
    state = static_cast<RankState>(worker.state.load_acquire());  // (ranks.J4) first: after leaving, the clock is final
    clock = worker.clock.load_acquire();                          // (ssp.C4) pairs with ssp.C1, ssp.C2, ssp.C3
  } while (worker.holders.load_acquire() != holder);              // (ranks.J4)
  if (state == RankState::kLeft || epoch_of(clock) != (epoch & 0xffff)) return std::nullopt;
  if (look_at_locks && !job_.is_alive(rank)) {
    known_dead_[rank] = holder;  // a successor increments `holders`
    return std::nullopt;
  }
  return clock;
}

std::optional<std::uint64_t> SspClock::smallest_other(std::uint32_t epoch) noexcept {
  std::optional<std::uint64_t> smallest;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    if (rank == rank_) continue;
    const std::optional<std::uint64_t> clock = clock_of(rank, epoch, true);
    if (clock && !is_entering(*clock)) smallest = std::min(steps_of(*clock), smallest.value_or(steps_of(*clock)));
  }
  return smallest;
}

void SspClock::enter(std::uint32_t epoch) noexcept {
  if (epoch_of(own().load_relaxed()) == (epoch & 0xffff)) return;  // relaxed: only this rank writes it
  const std::uint64_t entered = smallest_other(epoch).value_or(0);
  own().store_release(make_clock(epoch, entered) | kEntering);  // (ssp.C1)
  fault_point(FaultPoint::kClockEntering);
  fence_store_load();  // (ssp.C1) waiting.W1: if two workers store their clocks and then read, one sees the other
  own().store_release(make_clock(epoch, std::max(entered, smallest_other(epoch).value_or(0))));  // (ssp.C2)
  fault_point(FaultPoint::kClockEntered);
  futex_announce(job_.state().clocks);
}

void SspClock::advance() noexcept {
  own().store_release(own().load_relaxed() + 1);  // (ssp.C3)
  fault_point(FaultPoint::kClockAdvanced);
  futex_announce(job_.state().clocks);
}

std::uint64_t SspClock::skew(std::uint64_t bound, bool look_at_locks, std::vector<std::uint32_t>& blockers) noexcept {
  const std::uint64_t clock = own().load_relaxed(), mine = steps_of(clock);  // relaxed: only this rank writes it
  std::uint64_t skew = 0;
  blockers.clear();
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    if (rank == rank_) continue;
    std::optional<std::uint64_t> theirs = clock_of(rank, epoch_of(clock), false);
    const auto ahead = [&] { return theirs && mine > steps_of(*theirs) ? mine - steps_of(*theirs) : 0; };
    if (look_at_locks && ahead() > bound) theirs = clock_of(rank, epoch_of(clock), true);  // one system call each
    if (ahead() > bound) blockers.push_back(rank);
    skew = std::max(skew, ahead());
  }
  return skew;
}

}  // namespace ps_shm::shm
