// The barrier: arrive, decide, apply and open, with and without a quorum, and with a death. Ranks that
// are left and taken over.
#include <array>
#include <optional>

#include "scenes/scenes.hpp"
#include "shm/steps/barrier.hpp"
#include "support/member.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

constexpr std::uint32_t kRanks = 2;

JobConfig sync_of_two() {
  JobConfig config;
  config.mode = Mode::kSync;
  config.workers = config.max_workers = kRanks;
  return config;
}

struct Rounds {
  std::uint64_t rounds = 1;
  std::uint32_t quorum = 0;
  bool dies = false;  // rank 0, at any of its points
};

class BarrierScene : public Scene {
 public:
  explicit BarrierScene(const Rounds& shape) : shape_(shape), job_(config(shape)) {
    BarrierShm& shared = job_.segments.barrier(0);
    model(&shared.step, "step"), model(&shared.decision, "decision"), model(&shared.futex, "futex");
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      BarrierEntryShm& entry = job_.segments.worker(rank).barriers[0];
      model(&entry.active_from, fmt::format("active_from {}", rank));
      model(&entry.published, fmt::format("published {}", rank));
      model(&entry.proposal, fmt::format("proposal {}", rank));
      model(&entry.proposed.bits[0], fmt::format("proposed {}", rank));
      model(&entry.included, fmt::format("included {}", rank));
      model(&gradients_[rank], fmt::format("gradient {}", rank));
    }
    for (std::size_t round = 0; round < shape.rounds; ++round) model(&results_[round], fmt::format("result {}", round));
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) barriers_[rank].emplace(job_.segments, rank, 0);
    });
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      FiberOptions options;
      options.may_die = shape.dies && rank == 0;
      if (shape.dies) options.byte = kRankByte + rank;
      explorer.add([this, rank] { go(rank); }, options);
    }
    explorer.at_end([this] { check(); });
  }

 private:
  static JobConfig config(const Rounds& shape) {
    JobConfig config;
    config.mode = Mode::kSync;
    config.workers = config.max_workers = kRanks;
    config.quorum = shape.quorum;
    return config;
  }
  template <class T>
  void model(T* word, std::string name) {
    explorer.model(word), explorer.name(word, std::move(name));
  }
  static std::uint64_t gradient_of(std::uint32_t rank, std::uint64_t round) { return 100 * (round + 1) + 10 * rank; }

  // A result is {sum, set : 8}: one exchange applies the round, as it does for a chunk.
  void apply(std::uint64_t round, const Decision& decision) {
    Word& result = results_[round];
    if (const std::uint64_t there = result.load_acquire(); there != 0) {
      if ((there & 0xff) != decision.contributors.bits[0]) explorer.fail("two sets of one round");
      return;
    }
    std::uint64_t sum = 0, none = 0;
    for (std::uint32_t rank = 0; rank < kRanks; ++rank)
      if (decision.contributors.contains(rank)) sum += gradients_[rank].load_relaxed();
    if (decision.contributors.empty()) explorer.fail("a round of nobody");
    static_cast<void>(result.try_exchange_acq_rel(none, sum << 8 | decision.contributors.bits[0]));
  }

  void go(std::uint32_t rank) {
    Barrier& barrier = *barriers_[rank];
    for (std::uint64_t round; (round = barrier.round()) < shape_.rounds;) {
      gradients_[rank].store_relaxed(gradient_of(rank, round));
      barrier.arrive(round);
      if (const std::optional<Decision> decision = barrier.wait_decided(round, patient)) {
        apply(round, *decision);
        barrier.open(round);
      }
      const std::uint64_t result = results_[round].load_relaxed();  // the step published it (barrier.A6)
      if (result == 0) explorer.fail("a round is open and not applied");
      if (barrier.was_in(round) != ((result >> rank & 1) != 0)) explorer.fail("in, and told otherwise");
    }
  }

  void check() {
    for (std::uint64_t round = 0; round < shape_.rounds; ++round) {
      const std::uint64_t result = results_[round].load_relaxed(), set = result & 0xff;
      std::uint64_t sum = 0;
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
        if ((set >> rank & 1) != 0)
          sum += gradient_of(rank, round);
        else if (shape_.quorum == 0 && job_.segments.worker(rank).barriers[0].published.load_relaxed() > round)
          explorer.fail("one that had arrived is left out");
      }
      if (result >> 8 != sum) explorer.fail(fmt::format("round {}: {:#x} of set {}", round, result >> 8, set));
    }
  }

  using Word = AtomicShm<std::uint64_t>;
  Rounds shape_;
  TestJob job_;
  Member first_{job_}, second_{job_};  // hold the ranks' bytes; the words are those of one mapping
  std::array<std::optional<Barrier>, kRanks> barriers_;
  std::array<Word, kRanks> gradients_{};
  std::array<Word, 4> results_{};
};

// Rank 0 decides round 0 with both ranks. Rank 1 opens it, rank 0 continues and decides round 1 alone, and a third
// fiber still reads.
class ProposalScene : public Scene {
 public:
  ProposalScene() : job_(config()) {
    BarrierShm& shared = job_.segments.barrier(0);
    explorer.model(&shared.step), explorer.model(&shared.decision), explorer.model(&shared.futex);
    explorer.name(&shared.step, "step"), explorer.name(&shared.decision, "decision");
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      BarrierEntryShm& entry = job_.segments.worker(rank).barriers[0];
      explorer.model(&entry.published), explorer.model(&entry.proposal), explorer.model(&entry.proposed.bits[0]);
      explorer.name(&entry.proposed.bits[0], fmt::format("proposed {}", rank));
      Barrier(job_.segments, rank, 0).arrive(0);
    }
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) barriers_[rank].emplace(job_.segments, rank, 0);
      reader_.emplace(job_.segments, 1, 0);
    });
    missing_.reserve(kRanks);
    if (!Barrier(job_.segments, 0, 0).try_decide(0, false, missing_)) throw std::runtime_error("not decided");
    explorer.add([this] { complete(*barriers_[1], 0); });
    explorer.add([this] {
      if (barriers_[0]->round() != 1) return;
      barriers_[0]->arrive(1);
      static_cast<void>(barriers_[0]->try_decide(1, false, missing_));
    });
    explorer.add([this] {
      Decision decision;
      if (reader_->read_decision(0, decision) && decision.contributors.bits[0] != 3)
        explorer.fail("the set of another round");
    });
  }

 private:
  static JobConfig config() {
    JobConfig config;
    config.mode = Mode::kSync;
    config.workers = config.max_workers = kRanks;
    config.quorum = 1;
    return config;
  }
  TestJob job_;
  Member first_{job_}, second_{job_};
  std::array<std::optional<Barrier>, kRanks> barriers_;
  std::optional<Barrier> reader_;
  std::vector<std::uint32_t> missing_;
};

// All ranks were in round 0, and rank 1 has not checked yet. The others decide round 1 without it while it asks.
// (barrier.B11)
class LeftBehindScene : public Scene {
 public:
  LeftBehindScene(std::uint32_t proposer, std::uint32_t deciders) : job_(config()) {
    for (std::uint32_t rank = 0; rank < kAll; ++rank) Barrier(job_.segments, rank, 0).arrive(0);
    Barrier deciding(job_.segments, proposer, 0);
    complete(deciding, 0);
    if (job_.segments.steps_done() != 1) throw std::runtime_error("round 0 is not over");
    explorer.model(&job_.segments.barrier(0).decision), explorer.name(&job_.segments.barrier(0).decision, "decision");
    for (std::uint32_t rank = 0; rank < kAll; ++rank) {
      BarrierEntryShm& entry = job_.segments.worker(rank).barriers[0];
      explorer.model(&entry.proposal), explorer.name(&entry.proposal, fmt::format("proposal {}", rank));
      explorer.model(&entry.proposed.bits[0]), explorer.name(&entry.proposed.bits[0], fmt::format("proposed {}", rank));
      explorer.model(&entry.included), explorer.name(&entry.included, fmt::format("included {}", rank));
    }
    for (std::uint32_t number = 0; number < deciders; ++number) {
      const std::uint32_t rank = 2 * number;
      Barrier(job_.segments, rank, 0).arrive(1);
      missing_[number].reserve(kAll);
      explorer.add([this, number, rank] {
        if (!barriers_[rank]->try_decide(1, false, missing_[number])) explorer.fail("a quorum is not enough");
      });
    }
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < kAll; ++rank) barriers_[rank].emplace(job_.segments, rank, 0);
    });
    explorer.add([this] {
      if (!barriers_[1]->was_in(0)) explorer.fail("in, and told otherwise");
    });
  }

 private:
  static constexpr std::uint32_t kAll = 3;
  static JobConfig config() {
    JobConfig config;
    config.mode = Mode::kSync;
    config.workers = config.max_workers = kAll;
    config.quorum = 1;
    return config;
  }
  TestJob job_;
  Member first_{job_}, second_{job_}, third_{job_};
  std::array<std::optional<Barrier>, kAll> barriers_;
  std::array<std::vector<std::uint32_t>, 2> missing_;
};

// A rank that has passed a user barrier sees everything that the others did before it. (barrier.A1, barrier.A6)
class MeetingScene : public Scene {
 public:
  MeetingScene() : job_(sync_of_two()) {
    BarrierShm& shared = job_.segments.barrier(1);
    explorer.model(&shared.step), explorer.name(&shared.step, "step");
    explorer.model(&shared.futex), explorer.name(&shared.futex, "futex");
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      BarrierEntryShm& entry = job_.segments.worker(rank).barriers[1];
      explorer.model(&entry.published), explorer.name(&entry.published, fmt::format("published {}", rank));
      explorer.model(&done_[rank]), explorer.name(&done_[rank], fmt::format("done {}", rank));
      explorer.add([this, rank] { meet(rank); });
    }
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) barriers_[rank].emplace(job_.segments, rank, 1);
    });
  }

 private:
  void meet(std::uint32_t rank) {
    done_[rank].store_relaxed(1);
    barriers_[rank]->arrive(0);
    barriers_[rank]->wait(0, patient);
    if (barriers_[rank]->is_decided(0)) explorer.fail("a meeting is decided");
    if (barriers_[rank]->round() != 1) explorer.fail("a meeting of one");
    if (done_[1 - rank].load_relaxed() != 1) explorer.fail("a meeting without what was done before it");
  }

  TestJob job_;
  Member first_{job_}, second_{job_};
  std::array<std::optional<Barrier>, kRanks> barriers_;
  std::array<AtomicShm<std::uint64_t>, kRanks> done_{};
};

// Ranks 0 and 1 have completed round 0. In round 1 rank 0 arrives, or not, and dies; its successor joins, and completes
// the rest of rounds 1 and 2 together with rank 1.
class TakeOverScene : public Scene {
 public:
  TakeOverScene() : job_(sync_of_two()) {
    for (const std::uint32_t rank : {0U, 1U}) Barrier(job_.segments, rank, 0).arrive(0);
    Barrier deciding(job_.segments, 1, 0);
    complete(deciding, 0);
    first_.segments.locks().release(kRankByte);  // held by the fibers only
    BarrierShm& shared = job_.segments.barrier(0);
    model(&shared.step, "step"), model(&shared.decision, "decision"), model(&shared.futex, "futex");
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      WorkerShm& worker = job_.segments.worker(rank);
      model(&worker.holders, fmt::format("holders {}", rank)), model(&worker.state, fmt::format("state {}", rank));
      BarrierEntryShm& entry = worker.barriers[0];
      model(&entry.active_from, fmt::format("active_from {}", rank));
      model(&entry.published, fmt::format("published {}", rank));
      model(&entry.proposal, fmt::format("proposal {}", rank));
      model(&entry.proposed.bits[0], fmt::format("proposed {}", rank));
      model(&entry.included, fmt::format("included {}", rank));
    }
    for (std::size_t round = 0; round < kRounds; ++round) model(&sets_[round], fmt::format("set {}", round));
    explorer.remember(&log_);
    explorer.at_start([this] {
      for (std::size_t i = 0; i < barriers_.size(); ++i) barriers_[i].emplace(job_.segments, i == 1 ? 1 : 0, 0);
    });
    explorer.add([this] { barriers_[0]->arrive(1), log_.arrived = 1; }, {.may_die = true, .byte = kRankByte});
    explorer.add([this] { go(*barriers_[1], 1); }, {.byte = kRankByte + 1});
    explorer.add([this] { succeed(); }, {.after = 1, .byte = kRankByte});
    explorer.at_end([this] { check(); });
  }

 private:
  static constexpr std::uint64_t kRounds = 3;
  using Word = AtomicShm<std::uint64_t>;

  template <class T>
  void model(T* word, std::string name) {
    explorer.model(word), explorer.name(word, std::move(name));
  }

  void finish(Barrier& barrier, std::uint64_t round) {
    const std::optional<Decision> decision = barrier.wait_decided(round, patient);
    if (!decision) return;
    std::uint64_t none = 0;
    const std::uint64_t set = decision->contributors.bits[0];
    if (!sets_[round].try_exchange_acq_rel(none, set) && none != set) explorer.fail("two sets of one round");
    barrier.open(round);
  }
  void go(Barrier& barrier, std::uint32_t rank) {
    for (std::uint64_t round; (round = barrier.round()) < kRounds;) {
      barrier.arrive(round);
      finish(barrier, round);
      const std::uint64_t set = sets_[round].load_relaxed();  // the step published it (barrier.A6)
      if (barrier.was_in(round) != ((set >> rank & 1) != 0)) explorer.fail("in, and told otherwise");
    }
  }
  void succeed() {
    std::uint32_t rank = 0;
    if (try_join(job_.segments, 0, rank) != JoinOutcome::kJoined) return explorer.fail("the rank is not free");
    Barrier& barrier = *barriers_[2];
    const std::uint64_t round = barrier.round();
    log_.waited_for = round + 1;
    if (barrier.has_arrived(round)) finish(barrier, round);  // barrier.B4
    go(barrier, 0);
  }

  void check() {
    for (std::uint64_t round = 1; round < kRounds; ++round) {
      const std::uint64_t set = sets_[round].load_relaxed();
      if ((set & 2) == 0) explorer.fail("one that was waited for is left out");
      if (round == 1 && log_.arrived != 0 && (set & 1) == 0) explorer.fail("one that had arrived and died is left out");
      // If the round number that it has read is stale, the successor may be left out once, and is told so.
      if (explorer.is_sequential() && log_.waited_for != 0 && round >= log_.waited_for && (set & 1) == 0)
        explorer.fail("a successor is left out");
    }
  }

  TestJob job_;
  Member first_{job_}, second_{job_};  // the words are those of one mapping
  std::array<std::optional<Barrier>, 3> barriers_;
  std::array<Word, kRounds> sets_{};
  struct Log {
    std::uint64_t arrived, waited_for;
  } log_ = {};
};

struct LeaveScene : Scene {
  TestJob job;
  Member first{job};

  LeaveScene() {
    explorer.model(&job.segments.worker(0).state);
    explorer.add([this] { leave(job.segments, 0); }, {.byte = kRankByte});
    explorer.add([this] {
      if (worker_state(job.segments, 0) == WorkerState::kDead) explorer.fail("one who leaves is called dead");
    });
  }
};

// Rank 0 gets a new owner in round 1, while rank 1 decides. The previous owner has died, or left. (ranks.J1, ranks.J2)
class NewcomerScene : public Scene {
 public:
  explicit NewcomerScene(bool has_left) : job_(sync_of_two()) {
    for (const std::uint32_t rank : {0U, 1U}) Barrier(job_.segments, rank, 0).arrive(0);
    Barrier deciding(job_.segments, 1, 0);
    complete(deciding, 0);
    if (has_left)
      leave(first_.segments, 0);
    else
      first_.segments.locks().release(kRankByte);
    WorkerShm& worker = job_.segments.worker(0);
    explorer.model(&worker.holders), explorer.name(&worker.holders, "holders");
    explorer.model(&worker.state), explorer.name(&worker.state, "state");
    explorer.model(&worker.barriers[0].active_from), explorer.name(&worker.barriers[0].active_from, "active_from");
    missing_.reserve(kRanks);
    explorer.at_start([this] { decider_.emplace(job_.segments, 1, 0); });
    explorer.add(
        [this] {
          std::uint32_t rank = 0;
          if (try_join(job_.segments, 0, rank) != JoinOutcome::kJoined) explorer.fail("the rank is not free");
        },
        {.byte = kRankByte});
    explorer.add(
        [this, has_left] {
          // A decider that still sees the dead owner can only observe that the byte is held again.
          if (!has_left && job_.segments.worker(0).holders.load_relaxed() != 2) return;
          static_cast<void>(decider_->try_decide(1, true, missing_));
          if (missing_.size() != 1) explorer.fail("a newcomer is waited for in the round in which it joins");
        },
        {.byte = kRankByte + 1});
  }

 private:
  TestJob job_;
  Member first_{job_}, second_{job_};
  std::optional<Barrier> decider_;
  std::vector<std::uint32_t> missing_;
};

// Rank 0 has arrived, and leaves before the round is decided: its gradient is included. (ranks.J3)
class ArrivedLeaverScene : public Scene {
 public:
  ArrivedLeaverScene() : job_(sync_of_two()) {
    WorkerShm& worker = job_.segments.worker(0);
    explorer.model(&worker.state), explorer.name(&worker.state, "state");
    explorer.model(&worker.barriers[0].published), explorer.name(&worker.barriers[0].published, "published");
    BarrierEntryShm& decider = job_.segments.worker(1).barriers[0];
    explorer.model(&decider.published), explorer.model(&decider.proposal), explorer.model(&decider.proposed.bits[0]);
    explorer.model(&job_.segments.barrier(0).decision);
    missing_.reserve(kRanks);
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < kRanks; ++rank) barriers_[rank].emplace(job_.segments, rank, 0);
    });
    explorer.add([this] { barriers_[0]->arrive(0), leave(job_.segments, 0); }, {.byte = kRankByte});
    explorer.add(
        [this] {
          barriers_[1]->arrive(0);
          Decision decision;
          if (barriers_[1]->try_decide(0, true, missing_) && barriers_[1]->read_decision(0, decision) &&
              decision.contributors.bits[0] != 3)
            explorer.fail("one that arrived and left is left out");
        },
        {.byte = kRankByte + 1});
  }

 private:
  TestJob job_;
  Member first_{job_}, second_{job_};
  std::array<std::optional<Barrier>, kRanks> barriers_;
  std::vector<std::uint32_t> missing_;
};

// A process that sees that a step is complete sees the effects of the step. (steps.T2)
struct StepScene : Scene {
  TestJob job{[] {
    JobConfig config;
    config.mode = Mode::kSync;
    return config;
  }()};
  Member member{job};
  AtomicShm<std::uint64_t> value{};
  std::optional<Barrier> barrier;

  StepScene() {
    explorer.model(&job.segments.barrier(0).step), explorer.model(&job.segments.barrier(0).decision);
    BarrierEntryShm& entry = job.segments.worker(0).barriers[0];
    explorer.model(&entry.published), explorer.model(&entry.proposal), explorer.model(&entry.included);
    explorer.model(&value);
    explorer.at_start([this] { barrier.emplace(job.segments, 0, 0); });
    explorer.add([this] {
      barrier->arrive(0);
      if (!barrier->wait_decided(0, patient)) return;
      value.store_relaxed(1);
      barrier->open(0);
    });
    explorer.add([this] {
      if (job.segments.steps_done() == 1 && value.load_relaxed() != 1) explorer.fail("a step without its changes");
    });
  }
};

auto make(const Rounds& rounds) {
  return [=] { return std::make_unique<BarrierScene>(rounds); };
}

}  // namespace

std::vector<SceneCase> scenes_of_barriers() {
  return {
      {"barrier: a slow reader of a proposal", [] { return std::make_unique<ProposalScene>(); }},
      {"barrier: a worker asks whether it was in while its proposer decides anew",
       [] { return std::make_unique<LeftBehindScene>(0, 1); }},
      {"barrier: a worker asks whether it was in while another one decides",
       [] { return std::make_unique<LeftBehindScene>(2, 1); }},
      {"barrier: a worker asks whether it was in while two decide",
       [] { return std::make_unique<LeftBehindScene>(0, 2); }, Size::kMedium},
      {"barrier: a meeting of two", [] { return std::make_unique<MeetingScene>(); }},
      {"barrier: a round of two", make({}), Size::kMedium},
      {"barrier: two rounds of two", make({.rounds = 2}), Size::kLarge},
      {"barrier: two rounds, a quorum of one", make({.rounds = 2, .quorum = 1}), Size::kLarge},
      {"barrier: a worker dies anywhere", make({.dies = true}), Size::kLarge},
  };
}

std::vector<SceneCase> scenes_of_ranks() {
  return {
      {"ranks: somebody looks whether one is alive who leaves", [] { return std::make_unique<LeaveScene>(); }},
      {"ranks: a dead worker's rank is taken while others decide",
       [] { return std::make_unique<NewcomerScene>(false); }},
      {"ranks: a rank that was left is taken while others decide",
       [] { return std::make_unique<NewcomerScene>(true); }},
      {"ranks: a worker arrives and leaves", [] { return std::make_unique<ArrivedLeaverScene>(); }},
      {"ranks: somebody looks whether a step is done", [] { return std::make_unique<StepScene>(); }},
      {"ranks: a worker dies in a round, and another one takes its rank",
       [] { return std::make_unique<TakeOverScene>(); }, Size::kLarge},
  };
}

}  // namespace ps_shm::test
