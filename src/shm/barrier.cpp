#include "shm/barrier.hpp"

#include <bit>

#include "shm/events.hpp"
#include "shm/live_settings.hpp"

namespace ps::shm {

void Barrier::arrive(std::uint64_t round) noexcept {
  entry(rank_).published.store_release(round + 1);  // (A1)
  fault_point(FaultPoint::kArrivePublished);        // the last to arrive decides itself and wakes the others then
}

bool Barrier::try_decide(std::uint64_t round, bool look_at_locks, std::vector<std::uint32_t>& missing) {
  missing.clear();
  RankSet set;
  std::uint32_t joined = 0, arrived = 0;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& worker = job_.worker(rank);
    const std::uint64_t holder = worker.holders.load_acquire();
    if (holder == 0) continue;
    ++joined;
    // (A2) liveness first, B2.
    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;
    if (!gone && look_at_locks && rank != rank_ && !job_.is_alive(rank)) {
      known_dead_[rank] = holder;  // a new holder counts `holders` up; until then it takes part in a later round (B1)
      gone = true;
    }
    // Before the publication: else one that arrives between the two looks, dies and is replaced at once is lost.
    const bool takes_part = worker.barriers[which_].active_from.load_acquire() <= round;
    if (worker.barriers[which_].published.load_acquire() == round + 1) {
      set.insert(rank);
      ++arrived;
    } else if (!gone && takes_part && !is_left_out(rank)) {
      missing.push_back(rank);
    }
  }
  if (arrived == 0 || (round == 0 && joined < job_.config().workers)) return false;
  const Live live = read_live(job_);
  const std::uint32_t quorum = which_ == 0 ? live.settings.quorum : 0;
  const bool has_quorum = quorum != 0 && arrived >= quorum;
  if (!missing.empty() && !has_quorum) return false;

  BarrierEntryShm& mine = entry(rank_);
  if (mine.proposal.load_relaxed() != round + 1) {  // relaxed: only this rank writes it
    fence_release();  // pairs with read_decision's: who reads a bit of the new set finds the round over
    for (std::size_t i = 0; i < set.bits.size(); ++i) mine.proposed.bits[i].store_relaxed(set.bits[i]);
    mine.learning_rate.store_relaxed(std::bit_cast<std::uint32_t>(live.settings.learning_rate));
    mine.clip_norm.store_relaxed(std::bit_cast<std::uint32_t>(live.settings.clip_norm));
    fault_point(FaultPoint::kDecideSet);
    mine.proposal.store_release(round + 1);  // (A3)
    fault_point(FaultPoint::kDecideProposed);
  }
  std::uint64_t decision = shared().decision.load_acquire();
  while (decision >> 16 <= round) {                                                              // B3: never backwards
    if (!shared().decision.try_exchange_acq_rel(decision, (round + 1) << 16 | rank_)) continue;  // (A4)
    fault_point(FaultPoint::kDecideSwapped);
    futex_announce(shared().futex);  // the others can help
    fault_point(FaultPoint::kDecideAnnounced);
    has_decided_ = which_ == 0, quorum_ = quorum;
    break;
  }
  return true;
}

// By the winner of A4 alone. A kill before it costs the events, nothing else.
void Barrier::note_decision(std::uint64_t round) noexcept {
  RankSet contributors;
  for (std::size_t i = 0; i < contributors.bits.size(); ++i)
    contributors.bits[i] = entry(rank_).proposed.bits[i].load_relaxed();  // relaxed: this rank's own
  record_event(job_, {.kind = EventKind::kDecided, .rank = rank_, .step = round, .ranks = contributors});
  fault_point(FaultPoint::kDecideRecorded);
  const std::uint32_t size = contributors.size(), now_short = size < quorum_ ? size : 0;
  std::uint32_t told = job_.state().short_quorum.load_acquire();
  if (told == now_short || !job_.state().short_quorum.try_exchange_acq_rel(told, now_short)) return;
  fault_point(FaultPoint::kDecideShort);
  if (now_short != 0)  // once for each number that is left
    record_event(
        job_, {.kind = EventKind::kShortQuorum, .rank = rank_, .step = round, .first = now_short, .second = quorum_});
}

bool Barrier::read_decision(std::uint64_t round, Decision& out) const noexcept {
  const std::uint64_t decision = shared().decision.load_acquire();  // (A5) pairs with A4: the proposal is complete
  if (decision >> 16 != round + 1) return false;
  const BarrierEntryShm& proposer = entry(static_cast<std::uint32_t>(decision & 0xffff));
  for (std::size_t i = 0; i < out.contributors.bits.size(); ++i)
    out.contributors.bits[i] = proposer.proposed.bits[i].load_relaxed();
  out.learning_rate = std::bit_cast<float>(proposer.learning_rate.load_relaxed());
  out.clip_norm = std::bit_cast<float>(proposer.clip_norm.load_relaxed());
  fence_acquire();
  return this->round() == round;  // B6: a proposal is overwritten only once the round is over
}

// Before the round can open, so that each contributor, and nobody else, finds it there afterwards. Only ever raised: a
// helper that sleeps here for rounds changes nothing.
void Barrier::note_contributors(std::uint64_t round, const RankSet& contributors) noexcept {
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    if (!contributors.contains(rank)) continue;
    auto& included = entry(rank).included;
    std::uint64_t seen = included.load_acquire();
    while (seen < round + 1 && !included.try_exchange_acq_rel(seen, round + 1)) {
    }
    fault_point(FaultPoint::kHelpIncluded);
  }
}

void Barrier::open(std::uint64_t round) noexcept {
  std::uint64_t expected = round;
  fault_point(FaultPoint::kOpenReady);
  if (!shared().step.try_exchange_acq_rel(expected, round + 1)) return;  // (A6)
  fault_point(FaultPoint::kOpenSwapped);
  futex_announce(shared().futex);
}

Barrier::LeftOut Barrier::look_at(std::uint32_t rank) const noexcept {
  return {entry(rank).published.load_acquire(), entry(rank).active_from.load_acquire(), true};
}

void Barrier::leave_out(const std::vector<std::uint32_t>& missing) noexcept {
  for (const std::uint32_t rank : missing) left_out_[rank] = look_at(rank);
}

bool Barrier::is_left_out(std::uint32_t rank) const noexcept {
  const LeftOut &then = left_out_[rank], now = look_at(rank);
  return then.is_set && then.published == now.published && then.active_from == now.active_from;
}

// Never the value that was there when it was left out: the round has moved since.
void Barrier::come_back() noexcept {
  entry(rank_).active_from.store_release(round());
  fault_point(FaultPoint::kReturned);
}

std::uint32_t Barrier::still_to_join() const noexcept {
  std::uint32_t joined = 0;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) joined += job_.worker(rank).holders.load_acquire() != 0;
  return round() == 0 && joined < job_.config().workers ? job_.config().workers - joined : 0;
}

}  // namespace ps::shm
