// The scenes that run on the model of weak memory: a few fibers of real protocol code each, and their invariants.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "weak/weak_explorer.hpp"

namespace ps_shm::test {

struct WeakScene {
  WeakExplorer explorer;
  virtual ~WeakScene() = default;
};

struct WeakCase {
  std::string name;
  std::function<std::unique_ptr<WeakScene>()> make;
  bool is_small = true;  // all executions can be explored within seconds
};

// Chunks and free buffers; `scenes_of_waiting` has futexes, clocks, snapshot points, settings and events.
std::vector<WeakCase> scenes_of_slots();
std::vector<WeakCase> scenes_of_barriers();
std::vector<WeakCase> scenes_of_waiting();
std::vector<WeakCase> scenes_of_publications();  // and of the rounds of several writers
std::vector<WeakCase> scenes_of_ranks();         // joining and leaving of ranks
std::vector<WeakCase> scenes_of_tables();
std::vector<WeakCase> broken_scenes_of_tables();  // each must fail

// The scenes that test_orders.cpp uses to check each order.
std::vector<WeakCase> all_scenes();

}  // namespace ps_shm::test
