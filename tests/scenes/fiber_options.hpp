// What a test says of a fiber, and what a search of its executions has found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ps_shm::test {

struct FiberOptions {
  std::uint32_t after = 0;                 // starts once the fibers of these bits have ended or died
  bool may_die = false;                    // may be abandoned at each of its points
  std::uint32_t lives = 1;                 // a fiber that has died begins anew, as the next owner of its rank, so often
  std::optional<std::uint32_t> byte = {};  // the lock byte that it holds while alive; its successor starts `after` it
  // after this many loads without a store by any fiber it polls: others run first; 0: never
  std::uint64_t patience = 0;
};

struct Explored {
  std::uint64_t executions = 0, states = 0, ends = 0, longest = 0;
  bool is_complete = false;  // all possible executions were explored
  std::string failure;       // the first failure; empty: none
  std::string schedule;      // led to the failure; for Explorer::replay
};

}  // namespace ps_shm::test
