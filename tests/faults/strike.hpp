// Strikes this process, by a kill or a stop, at a chosen fault point or before a chosen store, or does other work there;
// waits for the consequences. Shared state through which the processes of a case communicate.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <string>

#include "faults/cases.hpp"
#include "shm/base/fault_points.hpp"

namespace ps_shm::test {

// Strikes when the process reaches the point for the `passes`-th time. A process that is to lose a swap lets the others
// swap first.
inline FaultPoint g_point;
inline Action g_action;
inline int g_passes;
inline bool g_loses;
inline std::atomic<std::uint32_t>* g_strikes = nullptr;  // counts the strikes, for the text of a failure

inline void arm(FaultPoint point, Action action, int passes) {
  g_point = point, g_action = action, g_passes = passes;
  g_loses = point == FaultPoint::kPushLost || point == FaultPoint::kPushRecovered;
  shm::g_fault_hooks.reached = [](FaultPoint reached) {
    // Makes it likely that another process swaps meanwhile; the case waits until that has happened, however often it
    // takes.
    if (g_loses && reached == FaultPoint::kPushStamped) usleep(200);
    if (reached != g_point || --g_passes != 0) return;
    if (g_strikes != nullptr) g_strikes->fetch_add(1);
    raise(g_action == Action::kKill ? SIGKILL : SIGSTOP);
  };
}

// Kills the process before its `number`-th store to a shared word.
inline std::uint64_t g_stores_left;

inline void arm_store(std::uint64_t number) {
  g_stores_left = number;
  shm::g_fault_hooks.before_access = [](const void*, bool stores) {
    if (stores && --g_stores_left == 0) raise(SIGKILL);
  };
}

// Calls `then` once, before the access to a shared word whose number `left` is. False: there are fewer accesses.
inline bool run_with(const std::function<void()>& body, std::uint64_t access, const std::function<void()>& then) {
  static std::uint64_t left;
  static const std::function<void()>* at;
  left = access, at = &then;
  shm::g_fault_hooks.before_access = [](const void*, bool) {
    if (--left != 0) return;
    shm::g_fault_hooks = {};
    (*at)();
  };
  body();
  shm::g_fault_hooks = {};
  return left == 0;
}

inline constexpr double kPatience =
    60.0;  // for operations that take milliseconds: the machine may be busy, and some cases wait until a race is lost

inline double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// A virtual machine may be suspended for seconds with all its processes, so a minimum number of polls is made whatever
// the clock says.
template <class Fact>
bool wait_for(Fact&& fact, double seconds = kPatience) {
  constexpr double kLooksPerSecond = 1000;
  const double end = now() + seconds;
  for (double looks = 0; now() < end || looks < seconds * kLooksPerSecond; ++looks) {
    if (fact()) return true;
    usleep(200);
  }
  return fact();
}

struct Failed {
  std::string what;
};

// The state that the processes of a case share, in a shared mapping.
struct Account {
  std::atomic<std::uint64_t> begun, acknowledged;
  std::atomic<bool> tore;
};
struct Shared {
  std::atomic<bool> finish;   // asks the workers to leave
  std::atomic<bool> quit_ps;  // asks the ps to end
  std::atomic<bool> others_quit;
  std::atomic<std::uint32_t> joined;     // worker processes, including dead ones
  std::atomic<std::uint64_t> snapshots;  // taken and checked
  std::atomic<std::uint32_t> strikes;
  std::array<Account, 16> accounts;  // one for each worker process of the case
  char message[512];                 // the text of an exception
};

}  // namespace ps_shm::test
