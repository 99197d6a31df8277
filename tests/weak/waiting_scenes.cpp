// Futexes, clocks, publications and snapshot points on weak memory.
#include <array>
#include <memory>
#include <optional>

#include "shm/base/futex.hpp"
#include "shm/publication/publication.hpp"
#include "shm/publication/round.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "shm/steps/ssp_clock.hpp"
#include "support/member.hpp"
#include "weak/scenes.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

using Word = AtomicShm<std::uint64_t>;

JobConfig config_of(std::uint32_t ranks) {
  JobConfig config;
  config.workers = config.max_workers = ranks;
  return config;
}

// ---- futex

struct FutexScene : WeakScene {
  AtomicShm<std::uint32_t> futex{};
  std::array<Word, 2> facts{}, data{};

  FutexScene() { explorer.model(&futex), explorer.model(facts.data(), 2), explorer.model(data.data(), 2); }
  FutexScene& announcer(std::size_t which) {
    explorer.add([this, which] {
      data[which].store_relaxed(1);
      facts[which].store_release(1);
      futex_announce(futex);
    });
    return *this;
  }
  FutexScene& sleeper(std::size_t which) {
    explorer.add([this, which] {
      wait_for_fact(
          futex, [&] { return facts[which].load_acquire() == 1; }, [] {});
      if (data[which].load_relaxed() != 1) explorer.fail("a fact without its data");
    });
    return *this;
  }
};

// ---- clocks

struct ClockScene : WeakScene {
  static constexpr std::uint32_t kMost = 3;
  std::uint32_t ranks;
  TestJob job{config_of(ranks)};
  std::vector<std::unique_ptr<Member>> members;  // hold the ranks' bytes; the words are those of one mapping
  std::array<std::optional<SspClock>, kMost> clocks;
  std::array<Word, 2> data{};
  std::array<std::vector<std::uint32_t>, kMost> blockers;

  explicit ClockScene(std::uint32_t of = 2) : ranks(of) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      members.push_back(std::make_unique<Member>(job));
      explorer.model(&job.segments.worker(rank).clock);
      explorer.name(&job.segments.worker(rank).clock, fmt::format("clock {}", rank));
      blockers[rank].reserve(ranks);
    }
    explorer.model(&job.segments.state().clocks);
    explorer.model(data.data(), 2);
    explorer.at_start([this] {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) clocks[rank].emplace(job.segments, rank);
    });
  }
  std::uint64_t steps_of(std::uint32_t rank) const {
    return SspClock::steps_of(job.segments.worker(rank).clock.load_relaxed());
  }

  // Both ranks have entered; each makes this many steps, and waits for the other one if the bound requires it.
  ClockScene& stepper(std::uint32_t rank, std::uint64_t steps, std::uint64_t bound) {
    SspClock(job.segments, rank).enter(1);
    explorer.add([this, rank, steps, bound] {
      for (std::uint64_t step = 0; step < steps; ++step) {
        wait_for_fact(
            job.segments.state().clocks,
            [&] { return static_cast<void>(clocks[rank]->skew(bound, false, blockers[rank])), blockers[rank].empty(); },
            [&] {});
        if (data[1 - rank].load_relaxed() + bound < step) explorer.fail("a clock without its step's pushes");
        data[rank].store_relaxed(step + 1);
        clocks[rank]->advance();
      }
    });
    return *this;
  }
  // A rank that has entered; it continues for as long as the bound lets it.
  ClockScene& runner(std::uint32_t rank, std::uint64_t steps) {
    SspClock(job.segments, rank).enter(1);
    explorer.add([this, rank, steps] {
      for (std::uint64_t step = 0; step < steps; ++step) {
        clocks[rank]->skew(0, false, blockers[rank]);
        if (!blockers[rank].empty()) return;
        clocks[rank]->advance();
      }
    });
    return *this;
  }
  // All ranks except 0.
  ClockScene& newcomers() {
    for (std::uint32_t rank = 1; rank < ranks; ++rank) explorer.add([this, rank] { clocks[rank]->enter(1); });
    explorer.at_end([this] {
      for (std::uint32_t rank = 1; rank < ranks; ++rank)
        if (steps_of(0) > steps_of(rank) + 1) explorer.fail("too far ahead of one who has entered");
    });
    return *this;
  }
};

// ---- publications

// Tensor 0 changes in each generation, tensor 1 in every other one. Each contains the number of the generation it was
// written for.
class PublicationScene : public WeakScene {
 public:
  PublicationScene(std::uint64_t generations, std::uint32_t readers, bool dies = false)
      : generations_(generations),
        bundle_(
            Bundle::create({.name = unique_job_name(),
                            .tensors = {{.name = "a", .dtype = DType::kInt64}, {.name = "b", .dtype = DType::kInt64}},
                            .subscribers = std::max(readers, 1U),
                            .records = 3},
                           {})) {
    explorer.model(&bundle_.newest().newest);
    explorer.name(&bundle_.newest().newest, "newest");
    explorer.model(&bundle_.waiters().futex);
    for (std::uint32_t rank = 0; rank < bundle_.subscribers(); ++rank) {
      explorer.model(&bundle_.subscriber(rank).leases[0]);
      explorer.name(&bundle_.subscriber(rank).leases[0], fmt::format("lease {}", rank));
    }
    for (std::uint32_t record = 0; record < 3; ++record) {
      explorer.model(&bundle_.record(record).stamp);
      explorer.name(&bundle_.record(record).stamp, fmt::format("stamp {}", record));
      explorer.model(&bundle_.record(record).step);
      explorer.model(&bundle_.record(record).changed);
      explorer.model(bundle_.slots(record), 2);
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
        explorer.model(&at(tensor, record));
        explorer.name(&at(tensor, record), fmt::format("tensor {} in slot {}", tensor, record));
      }
    }
    if (dies) {  // the first generation exists
      generations_ = 1;
      GenerationWriter first(bundle_);
      publish_all(first);
      generations_ = generations;
    }
    explorer.at_start([this] {
      for (auto& writer : writers_) writer.emplace(bundle_);
    });
    for (std::size_t number = 0; number < (dies ? 2U : 1U); ++number) {
      WeakFiber options;
      options.may_die = dies && number == 0;
      options.after = number;  // the next publisher starts after the first one has ended or died
      explorer.add([this, number] { publish_all(*writers_[number]); }, options);
    }
  }

  PublicationScene& reader(std::uint32_t rank, std::uint32_t leases) {
    explorer.add([this, rank, leases] {
      auto& lease = bundle_.subscriber(rank).leases[0];
      std::uint64_t last = 0;
      for (std::uint32_t i = 0; i < leases; ++i) {
        const std::uint64_t word = try_lease(bundle_.newest(), lease, last);
        if (word == 0) continue;
        last = generation_of(word);
        for (int looks = 0; looks < 2; ++looks) {
          const AtomicShm<std::uint16_t>* slots = bundle_.slots(record_of(word));
          const std::uint64_t one = at(0, slots[0].load_relaxed()).load_relaxed();
          const std::uint64_t two = at(1, slots[1].load_relaxed()).load_relaxed();
          if (one != last || two != (last == 1 ? 1 : last / 2 * 2))
            explorer.fail(fmt::format("generation {} is {}, {}", last, one, two));
        }
        give_back(lease);
      }
    });
    return *this;
  }
  // Reads a record without a lease.
  PublicationScene& looker(std::uint32_t looks) {
    explorer.add([this, looks] {
      for (std::uint32_t i = 0; i < looks; ++i)
        if (const std::optional<SeenRecord> seen = look_at(bundle_, 0))
          if (seen->step != seen->generation ||
              seen->changed != (seen->generation == 1 || seen->generation % 2 == 0 ? 2 : 1))
            explorer.fail("a record is torn");
    });
    return *this;
  }

 private:
  void publish_all(GenerationWriter& writer) {
    for (std::uint64_t generation;
         (generation = generation_of(bundle_.newest().newest.load_relaxed()) + 1) <= generations_;) {
      const auto fill = [&generation](std::uint32_t, std::byte* out) {
        reinterpret_cast<Word*>(out)->store_relaxed(generation);
      };
      if (!writer.find_record()) return;  // both other records are leased
      const std::vector<bool>& changed = generation == 1 || generation % 2 == 0 ? kBoth : kFirst;
      if (writer.publish(changed, generation, fill) != generation) explorer.fail("a generation is left out");
    }
  }

  Word& at(std::uint32_t tensor, std::uint32_t slot) { return *reinterpret_cast<Word*>(bundle_.slot(tensor, slot)); }

  static inline const std::vector<bool> kBoth = {true, true}, kFirst = {true, false};
  std::uint64_t generations_;
  Bundle bundle_;
  std::array<std::optional<GenerationWriter>, 2> writers_;
};

// ---- rounds

// Two writers, of which the first one leads, fill a tensor of two elements with the number of the second generation, which
// is the step, too. The first one exists.
class RoundScene : public WeakScene {
 public:
  RoundScene() {
    explorer.model(&bundle_.newest().newest);
    explorer.name(&bundle_.newest().newest, "newest");
    explorer.model(&bundle_.waiters().futex);
    explorer.model(&bundle_.round().round);
    explorer.name(&bundle_.round().round, "round");
    explorer.model(&bundle_.round().step);
    explorer.model(&bundle_.round().leader);
    explorer.model(&bundle_.round().writers);
    for (std::uint32_t writer = 0; writer < 2; ++writer) {
      explorer.model(&bundle_.writer(writer).done);
      explorer.name(&bundle_.writer(writer).done, fmt::format("done {}", writer));
    }
    for (std::uint32_t record = 0; record < 2; ++record) {
      explorer.model(&bundle_.record(record).stamp);
      explorer.model(&bundle_.record(record).step);
      explorer.model(&bundle_.record(record).changed);
      explorer.model(bundle_.slots(record), 1);
      explorer.model(at(record), 2);
    }
    publish_first();
    explorer.at_start([this] { writer_.emplace(bundle_); });
    explorer.add([this] { lead(); });
    explorer.add([this] { follow(); });
  }

 private:
  void publish_first() {
    GenerationWriter writer(bundle_);
    (void)writer.find_record();
    writer.publish({true}, 1, [](std::uint32_t, std::byte* out) {
      for (int i = 0; i < 2; ++i) reinterpret_cast<Word*>(out)[i].store_relaxed(1);
    });
  }
  Word& element(std::uint32_t writer, const Round::Attempt& attempt) {
    return at(bundle_.slots(record_of(attempt.round))[0].load_relaxed())[writer];
  }
  void lead() {
    Round round(bundle_, 0);
    if (!writer_->find_record()) explorer.fail("no record is free");
    writer_->begin();
    writer_->place(0);
    const Round::Attempt attempt = round.open(writer_->record(), kStep);
    element(0, attempt).store_relaxed(kStep);
    round.note_done(attempt);
    wait_for_fact(
        bundle_.round().leader, [&] { return round.has_done(1, attempt); }, [] {});
    if (element(1, attempt).load_relaxed() != kStep) explorer.fail("a slice is missing");
    if (writer_->commit(kStep) != kStep) explorer.fail("a generation is left out");
    round.close();
  }
  void follow() {
    Round round(bundle_, 1);
    Round::Attempt attempt;
    wait_for_fact(
        bundle_.round().writers, [&] { return round.try_enter(kStep, attempt); }, [] {});
    element(1, attempt).store_relaxed(kStep);
    round.note_done(attempt);
    wait_for_fact(
        bundle_.round().writers, [&] { return round.is_over(attempt); }, [] {});
    if (round.committed(attempt) != kStep) explorer.fail("a writer does not know what was committed");
  }

  Word* at(std::uint32_t slot) { return reinterpret_cast<Word*>(bundle_.slot(0, slot)); }

  static constexpr std::uint64_t kStep = 2;
  Bundle bundle_ = Bundle::create({.name = unique_job_name(),
                                   .tensors = {{.name = "a", .dtype = DType::kInt64, .shape = {2}}},
                                   .subscribers = 1,
                                   .records = 2,
                                   .writers = 2},
                                  {});
  std::optional<GenerationWriter> writer_;
};

// ---- snapshot points

// Pushes of two words each, and a process that makes a snapshot point and reads them.
struct SnapshotScene : WeakScene {
  TestJob job{config_of(3)};
  Member holders[2] = {Member{job}, Member{job}};  // of the ranks' bytes; the words are those of one mapping
  JobSegments snapshotter = job.attach();
  std::optional<SnapshotPointMaker> maker;
  struct Pushed {
    Word words[2] = {};
  } data[2];
  Word reserve{};
  struct Log {
    std::uint64_t last[2], seen[2][2], seen_by_newer[2];
  } log = {};

  SnapshotScene(std::uint32_t ranks, std::uint32_t pushes, bool to_copy) {
    if (!snapshotter.locks().try_take(kSnapshotByte)) throw std::runtime_error("the byte is taken");
    SnapshotPointShm& point = job.segments.state().snapshot_point;
    explorer.model(&point.word), explorer.name(&point.word, "snapshot word");
    explorer.model(&point.futex), explorer.name(&point.futex, "futex");
    explorer.model(data, 2), explorer.model(&reserve), explorer.name(&reserve, "reserve");
    explorer.remember(&log);
    explorer.at_start([this] { maker.emplace(job.segments); });
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      Word& pushing = job.segments.worker(rank).pushing;
      explorer.model(&pushing), explorer.name(&pushing, fmt::format("pushing {}", rank));
      for (Word& word : data[rank].words) explorer.name(&word, fmt::format("data of {}", rank));
      explorer.add([this, rank, pushes] {
        for (std::uint64_t push = 1; push <= pushes; ++push) go_through(rank, push);
      });
    }
    explorer.add(
        [this, ranks, to_copy] {
          reserve.store_relaxed(1);
          const SnapshotPoint made = maker->drain(std::uint64_t{1} << 50, to_copy, std::nullopt);
          for (std::uint32_t rank = 0; rank < ranks; ++rank)
            for (int i = 0; i < 2; ++i) log.seen[rank][i] = data[rank].words[i].load_relaxed();
          if (to_copy && !maker->open(made.epoch)) explorer.fail("opened by another one");
        },
        {.patience = 2 + ranks});
    explorer.at_end([this, ranks] {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        for (const std::uint64_t seen : log.seen[rank])
          if (seen < log.last[rank]) explorer.fail("a push of the snapshot point is not over when it opens");
        if (log.seen_by_newer[1 - rank] != 0 && log.seen_by_newer[1 - rank] - 1 < log.last[rank])
          explorer.fail("a push behind the snapshot point does not see one before it");
      }
    });
  }

  void go_through(std::uint32_t rank, std::uint64_t push) {
    WorkerShm& entry = job.segments.worker(rank);
    if (begin_push(job.segments, rank, entry) == 0)
      log.last[rank] = push;  // of the snapshot point
    else if (log.seen_by_newer[rank] == 0)
      log.seen_by_newer[rank] = 1 + data[1 - rank].words[1].load_relaxed();
    if (log.seen_by_newer[rank] != 0 && reserve.load_relaxed() == 0) explorer.fail("there is no reserve");
    for (Word& word : data[rank].words) word.store_relaxed(push);
    end_push(entry);
  }
};

// ---- settings

// Each setting of version v has the value v.
struct SettingsScene : WeakScene {
  TestJob job{config_of(2)};

  explicit SettingsScene(std::uint32_t changes) {
    explorer.model(&job.segments.state().live_version);
    explorer.name(&job.segments.state().live_version, "version");
    for (LiveShm& record : job.segments.state().live) {
      explorer.model(&record.quorum), explorer.model(&record.staleness), explorer.model(&record.workers);
      record.quorum.store_relaxed(0), record.staleness.store_relaxed(0), record.workers.store_relaxed(0);
    }
    // each by another process, which starts after the previous one has ended
    for (std::uint32_t i = 1; i <= changes; ++i) {
      WeakFiber options;
      options.after = i == 1 ? 0 : 1U << (i - 2);
      options.may_die = i + 1 < changes;
      explorer.add(
          [this, i] {
            if (!try_change_live(job.segments,
                                 [](LiveSettings& live) { ++live.quorum, ++live.workers, ++live.staleness; }))
              explorer.fail("the byte is taken");
          },
          options);
    }
    explorer.add([this] {
      const Live live = read_live(job.segments);
      if (live.settings.quorum != live.version || live.settings.staleness != live.version ||
          live.settings.workers != live.version)
        explorer.fail("settings of two versions");
    });
  }
};

// ---- events

// Two processes that write to the same entry of the ring, and one that reads it.
struct EventScene : WeakScene {
  TestJob job{config_of(2)};

  EventScene() {
    auto& tickets = job.segments.state().event_tickets[1];  // decisions
    for (std::uint64_t i = tickets.load_relaxed(); i < kDecisions; ++i) write(0);
    EventShm& place = job.segments.event(kLifeEvents);
    explorer.model(&tickets), explorer.name(&tickets, "tickets");
    explorer.model(&place.sequence), explorer.name(&place.sequence, "sequence");
    explorer.model(&place.step), explorer.model(&place.first), explorer.model(&place.second);
    explorer.add([this] { write(1); });
    explorer.add([this, &tickets] {
      tickets.fetch_add_relaxed(kDecisions - 1);  // others have filled the ring once
      write(2);
    });
    explorer.add([this] {
      for (const EventRecord& event : read_events(job.segments))
        if (event.kind == EventKind::kDecided && (event.first != event.step || event.second != event.step))
          explorer.fail("an event of two");
    });
  }
  void write(std::uint64_t step) {
    record_event(job.segments, {.kind = EventKind::kDecided, .step = step, .first = step, .second = step});
  }
};

}  // namespace

std::vector<WeakCase> scenes_of_waiting() {
  return {
      {"futex: a sleeper and an announcer",
       [] {
         auto scene = std::make_unique<FutexScene>();
         scene->announcer(0).sleeper(0);
         return scene;
       }},
      {"futex: two facts, each with a sleeper",
       [] {
         auto scene = std::make_unique<FutexScene>();
         scene->announcer(0).sleeper(0).announcer(1).sleeper(1);
         return scene;
       },
       false},
      {"futex: one announcer after the other, and two sleepers",
       [] {
         auto scene = std::make_unique<FutexScene>();
         scene->explorer.add([self = scene.get()] {
           for (const std::size_t which : {0U, 1U}) {
             self->data[which].store_relaxed(1);
             self->facts[which].store_release(1);
             futex_announce(self->futex);
           }
         });
         scene->sleeper(0).sleeper(1);
         return scene;
       },
       false},
      {"ssp: two workers go step by step",
       [] {
         auto scene = std::make_unique<ClockScene>();
         scene->stepper(0, 2, 0).stepper(1, 2, 0);
         return scene;
       },
       false},
      {"ssp: a newcomer enters while another one goes on",
       [] {
         auto scene = std::make_unique<ClockScene>();
         scene->runner(0, 2).newcomers();
         return scene;
       }},
      {"ssp: two newcomers enter while another one goes on",
       [] {
         auto scene = std::make_unique<ClockScene>(3);
         scene->runner(0, 2).newcomers();
         return scene;
       },
       false},
      {"publication: a leased generation is whole and stays",
       [] {
         auto scene = std::make_unique<PublicationScene>(4, 1);
         scene->reader(0, 1);
         return scene;
       }},
      {"publication: a reader that leases twice",
       [] {
         auto scene = std::make_unique<PublicationScene>(4, 1);
         scene->reader(0, 2);
         return scene;
       },
       false},
      {"publication: somebody looks without a lease",
       [] {
         auto scene = std::make_unique<PublicationScene>(4, 0);
         scene->looker(1);
         return scene;
       }},
      {"publication: a publisher dies anywhere, and the next one goes on",
       [] {
         auto scene = std::make_unique<PublicationScene>(3, 1, true);
         scene->reader(0, 1);
         return scene;
       },
       false},
      {"round: two writers of one generation", [] { return std::make_unique<RoundScene>(); }},
      {"snapshot: pushes and one who makes a snapshot point",
       [] { return std::make_unique<SnapshotScene>(1, 2, false); }, false},
      {"snapshot: pushes and one who copies", [] { return std::make_unique<SnapshotScene>(1, 2, true); }, false},
      {"snapshot: two pushers and one who makes a snapshot point",
       [] { return std::make_unique<SnapshotScene>(2, 1, false); }, false},
      {"settings: a reader, and one who changes them", [] { return std::make_unique<SettingsScene>(4); }, false},
      {"events: a reader, and one who writes to an old place", [] { return std::make_unique<EventScene>(); }},
  };
}

std::vector<WeakCase> all_scenes() {
  std::vector<WeakCase> all;
  for (const auto& scenes : {scenes_of_slots(), scenes_of_barriers(), scenes_of_waiting(), scenes_of_ranks()})
    all.insert(all.end(), scenes.begin(), scenes.end());
  return all;
}

}  // namespace ps_shm::test
