#include "shm/publication/round.hpp"

#include "shm/base/fault_points.hpp"
#include "shm/base/futex.hpp"

namespace ps_shm::shm {

Round::Attempt Round::open(std::uint32_t record, std::uint64_t step) noexcept {
  RoundShm& shared = bundle_.round();
  const std::uint64_t next = attempt_of(shared.round.load_relaxed()) + 1;  // relaxed: only leaders store it
  const Attempt attempt{.round = make_round(next, true, record),
                        .newest = bundle_.newest().newest.load_relaxed()};  // relaxed: the same
  shared.step.store_relaxed(step);
  fault_point(FaultPoint::kRoundReady);
  shared.round.store_release(attempt.round);  // (round.R1) pairs with round.R2
  fault_point(FaultPoint::kRoundOpened);
  futex_announce(shared.writers);
  return attempt;
}

void Round::close() noexcept {
  RoundShm& shared = bundle_.round();
  const std::uint64_t word = shared.round.load_relaxed();  // relaxed: only leaders store it
  // (round.R6) after the generation was published; pairs with round.R9
  shared.round.store_release(make_round(attempt_of(word), false, record_of(word)));
  fault_point(FaultPoint::kRoundClosed);
  futex_announce(shared.writers);
}

bool Round::try_enter(std::uint64_t step, Attempt& attempt) const noexcept {
  const RoundShm& shared = bundle_.round();
  attempt.round = shared.round.load_acquire();  // (round.R2) pairs with round.R1
  if (!shm::is_open(attempt.round)) return false;
  // relaxed: only this writer stores it. Not even the successor of one that has done the attempt does it again (round.R7)
  if (attempt_of(attempt.round) <= bundle_.writer(writer_).done.load_relaxed()) return false;
  if (shared.step.load_relaxed() != step) return false;
  attempt.newest = bundle_.newest().newest.load_relaxed();  // relaxed: round.R1 shows it
  return true;
}

void Round::note_done(const Attempt& attempt) noexcept {
  bundle_.writer(writer_).done.store_release(attempt_of(attempt.round));  // (round.R3) pairs with round.R4
  fault_point(FaultPoint::kRoundDone);
  futex_announce(bundle_.round().leader);
}

std::optional<std::uint64_t> Round::committed(const Attempt& attempt) const noexcept {
  const std::uint64_t newest = bundle_.newest().newest.load_relaxed();  // relaxed: round.R6 shows it (round.R9)
  if (newest == attempt.newest) return std::nullopt;
  return generation_of(newest);
}

}  // namespace ps_shm::shm
