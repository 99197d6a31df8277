// Tables by key: the product's own pushes, pulls, evictions, repairs and dumps, of rows that change hands.
#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "scenes/scenes.hpp"
#include "shm/base/racing.hpp"
#include "shm/table/table_segment.hpp"
#include "support/test_job.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

constexpr std::uint32_t kLanes = 3;  // the last one makes what there is at the beginning
constexpr std::uint64_t kWidth = 2;
constexpr std::array<std::uint64_t, 2> kKeys = {1, 2};
constexpr float kOfKey = 16;            // elements begin as this times their key; each push adds one
constexpr std::uint32_t kBytes = 1000;  // lock bytes of the lanes, for the explorer
constexpr std::uint64_t kOldKey = 3;    // was evicted before a scene's dump begins
constexpr std::uint32_t kBase = 2;      // dump that a scene's dump continues
constexpr std::uint64_t kListed = 4;    // entries of a list that are modelled

enum class Dumps {
  kNone,
  kFollowed,  // the scene has a dump, whose reader has the dump before it
  kFullList,  // also, the next eviction of lane 1 overwrites the entry of kOldKey
};

// What an element says of whose row it is in.
std::uint64_t key_of(float element) { return static_cast<std::uint64_t>(element / kOfKey); }

JobConfig config_of_lanes() {
  JobConfig config;
  config.workers = config.max_workers = kLanes;
  config.seed = 1;  // so that all runs explore the same list
  return config;
}

// Three rows are modelled: the first one is the first key's, the others are free, and each lane knows that.
class TableScene : public Scene, RowMaker {
 public:
  explicit TableScene(Dumps dumps = Dumps::kNone) {
    const TableSpec spec{.name = "t", .row_size = kWidth, .max_rows = 64};
    auto parts = open_table(job_.segments, {spec, UpdateRule::kAdd, 0, false}, [this](std::uint32_t lane) {
      return explorer.is_held(kBytes + lane).value_or(true) ? 1U : 0U;
    });
    part_ = std::move(parts.front());
    for (std::uint32_t lane = 0; lane < kLanes; ++lane) lanes_[lane] = part_->begin(lane);
    push(kLanes - 1, 0);
    std::byte* const base = part_->segment().data();
    const auto model = [&](auto& word, const std::string& name) {
      explorer.model(&word);
      explorer.name(&word, name);
    };
    for (std::uint64_t number = 0; number < rows_.size(); ++number) {
      rows_[number] =
          reinterpret_cast<TableRowShm*>(base + part_->record().rows_offset + number * part_->record().row_bytes);
      model(rows_[number]->key, fmt::format("key {}", number));
      model(rows_[number]->word, fmt::format("word {}", number));
      explorer.model(elements(number), kWidth);
    }
    auto* const buckets = reinterpret_cast<AtomicShm<std::uint64_t>*>(base + part_->record().buckets_offset);
    for (const std::uint64_t& key : kKeys)
      for (std::uint32_t bucket = part_->ask({&key, 1}).buckets[0];; bucket &= ~std::bit_floor(bucket)) {
        model(buckets[bucket], fmt::format("bucket {}", bucket));
        if (bucket == 0) break;
      }
    for (std::uint32_t lane = 0; lane + 1 < kLanes; ++lane) {
      model(lanes_[lane].shared->pins[0], fmt::format("pin {}", lane));
      model(lanes_[lane].shared->inserting, fmt::format("note {}", lane));
    }
    if (dumps != Dumps::kNone) follow_dumps(dumps == Dumps::kFullList, model);
    explorer.remember(&log_);
    explorer.remember(const_cast<AtomicShm<std::uint64_t>*>(&part_->record().hand));
    explorer.at_start([this] {
      for (std::uint32_t number = 0; number + 1 < kLanes; ++number) {
        TableLane& lane = lanes_[number];
        lane.free_rows = {2, 1};
        lane.sealed.clear(), lane.pinned.clear(), lane.candidates.clear();
        lane.random = number;
      }
    });
    explorer.at_end([this] {
      check();
      if (log_.has_dumped) check_copies();
    });
  }

  TableScene& pusher(std::uint32_t lane, std::size_t which) {
    explorer.add([=, this] { push(lane, which); });
    return *this;
  }
  // Both push the same key: only then an update is an exchange, which orders more than one that is relaxed.
  TableScene& two_pushers(std::size_t which) {
    has_two_pushers_ = true;
    return pusher(0, which).pusher(1, which);
  }
  // Evicts the first key's row, and makes one of the second key.
  TableScene& evictor(std::uint32_t lane, bool makes_row = true) {
    explorer.add([=, this] {
      log_.evicted = part_->evict(lanes_[lane], {&kKeys[0], 1});
      if (makes_row) push(lane, 1);
    });
    return *this;
  }
  // Brings the copies up to date, as the reader of a dump does.
  TableScene& dumper(std::uint32_t lane) {
    explorer.add([=, this] {
      const std::uint32_t dump = part_->next_dump();
      std::uint32_t since = kBase;
      gone_.clear();
      if (!part_->begin_dump(lanes_[lane], dump, since, gone_)) since = 0;
      for (Copy& copy : log_.copies)
        if (since == 0 || std::find(gone_.begin(), gone_.end(), copy.key) != gone_.end()) copy.has_row = false;
      Copy read;
      part_->for_each(
          since, since == 0,
          [&](std::uint64_t key, const float* row) {
            read = {key, true, {}};
            for (std::size_t i = 0; i < kWidth; ++i)
              read.elements[i] = reinterpret_cast<const AtomicShm<float>*>(row)[i].load_relaxed();
          },
          [&] {
            for (const float element : read.elements)
              if (key_of(element) != read.key) explorer.fail("a dump has another key's element");
            for (Copy& copy : log_.copies)
              if (copy.key == read.key) copy = read;
          });
      log_.has_dumped = true;
    });
    return *this;
  }
  TableScene& puller(std::uint32_t lane, std::size_t which) {
    explorer.add([=, this] {
      TablePart::Batch batch = part_->ask({&kKeys[which], 1});
      part_->enter(batch, false);  // the row that it meets is tried first
      std::array<float, kWidth> copied;
      const bool has_row = part_->read(lanes_[lane], batch, 0, [&](const float* row) {
        for (std::size_t i = 0; i < kWidth; ++i)
          copied[i] = reinterpret_cast<const AtomicShm<float>*>(row)[i].load_relaxed();
      });
      for (const float element : copied)
        if (has_row && key_of(element) != kKeys[which]) explorer.fail("a pull returns another key's element");
    });
    return *this;
  }
  // Makes a row of the second key, which others push, too, and dies somewhere.
  TableScene& dying(std::uint32_t lane) {
    has_two_pushers_ = true;
    explorer.add([=, this] { push(lane, 1); }, {.may_die = true, .byte = kBytes + lane});
    return *this;
  }
  // The clock sweep passes all rows; then the second key needs a row.
  TableScene& tender(std::uint32_t lane) {
    explorer.add([=, this] {
      part_->tend(lanes_[lane], rows_.size());
      if (!push(lane, 1)) explorer.fail("there is no room");
    });
    return *this;
  }

 private:
  void make(std::uint64_t key, float* row) const noexcept override {
    for (std::size_t i = 0; i < kWidth; ++i) row[i] = kOfKey * float(key);
  }
  AtomicShm<float>* elements(std::uint64_t number) const {
    return reinterpret_cast<AtomicShm<float>*>(rows_[number] + 1);
  }
  EvictedShm* list_of(std::uint32_t lane) const {
    return reinterpret_cast<EvictedShm*>(part_->segment().data() + part_->record().evicted_offset) +
           lane * part_->record().listed_at_most;
  }
  // Takes the dump kBase, which has the first key's row, and models what a dump reads besides the rows.
  void follow_dumps(bool is_list_full, const auto& model) {
    std::vector<std::uint64_t> gone;
    if (part_->next_dump() != kBase || !part_->begin_dump(lanes_[0], kBase, 0, gone))
      throw std::logic_error("another dump is the first one");
    for (std::size_t i = 0; i < kWidth; ++i) log_.copies[0].elements[i] = elements(0)[i].load_relaxed();
    log_.copies[0].has_row = true;
    TableLaneShm& own = *lanes_[1].shared;
    if (is_list_full) {
      for (std::uint64_t place = 0; place < part_->record().listed_at_most; ++place) {
        list_of(1)[place].key.store_relaxed(place == 0 ? kOldKey : kOldKey + 1);
        list_of(1)[place].epoch.store_relaxed(kBase);
      }
      own.listed.store_relaxed(part_->record().listed_at_most);
      log_.copies[2].has_row = true;
    }
    model(const_cast<AtomicShm<std::uint32_t>&>(part_->record().dump_epoch), "epoch");
    model(own.listed, "listed");
    model(own.lost, "lost");
    for (std::uint64_t place = 0; place < kListed; ++place) {
      model(list_of(1)[place].key, fmt::format("listed key {}", place));
      model(list_of(1)[place].epoch, fmt::format("listed epoch {}", place));
    }
    for (std::uint64_t number = 0; number < rows_.size(); ++number)
      model(rows_[number]->changed, fmt::format("changed {}", number));
  }
  // False: there is no row for it.
  bool push(std::uint32_t lane, std::size_t which) {
    const TablePart::Batch batch = part_->ask({&kKeys[which], 1});
    float* row = nullptr;
    part_->pin(lanes_[lane], batch, *this, true, &row);
    for (std::size_t i = 0; row != nullptr && i < kWidth; ++i) {
      AtomicShm<float>& element = reinterpret_cast<AtomicShm<float>*>(row)[i];
      float before = element.load_relaxed();
      if (key_of(before) != kKeys[which]) explorer.fail("a push to another key's row");
      if (!has_two_pushers_)
        element.store_relaxed(before + 1);
      else
        while (!element.try_exchange_acq_rel(before, before + 1)) {
        }
    }
    if (row != nullptr) log_.pushed[lane][which] += 1;
    part_->unpin(lanes_[lane]);
    return row != nullptr;
  }

  // One row of a key, with all pushes to it, if no row of it was evicted.
  void check() {
    for (std::size_t which = 0; which < kKeys.size(); ++which) {
      std::uint64_t found = 0, pushed = 0;
      for (const auto& by_lane : log_.pushed) pushed += by_lane[which];
      for (std::uint64_t number = 0; number < rows_.size(); ++number) {
        const RowState state = state_of(rows_[number]->word.load_relaxed());
        if ((state != RowState::kLive && state != RowState::kSealed) ||
            rows_[number]->key.load_relaxed() != kKeys[which])
          continue;
        ++found;
        for (std::size_t i = 0; i < kWidth; ++i) {
          const float element = elements(number)[i].load_relaxed();
          if (key_of(element) != kKeys[which]) explorer.fail("an element of another key");
          if (log_.evicted == 0 && element < kOfKey * float(kKeys[which]) + float(pushed))
            explorer.fail("an update is lost");
        }
      }
      if (found > 1) explorer.fail("two rows of a key");
      if (found == 0 && log_.evicted == 0 && pushed != 0) explorer.fail("a row is lost");
    }
  }

  // What the copies lack, the next dump has.
  void check_copies() {
    constexpr std::uint32_t kNext = kBase + 1;
    const TableLaneShm& own = *lanes_[1].shared;
    if (own.lost.load_relaxed() >= kNext) return;  // it has all rows
    const std::uint64_t end = own.listed.load_relaxed(), at_most = part_->record().listed_at_most;
    for (const Copy& copy : log_.copies) {
      bool is_in_next = false, has_row = false;
      for (std::uint64_t number = end > at_most ? end - at_most : 0; number < end; ++number) {
        const EvictedShm& entry = list_of(1)[number % at_most];
        is_in_next |= entry.key.load_relaxed() == copy.key && entry.epoch.load_relaxed() >= kNext;
      }
      for (std::uint64_t number = 0; number < rows_.size(); ++number) {
        const RowState state = state_of(rows_[number]->word.load_relaxed());
        if ((state != RowState::kLive && state != RowState::kSealed) || rows_[number]->key.load_relaxed() != copy.key)
          continue;
        has_row = true;
        is_in_next |= rows_[number]->changed.load_relaxed() >= kNext;
        for (std::size_t i = 0; i < kWidth && !is_in_next && copy.has_row; ++i)
          if (elements(number)[i].load_relaxed() != copy.elements[i]) explorer.fail("no dump has an update");
      }
      if (is_in_next || has_row == copy.has_row) continue;
      explorer.fail(has_row ? "no dump has a new row" : "no dump tells of an eviction");
    }
  }

  TestJob job_{config_of_lanes()};
  std::unique_ptr<TablePart> part_;
  std::array<TableLane, kLanes> lanes_;
  std::array<TableRowShm*, 3> rows_{};
  bool has_two_pushers_ = false;
  std::vector<std::uint64_t> gone_;  // of the dump under way
  struct Copy {
    std::uint64_t key;
    bool has_row;
    float elements[kWidth];
  };
  struct {
    std::uint64_t pushed[kLanes][2], evicted;  // by lane and key; rows
    bool has_dumped;
    Copy copies[3];  // that the reader of the dumps has
  } log_ = {{}, 0, false, {{kKeys[0], false, {}}, {kKeys[1], false, {}}, {kOldKey, false, {}}}};
};

template <class Add>
SceneCase scene_with(std::string name, Add add, Dumps dumps = Dumps::kNone, Size size = Size::kMedium) {
  return {std::move(name),
          [add, dumps] {
            auto scene = std::make_unique<TableScene>(dumps);
            add(*scene);
            return scene;
          },
          size};
}

const SceneCase kPushBesideEviction = scene_with("table: a push, and an eviction of its row, which another key gets",
                                                 [](TableScene& scene) { scene.pusher(0, 0).evictor(1); });
const SceneCase kPullBesideEviction = scene_with("table: a pull, and an eviction of its row, which another key gets",
                                                 [](TableScene& scene) { scene.puller(0, 0).evictor(1); });

const SceneCase kDumpBesidePush = scene_with(
    "table: a dump, and a push", [](TableScene& scene) { scene.dumper(0).pusher(1, 0); }, Dumps::kFollowed);
const SceneCase kDumpBesideEviction = scene_with(
    "table: a dump, and an eviction of a row, which another key gets",
    [](TableScene& scene) { scene.dumper(0).evictor(1); }, Dumps::kFollowed);
const SceneCase kDumpBesideFullList = scene_with(
    "table: a dump, and an eviction whose entry takes the place of another one",
    [](TableScene& scene) { scene.dumper(0).evictor(1, false); }, Dumps::kFullList, Size::kLarge);

// The scene without the fence of that function of the table, the first one in it.
SceneCase without(const SceneCase& one, const char* label, const std::string& function, Weaker weaker) {
  return {fmt::format("{} without the fence of {}", one.name, label),
          [=] {
            auto scene = one.make();
            g_places.clear();
            g_notes_places = true;
            scene->explorer.sample(100, 7);
            g_notes_places = false;
            static std::set<std::string> files;  // a mutation does not own its file's name
            std::optional<Mutation> found;
            for (const auto& [place, in] : g_places) {
              const auto& [file, line, column, operation, order] = place;
              if (!found && operation == Operation::kFence && file.find("shm/table/") != std::string::npos &&
                  in.find("::" + function + "(") != std::string::npos)
                found = Mutation{*files.insert(file).first, line, column, operation, weaker};
            }
            if (!found) throw std::logic_error("no fence in " + function);
            scene->explorer.weaken(*found);
            return scene;
          },
          Size::kMedium};
}

}  // namespace

std::vector<SceneCase> scenes_of_tables() {
  return {kPushBesideEviction,
          kPullBesideEviction,
          scene_with(
              "table: two pushes of a new key", [](TableScene& scene) { scene.two_pushers(1); }, Dumps::kNone,
              Size::kLarge),
          scene_with("table: somebody dies who makes a row, and the clock sweep passes",
                     [](TableScene& scene) { scene.dying(0).tender(1); }),
          kDumpBesidePush,
          kDumpBesideEviction,
          kDumpBesideFullList};
}

std::vector<SceneCase> broken_scenes_of_tables() {
  return {without(kPushBesideEviction, "table.P2", "pin", Weaker::kNoOrder),
          without(kPushBesideEviction, "table.E3", "list_sealed", Weaker::kNoOrder),
          without(kPullBesideEviction, "table.I2", "claim", Weaker::kNoRelease),
          without(kPullBesideEviction, "table.R3", "read", Weaker::kNoAcquire),
          without(kDumpBesidePush, "table.P2", "pin", Weaker::kNoOrder),
          without(kDumpBesidePush, "table.D1", "begin_dump", Weaker::kNoOrder),
          without(kDumpBesideEviction, "table.L2", "list_sealed", Weaker::kNoOrder),
          without(kDumpBesideEviction, "table.D1", "begin_dump", Weaker::kNoOrder),
          without(kDumpBesideEviction, "table.R3", "for_each", Weaker::kNoAcquire),
          without(kDumpBesideFullList, "table.L1", "list", Weaker::kNoRelease),
          without(kDumpBesideFullList, "table.D3", "read_list", Weaker::kNoAcquire)};
}

}  // namespace ps_shm::test
