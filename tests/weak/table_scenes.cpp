// Tables by key on weak memory: a row that is pinned while another process evicts it, and one that is made for another
// key while it is pulled.
#include <array>
#include <memory>

#include "weak/scenes.hpp"

namespace ps_shm::test {
namespace {

using namespace ps_shm::shm;

using Word = AtomicShm<std::uint64_t>;

enum RowState : std::uint64_t { kFree, kClaimed, kNew, kLive, kSealed, kDead };
constexpr RowState state_of(std::uint64_t word) { return static_cast<RowState>(word & 7); }
constexpr std::uint64_t next_word(std::uint64_t word, RowState state) { return ((word >> 3) + 1) << 3 | state; }

constexpr std::uint64_t kFirstKey = 1, kSecondKey = 2;

// One row. Its elements are {key, number of updates}.
struct RowScene : WeakScene {
  Word word{}, key{};
  std::array<Word, 2> elements{};

  RowScene() {
    word.store_relaxed(next_word(0, kLive));
    key.store_relaxed(kFirstKey);
    for (Word& element : elements) element.store_relaxed(kFirstKey << 32);
    explorer.model(&word), explorer.name(&word, "word");
    explorer.model(&key), explorer.name(&key, "key");
    explorer.model(elements.data(), 2);
    for (Word& element : elements) explorer.name(&element, "element");
  }
  bool try_change(std::uint64_t& seen, RowState state) {
    std::uint64_t expected = seen;
    if (!word.try_exchange_acq_rel(expected, next_word(seen, state))) return false;
    seen = next_word(seen, state);
    return true;
  }
  // Makes the row, which was unlinked with the word `dead`, for the second key.
  void use_again(std::uint64_t dead, bool has_fence = true) {
    if (!try_change(dead, kFree)) explorer.fail("freed by another one");       // table.E7
    if (!try_change(dead, kClaimed)) explorer.fail("claimed by another one");  // table.I2
    if (has_fence) fence_release();                                            // table.I2
    key.store_relaxed(kSecondKey);                                             // table.I3
    for (Word& element : elements) element.store_relaxed(kSecondKey << 32);
    word.store_release(next_word(dead, kNew));  // table.I4
    dead = next_word(dead, kNew);
    static_cast<void>(try_change(dead, kLive));  // table.I6
  }
};

// A push, and an evictor whose row goes to the second key at once.
struct PinScene : RowScene {
  Word pin{};
  struct Log {
    std::uint64_t pushed, is_evicted, copied[2];
  } log = {};

  PinScene(bool pin_has_fence, bool seal_has_fence) {
    explorer.model(&pin), explorer.name(&pin, "pin");
    explorer.remember(&log);
    explorer.add([this, pin_has_fence] {
      pin.store_release(1);                      // table.P1
      if (pin_has_fence) fence_store_load();     // table.P2
      std::uint64_t seen = word.load_acquire();  // table.P3
      for (; state_of(seen) == kSealed && key.load_relaxed() == kFirstKey; seen = word.load_acquire())
        if (try_change(seen, kLive)) break;  // table.P3
      if (state_of(seen) == kLive && key.load_relaxed() == kFirstKey) {
        for (Word& element : elements) {  // table.P4
          const std::uint64_t before = element.load_relaxed();
          if (before != kFirstKey << 32) explorer.fail("a push to another key's row");
          element.store_relaxed(before + 1);
        }
        log.pushed = 1;
      }
      pin.store_release(0);  // table.P5
    });
    explorer.add([this, seal_has_fence] {
      std::uint64_t seen = word.load_acquire();                                        // table.E1
      if (state_of(seen) != kLive || !try_change(seen, kSealed)) return;               // table.E2
      if (seal_has_fence) fence_store_load();                                          // table.E3
      if (pin.load_acquire() != 0) return static_cast<void>(try_change(seen, kLive));  // table.E3, table.E4
      for (std::size_t i = 0; i < 2; ++i) log.copied[i] = elements[i].load_relaxed();
      if (!try_change(seen, kDead)) return;  // table.E5
      log.is_evicted = 1;
      use_again(seen);
    });
    explorer.at_end([this] {
      if (log.is_evicted == 0) return check(elements[0].load_relaxed(), elements[1].load_relaxed());
      check(log.copied[0], log.copied[1]);
      if (elements[0].load_relaxed() != kSecondKey << 32) explorer.fail("an update of the second key");
    });
  }
  void check(std::uint64_t first, std::uint64_t second) {
    if (first != (kFirstKey << 32) + log.pushed || second != first) explorer.fail("an update is lost");
  }
};

// Somebody evicts the row and makes it for the second key, while another one pulls one of the keys.
struct ReuseScene : RowScene {
  ReuseScene(bool claim_has_fence, bool pull_has_fence, std::uint64_t wanted = kFirstKey) {
    explorer.add([this, claim_has_fence] {
      std::uint64_t seen = word.load_acquire();
      for (const RowState state : {kSealed, kDead})
        if (!try_change(seen, state)) explorer.fail("changed by another one");
      use_again(seen, claim_has_fence);
    });
    explorer.add([this, pull_has_fence, wanted] {
      const std::uint64_t seen = word.load_acquire();  // table.R1
      if ((state_of(seen) != kLive && state_of(seen) != kSealed) || key.load_relaxed() != wanted) return;
      std::array<std::uint64_t, 2> copy;
      for (std::size_t i = 0; i < 2; ++i) copy[i] = elements[i].load_relaxed();  // table.R2
      if (pull_has_fence) fence_acquire();                                       // table.R3
      if (word.load_relaxed() != seen) return;                                   // table.R3
      for (const std::uint64_t element : copy)
        if (element != wanted << 32) explorer.fail("a pull returns another key's element");
    });
  }
};

template <class Scene, class... Options>
WeakCase scene_of(std::string name, Options... options) {
  return {std::move(name), [options...] { return std::make_unique<Scene>(options...); }};
}

}  // namespace

std::vector<WeakCase> scenes_of_tables() {
  return {scene_of<PinScene>("table: a push and an eviction of its row", true, true),
          scene_of<ReuseScene>("table: a row is made for another key while it is pulled", true, true),
          scene_of<ReuseScene>("table: a row is pulled that is just being made", true, true, kSecondKey)};
}

std::vector<WeakCase> broken_scenes_of_tables() {
  return {scene_of<PinScene>("table: a push without its fence (table.P2)", false, true),
          scene_of<PinScene>("table: an eviction without its fence (table.E3)", true, false),
          scene_of<ReuseScene>("table: a claim without its fence (table.I2)", false, true),
          scene_of<ReuseScene>("table: a pull without its fence (table.R3)", true, false)};
}

}  // namespace ps_shm::test
