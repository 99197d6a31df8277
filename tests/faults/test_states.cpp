// Reads of several variables as one state (docs/protocols.md, state), through all interleavings of pushes of two
// variables and one reader of both. Versions that read the announcements at another place are explored, too; the search
// must find them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "faults/interleaving_scene.hpp"
#include "shm/steps/snapshot_point.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

enum class Look { kBetween, kBefore, kBehind };

// Writers add the same to both variables, announced under their rank. The reader tries once.
Explored explore(std::uint32_t writers, std::uint32_t pushes, Look look, bool are_announced = true) {
  Scene scene({.floats = 1, .variables = 2, .ranks = writers + 1});
  JobSegments& job = scene.job.segments;
  for (std::uint32_t rank = 0; rank < writers; ++rank) {
    scene.explorer->remember(&job.worker(rank).pushing);
    scene.explorer->add([&scene, &job, rank, pushes, are_announced] {
      FreeBuffers free_buffers(scene.job.segments, rank);
      for (std::uint32_t i = 0; i < pushes; ++i) {
        scene.explorer->point();
        if (are_announced) begin_push(job, rank, job.worker(rank));
        for (const std::uint32_t variable : {0U, 1U}) scene.push(rank, free_buffers, variable, rank * pushes + i);
        scene.explorer->point();
        if (are_announced) end_push(job.worker(rank));
      }
    });
  }
  static int steady;  // attempts that the reader considered complete, over all executions
  steady = 0;
  scene.explorer->add([&scene, &job, writers, look] {
    float* const out = scene.log.room[0];
    bool is_free = true;
    const auto look_at_ranks = [&] {
      scene.explorer->point();
      const bool any = is_any_pushing(job, writers, false);
      scene.explorer->saw(any);
      is_free = is_free && !any;
    };
    std::uint64_t versions[2];
    if (look == Look::kBefore) look_at_ranks();
    for (const std::uint32_t variable : {0U, 1U}) versions[variable] = scene.pull_once(variable, out + variable);
    if (look == Look::kBetween) look_at_ranks();
    bool is_same = true;
    for (const std::uint32_t variable : {0U, 1U})
      is_same = is_same && scene.variable(variable).version(0) == versions[variable];
    if (look == Look::kBehind) look_at_ranks();
    if (!is_free || !is_same) return;
    ++steady;
    if (out[0] != out[1]) scene.explorer->fail("a part of a push");
  });
  scene.explorer->at_end([] {});
  const Explored found = scene.explorer->explore();
  MESSAGE(fmt::format("{} states, {} executions, {} steady: {} ({})", found.states, found.executions, steady,
                      found.failure, found.schedule));
  CHECK(steady > 0);
  return found;
}

}  // namespace

TEST_CASE("interleavings: a pull of two variables never sees a partial push") {
  CHECK(explore(1, 2, Look::kBetween).failure.empty());
  const Explored found = explore(2, 1, Look::kBetween);
  CHECK(found.failure.empty());
  CHECK(found.states > 1000);
}

TEST_CASE("interleavings: reading the announcements before the copies is found") {
  CHECK_FALSE(explore(1, 1, Look::kBefore).failure.empty());
}

TEST_CASE("interleavings: reading the announcements after the versions is found") {
  CHECK_FALSE(explore(1, 1, Look::kBehind).failure.empty());
}

TEST_CASE("interleavings: pushes without an announcement are found") {
  CHECK_FALSE(explore(1, 1, Look::kBetween, false).failure.empty());
}
