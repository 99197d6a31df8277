// Updates of the same elements at different alignments, by threads and between any two instructions: none is lost.
#include <doctest/doctest.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "support/stress.hpp"
#include "support/test_job.hpp"
#include "update/elements.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

constexpr std::uint32_t kThreads = 4;

float add(float value, float delta) { return value + delta; }

#if defined(__x86_64__)
// Runs code one instruction at a time, and other code after a chosen instruction.
class Stepping {
 public:
  // False: body() had ended before instruction number `after`.
  static bool run(const std::function<void()>& body, int after, const std::function<void()>& others) {
    struct sigaction stepping {
    }, before{};
    stepping.sa_sigaction = on_instruction;
    stepping.sa_flags = SA_SIGINFO;
    sigaction(SIGTRAP, &stepping, &before);
    others_ = &others;
    left_ = after;
    is_on_ = 1;
    raise(SIGTRAP);
    body();
    is_on_ = 0;
    const bool have_others_come = left_ < 0;
    sigaction(SIGTRAP, &before, nullptr);
    return have_others_come;
  }

 private:
  static void on_instruction(int, siginfo_t*, void* context) {
    constexpr greg_t kTrapFlag = 0x100;
    greg_t& flags = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL];
    flags = is_on_ != 0 ? flags | kTrapFlag : flags & ~kTrapFlag;
    if (is_on_ == 0) return;
    if (left_ == 0) (*others_)();
    left_ = left_ - 1;
  }

  static inline const std::function<void()>* others_ = nullptr;
  static inline volatile std::sig_atomic_t left_ = 0, is_on_ = 0;
};

#if defined(__clang__)
#define APART [[gnu::noinline]]
#else
#define APART [[gnu::noipa]]
#endif

// All of the elements in 16 bytes at once, or all but the first one by one. Compiled without knowledge of its caller.
template <bool kAtOnce, class Update>
APART void update_four_floats(float* floats, const float* gradient, Update update) {
  constexpr std::size_t kRecord = floats_of<Update>();
  if constexpr (kAtOnce)
    update_16_bytes(floats, gradient, update);
  else
    update_exact(floats + kRecord, gradient + 1, 4 / kRecord - 1, update);
}

// Two updates of the same elements, the second one run between any two instructions of the first: returns how many
// elements ever had a value that neither order of the two gives.
template <bool kAtOnce, class Update>
int wrong_between_instructions(const Update& update) {
  constexpr std::size_t kRecord = floats_of<Update>(), kFirst = kAtOnce ? 0 : 1, kEnd = 4 / kRecord;
  struct Elements {
    alignas(16) float floats[4] = {1, 1.25F, 1.5F, 1.75F};
  };
  const float mine[] = {0.5F, 1.5F, 2.5F, 3.5F}, theirs[] = {2, 1.875F, 1.75F, 1.625F};
  const auto change = [&](Elements& elements, const float* gradient) {
    for (std::size_t i = kFirst; i < kEnd; ++i) update_record(update, elements.floats + i * kRecord, gradient[i]);
  };
  Elements mine_first, theirs_first;
  change(mine_first, mine), change(mine_first, theirs);
  change(theirs_first, theirs), change(theirs_first, mine);
  int wrong = 0;
  for (int after = 0;; ++after) {
    Elements shared;
    if (!Stepping::run([&] { update_four_floats<kAtOnce>(shared.floats, mine, update); }, after,
                       [&] { change(shared, theirs); }))
      return after < 10 ? -1 : wrong;  // nothing was run step by step
    for (std::size_t i = kFirst; i < kEnd; ++i) {
      const float* now = shared.floats + i * kRecord;
      const auto is = [&](const Elements& wanted) {
        return std::equal(now, now + kRecord, wanted.floats + i * kRecord);
      };
      wrong += !is(mine_first) && !is(theirs_first);
    }
  }
}

// As simple as a rule with state can be, to give compilers every freedom.
struct Heavy {
  static constexpr std::size_t kFloats = 2;
  void operator()(float* record, float gradient) const {
    record[1] = 0.5F * record[1] + gradient;
    record[0] -= 0.25F * record[1];
  }
};
#endif

}  // namespace

#if defined(__x86_64__)
TEST_CASE("in-place slot: an update that comes between any two instructions of another one is not lost" *
          doctest::skip(kThreadSanitizer)) {
  const auto check = [](const auto& update) {
    CHECK(wrong_between_instructions<true>(update) == 0);
    CHECK(wrong_between_instructions<false>(update) == 0);
  };
  check(add);
  check(Heavy());
  for (const UpdateRule rule : {UpdateRule::kAdd, UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kNesterov,
                                UpdateRule::kAdagrad, UpdateRule::kRmsProp, UpdateRule::kAdam, UpdateRule::kFtrl}) {
    CAPTURE(update::traits_of(rule).name);
    const update::Settings settings = update::settings_of(Optimizer(), rule, true);
    update::with_element_update(settings, 0.1F, 1.0F, [&](const auto& update) {
      if constexpr (!requires { update.with_state(0.0F); }) check(update);
    });
  }
}
#endif

TEST_CASE("in-place slot: adds of overlapping ranges by many threads are all applied") {
  const std::uint64_t seed = test::stress_seed(), rounds = test::stress_rounds(50'000);
  constexpr std::size_t kFloats = 40;
  alignas(16) float values[kFloats] = {};
  std::vector<std::vector<std::uint64_t>> added(kThreads, std::vector<std::uint64_t>(kFloats));
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(seed + thread);
      const std::vector<float> ones(kFloats, 1);
      for (std::uint64_t round = 0; round < rounds; ++round) {
        const std::size_t begin = random() % kFloats, count = random() % (kFloats - begin) % 10;
        update_exact(values + begin, ones.data(), count, add);
        for (std::size_t i = 0; i < count; ++i) ++added[thread][begin + i];
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < kFloats; ++i) {
    std::uint64_t expected = 0;
    for (const auto& mine : added) expected += mine[i];
    CHECK(values[i] == float(expected));
  }
}

TEST_CASE("in-place slot: pushes of blocks by many threads are all applied and counted, pulls see whole elements") {
  const std::uint64_t rounds = test::stress_rounds(500);
  TestJob job;
  const VariableShm& record = job.declare("v", 4096 + 7, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  std::atomic<std::uint32_t> pushing{kThreads};
  std::atomic<int> not_whole{0};
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      const std::vector<float> ones(record.piece_elements, 1);
      for (std::uint64_t round = 0; round < rounds; ++round)
        for (std::uint64_t block = 0; block < variable.blocks(); ++block)
          variable.push_block(block, ones.data(), Adds::kExact, add);
      --pushing;
    });
  threads.emplace_back([&] {
    std::vector<float> out(record.piece_elements);
    while (pushing != 0) {
      const std::uint64_t pushed = variable.pull_block(0, out.data(), update::FirstFloat{});
      // A count of pushes is a small integer, and what was counted before the pull is in it.
      for (const float value : out)
        not_whole += value < float(pushed) || value > float(kThreads * rounds) || value != float(std::uint64_t(value));
    }
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(not_whole == 0);
  for (std::uint64_t block = 0; block < variable.blocks(); ++block) CHECK(variable.pushes(block) == kThreads * rounds);
  for (std::uint64_t i = 0; i < record.elements; ++i) REQUIRE(variable.elements()[i] == float(kThreads * rounds));
}

TEST_CASE("in-place slot: pushes of a scalar by many threads are all applied and counted, value and count agree") {
  const std::uint64_t rounds = test::stress_rounds(100'000);
  TestJob job;
  const VariableShm& record = job.declare("v", 1, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  const std::uint32_t start = 0u - static_cast<std::uint32_t>(rounds);  // the counter wraps around meanwhile
  job.word(record, 0).store_release(make_scalar(start, 0));
  std::atomic<std::uint32_t> pushing{kThreads};
  std::atomic<std::uint64_t> disagree{0}, sum_of_counts{0};
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      std::uint64_t counts = 0;
      for (std::uint64_t round = 0; round < rounds; ++round)
        counts += static_cast<std::uint32_t>(variable.push_scalar(1, Adds::kExact, add)) - start;
      sum_of_counts += counts;
      --pushing;
    });
  threads.emplace_back([&] {
    while (pushing != 0) {
      float value = -1;
      const auto pushed = static_cast<std::uint32_t>(variable.pull_scalar(value));
      disagree += value != float(pushed - start);
    }
  });
  for (std::thread& thread : threads) thread.join();
  const std::uint64_t all = kThreads * rounds;
  CHECK(disagree == 0);
  CHECK(variable.elements()[0] == float(all));
  CHECK(static_cast<std::uint32_t>(variable.pushes(0)) - start == all);
  CHECK(sum_of_counts == all * (all - 1) / 2);  // each count was returned once
}

TEST_CASE("in-place slot: Hogwild! pushes of a scalar by many threads are all counted" *
          doctest::skip(kThreadSanitizer)) {
  const std::uint64_t rounds = test::stress_rounds(100'000);
  TestJob job;
  const VariableShm& record = job.declare("v", 1, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  std::vector<std::thread> threads;
  for (std::uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      for (std::uint64_t round = 0; round < rounds; ++round) variable.push_scalar(1, Adds::kRacy, add);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(variable.pushes(0) == kThreads * rounds);
  CHECK(variable.elements()[0] >= float(1));
  CHECK(variable.elements()[0] <= float(kThreads * rounds));
}
