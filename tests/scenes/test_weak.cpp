// Runs the real protocol code on weak memory (explorer.hpp): all executions of the small scenes, and many random
// ones of the others. PS_SHM_TEST_FULL raises both numbers; PS_SHM_SCENE_SEED changes the seed; PS_SHM_SCENE="PART
// OF A NAME" selects scenes; with PS_SHM_SCENE_SCHEDULE they repeat an execution that failed and print a line for each
// of its operations.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "scenes/scenes.hpp"
#include "shm/base/racing.hpp"

using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void check_all(const std::vector<SceneCase>& cases) {
  const std::string seed = setting("PS_SHM_SCENE_SEED"), only = setting("PS_SHM_SCENE"),
                    schedule = setting("PS_SHM_SCENE_SCHEDULE");
  for (const SceneCase& one : cases) {
    if (one.name.find(only) == std::string::npos) continue;
    CAPTURE(one.name);
    const auto scene = one.make();
    if (!schedule.empty()) {
      scene->explorer.sample(3000, 1);  // finds the contended words
      MESSAGE(trace_of(*scene, schedule));
      continue;
    }
    Explored found = scene->explorer.sample(g_full ? 200'000 : 3000, seed.empty() ? 1 : std::stoull(seed));
    if (found.failure.empty())
      found = scene->explorer.explore(g_full ? 5'000'000 : one.size == Size::kSmall ? 60'000 : 15'000);
    MESSAGE(fmt::format("{}: {} states, {} executions, {} ends, at most {} choices{}", one.name, found.states,
                        found.executions, found.ends, found.longest, found.is_complete ? ", all" : ""));
    if (!found.failure.empty()) MESSAGE(trace_of(*scene, found.schedule));
    CHECK_MESSAGE(found.failure.empty(), found.failure << " after " << found.schedule);
    CHECK(found.ends > 0);
    if (one.size == Size::kSmall) CHECK(found.is_complete);
    if (found.failure.empty()) CHECK(scene->has_happened());
  }
}

}  // namespace

TEST_CASE("weak: slots, free buffers and images") { check_all(scenes_of_slots()); }
TEST_CASE("weak: deaths") { check_all(scenes_of_deaths()); }
TEST_CASE("weak: age limits, and pulls of several variables") { check_all(scenes_of_workers()); }
TEST_CASE("weak: the barrier") { check_all(scenes_of_barriers()); }
TEST_CASE("weak: ranks that are left and taken over") { check_all(scenes_of_ranks()); }
TEST_CASE("weak: futexes, clocks, publications, rounds and snapshot points") {
  check_all(scenes_of_waiting());
  check_all(scenes_of_publications());
}
TEST_CASE("weak: tables by key") { check_all(scenes_of_tables()); }
TEST_CASE("weak: tables by key need each of their fences") {
  for (const SceneCase& one : broken_scenes_of_tables()) {
    CAPTURE(one.name);
    const auto scene = one.make();
    Explored found = scene->explorer.sample(3000, 1);
    if (found.failure.empty()) found = scene->explorer.explore(60'000);
    CHECK(!found.failure.empty());
  }
}
