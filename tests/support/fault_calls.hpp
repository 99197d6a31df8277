// Calls a test at the fault points of this process, and before its accesses of shared words.
#pragma once

#include <functional>
#include <utility>

#include "shm/base/fault_points.hpp"

namespace ps_shm::test {

// Calls `reached` at each fault point, and `access` before each load or store of a shared word.
class FaultCalls {
 public:
  using Reached = std::function<void(shm::FaultPoint)>;
  using Access = std::function<void(const void*)>;
  explicit FaultCalls(
      Reached reached, Access access = [](const void*) {}) {
    reached_ = std::move(reached), access_ = std::move(access);
    shm::g_fault_hooks.reached = [](shm::FaultPoint point) { quietly([&] { reached_(point); }); };
    shm::g_fault_hooks.before_access = [](const void* word, bool) { quietly([&] { access_(word); }); };
  }
  ~FaultCalls() { shm::g_fault_hooks = {}; }
  FaultCalls(const FaultCalls&) = delete;
  FaultCalls& operator=(const FaultCalls&) = delete;

 private:
  // Accesses within a callback do not count.
  static void quietly(const std::function<void()>& body) {
    const shm::FaultHooks hooks = std::exchange(shm::g_fault_hooks, {});
    body();
    shm::g_fault_hooks = hooks;
  }
  static inline Reached reached_;
  static inline Access access_;
};

}  // namespace ps_shm::test
