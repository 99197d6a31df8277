// Futexes, clocks, snapshot points, settings and events.
#include <array>
#include <memory>
#include <optional>

#include "scenes/scenes.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_record.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/steps/snapshot_point.hpp"
#include "shm/steps/ssp_clock.hpp"
#include "support/member.hpp"

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

struct FutexScene : Scene {
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

struct ClockScene : Scene {
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

// ---- snapshot points

// Pushes of two words each, and a process that makes a snapshot point and reads them.
struct SnapshotScene : Scene {
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
struct SettingsScene : Scene {
  TestJob job{config_of(2)};

  explicit SettingsScene(std::uint32_t changes) {
    explorer.model(&job.segments.state().live_version);
    explorer.name(&job.segments.state().live_version, "version");
    for (LiveShm& record : job.segments.state().live) {
      for (const config::LiveKey key :
           {config::LiveKey::kQuorum, config::LiveKey::kStaleness, config::LiveKey::kWorkers}) {
        explorer.model(&word_of(record, key));
        word_of(record, key).store_relaxed(0);
      }
    }
    // each by another process, which starts after the previous one has ended
    for (std::uint32_t i = 1; i <= changes; ++i) {
      FiberOptions options;
      options.after = i == 1 ? 0 : 1U << (i - 2);
      options.may_die = i + 1 < changes;
      explorer.add(
          [this] {
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
struct EventScene : Scene {
  TestJob job{config_of(2)};

  EventScene() {
    auto& tickets = job.segments.state().event_tickets[1];  // decisions
    for (std::uint64_t i = tickets.load_relaxed(); i < kDecisions; ++i) write(0);
    EventShm& place = job.segments.event(kLifeEvents);
    explorer.model(&tickets), explorer.name(&tickets, "tickets");
    explorer.model(&place.sequence), explorer.name(&place.sequence, "sequence");
    explorer.model(&place.step), explorer.model(&place.first), explorer.model(&place.second);
    // Where they write if the ring was not filled yet, or if the entry is taken.
    for (const std::uint32_t other : {1U, kDecisions - 1})
      explorer.remember(&job.segments.event(kLifeEvents + other).sequence);
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

std::vector<SceneCase> scenes_of_waiting() {
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
       Size::kMedium},
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
       Size::kMedium},
      {"ssp: two workers go step by step",
       [] {
         auto scene = std::make_unique<ClockScene>();
         scene->stepper(0, 2, 0).stepper(1, 2, 0);
         return scene;
       },
       Size::kMedium},
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
       Size::kMedium},
      {"snapshot: pushes and one who makes a snapshot point",
       [] { return std::make_unique<SnapshotScene>(1, 2, false); }, Size::kMedium},
      {"snapshot: pushes and one who copies", [] { return std::make_unique<SnapshotScene>(1, 2, true); },
       Size::kMedium},
      {"snapshot: two pushers and one who makes a snapshot point",
       [] { return std::make_unique<SnapshotScene>(2, 1, false); }, Size::kLarge},
      {"settings: a reader, and one who changes them", [] { return std::make_unique<SettingsScene>(4); },
       Size::kMedium},
      {"events: a reader, and one who writes to an old place", [] { return std::make_unique<EventScene>(); }},
  };
}

std::vector<SceneCase> all_scenes() {
  std::vector<SceneCase> all;
  for (const auto& scenes : {scenes_of_slots(), scenes_of_deaths(), scenes_of_workers(), scenes_of_barriers(),
                             scenes_of_waiting(), scenes_of_publications(), scenes_of_ranks()})
    all.insert(all.end(), scenes.begin(), scenes.end());
  return all;
}

}  // namespace ps_shm::test
