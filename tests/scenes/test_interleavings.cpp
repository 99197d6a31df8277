// Runs every scene through all its interleavings, as if memory were sequentially consistent. The largest are explored
// to the end with PS_SHM_TEST_FULL only, otherwise for some thousand executions. PS_SHM_SCENE="PART OF A NAME" selects
// scenes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

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

// Keeps what each execution ends with: words, records, values, and what was pulled.
class Ends : public SlotScene {
 public:
  using SlotScene::SlotScene;
  std::set<std::vector<std::uint64_t>> found;

 private:
  void check() override {
    SlotScene::check();
    std::vector<std::uint64_t> end;
    for (VariableShm* record : records_) {
      end.push_back(job_.word(*record, 0).load_relaxed());
      const BufferHeaderShm& buffer = job_.buffer(*record, buffer_of(end.back()));
      for (const std::size_t i : modelled_)
        end.push_back(static_cast<std::uint64_t>(reinterpret_cast<const float*>(&buffer + 1)[i]));
    }
    for (std::uint32_t rank = 0; rank < shape_.ranks; ++rank)
      for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which)
        end.push_back(job_.free_buffer(*records_[0], rank, which).record.load_relaxed());
    for (const auto& of_reader : log_.pulls)
      for (const Log::Pull& pull : of_reader) end.insert(end.end(), {pull.version, pull.values});
    found.insert(std::move(end));
  }
};

}  // namespace

TEST_CASE("interleavings: a search that skips visited states misses none") {
  Explored found[2];
  for (const bool follows_all : {false, true}) {
    SlotScene scene({.floats = 1});
    scene.writer(0, {0}).writer(1, {0});
    scene.explorer.make_sequential();
    scene.explorer.switch_at_races(false);
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

TEST_CASE("interleavings: a search that switches at races alone comes to the same ends") {
  const auto explore = [](const Shape& shape, auto&& add) {
    std::set<std::vector<std::uint64_t>> ends[2];
    std::uint64_t states[2];
    for (const bool at_races : {false, true}) {
      Ends scene(shape);
      add(scene);
      scene.explorer.make_sequential();
      scene.explorer.switch_at_races(at_races);
      const Explored found = scene.explorer.explore();
      CHECK(found.failure == "");
      CHECK(found.is_complete);
      ends[at_races] = scene.found, states[at_races] = found.states;
    }
    CHECK(ends[0] == ends[1]);
    CHECK(ends[0].size() > 2);
    CHECK(states[0] > states[1]);
  };
  SUBCASE("two writers and a reader") {
    explore({.floats = 1}, [](Ends& scene) { scene.writer(0, {0, 0}).writer(1, {0}).reader(0, 1); });
  }
  SUBCASE("a writer goes round its free buffers beside a reader") {
    explore({.floats = 2, .ranks = 1}, [](Ends& scene) { scene.writer(0, {0, 0, 0, 0, 0, 0}).reader(0, 1); });
  }
  SUBCASE("a death beside another writer") {
    explore({.floats = 1, .is_recovered = true}, [](Ends& scene) {
      for (const std::uint32_t rank : {0U, 1U}) scene.attach(kRankByte + rank);
      scene.writer(0, {0}, {.may_die = true}).writer(1, {0}).successor(0, scene.processes[0], {0}, 1);
    });
  }
  SUBCASE("a death in place") {
    explore({.floats = floats_of_blocks(2), .ranks = 1, .is_recovered = true, .is_in_place = true}, [](Ends& scene) {
      scene.attach(kRankByte);
      scene.writer(0, {0}, {.may_die = true}).successor(0, scene.processes[0], {0}, 1);
    });
  }
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
