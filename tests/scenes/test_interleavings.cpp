// Runs every scene through all its interleavings, as if memory were sequentially consistent. The largest are explored
// to the end with PS_SHM_TEST_FULL only, otherwise for some thousand executions. PS_SHM_SCENE="PART OF A NAME" selects
// scenes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "scenes/slot_scene.hpp"

using namespace ps_shm::test;

namespace {

const bool g_full = std::getenv("PS_SHM_TEST_FULL") != nullptr;
const char* const g_only = std::getenv("PS_SHM_SCENE");

void follow(const std::vector<SceneCase>& scenes) {
  for (const SceneCase& one : scenes) {
    if (g_only != nullptr && one.name.find(g_only) == std::string::npos) continue;
    CAPTURE(one.name);
    const auto scene = one.make();
    scene->explorer.make_sequential();
    const bool is_followed = g_full || one.size != Size::kLarge;
    const Explored found = scene->explorer.explore(is_followed ? 100'000'000 : 20'000);
    MESSAGE(fmt::format("{}: {} states, {} executions, {} ends{}", one.name, found.states, found.executions, found.ends,
                        found.is_complete ? ", all" : ""));
    if (!found.failure.empty()) MESSAGE(trace_of(*scene, found.schedule));
    CHECK_MESSAGE(found.failure.empty(), found.failure << " after " << found.schedule);
    CHECK(found.ends > 0);
    if (is_followed) CHECK(found.is_complete);
    if (found.failure.empty()) CHECK(scene->has_happened());
  }
}

}  // namespace

TEST_CASE("interleavings: a search that skips visited states misses none") {
  Explored found[2];
  for (const bool follows_all : {false, true}) {
    SlotScene scene({.floats = 1});
    scene.writer(0, {0}).writer(1, {0});
    scene.explorer.make_sequential();
    if (follows_all) scene.explorer.follow_all();
    found[follows_all] = scene.explorer.explore();
    CHECK(found[follows_all].failure.empty());
    CHECK(found[follows_all].is_complete);
  }
  CHECK(found[0].states == found[1].states);
  CHECK(found[0].states > 50);
  CHECK(found[0].ends == found[1].ends);
  CHECK(found[0].executions < found[1].executions);
}

TEST_CASE("interleavings: slots, free buffers and images") { follow(scenes_of_slots()); }
TEST_CASE("interleavings: deaths") { follow(scenes_of_deaths()); }
TEST_CASE("interleavings: updates in place") { follow(scenes_in_place()); }
TEST_CASE("interleavings: age limits, and pulls of several variables") { follow(scenes_of_workers()); }
TEST_CASE("interleavings: the barrier") { follow(scenes_of_barriers()); }
TEST_CASE("interleavings: ranks that are left and taken over") { follow(scenes_of_ranks()); }
TEST_CASE("interleavings: futexes, clocks, snapshot points, settings and events") { follow(scenes_of_waiting()); }
TEST_CASE("interleavings: publications and rounds") { follow(scenes_of_publications()); }
TEST_CASE("interleavings: tables by key") { follow(scenes_of_tables()); }
