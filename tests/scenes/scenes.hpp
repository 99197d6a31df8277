// The scenes: a few fibers of real protocol code each, and their invariants. Each is run in three ways: through all its
// interleavings, on weak memory, and with each memory order weakened.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scenes/explorer.hpp"

namespace ps_shm::test {

struct Scene {
  Explorer explorer;
  virtual ~Scene() = default;
  // Whether what the scene is about has happened in any execution so far.
  virtual bool has_happened() const { return true; }
};

enum class Size : std::uint8_t {
  kSmall,   // all executions on weak memory can be explored within seconds
  kMedium,  // all interleavings can
  kLarge,   // neither: PS_SHM_TEST_FULL explores all interleavings
};

struct SceneCase {
  std::string name;
  std::function<std::unique_ptr<Scene>()> make;
  Size size = Size::kSmall;
};

// Chunks and free buffers; `scenes_of_waiting` has futexes, clocks, snapshot points, settings and events.
std::vector<SceneCase> scenes_of_slots();
std::vector<SceneCase> scenes_of_deaths();   // of pushing workers, and the recovery of their buffers
std::vector<SceneCase> scenes_of_workers();  // age limits, and pulls of several variables
std::vector<SceneCase> scenes_in_place();    // whose elements are no words of the model: of interleavings alone
std::vector<SceneCase> scenes_of_barriers();
std::vector<SceneCase> scenes_of_waiting();
std::vector<SceneCase> scenes_of_publications();  // and of the rounds of several writers
std::vector<SceneCase> scenes_of_ranks();         // joining and leaving of ranks
std::vector<SceneCase> scenes_of_tables();
std::vector<SceneCase> broken_scenes_of_tables();  // each must fail

// The operations of one execution, a line for each, and how it fails.
inline std::string trace_of(Scene& scene, const std::string& schedule) {
  std::vector<std::string> trace;
  const Explored found = scene.explorer.replay(schedule, trace);
  std::string text;
  for (const std::string& line : trace) text += line + "\n";
  return text + found.failure;
}

// The scenes that test_orders.cpp uses to check each order.
std::vector<SceneCase> all_scenes();

}  // namespace ps_shm::test
