// Checks the model of weak memory with litmus tests from the literature: each program must show exactly the outcomes
// that C++20 allows, except LB. The names are those of Maranget, Sarkar and Sewell, A Tutorial Introduction to the ARM
// and POWER Relaxed Memory Models, 2012.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "scenes/explorer.hpp"

using namespace ps_shm::test;
using ps_shm::shm::AtomicShm;

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed, kAcquire = std::memory_order_acquire,
               kRelease = std::memory_order_release, kAcqRel = std::memory_order_acq_rel,
               kSeqCst = std::memory_order_seq_cst;

using Order = std::memory_order;
using Outcomes = std::set<std::string>;

// Words x, y and z, and registers. An outcome is the registers in order, then the final x and y if requested.
struct Litmus {
  std::array<AtomicShm<std::uint64_t>, 3> words{};
  std::array<std::uint64_t, 6> registers{};
  std::size_t used = 0;
  Explorer explorer;

  std::uint64_t load(std::size_t word, Order order) { return words[word].load(order, ps_shm::shm::Site::current()); }
  void store(std::size_t word, std::uint64_t value, Order order) {
    words[word].store(value, order, ps_shm::shm::Site::current());
  }
  void read(std::size_t into, std::size_t word, Order order) { registers[into] = load(word, order); }
  void fence(Order order) {
    if (order != kRelaxed) ps_shm::shm::fence(order, ps_shm::shm::Site::current());
  }
  void add(std::size_t word, std::uint64_t delta, Order order) {
    explorer.change(&words[word], 8, ps_shm::shm::Change::kAdd, delta, order, ps_shm::shm::Site::current());
  }
};
constexpr std::size_t x = 0, y = 1, z = 2;

using Thread = std::function<void(Litmus&)>;

Outcomes outcomes_of(const std::vector<Thread>& threads, std::size_t registers, std::size_t finals = 0) {
  const auto litmus = std::make_unique<Litmus>();
  Outcomes outcomes;
  litmus->explorer.model(litmus->words.data(), litmus->words.size());
  litmus->explorer.remember(litmus->registers.data(), litmus->registers.size());
  for (const Thread& thread : threads) litmus->explorer.add([&] { thread(*litmus); });
  litmus->explorer.at_end([&] {
    std::string outcome;
    for (std::size_t i = 0; i < registers; ++i) outcome += fmt::format("{}", litmus->registers[i]);
    for (std::size_t i = 0; i < finals; ++i) outcome += fmt::format("{}", litmus->words[i].load_relaxed());
    outcomes.insert(outcome);
  });
  const Explored found = litmus->explorer.explore();
  CHECK(found.is_complete);
  CHECK_MESSAGE(found.failure.empty(), found.failure);
  // Random executions must show no other outcomes and, as there are many of them for so small a program, no fewer.
  Outcomes all = std::exchange(outcomes, {});
  CHECK(litmus->explorer.sample(20000, 1).failure.empty());
  CHECK(outcomes == all);
  return all;
}

}  // namespace

TEST_CASE("litmus: store buffering (SB)") {
  const auto run = [](Order store, Order fence, Order load) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, store), l.fence(fence), l.read(0, y, load); },
                        [=](Litmus& l) { l.store(y, 1, store), l.fence(fence), l.read(1, x, load); }},
                       2);
  };
  const Outcomes all = {"00", "01", "10", "11"}, strong = {"01", "10", "11"};
  CHECK(run(kRelaxed, kRelaxed, kRelaxed) == all);
  CHECK(run(kRelease, kRelaxed, kAcquire) == all);
  CHECK(run(kRelease, kAcqRel, kAcquire) == all);
  CHECK(run(kRelaxed, kSeqCst, kRelaxed) == strong);
  CHECK(run(kSeqCst, kRelaxed, kSeqCst) == strong);
  CHECK(run(kSeqCst, kRelaxed, kAcquire) == all);
}

TEST_CASE("litmus: store buffering with a fence on one side alone") {
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.fence(kSeqCst), l.read(0, y, kRelaxed); },
                     [](Litmus& l) { l.store(y, 1, kRelaxed), l.read(1, x, kRelaxed); }},
                    2) == Outcomes{"00", "01", "10", "11"});
}

TEST_CASE("litmus: message passing (MP)") {
  const auto run = [](Order fence_out, Order store, Order load, Order fence_in) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, kRelaxed), l.fence(fence_out), l.store(y, 1, store); },
                        [=](Litmus& l) { l.read(0, y, load), l.fence(fence_in), l.read(1, x, kRelaxed); }},
                       2);
  };
  const Outcomes all = {"00", "01", "10", "11"}, strong = {"00", "01", "11"};
  CHECK(run(kRelaxed, kRelaxed, kRelaxed, kRelaxed) == all);
  CHECK(run(kRelaxed, kRelease, kAcquire, kRelaxed) == strong);
  CHECK(run(kRelaxed, kRelease, kRelaxed, kRelaxed) == all);
  CHECK(run(kRelaxed, kRelaxed, kAcquire, kRelaxed) == all);
  CHECK(run(kRelease, kRelaxed, kRelaxed, kAcquire) == strong);
  CHECK(run(kRelease, kRelaxed, kAcquire, kRelaxed) == strong);
  CHECK(run(kRelaxed, kRelease, kRelaxed, kAcquire) == strong);
  CHECK(run(kRelease, kRelaxed, kRelaxed, kRelaxed) == all);
  CHECK(run(kRelaxed, kRelaxed, kRelaxed, kAcquire) == all);
  CHECK(run(kSeqCst, kRelaxed, kRelaxed, kSeqCst) == strong);
}

// A release store does not prevent later stores from moving before it, nor an acquire load earlier loads from moving
// after it: this is why the writer and the reader of a seqlock need fences (slot.V2, slot.V3).
TEST_CASE("litmus: release and acquire on the wrong side") {
  const auto run = [](Order store, Order fence_out, Order fence_in, Order load) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, store), l.fence(fence_out), l.store(y, 1, kRelaxed); },
                        [=](Litmus& l) { l.read(0, y, kRelaxed), l.fence(fence_in), l.read(1, x, load); }},
                       2);
  };
  CHECK(run(kRelease, kRelaxed, kRelaxed, kAcquire) == Outcomes{"00", "01", "10", "11"});
  CHECK(run(kRelaxed, kRelease, kAcquire, kRelaxed) == Outcomes{"00", "01", "11"});
}

// The standard allows "11" for relaxed operations. This model never shows it: bugs that need it are not found.
TEST_CASE("litmus: load buffering (LB) is left out") {
  CHECK(outcomes_of({[](Litmus& l) { l.read(0, x, kRelaxed), l.store(y, 1, kRelaxed); },
                     [](Litmus& l) { l.read(1, y, kRelaxed), l.store(x, 1, kRelaxed); }},
                    2) == Outcomes{"00", "01", "10"});
}

TEST_CASE("litmus: independent reads of independent writes (IRIW)") {
  const auto run = [](Order store, Order fence, Order load) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, store); }, [=](Litmus& l) { l.store(y, 1, store); },
                        [=](Litmus& l) { l.read(0, x, load), l.fence(fence), l.read(1, y, load); },
                        [=](Litmus& l) { l.read(2, y, load), l.fence(fence), l.read(3, x, load); }},
                       4);
  };
  CHECK(run(kRelaxed, kRelaxed, kRelaxed).count("1010") == 1);
  CHECK(run(kRelease, kRelaxed, kAcquire).count("1010") == 1);
  CHECK(run(kRelease, kRelaxed, kAcquire).size() == 16);
  CHECK(run(kRelaxed, kSeqCst, kRelaxed).count("1010") == 0);
  CHECK(run(kRelaxed, kSeqCst, kRelaxed).size() == 15);
  CHECK(run(kSeqCst, kRelaxed, kSeqCst).count("1010") == 0);
}

TEST_CASE("litmus: two writers of two words (2+2W)") {
  const auto run = [](Order order, Order fence) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, order), l.fence(fence), l.store(y, 2, order); },
                        [=](Litmus& l) { l.store(y, 1, order), l.fence(fence), l.store(x, 2, order); }},
                       0, 2);
  };
  CHECK(run(kRelaxed, kRelaxed) == Outcomes{"11", "12", "21", "22"});
  CHECK(run(kRelease, kRelaxed) == Outcomes{"11", "12", "21", "22"});
  CHECK(run(kRelaxed, kSeqCst) == Outcomes{"12", "21", "22"});
  CHECK(run(kSeqCst, kRelaxed) == Outcomes{"12", "21", "22"});
}

TEST_CASE("litmus: coherence (CoRR, CoWW, CoWR, CoRW)") {
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.store(x, 2, kRelaxed); },
                     [](Litmus& l) { l.read(0, x, kRelaxed), l.read(1, x, kRelaxed); }},
                    2, 1) == Outcomes{"002", "012", "022", "112", "122", "222"});
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.read(0, x, kRelaxed); },
                     [](Litmus& l) { l.store(x, 2, kRelaxed); }},
                    1, 1) == Outcomes{"11", "12", "22"});
  CHECK(outcomes_of({[](Litmus& l) { l.read(0, x, kRelaxed), l.store(x, 1, kRelaxed); },
                     [](Litmus& l) { l.store(x, 2, kRelaxed); }},
                    1, 1) == Outcomes{"01", "02", "21"});
  const Outcomes orders =
      outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed); }, [](Litmus& l) { l.store(x, 2, kRelaxed); },
                   [](Litmus& l) { l.read(0, x, kRelaxed), l.read(1, x, kRelaxed); },
                   [](Litmus& l) { l.read(2, x, kRelaxed), l.read(3, x, kRelaxed); }},
                  4);
  CHECK(orders.count("1212") == 1);
  CHECK(orders.count("1221") == 0);  // all threads agree on the order of stores to one word
}

TEST_CASE("litmus: write to read causality (WRC) and ISA2") {
  const auto wrc = [](Order store, Order load) {
    return outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed); },
                        [=](Litmus& l) { l.read(0, x, load), l.store(y, 1, store); },
                        [=](Litmus& l) { l.read(1, y, load), l.read(2, x, kRelaxed); }},
                       3)
        .count("110");
  };
  CHECK(wrc(kRelaxed, kRelaxed) == 1);
  CHECK(wrc(kRelease, kAcquire) == 0);
  const auto isa2 = [](Order store, Order load) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, kRelaxed), l.store(y, 1, store); },
                        [=](Litmus& l) { l.read(0, y, load), l.store(z, 1, store); },
                        [=](Litmus& l) { l.read(1, z, load), l.read(2, x, kRelaxed); }},
                       3)
        .count("110");
  };
  CHECK(isa2(kRelaxed, kRelaxed) == 1);
  CHECK(isa2(kRelease, kAcquire) == 0);
  CHECK(isa2(kRelease, kRelaxed) == 1);
}

TEST_CASE("litmus: S and R") {
  const auto s = [](Order store, Order load) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 2, kRelaxed), l.store(y, 1, store); },
                        [=](Litmus& l) { l.read(0, y, load), l.store(x, 1, kRelaxed); }},
                       1, 1);
  };
  CHECK(s(kRelaxed, kRelaxed) == Outcomes{"01", "02", "11", "12"});
  CHECK(s(kRelease, kAcquire) == Outcomes{"01", "02", "11"});
  const auto r = [](Order fence) {
    return outcomes_of({[=](Litmus& l) { l.store(x, 1, kRelaxed), l.fence(fence), l.store(y, 1, kRelaxed); },
                        [=](Litmus& l) { l.store(y, 2, kRelaxed), l.fence(fence), l.read(0, x, kRelaxed); }},
                       1, 2);
  };
  CHECK(r(kAcqRel) == Outcomes{"011", "012", "111", "112"});
  CHECK(r(kSeqCst) == Outcomes{"011", "111", "112"});
}

TEST_CASE("litmus: a release sequence continues through exchanges, and through nothing else") {
  const auto run = [](const Thread& middle) {
    return outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.store(y, 1, kRelease); }, middle,
                        [](Litmus& l) { l.read(0, y, kAcquire), l.read(1, x, kRelaxed); }},
                       2);
  };
  CHECK(run([](Litmus& l) { l.add(y, 1, kRelaxed); }) ==
        Outcomes{"00", "01", "10", "11", "21"});  // 1: from the addition alone
  CHECK(run([](Litmus& l) { l.store(y, 2, kRelaxed); }).count("20") == 1);
  // Before C++20 a later store of the same thread continued it.
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.store(y, 1, kRelease), l.store(y, 2, kRelaxed); },
                     [](Litmus& l) { l.read(0, y, kAcquire), l.read(1, x, kRelaxed); }},
                    2)
            .count("20") == 1);
}

TEST_CASE("litmus: exchanges are one step each") {
  CHECK(outcomes_of({[](Litmus& l) { l.add(x, 1, kRelaxed); }, [](Litmus& l) { l.add(x, 1, kRelaxed); },
                     [](Litmus& l) { l.add(x, 1, kRelaxed); }},
                    0, 1) == Outcomes{"3"});
  const Thread take = [](Litmus& l) {
    std::uint64_t expected = 0;
    if (l.words[x].try_exchange_acq_rel(expected, 1)) l.add(y, 1, kRelaxed);
  };
  CHECK(outcomes_of({take, take}, 0, 2) == Outcomes{"11"});
}

TEST_CASE("litmus: a fence between relaxed operations orders as each of the four kinds says") {
  // The load of a failing exchange may read an old value.
  const Thread fails = [](Litmus& l) {
    std::uint64_t expected = 7;
    static_cast<void>(l.words[y].try_exchange_acq_rel(expected, 8));
    l.registers[0] = expected;
    l.read(1, x, kRelaxed);
  };
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.fence(kRelease), l.store(y, 1, kRelaxed); }, fails},
                    2) == Outcomes{"00", "01", "11"});
  CHECK(outcomes_of({[](Litmus& l) { l.store(x, 1, kRelaxed), l.fence(kAcquire), l.store(y, 1, kRelaxed); }, fails},
                    2) == Outcomes{"00", "01", "10", "11"});
}

TEST_CASE("litmus: a sleeper is woken by a thread that stores before it wakes, and by no other") {
  for (const bool announces : {true, false}) {
    Litmus l;
    AtomicShm<std::uint32_t> futex{};
    l.explorer.model(l.words.data(), l.words.size());
    l.explorer.model(&futex);
    l.explorer.add([&] { l.explorer.sleep(&futex, 0); });
    l.explorer.add([&] {
      futex.store_relaxed(1);
      if (announces) l.explorer.wake(&futex);
    });
    CHECK(l.explorer.explore().failure.empty() == announces);
  }
}
