#include "shm/steps/barrier.hpp"

#include <bit>

#include "shm/segment/events.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/steps/guest.hpp"

namespace ps_shm::shm {

void Barrier::arrive(std::uint64_t round) noexcept {
  entry(rank_).published.store_release(round + 1);  // (barrier.A1) pairs with barrier.A2: the contribution
  fault_point(FaultPoint::kArrivePublished);        // the last one to arrive decides, and then wakes the others
}

// Once for each round.
void Barrier::propose(std::uint64_t round, const RankSet& set, const LiveSettings& settings) noexcept {
  BarrierEntryShm& mine = entry(rank_);
  if (mine.proposal.load_relaxed() != round + 1) {  // relaxed: only this rank writes it
    // (barrier.A3) pairs with barrier.A5, barrier.B11: a reader of the new set finds the round over, or what was noted
    fence_release();
    // relaxed, as those below: barrier.A3 publishes them
    for (std::size_t i = 0; i < set.bits.size(); ++i) mine.proposed.bits[i].store_relaxed(set.bits[i]);
    mine.lr.store_relaxed(std::bit_cast<std::uint32_t>(settings.lr));
    mine.clip_norm.store_relaxed(std::bit_cast<std::uint32_t>(settings.clip_norm));
    mine.momentum.store_relaxed(std::bit_cast<std::uint32_t>(settings.momentum));
    mine.beta1.store_relaxed(std::bit_cast<std::uint32_t>(settings.beta1));
    fault_point(FaultPoint::kDecideSet);
    mine.proposal.store_release(round + 1);  // (barrier.A3) barrier.A4 names it
    fault_point(FaultPoint::kDecideProposed);
  }
}

bool Barrier::try_decide(std::uint64_t round, bool look_at_locks, std::vector<std::uint32_t>& missing) {
  missing.clear();
  RankSet set;
  std::uint32_t joined = 0, arrived = 0;
  bool is_guest_absent = false;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& worker = job_.worker(rank);
    const std::uint64_t holder = worker.holders.load_acquire();  // (ranks.J4)
    if (holder == 0) continue;
    if (is_guest(worker)) [[unlikely]] {  // guest.G2: in the step if it is here, but nobody waits for it
      is_guest_absent = worker.barriers[which_].published.load_acquire() != round + 1;  // (barrier.A2)
      if (!is_guest_absent) set.insert(rank);
      continue;
    }
    ++joined;
    // (barrier.A2, ranks.J4) barrier.B2: liveness first.
    bool gone = static_cast<RankState>(worker.state.load_acquire()) == RankState::kLeft || known_dead_[rank] == holder;
    if (!gone && look_at_locks && rank != rank_ && !job_.is_alive(rank)) {
      known_dead_[rank] = holder;  // a new owner increments `holders`, and takes part in a later round (barrier.B1)
      gone = true;
    }
    // (barrier.A2) Otherwise one that arrives between the next two reads, dies and is replaced at once would be lost.
    const bool takes_part = worker.barriers[which_].active_from.load_acquire() <= round;
    if (worker.barriers[which_].published.load_acquire() == round + 1) {  // (barrier.A2) pairs with barrier.A1
      set.insert(rank);
      ++arrived;
    } else if (!gone && takes_part && !is_left_out(rank)) {
      missing.push_back(rank);
    }
  }
  if (arrived == 0 || (round == job_.first_round(which_) && joined < job_.config().workers)) return false;
  if (which_ == 1) {
    if (missing.empty()) open(round);
    return missing.empty();
  }
  const Live live = read_live(job_);
  const std::uint32_t quorum = live.settings.quorum;
  const bool has_quorum = quorum != 0 && arrived >= quorum;
  if (!missing.empty() && !has_quorum) return false;

  if (arrived != joined || is_guest_absent)
    note_left_behind(round, set);  // before anything of the previous round is overwritten
  propose(round, set, live.settings);
  std::uint64_t decision = shared().decision.load_acquire();  // (barrier.A4)
  while (decided_rounds(decision) <= round) {                 // barrier.B3: never backwards
    const std::uint64_t mine = make_decision(round + 1, epoch_to_decide(job_, round, decision), rank_);
    if (!shared().decision.try_exchange_acq_rel(decision, mine)) continue;  // (barrier.A4) pairs with barrier.A5
    fault_point(FaultPoint::kDecideSwapped);
    futex_announce(shared().futex);  // the others can help
    fault_point(FaultPoint::kDecideAnnounced);
    has_decided_ = true, quorum_ = quorum;
    break;
  }
  return true;
}

// Records the round's decision if this rank has won barrier.A4. If it is killed before, only the events are missing.
void Barrier::note_decision(std::uint64_t round) noexcept {
  if (!std::exchange(has_decided_, false)) return;
  RankSet contributors;
  for (std::size_t i = 0; i < contributors.bits.size(); ++i)
    contributors.bits[i] = entry(rank_).proposed.bits[i].load_relaxed();  // relaxed: this rank's own
  record_event(job_, {.kind = EventKind::kDecided, .rank = rank_, .step = round, .ranks = contributors});
  fault_point(FaultPoint::kDecideRecorded);
  const std::uint32_t size = contributors.size(), now_short = size < quorum_ ? size : 0;
  std::uint32_t told = job_.state().short_quorum.load_acquire();                                      // (barrier.B7)
  if (told == now_short || !job_.state().short_quorum.try_exchange_acq_rel(told, now_short)) return;  // (barrier.B7)
  fault_point(FaultPoint::kDecideShort);
  if (now_short != 0)  // once for each number of live workers
    record_event(
        job_, {.kind = EventKind::kShortQuorum, .rank = rank_, .step = round, .first = now_short, .second = quorum_});
}

bool Barrier::read_decision(std::uint64_t round, Decision& out) const noexcept {
  const std::uint64_t decision = shared().decision.load_acquire();  // (barrier.A5) pairs with barrier.A4: the proposal
  if (decided_rounds(decision) != round + 1) return false;
  const std::uint64_t epoch = snapshot_epoch(job_);  // after the decision, so it is at least as new
  out.epoch = epoch - ((epoch - epoch_bits(decision)) & kDecisionEpoch);
  const BarrierEntryShm& proposer = entry(proposer_of(decision));
  for (std::size_t i = 0; i < out.contributors.bits.size(); ++i)
    out.contributors.bits[i] = proposer.proposed.bits[i].load_relaxed();  // relaxed, as below: the round is checked
  out.lr = std::bit_cast<float>(proposer.lr.load_relaxed());
  out.clip_norm = std::bit_cast<float>(proposer.clip_norm.load_relaxed());
  out.momentum = std::bit_cast<float>(proposer.momentum.load_relaxed());
  out.beta1 = std::bit_cast<float>(proposer.beta1.load_relaxed());
  fence_acquire();                // (barrier.A5) pairs with barrier.A3's fence
  return this->round() == round;  // barrier.B6: a proposal is overwritten only once the round is over
}

// barrier.B11: a rank that was in the previous round and has not arrived at this one may not know that it was
// included, and the only record of that is about to be overwritten. `included` is only raised: a decider that sleeps
// here for rounds changes nothing. If the proposer has begun a later set, it has noted what it overwrites. A rank in
// that later set asks about a later round, for which this number is too small, so it is not misled.
void Barrier::note_left_behind(std::uint64_t round, const RankSet& arrived) noexcept {
  const std::uint64_t decision = shared().decision.load_acquire();  // (barrier.B11) pairs with barrier.A4: the proposal
  if (decided_rounds(decision) != round) return;                    // the decider of a later round has noted it
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    if (arrived.contains(rank) || !proposes(proposer_of(decision), rank)) continue;
    auto& included = entry(rank).included;
    std::uint64_t seen = included.load_acquire();                          // (barrier.B11)
    while (seen < round && !included.try_exchange_acq_rel(seen, round)) {  // (barrier.B11) pairs with was_in
    }
    fault_point(FaultPoint::kDecideNoted);
  }
  fence_acquire();  // (barrier.B11) pairs with barrier.A3's fence: a later proposer's notes come before barrier.A4
}

bool Barrier::proposes(std::uint32_t proposer, std::uint32_t rank) const noexcept {
  // relaxed: barrier.A4 has published the set; barrier.B11 says how a later set is told apart
  return (entry(proposer).proposed.bits[rank / 64].load_relaxed() >> rank % 64 & 1) != 0;
}

// A later set does not contain this rank, which has arrived at no later round.
bool Barrier::was_in(std::uint64_t round) const noexcept {
  if (known_ == round + 1) return was_in_known_;
  const std::uint64_t decision = shared().decision.load_acquire();  // (barrier.B11) pairs with barrier.A4
  if (decided_rounds(decision) == round + 1 && proposes(proposer_of(decision), rank_)) return true;
  fence_acquire();                                           // (barrier.B11) pairs with barrier.A3's fence: the note
  return entry(rank_).included.load_acquire() == round + 1;  // (barrier.B11) pairs with note_left_behind
}

void Barrier::open(std::uint64_t round) noexcept {
  std::uint64_t expected = round;
  fault_point(FaultPoint::kOpenReady);
  if (shared().step.try_exchange_acq_rel(expected, round + 1)) {  // (barrier.A6) pairs with round(), steps.T2
    fault_point(FaultPoint::kOpenSwapped);
    futex_announce(shared().futex);
  }
  note_decision(round);  // after the others were woken
}

Barrier::LeftOut Barrier::look_at(std::uint32_t rank) const noexcept {
  const BarrierEntryShm& theirs = entry(rank);
  return {theirs.published.load_acquire(), theirs.active_from.load_acquire(), true};  // (barrier.A2, barrier.B12)
}

void Barrier::leave_out(const std::vector<std::uint32_t>& missing) noexcept {
  for (const std::uint32_t rank : missing) left_out_[rank] = look_at(rank);
}

bool Barrier::is_left_out(std::uint32_t rank) const noexcept {
  const LeftOut &then = left_out_[rank], now = look_at(rank);
  return then.is_set && then.published == now.published && then.active_from == now.active_from;
}

// This is never the value that was there when the rank was left out, since the round has advanced.
void Barrier::come_back() noexcept {
  entry(rank_).active_from.store_release(round());  // (barrier.B12) pairs with barrier.A2
  fault_point(FaultPoint::kReturned);
}

std::uint32_t Barrier::still_to_join() const noexcept {
  std::uint32_t joined = 0;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& worker = job_.worker(rank);
    joined += worker.holders.load_acquire() != 0 && !is_guest(worker);  // (ranks.J4)
  }
  return round() == job_.first_round(which_) && joined < job_.config().workers ? job_.config().workers - joined : 0;
}

}  // namespace ps_shm::shm
