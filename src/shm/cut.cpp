#include "shm/cut.hpp"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "shm/barrier.hpp"
#include "shm/clock.hpp"

namespace ps::shm {
namespace {

// Ranks that are in a push of an older epoch than `epoch`. `look_at_locks`: a system call for each of them tells the dead.
// A push that another cut has given up is stuck: nobody waits for it twice.
struct Pushers {
  RankSet old, stuck;
};

Pushers pushers_before(const JobSegments& job, std::uint64_t epoch, bool look_at_locks,
                       std::optional<std::uint32_t> own) noexcept {
  Pushers found;
  const std::uint64_t given_up = job.state().cut.given_up.load_relaxed();  // relaxed: an older one makes it wait
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const std::uint64_t pushing = job.worker(rank).pushing.load_acquire();  // (cut.C8) pairs with cut.C7
    if (pushing == 0 || pushing > epoch || own == rank) continue;
    if (look_at_locks && !job.is_alive(rank)) continue;
    (pushing <= given_up ? found.stuck : found.old).insert(rank);
  }
  return found;
}

// Moves the word from a state of the pause on; the first to do so wakes the others.
void move_on(CutShm& cut, std::uint64_t from, CutState to) noexcept {
  if (!cut.word.try_exchange_acq_rel(from, make_cut(epoch_of(from), to))) return;  // (cut.C8) pairs with cut.C3
  fault_point(FaultPoint::kCutMoved);
  if (to == CutState::kOpen) futex_announce(cut.futex);
}

bool is_draining(std::uint64_t word) noexcept {
  return cut_state(word) == CutState::kDraining || cut_state(word) == CutState::kDrainingToCopy;
}
CutState behind(std::uint64_t word) noexcept {
  return cut_state(word) == CutState::kDrainingToCopy ? CutState::kCopying : CutState::kOpen;
}

// A waiter's part. `look_at_locks`: also at the maker's and the pushers' lives, and at the time.
void try_end_pause(JobSegments& job, std::uint32_t rank, bool look_at_locks) noexcept {
  CutShm& cut = job.state().cut;
  const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
  if (cut_state(word) == CutState::kOpen) return;
  if (is_draining(word)) {
    fence_store_load();  // (cut.C8) pairs with cut.C2: a waiter's look is as good as the maker's
    const Pushers pushers = pushers_before(job, epoch_of(word), look_at_locks, rank);
    if (pushers.old.empty() && pushers.stuck.empty()) return move_on(cut, word, behind(word));
  }
  if (!look_at_locks) return;
  // Its maker ends it after its patience; twice that has passed where the maker is stopped, too.
  constexpr std::uint64_t kGraceNs = 100'000'000;
  const std::uint64_t until = cut.since_ns.load_relaxed() + 2 * cut.patience_ns.load_relaxed() + kGraceNs;
  if (now_ns() < until && job.locks().is_held_by_other(kSnapshotByte)) return;
  std::uint64_t forced = cut.forced.load_acquire();  // (cut.C11)
  // (cut.C11) the maker looks at it when it finds the cut open; only ever raised: another cut's may be there by now
  while (forced < epoch_of(word) && !cut.forced.try_exchange_acq_rel(forced, epoch_of(word))) {
  }
  fault_point(FaultPoint::kCutForced);
  move_on(cut, word, CutState::kOpen);
}

// Whether one of the process's threads could run, if it had a core: it is not stopped then. False where /proc does not
// show it.
bool is_runnable(std::uint32_t pid) {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), error)) {
    std::ifstream file(task.path() / "stat");
    const std::string stat((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const std::size_t name_end = stat.rfind(')');  // a name may have any letters
    if (name_end != std::string::npos && stat.compare(name_end, 3, ") R") == 0) return true;
  }
  return false;
}

bool is_any_runnable(const JobSegments& job, const RankSet& ranks) {
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
    if (ranks.contains(rank) && is_runnable(job.worker(rank).pid.load_relaxed())) return true;  // relaxed: a hint
  return false;
}

void sleep_ns(std::uint64_t ns) noexcept {
  const timespec slice{0, static_cast<long>(ns)};
  nanosleep(&slice, nullptr);
}

}  // namespace

void wait_until_open(JobSegments& job, std::uint32_t rank, std::uint64_t epoch) noexcept {
  CutShm& cut = job.state().cut;
  WorkerShm& entry = job.worker(rank);
  entry.waiting_on.store_relaxed(epoch);                                          // relaxed: waiting.W3 publishes it
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kCut));  // (waiting.W3)
  wait_for_fact(
      cut.futex,
      [&] {
        try_end_pause(job, rank, false);
        const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
        return epoch_of(word) != epoch || cut_state(word) == CutState::kOpen;
      },
      [&] { try_end_pause(job, rank, true); });
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kNothing));  // (waiting.W3)
}

CutMaker::CutMaker(JobSegments& job) noexcept : job_(job) {
  CutShm& cut = job.state().cut;
  const std::uint64_t word = cut.word.load_acquire();  // (cut.C3)
  if (cut_state(word) != CutState::kOpen) move_on(cut, word, CutState::kOpen);
}

MadeCut CutMaker::drain(std::uint64_t patience_ns, bool to_copy, std::optional<std::uint32_t> rank) {
  CutShm& cut = job_.state().cut;
  const std::uint64_t began = now_ns();
  cut.since_ns.store_relaxed(began);  // relaxed, as the next: the word publishes them
  cut.patience_ns.store_relaxed(patience_ns);
  fault_point(FaultPoint::kCutReady);
  std::uint64_t word = cut.word.load_acquire();  // (cut.C8) a dead maker may have left any state
  const CutState state = to_copy ? CutState::kDrainingToCopy : CutState::kDraining;
  while (!cut.word.try_exchange_acq_rel(word, make_cut(epoch_of(word) + 1, state))) {  // (cut.C8)
  }
  MadeCut made;
  made.epoch = epoch_of(word) + 1;
  fault_point(FaultPoint::kCutBegun);
  fence_store_load();  // (cut.C8) pairs with cut.C2
  constexpr std::uint64_t kSpinNs = 50'000, kSleepNs = 50'000, kLookNs = 1'000'000;
  constexpr int kMostPatience = 20;  // times, with one who has no core
  int patient = 1;
  std::uint64_t next_look = began + kLookNs, until = began + patience_ns;
  const std::uint64_t mine = make_cut(made.epoch, state);
  while (cut.word.load_acquire() == mine) {  // (cut.C8) else a waiter has seen them out
    const std::uint64_t now = now_ns();
    const bool looks = now >= next_look;
    const Pushers pushers = pushers_before(job_, made.epoch, looks, rank);
    if (pushers.old.empty() && (pushers.stuck.empty() || looks)) {
      made.split = pushers.stuck;
      move_on(cut, mine, behind(mine));
      break;
    }
    if (looks) next_look = now + kLookNs;
    if (now > until && patient < kMostPatience && is_any_runnable(job_, pushers.old)) {
      ++patient;
      until = now + patience_ns;
      cut.patience_ns.store_relaxed(until - began);  // relaxed: what waiters go by
    } else if (now > until) {
      made.split = pushers_before(job_, made.epoch, true, rank).old;
      for (std::uint32_t one = 0; one < job_.ranks(); ++one)
        if (pushers.stuck.contains(one)) made.split.insert(one);
      cut.given_up.store_relaxed(made.epoch);  // relaxed: a hint to the next maker
      fault_point(FaultPoint::kCutGivenUp);
      move_on(cut, mine, behind(mine));
      break;
    }
    if (now - began < kSpinNs)
      spin_pause();
    else
      sleep_ns(kSleepNs);
  }
  made.step = job_.steps_done();
  made.is_forced = cut.forced.load_acquire() == made.epoch;  // (cut.C11)
  return made;
}

bool CutMaker::open(std::uint64_t epoch) noexcept {
  CutShm& cut = job_.state().cut;
  move_on(cut, make_cut(epoch, CutState::kCopying), CutState::kOpen);
  return cut.forced.load_acquire() != epoch;  // (cut.C11)
}

MadeCut CutMaker::between_steps(std::uint64_t patience_ns) {
  CutShm& cut = job_.state().cut;
  cut.since_ns.store_relaxed(now_ns());  // relaxed: for people
  fault_point(FaultPoint::kCutReady);
  std::uint64_t word = cut.word.load_acquire();                                                  // (cut.C8)
  while (!cut.word.try_exchange_acq_rel(word, make_cut(epoch_of(word) + 1, CutState::kOpen))) {  // (cut.C8)
  }
  MadeCut made;
  made.epoch = epoch_of(word) + 1;
  fault_point(FaultPoint::kCutBegun);
  const std::uint64_t began = now_ns();
  for (;;) {
    const std::optional<std::uint64_t> step = try_set_epoch(job_, made.epoch);
    if (step) {
      made.step = *step;
      return made;
    }
    if (now_ns() - began > patience_ns || !job_.locks().is_any_rank_held_by_other()) break;  // nobody will apply it
    sleep_ns(50'000);
  }
  made.step = job_.steps_done();
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank)  // whose gradients the step may have applied in part
    if (job_.worker(rank).holders.load_acquire() != 0) made.split.insert(rank);  // (ranks.J4)
  made.is_held_up = job_.locks().is_any_rank_held_by_other();
  return made;
}

std::uint64_t CutMaker::longest_push_ns(bool& is_complete) const noexcept {
  std::uint64_t longest = 0;
  is_complete = true;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& worker = job_.worker(rank);
    const std::uint64_t push = worker.push_ns.load_relaxed();  // relaxed: an estimate
    longest = std::max(longest, push);
    if (push == 0 && worker.pushing.load_relaxed() != 0) is_complete = false;  // relaxed: the same
  }
  return longest;
}

}  // namespace ps::shm
