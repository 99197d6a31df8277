// What runs on the model of weak memory: a few fibers of the real protocol code each, and what must hold of them.
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
  bool is_small = true;  // all executions can be followed within seconds
};

// Slots and free buffers; `scenes_of_waiting` has futexes, clocks, publications and cuts.
std::vector<WeakCase> scenes_of_slots();
std::vector<WeakCase> scenes_of_barriers();
std::vector<WeakCase> scenes_of_waiting();
std::vector<WeakCase> scenes_of_ranks();  // of which ranks are joined and left

// Of these, each order is asked for (test_orders.cpp).
std::vector<WeakCase> all_scenes();

}  // namespace ps_shm::test
