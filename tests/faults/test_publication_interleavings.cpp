// Explores all interleavings of publishing and leasing (explorer.hpp): the real functions, on a bundle of two tensors
// of one word. Versions with flaws are explored, too; the search must find each flaw. Fences are not tested here: see
// publication.pml.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <span>

#include "faults/explorer.hpp"
#include "shm/publication/publication.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

enum class Flaw { kNone, kNoSecondLook, kNameFirst, kOldLook, kSameSlot };

struct Shape {
  std::uint32_t readers = 1, records = 3;
  std::uint64_t generations = 3, leases = 2;
  bool readers_die = false, publisher_dies = false;
  Flaw flaw = Flaw::kNone;
};

// Tensor 0 changes in each generation, tensor 1 in every other one. Each contains the number of the generation it was
// written for.
class Scene {
 public:
  explicit Scene(const Shape& shape)
      : shape_(shape),
        bundle_(Bundle::create(spec_of(shape), {})),
        explorer_(std::span(bundle_.segment().data(), bytes())) {
    remember_word(bundle_.newest().newest);
    for (std::uint32_t rank = 0; rank < shape.readers; ++rank) remember_word(bundle_.subscriber(rank).leases[0]);
    for (std::uint32_t record = 0; record < shape.records; ++record) {
      explorer_.remember(&bundle_.record(record).stamp);
      explorer_.remember(bundle_.slots(record), 2);
      for (std::uint32_t tensor = 0; tensor < 2; ++tensor) {
        auto* word = reinterpret_cast<std::uint64_t*>(bundle_.slot(tensor, record));
        explorer_.remember(word);
        explorer_.watch(word, Watch::kWord);
      }
    }
    explorer_.remember(&seen_);
    add_publisher(shape.publisher_dies, 0);
    if (shape.publisher_dies) add_publisher(false, 1);  // fiber 1, once fiber 0 has died or ended
    const std::uint32_t first = shape.publisher_dies ? 2 : 1;
    for (std::uint32_t rank = 0; rank < shape.readers; ++rank) add_reader(rank, shape.readers_die, 0);
    if (shape.readers_die) add_reader(0, false, 1U << first);  // the next owner of the rank
  }

  Explored explore() { return explorer_.explore(); }

 private:
  static BundleSpec spec_of(const Shape& shape) {
    return {.name = "scene",
            .tensors = {{.name = "a", .dtype = DType::kInt64}, {.name = "b", .dtype = DType::kInt64}},
            .subscribers = shape.readers,
            .records = shape.records};
  }
  std::size_t bytes() const { return bundle_bytes(bundle_.spec()); }

  void remember_word(AtomicShm<std::uint64_t>& word) {
    explorer_.remember(&word);
    explorer_.watch(&word, Watch::kWord);
  }

  void write(std::byte* out, std::uint64_t value) {
    shared_access(out, true);
    *reinterpret_cast<std::uint64_t*>(out) = value;
  }
  std::uint64_t read(const std::byte* in) {
    shared_access(in, false);
    return *reinterpret_cast<const std::uint64_t*>(in);
  }

  void add_publisher(bool dies, std::uint32_t after) {
    explorer_.add(
        [this] {
          NewestShm& newest = bundle_.newest();
          GenerationWriter *writer = &writer_, *other = &other_;
          if (shape_.flaw == Flaw::kOldLook) static_cast<void>(other->find_record());
          while (generation_of(newest.newest.load_relaxed()) < shape_.generations) {
            const std::uint64_t generation = generation_of(newest.newest.load_relaxed()) + 1;
            const std::vector<bool>& changed = generation == 1 || generation % 2 == 0 ? kBoth : kFirst;
            const auto fill = [&](std::uint32_t, std::byte* out) {
              if (shape_.flaw == Flaw::kNameFirst)  // the next record in an undisturbed run
                newest.newest.store_relaxed(make_newest(generation, std::uint32_t((generation - 1) % 2)));
              write(shape_.flaw == Flaw::kSameSlot ? bundle_.slot(0, 0) : out, generation);
            };
            if (shape_.flaw == Flaw::kOldLook) std::swap(writer, other);
            // With the flaw, the check is for the generation after this one, and was made before this one had a name.
            if (!(shape_.flaw == Flaw::kOldLook ? other : writer)->find_record())
              return explorer_.fail("no record is free");
            if (writer->publish(changed, generation, fill) != generation) explorer_.fail("a generation is left out");
          }
        },
        {.may_die = dies, .after = after});
  }

  void add_reader(std::uint32_t rank, bool dies, std::uint32_t after) {
    explorer_.add(
        [this, rank, after] {
          auto& lease = bundle_.subscriber(rank).leases[0];
          if (after != 0) lease.store_release(0);  // (publication.P12)
          if (after != 0) seen_[rank] = 0;
          for (std::uint64_t i = 0; i < shape_.leases; ++i) {
            const std::uint64_t word = shape_.flaw == Flaw::kNoSecondLook
                                           ? hasty_lease(lease, seen_[rank])
                                           : try_lease(bundle_.newest(), lease, seen_[rank]);
            if (word == 0) continue;
            const std::uint64_t generation = generation_of(word);
            if (generation <= seen_[rank]) explorer_.fail("an older one after a newer one");
            seen_[rank] = generation;
            for (int looks = 0; looks < 2; ++looks) {
              const AtomicShm<std::uint16_t>* slots = bundle_.slots(record_of(word));
              const std::uint64_t first = read(bundle_.slot(0, slots[0].load_relaxed()));
              const std::uint64_t second = read(bundle_.slot(1, slots[1].load_relaxed()));
              explorer_.saw(first << 32 | second);
              if (first != generation || second != (generation == 1 ? 1 : generation / 2 * 2))
                explorer_.fail(fmt::format("generation {} is {}, {}", generation, first, second));
            }
            give_back(lease);
          }
        },
        {.may_die = dies, .after = after});
  }

  std::uint64_t hasty_lease(AtomicShm<std::uint64_t>& lease, std::uint64_t newer_than) {
    const std::uint64_t word = bundle_.newest().newest.load_acquire();  // (publication.P4)
    if (generation_of(word) <= newer_than) return 0;
    lease.store_release(record_of(word) + 1);  // (publication.P4)
    return word;
  }

  static inline const std::vector<bool> kBoth = {true, true}, kFirst = {true, false};
  Shape shape_;
  Bundle bundle_;
  GenerationWriter writer_{bundle_}, other_{bundle_};
  std::array<std::uint64_t, 4> seen_{};
  Explorer explorer_;
};

Explored explore(const Shape& shape) {
  const Explored found = Scene(shape).explore();
  MESSAGE(fmt::format("{} executions, {} states, {} ends, {} steps; {}", found.executions, found.states, found.ends,
                      found.longest, found.failure));
  return found;
}

}  // namespace

TEST_CASE("interleavings: a leased generation stays complete and unchanged while others are published") {
  const std::uint64_t more = g_full ? 1 : 0;
  SUBCASE("one reader") { CHECK(explore({.generations = 4 + more, .leases = 3 + more}).failure.empty()); }
  SUBCASE("two readers") {
    CHECK(explore({.readers = 2, .records = 4, .generations = 3 + more, .leases = 1 + more}).failure.empty());
  }
}

TEST_CASE("interleavings: a reader dies at any access, and the next owner of its rank reads on") {
  CHECK(explore({.generations = 3, .leases = 1, .readers_die = true}).failure.empty());
}

TEST_CASE("interleavings: a publisher dies at any access, and the next one continues") {
  CHECK(explore({.generations = 3, .leases = 2, .publisher_dies = true}).failure.empty());
}

TEST_CASE("interleavings: flaws of publishing and leasing are found") {
  for (const Flaw flaw : {Flaw::kNoSecondLook, Flaw::kNameFirst, Flaw::kOldLook, Flaw::kSameSlot}) {
    CAPTURE(int(flaw));
    CHECK_FALSE(explore({.generations = 4, .leases = 2, .flaw = flaw}).failure.empty());
  }
}
