// Runs the real protocol code on weak memory (weak_explorer.hpp): all executions of the small scenes, and many random
// ones of the others. PS_SHM_TEST_FULL raises both numbers; PS_SHM_WEAK_SEED changes the seed; PS_SHM_WEAK_SCENE="PART
// OF A NAME" selects scenes; with PS_SHM_WEAK_SCHEDULE they repeat an execution that failed and print a line for each
// of its operations.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "shm/base/racing.hpp"
#include "weak/scenes.hpp"

using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void show(WeakScene& scene, const std::string& schedule) {
  std::vector<std::string> trace;
  const WeakFound found = scene.explorer.replay(schedule, trace);
  std::string text;
  for (const std::string& line : trace) text += line + "\n";
  MESSAGE(text << found.failure);
}

void check_all(const std::vector<WeakCase>& cases) {
  const std::string seed = setting("PS_SHM_WEAK_SEED"), only = setting("PS_SHM_WEAK_SCENE"),
                    schedule = setting("PS_SHM_WEAK_SCHEDULE");
  for (const WeakCase& one : cases) {
    if (one.name.find(only) == std::string::npos) continue;
    CAPTURE(one.name);
    const auto scene = one.make();
    if (!schedule.empty()) {
      scene->explorer.sample(3000, 1);  // finds the contended words
      show(*scene, schedule);
      continue;
    }
    WeakFound found = scene->explorer.sample(g_full ? 200'000 : 3000, seed.empty() ? 1 : std::stoull(seed));
    if (found.failure.empty()) found = scene->explorer.explore(g_full ? 5'000'000 : one.is_small ? 60'000 : 15'000);
    MESSAGE(fmt::format("{}: {} states, {} executions, {} ends, at most {} choices{}", one.name, found.states,
                        found.executions, found.ends, found.longest, found.is_complete ? ", all" : ""));
    if (!found.failure.empty()) show(*scene, found.schedule);
    CHECK_MESSAGE(found.failure.empty(), found.failure << " after " << found.schedule);
    CHECK(found.ends > 0);
    if (one.is_small) CHECK(found.is_complete);
  }
}

}  // namespace

TEST_CASE("weak: slots, free buffers and images") { check_all(scenes_of_slots()); }
TEST_CASE("weak: the barrier") { check_all(scenes_of_barriers()); }
TEST_CASE("weak: ranks that are left and taken over") { check_all(scenes_of_ranks()); }
TEST_CASE("weak: futexes, clocks, publications, rounds and snapshot points") {
  check_all(scenes_of_waiting());
  check_all(scenes_of_publications());
}
TEST_CASE("weak: tables by key") { check_all(scenes_of_tables()); }
TEST_CASE("weak: tables by key need each of their fences") {
  for (const WeakCase& one : broken_scenes_of_tables()) {
    CAPTURE(one.name);
    const auto scene = one.make();
    WeakFound found = scene->explorer.sample(3000, 1);
    if (found.failure.empty()) found = scene->explorer.explore(60'000);
    CHECK(!found.failure.empty());
  }
}
