// Explores all interleavings of pushing, pulling, helping and recovering (explorer.hpp): the real functions, on
// variables of one chunk of one or two floats. Versions with flaws are explored, too; the search must find each flaw.
//
// With one float a write can fall between a pull's load of the word and its copy; with two, also between their copies.
// With PS_SHM_TEST_FULL in the environment there are more pushes and pulls.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bit>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "faults/explorer.hpp"
#include "faults/interleaving_scene.hpp"
#include "faults/interleaving_sketch.hpp"
#include "support/conservation.hpp"
#include "support/test_job.hpp"
#include "update/elements.hpp"
#include "worker/age_limit.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

// Two writers on one block, and a reader. The exchanges have no points: the only point of an update lies between the
// load of the old value and the exchange.
Explored explore_inplace(std::uint64_t floats, Adds adds) {
  TestJob job(Scene::config(2));
  VariableShm& record = job.declare("v", floats, 0, Layout::kInplace);
  InplaceVariable variable(job.segments.shard_data(0), record);
  auto& pushes = job.word(record, 0);
  struct {
    std::uint64_t before[2], counted;
    float room[kMaxFloats + 1];
  } log = {};
  Explorer explorer(std::span(job.segments.shard_data(0), record.shard_end));
  explorer.remember(&pushes);
  if (!variable.is_scalar()) explorer.remember(variable.elements(), floats);  // a scalar lies in the counter's word
  explorer.remember(&log);
  explorer.watch(&pushes, Watch::kExchanged);
  if (!variable.is_scalar()) explorer.watch(variable.elements(), Watch::kFloat);  // in the middle of the reader's copy
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    explorer.add(
        [&, rank] {
          const std::vector<float> gradient(floats, float(1U << rank));
          log.before[rank] = 1 + variable.push_block(0, gradient.data(), adds, [&](float value, float delta) {
            explorer.saw(std::bit_cast<std::uint32_t>(value));
            explorer.point();
            return value + delta;
          });
        },
        {.must_end = true});
  explorer.add([&] {
    log.counted = variable.pull_block(0, log.room, update::FirstFloat{});
    for (std::size_t i = 0; i < floats; ++i)
      if (std::uint64_t(std::popcount(std::uint32_t(log.room[i]))) < log.counted)
        explorer.fail("counted and not there");
  });
  explorer.at_end([&] {
    for (std::size_t i = 0; i < floats; ++i)
      if (variable.elements()[i] != 3) explorer.fail("an update is lost or doubled");
    if (variable.pushes(0) != 2 || log.before[0] + log.before[1] != 3) explorer.fail("the counter is wrong");
  });
  return explorer.explore();
}

// Two workers with an age limit of one step, as FreeSteps has it, each of which makes two steps (steps.D1 to steps.D3).
// `notes_late`: the global step is loaded after the values are.
Explored explore_ages(bool notes_late) {
  constexpr std::uint32_t kSteps = 2;
  Scene scene({.floats = 1});
  Explorer& explorer = *scene.explorer;
  auto& global_step = scene.job.segments.global_step();
  struct {
    std::uint32_t counted[2], dropped[2], applied;
  } log = {};
  explorer.remember(&global_step);
  explorer.remember(&log);
  const auto read_step = [&] {
    explorer.point();
    const std::uint64_t step = scene.job.segments.steps_done();
    explorer.saw(step);
    return step;
  };
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    explorer.add([&, rank] {
      const std::uint32_t other = 1 - rank;
      FreeBuffers free_buffers(scene.job.segments, rank);
      AgeLimit age;
      for (std::uint32_t step = 0; step < kSteps; ++step) {
        if (!notes_late) age.note_pull(read_step());
        float value = 0;
        static_cast<void>(scene.pull_once(0, &value));
        const std::uint32_t counted = log.counted[other];
        explorer.saw(counted);
        if (notes_late) age.note_pull(read_step());
        age.decide(age.is_too_old(read_step(), 1));
        const std::uint32_t bit = 1U << (kSteps * rank + step);
        if (age.drops()) {
          if (++log.dropped[rank] > log.counted[other]) explorer.fail("dropped, and no other worker has come forward");
        } else {
          if (log.counted[other] != counted) explorer.fail("a gradient that is too old is applied");
          log.applied |= bit;
          static_cast<void>(scene.push_once(0, free_buffers, float(bit)));
          explorer.point();
          global_step.fetch_add_acq_rel(1);
          ++log.counted[rank];
        }
        age.end_step(!age.drops());
      }
    });
  explorer.at_end([&] {
    const std::uint64_t counted = log.counted[0] + log.counted[1],
                        word = scene.job.word(scene.record(0), 0).load_acquire();
    float value = 0;
    static_cast<void>(scene.pull_once(0, &value));
    if (value != float(log.applied)) explorer.fail("a dropped push has left something, or another one is missing");
    if (version_of(word) != counted || scene.job.segments.steps_done() != counted)
      explorer.fail("a dropped step is counted");
    if (counted + log.dropped[0] + log.dropped[1] != 2 * kSteps || counted < kSteps) explorer.fail("both drop");
  });
  return explorer.explore();
}

// All interleavings were explored: `least` is a bit less than their number when the scenario was written.
void check_all_good(const Explored& found, std::uint64_t least) {
  MESSAGE(fmt::format("{} states, {} executions, {} different ends, at most {} steps", found.states, found.executions,
                      found.ends, found.longest));
  CHECK_MESSAGE(found.failure.empty(), found.failure << " after " << found.schedule);
  CHECK(found.states >= least);
  CHECK(found.ends > 0);
}

void check_found(const Explored& found) {
  MESSAGE(fmt::format("after {} states: {} ({})", found.states, found.failure, found.schedule));
  CHECK_FALSE(found.failure.empty());
}

std::vector<std::uint32_t> times(std::size_t count, std::uint32_t variable = 0) {
  return std::vector<std::uint32_t>(count, variable);
}

// v's buffer of version 1 becomes w's buffer of version 1.
const std::vector<std::uint32_t> kExchange = {0, 0, 0, 0, 0, 1, 0};

}  // namespace

TEST_CASE("interleavings: a search that skips visited states misses none") {
  Explored found[2];
  for (const bool all : {false, true}) {
    Scene scene({.floats = 1});
    scene.add_writer(0, times(1));
    scene.add_writer(1, times(1));
    if (g_full) scene.add_reader(0, 1);
    if (all) scene.explorer->follow_all();
    found[all] = scene.explore();
    check_all_good(found[all], 50);
  }
  CHECK(found[0].states == found[1].states);
  CHECK(found[0].ends == found[1].ends);
  CHECK(found[0].executions < found[1].executions);
}

TEST_CASE("interleavings: two writers and a reader of one float") {
  Scene scene({.floats = 1});
  scene.add_writer(0, times(2));
  scene.add_writer(1, times(2));
  scene.add_reader(0, 2);
  check_all_good(scene.explore(), 10000);
}

TEST_CASE("interleavings: two writers and a reader of two floats") {
  Scene scene({.floats = 2});
  scene.add_writer(0, times(2));
  scene.add_writer(1, times(2));
  scene.add_reader(0, g_full ? 2 : 1);
  check_all_good(scene.explore(), 10000);
}

TEST_CASE("interleavings: a writer cycles through its free buffers while a reader sleeps") {
  Scene scene({.floats = 2});
  scene.add_writer(0, times(2 * kFreeBuffersPerClass + 1));
  scene.add_reader(0, 2);
  if (g_full) scene.add_reader(0, 1);
  check_all_good(scene.explore(), 10000);
}

TEST_CASE("interleavings: two chunks exchange their buffers") {
  Scene scene({.floats = 2, .variables = 2});
  scene.add_writer(0, kExchange);
  scene.add_writer(1, times(1, 1));
  scene.add_reader(0, 1);
  if (g_full) scene.add_reader(1, 1);
  check_all_good(scene.explore(), 10000);
}

TEST_CASE("interleavings: two helpers apply the same two steps, each once") {
  Scene scene({.floats = 2, .has_steps = true});
  scene.add_helper(0, 2);
  scene.add_helper(1, 2);
  scene.add_reader(0, g_full ? 2 : 1);
  check_all_good(scene.explore(), 10000);
}

TEST_CASE(
    "interleavings: a writer dies at any access while another one and a reader continue, and its successor recovers") {
  SUBCASE("and pushes") {
    KillScene scene({.floats = 1, .is_recovered = true});
    scene.add_writer(0, times(1), {.may_die = true});
    scene.add_writer(1, times(2));
    scene.add_heir(0, scene.successor, 1, {.after = 1});
    if (g_full) scene.add_reader(0, 1);
    check_all_good(scene.explore(), 10000);
  }
  SUBCASE("while a reader sleeps") {
    KillScene scene({.floats = 1, .is_recovered = true});
    scene.add_writer(0, times(1), {.may_die = true});
    scene.add_writer(1, times(g_full ? 2 : 1));
    scene.add_heir(0, scene.successor, g_full ? 0 : 1, {.after = 1});
    scene.add_reader(0, 1);
    check_all_good(scene.explore(), 10000);
  }
  SUBCASE("the writer has two chunks, and the other one exchanges their buffers") {
    KillScene scene({.floats = 1, .variables = 2, .is_recovered = true});
    scene.add_writer(0, {0, 1}, {.may_die = true});
    scene.add_writer(1, g_full ? std::vector<std::uint32_t>{0, 1, 0} : std::vector<std::uint32_t>{0, 1});
    scene.add_heir(0, scene.successor, 0, {.after = 1});
    check_all_good(scene.explore(), 10000);
  }
}

TEST_CASE(
    "interleavings: two writers die at any access beside a third one, and their successors recover one after the "
    "other") {
  static std::uint64_t joint;
  for (const std::uint32_t first : {0U, 1U}) {
    CAPTURE(first);
    joint = 0;
    g_fault_hooks.reached = [](FaultPoint point) { joint += point == FaultPoint::kRecoveryTaken; };
    Scene scene({.floats = 1, .ranks = 3, .is_recovered = true});
    JobSegments successors[] = {scene.job.attach(), scene.job.attach()}, living = scene.job.attach();
    REQUIRE(living.locks().try_take(kRankByte + 2));
    scene.add_writer(0, times(1), {.may_die = true});
    scene.add_writer(1, times(1), {.may_die = true});
    scene.add_writer(2, times(g_full ? 2 : 1));
    scene.before_check = [&] {
      for (const std::uint32_t rank : {first, 1 - first}) {
        if (!successors[rank].locks().try_take(kRankByte + rank))
          scene.explorer->fail("the dead one's rank is not free");
        scene.settle(rank, successors[rank].locks());
      }
      for (const std::uint32_t rank : {0U, 1U}) successors[rank].locks().release(kRankByte + rank);
    };
    check_all_good(scene.explore(), 10000);
    g_fault_hooks.reached = nullptr;
    CHECK(joint > 0);  // both were in doubt about the same buffer
  }
}

TEST_CASE("interleavings: two writers after a snapshot point do not change its pre-image") {
  Scene scene({.floats = 2, .has_snapshot_point = true});
  scene.add_writer(0, times(2));
  scene.add_writer(1, times(g_full ? 2 : 1));
  scene.add_image_reader(0, 2);
  check_all_good(scene.explore(), 1000);
}

TEST_CASE("interleavings: a writer cycles through its free buffers while a reader reads a snapshot point's pre-image") {
  Scene scene({.floats = 2, .has_snapshot_point = true});
  scene.add_writer(0, times(kFreeBuffersPerClass + 2));
  scene.add_image_reader(0, 1);
  check_all_good(scene.explore(), 500);
}

TEST_CASE("interleavings: two chunks exchange their buffers after a snapshot point") {
  Scene scene({.floats = 1, .variables = 2, .has_snapshot_point = true});
  scene.add_writer(0, kExchange);
  scene.add_writer(1, times(1, 1));
  scene.add_image_reader(0, 1);
  if (g_full) scene.add_image_reader(1, 1);
  check_all_good(scene.explore(), 1000);
}

TEST_CASE("interleavings: a writer dies at any access after a snapshot point, and its successor recovers") {
  SUBCASE("and pushes") {
    KillScene scene({.floats = 1, .is_recovered = true, .has_snapshot_point = true});
    scene.add_writer(0, times(g_full ? 2 : 1), {.may_die = true});
    scene.add_writer(1, times(2));
    scene.add_heir(0, scene.successor, 1, {.after = 1});
    check_all_good(scene.explore(), 1000);
  }
  SUBCASE("while a reader reads the pre-image") {
    KillScene scene({.floats = 1, .is_recovered = true, .has_snapshot_point = true});
    scene.add_writer(0, times(1), {.may_die = true});
    scene.add_writer(1, times(1));
    scene.add_heir(0, scene.successor, 0, {.after = 1});
    scene.add_image_reader(0, 1);
    check_all_good(scene.explore(), 1000);
  }
}

TEST_CASE("interleavings: sums agree with their rank sets, and each contribution is in once") {
  Scene scene({.floats = 2, .has_steps = true});
  std::uint64_t steps = 2;
  SUBCASE("two contribute, one of them twice") {
    scene.add_contributor(0, 1, true);
    scene.add_contributor(1, g_full ? 2 : 1, false);
  }
  SUBCASE("one cycles through its free buffers") { scene.add_contributor(0, steps = kFreeBuffersPerClass + 3, false); }
  scene.add_summer();
  scene.explorer->at_end([&] {
    for (std::uint64_t step = 0; step < steps; ++step) scene.check_sum(step);
    if (!test::is_conserved(scene.job.segments, scene.records()))
      scene.explorer->fail("a buffer is lost or named twice");
  });
  check_all_good(scene.explorer->explore(), 1000);
}

TEST_CASE("interleavings: a contributor whose buffer moves to another chunk does not trust its contents") {
  Scene scene({.floats = 1, .variables = 2, .has_steps = true});
  const auto contribute = [&](FreeBuffers& free_buffers, std::uint32_t rank, std::uint32_t variable, bool again) {
    return scene.variable(variable).contribute(0, free_buffers, {rank, 0}, again, [=](float* out, const float* in) {
      Add{1, float(1 + 15 * rank)}(out, in, 0);
    });
  };
  scene.explorer->add([&] {
    FreeBuffers free_buffers(scene.job.segments, 0);
    contribute(free_buffers, 0, 1, false);
    if (contribute(free_buffers, 0, 0, false) != ContributeResult::kAdded)
      scene.explorer->fail("in before it was added");
  });
  scene.explorer->add([&] {
    FreeBuffers free_buffers(scene.job.segments, 1);
    for (std::uint32_t i = 0; i <= kFreeBuffersPerClass; ++i)
      contribute(free_buffers, 1, i != 0, i > 1);  // ends in v's buffer
  });
  scene.explorer->at_end([&] {
    const auto look = [&](const float* sum, const RankSet&) { scene.log.room[0][0] = sum[0]; };
    if (!scene.variable(0).try_use_sum(0, 0, look) || scene.log.room[0][0] != 17) scene.explorer->fail("one is lost");
  });
  check_all_good(scene.explorer->explore(), 1000);
}

TEST_CASE("interleavings: in-place elements take every exact update once, in exchanges of 16, 8 and 4 bytes") {
  for (const std::uint64_t floats : {std::uint64_t{1}, std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{7}}) {
    CAPTURE(floats);
    check_all_good(explore_inplace(floats, Adds::kExact), floats * 10);
  }
}

TEST_CASE("interleavings: no gradient older than the limit is applied, and one of two workers always gets through") {
  check_all_good(explore_ages(false), 1000);
}

// ---- flaws

TEST_CASE("interleavings: a global step that is noted after the values are pulled is found") {
  check_found(explore_ages(true));
}

TEST_CASE("interleavings: the sketch of the protocol is correct without a flaw") {
  FlawedScene scene({.floats = 2}, Flaw::kNone);
  scene.add_writer(0, times(2));
  scene.add_writer(1, times(1));
  scene.add_reader(0, 1);
  check_all_good(scene.explore(), 1000);
}

TEST_CASE("interleavings: a swap that does not compare is found") {
  FlawedScene scene({.floats = 2}, Flaw::kNoCompare);
  scene.add_writer(0, times(1));
  scene.add_writer(1, times(1));
  check_found(scene.explore());
}

TEST_CASE("interleavings: a pull that does not check the stamp is found") {
  FlawedScene scene({.floats = 2}, Flaw::kNoStampCheck);
  scene.add_writer(0, times(kFreeBuffersPerClass + 2));
  scene.add_reader(0, 1);
  check_found(scene.explore());
}

TEST_CASE("interleavings: a pull that checks only the version is found") {
  FlawedScene scene({.floats = 2, .variables = 2}, Flaw::kNoChunkInStamp);
  scene.add_writer(0, kExchange);
  scene.add_reader(0, 1);
  check_found(scene.explore());
}

TEST_CASE("interleavings: a buffer that is not marked as being built is found") {
  FlawedScene scene({.floats = 2}, Flaw::kNotBuilding);
  scene.add_writer(0, times(kFreeBuffersPerClass + 2));
  scene.add_reader(0, 1);
  check_found(scene.explore());
}

TEST_CASE("interleavings: a helper that does not check again after a lost swap is found") {
  FlawedScene scene({.floats = 2, .has_steps = true}, Flaw::kStepOnce);
  scene.add_helper(0, 1);
  scene.add_helper(1, 1);
  check_found(scene.explore());
}

TEST_CASE("interleavings: clearing the in-flight mark before the replaced buffer is recorded is found") {
  KillScene scene({.floats = 1, .is_recovered = true});
  use_sketch(scene, Flaw::kNotedTwice);
  scene.add_writer(0, times(1), {.may_die = true});
  scene.add_heir(0, scene.successor, 0, {.after = 1});
  check_found(scene.explore());
}

TEST_CASE("interleavings: a successor that checks only the word is found") {
  KillScene scene({.floats = 1, .is_recovered = true});
  scene.add_writer(0, times(1), {.may_die = true});
  scene.add_writer(1, times(1));
  scene.add_heir(0, scene.successor, 0, {.after = 1});
  scene.settle = [&](std::uint32_t rank, const TaskLocks&) { settle_by_word(scene, rank); };
  check_found(scene.explore());
}

TEST_CASE("interleavings: racy in-place adds lose an update") { check_found(explore_inplace(2, Adds::kRacy)); }
