// Publications, and the rounds of their writers.
#include <array>
#include <cstring>
#include <memory>
#include <optional>

#include "scenes/scenes.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/publication/publication.hpp"
#include "shm/publication/round.hpp"
#include "support/job.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

using Word = AtomicShm<std::uint64_t>;

// ---- publications

// Tensor 0 changes in each generation, tensor 1 in every other one. Each contains the number of the generation it was
// written for.
class PublicationScene : public Scene {
 public:
  PublicationScene(std::uint64_t generations, std::uint32_t readers, bool dies = false, std::uint32_t records = 3)
      : generations_(generations),
        has_enough_records_(records >= readers + 2),
        bundle_(
            Bundle::create({.name = unique_job_name(),
                            .tensors = {{.name = "a", .dtype = DType::kInt64}, {.name = "b", .dtype = DType::kInt64}},
                            .subscribers = std::max(readers, 1U),
                            .records = records},
                           {})) {
    explorer.model(&bundle_.newest().newest);
    explorer.name(&bundle_.newest().newest, "newest");
    explorer.model(&bundle_.waiters().futex);
    for (std::uint32_t rank = 0; rank < bundle_.subscribers(); ++rank) {
      explorer.model(&bundle_.subscriber(rank).leases[0]);
      explorer.name(&bundle_.subscriber(rank).leases[0], fmt::format("lease {}", rank));
    }
    for (std::uint32_t record = 0; record < records; ++record) {
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
    explorer.switch_at_races();
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
      FiberOptions options;
      options.may_die = dies && number == 0;
      options.after = number;  // the next publisher starts after the first one has ended or died
      explorer.add([this, number] { publish_all(*writers_[number]); }, options);
    }
    fibers_ = dies ? 2 : 1;
  }

  // `dies`: at any access. Then the next owner of its rank does the same.
  PublicationScene& reader(std::uint32_t rank, std::uint32_t leases, bool dies = false) {
    add_reader(rank, leases, false, {.may_die = dies});
    if (dies) add_reader(rank, leases, true, {.after = 1U << (fibers_ - 1)});
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
  void add_reader(std::uint32_t rank, std::uint32_t leases, bool is_successor, const FiberOptions& options) {
    ++fibers_;
    explorer.add(
        [this, rank, leases, is_successor] {
          auto& lease = bundle_.subscriber(rank).leases[0];
          if (is_successor) lease.store_release(0);  // (publication.P12)
          std::uint64_t last = 0;
          for (std::uint32_t i = 0; i < leases; ++i) {
            const std::uint64_t word = try_lease(bundle_.newest(), lease, last);
            if (word == 0) continue;
            if (generation_of(word) <= last) explorer.fail("an older one after a newer one");
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
        },
        options);
  }

  void publish_all(GenerationWriter& writer) {
    for (std::uint64_t generation;
         (generation = generation_of(bundle_.newest().newest.load_relaxed()) + 1) <= generations_;) {
      const auto fill = [&generation](std::uint32_t, std::byte* out) {
        reinterpret_cast<Word*>(out)->store_relaxed(generation);
      };
      if (!writer.find_record()) {  // all other records are leased
        if (has_enough_records_) explorer.fail("no record is free");
        return;
      }
      const std::vector<bool>& changed = generation == 1 || generation % 2 == 0 ? kBoth : kFirst;
      if (writer.publish(changed, generation, fill) != generation) explorer.fail("a generation is left out");
    }
  }

  Word& at(std::uint32_t tensor, std::uint32_t slot) { return *reinterpret_cast<Word*>(bundle_.slot(tensor, slot)); }

  static inline const std::vector<bool> kBoth = {true, true}, kFirst = {true, false};
  std::uint64_t generations_;
  std::uint32_t fibers_ = 0;
  bool has_enough_records_;
  Bundle bundle_;
  std::array<std::optional<GenerationWriter>, 2> writers_;
};

// A publisher and readers that wait for generations. Any of them may die; then the next owner of its byte goes on, or
// nobody.
class WaitingScene : public Scene {
 public:
  struct Shape {
    std::uint64_t generations = 3, first = 0;                        // the first ones are there from the beginning
    std::uint32_t readers = 1, leases = 2, records = 0, deaths = 0;  // records: 0: enough
    bool trims = false, has_successors = true;
    bool forgets = true;  // the search relies on it that a publisher remembers nothing of earlier generations
  };
  explicit WaitingScene(const Shape& shape)
      : shape_(shape),
        records_(shape.records != 0 ? shape.records : shape.readers + 2),
        bundle_(Bundle::create({.name = unique_job_name(),
                                .tensors = {{.name = "a", .dtype = DType::kInt64, .shape = {2}}},
                                .subscribers = shape.readers,
                                .records = records_},
                               {})) {
    explorer.model(&bundle_.newest().newest);
    explorer.name(&bundle_.newest().newest, "newest");
    for (std::uint32_t rank = 0; rank < shape.readers; ++rank) {
      explorer.model(&bundle_.subscriber(rank).leases[0]);
      explorer.name(&bundle_.subscriber(rank).leases[0], fmt::format("lease {}", rank));
    }
    for (std::uint32_t record = 0; record < records_; ++record) {
      explorer.model(&bundle_.record(record).stamp);
      explorer.model(bundle_.slots(record), 1);
      explorer.model(at(record), 2);
      for (int half = 0; half < 2; ++half) explorer.name(at(record) + half, fmt::format("slot {}.{}", record, half));
    }
    GenerationWriter first(bundle_);
    for (std::uint64_t generation = 1; generation <= shape.first && first.find_record(); ++generation)
      first.publish({true}, generation, Fill{generation});
    explorer.at_start([this] {
      for (auto& writer : writers_) writer.emplace(bundle_);
    });
    explorer.at_end([this] {
      if (shape_.has_successors && generation_of(bundle_.newest().newest.load_relaxed()) != shape_.generations)
        explorer.fail("generations are missing");
    });
    explorer.limit_deaths(shape.deaths);
    explorer.switch_at_races();
    const bool may_die = shape.deaths != 0;
    const std::uint32_t lives = shape.has_successors ? shape.deaths + 1 : 1;
    explorer.add([this] { publish(*writers_[explorer.deaths()]); },
                 {.may_die = may_die, .lives = lives, .byte = kPublisherByte});
    for (std::uint32_t rank = 0; rank < shape.readers; ++rank)
      explorer.add([this, rank] { read(rank); }, {.may_die = may_die, .lives = lives, .byte = kSubscriberByte + rank});
    if (shape.trims) {
      running_ = this;
      g_fault_hooks.reached = [](FaultPoint point) {
        if (point == FaultPoint::kPublicationTrimmed) running_->clear_trimmed();
      };
    }
  }
  ~WaitingScene() override {
    if (shape_.trims) g_fault_hooks.reached = nullptr;
  }

 private:
  static constexpr std::uint32_t kMostLives = 4;

  struct Fill {
    std::uint64_t generation;
    void operator()(std::uint32_t, std::byte* out) const {
      for (int half = 0; half < 2; ++half) reinterpret_cast<Word*>(out)[half].store_relaxed(generation);
    }
  };

  void publish(GenerationWriter& writer) {
    if (shape_.trims && explorer.deaths() != 0) trim(writer);
    for (std::uint64_t generation;
         (generation = generation_of(bundle_.newest().newest.load_relaxed()) + 1) <= shape_.generations;) {
      for (bool is_first = true; !writer.find_record(); is_first = false) {
        if (records_ >= shape_.readers + 2) explorer.fail("no record is free");
        explorer.poll(is_first, generation);
        if (explorer.idle_polls() > most_polls()) return explorer.fail("a record stays in use");
      }
      if (writer.publish({true}, generation, Fill{generation}) != generation) explorer.fail("a generation is left out");
      if (shape_.trims && explorer.pick(2) != 0) trim(writer);
      if (shape_.forgets) explorer.forget(generation);
    }
  }

  void read(std::uint32_t rank) {
    auto& lease = bundle_.subscriber(rank).leases[0];
    if (explorer.deaths() != 0) lease.store_release(0);  // (publication.P12)
    std::uint64_t last = 0;
    for (std::uint32_t i = 0; i < shape_.leases; ++i) {
      explorer.forget(last << 8 | i);
      std::uint64_t word = 0;
      for (bool is_first = true; (word = try_lease(bundle_.newest(), lease, last)) == 0; is_first = false) {
        if (has_no_more(bundle_, last)) break;
        explorer.poll(is_first, 0);
        if (explorer.idle_polls() > most_polls()) return explorer.fail("waits for nobody");
      }
      if (word == 0) {
        const bool is_over = shape_.deaths == 0 || !shape_.has_successors;  // no other publisher comes
        if (is_over && generation_of(bundle_.newest().newest.load_acquire()) > last)
          explorer.fail("a generation is missed");
        break;
      }
      if (generation_of(word) <= last) explorer.fail("an older one after a newer one");
      last = generation_of(word);
      for (int looks = 0; looks < 2; ++looks)
        for (int half = 0; half < 2; ++half) {
          const std::uint64_t found = at(bundle_.slots(record_of(word))[0].load_relaxed())[half].load_relaxed();
          if (found != last) explorer.fail(fmt::format("generation {} is {}", last, found));
        }
      give_back(lease);
    }
  }

  // Polls in vain while no other fiber can go on. On weak memory each store that is there may be missed a few times.
  std::uint64_t most_polls() const { return explorer.is_sequential() ? 3 : 16 * Memory::kMostRepeats; }

  // Trimming takes real memory, and the model has its own: what is zero behind it becomes zero in the model.
  void trim(GenerationWriter& writer) {
    for (std::uint32_t slot = 0; slot < records_; ++slot) std::memset(static_cast<void*>(at(slot)), 0xff, sizeof(Word));
    writer.trim();
  }
  void clear_trimmed() {
    for (std::uint32_t slot = 0; slot < records_; ++slot) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, static_cast<const void*>(at(slot)), sizeof bytes);
      if (bytes != 0) continue;
      std::memset(static_cast<void*>(at(slot)), 0xff, sizeof(Word));
      for (int half = 0; half < 2; ++half) at(slot)[half].store_relaxed(0);
    }
  }

  Word* at(std::uint32_t slot) { return reinterpret_cast<Word*>(bundle_.slot(0, slot)); }

  static inline WaitingScene* running_ = nullptr;

  Shape shape_;
  std::uint32_t records_;
  Bundle bundle_;
  std::array<std::optional<GenerationWriter>, kMostLives> writers_;
};

SceneCase waiting_scene(std::string name, Size size, const WaitingScene::Shape& shape) {
  return {std::move(name), [shape] { return std::make_unique<WaitingScene>(shape); }, size};
}

// ---- rounds

// Two writers, of which the first one leads, fill a tensor of two elements with the number of the second generation, which
// is the step, too. The first one exists.
class RoundScene : public Scene {
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

}  // namespace

std::vector<SceneCase> scenes_of_publications() {
  return {
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
       Size::kMedium},
      {"publication: a reader that leases three times",
       [] {
         auto scene = std::make_unique<PublicationScene>(4, 1);
         scene->reader(0, 3);
         return scene;
       },
       Size::kMedium},
      {"publication: two readers",
       [] {
         auto scene = std::make_unique<PublicationScene>(3, 2, false, 4);
         scene->reader(0, 1).reader(1, 1);
         return scene;
       },
       Size::kMedium},
      {"publication: a reader dies anywhere, and the next owner of its rank goes on",
       [] {
         auto scene = std::make_unique<PublicationScene>(3, 1);
         scene->reader(0, 1, true);
         return scene;
       },
       Size::kMedium},
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
       Size::kMedium},
      {"publication: a publisher dies anywhere beside a reader that leases twice",
       [] {
         auto scene = std::make_unique<PublicationScene>(3, 1, true);
         scene->reader(0, 2);
         return scene;
       },
       Size::kMedium},
      waiting_scene("publication: two readers wait for two generations each", Size::kMedium, {.readers = 2}),
      waiting_scene("publication: a publisher or a reader that waits dies", Size::kMedium, {.deaths = 1}),
      waiting_scene("publication: with two records, a publisher or a reader that waits dies", Size::kMedium,
                    {.generations = 4, .records = 2, .deaths = 1, .forgets = false}),
      waiting_scene("publication: with two records, a publisher or a reader that waits dies without a successor",
                    Size::kMedium, {.records = 2, .deaths = 1, .has_successors = false}),
      waiting_scene("publication: a publisher and a reader that waits die twice", Size::kMedium, {.deaths = 2}),
      waiting_scene("publication: a publisher gives memory back, and it or a reader dies", Size::kMedium,
                    {.deaths = 1, .trims = true}),
      waiting_scene("publication: a publisher dies, and its successor gives memory back", Size::kSmall,
                    {.generations = 2, .first = 1, .leases = 1, .deaths = 1, .trims = true}),
      waiting_scene("publication: two readers that wait, and one or the publisher dies", Size::kLarge,
                    {.readers = 2, .leases = 1, .deaths = 1}),
      waiting_scene("publication: with two records, two readers that wait, and one or the publisher dies", Size::kLarge,
                    {.readers = 2, .leases = 1, .records = 2, .deaths = 1}),
      waiting_scene("publication: a publisher gives memory back beside two readers, and one of the three dies",
                    Size::kLarge, {.generations = 2, .readers = 2, .leases = 1, .deaths = 1, .trims = true}),
      waiting_scene("publication: a publisher and a reader that waits die three times", Size::kLarge,
                    {.generations = 4, .deaths = 3}),
      {"round: two writers of one generation", [] { return std::make_unique<RoundScene>(); }},
  };
}

}  // namespace ps_shm::test
