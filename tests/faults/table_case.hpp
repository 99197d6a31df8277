// What a case of the kill matrix of tables by key is made of: the tables, what was pushed to them, and where a worker is
// struck.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>

#include "faults/strike.hpp"
#include "ps_shm/table_spec.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/table_layout.hpp"
#include "support/table_job.hpp"

namespace ps_shm::test {

inline constexpr std::uint64_t kKeys = 1500;    // more than a table's first buckets
inline constexpr std::uint64_t kHotKeys = 100;  // of the table that evicts, which has fewer rows
inline constexpr std::uint64_t kWidth = 6;
inline constexpr std::uint32_t kWorkers = 3, kLives = 16, kStarts = 4096;
inline constexpr std::uint64_t kExactPushes =
    200;  // whose sum a number of bfloat16 holds, if they are of a power of two

struct Pushes {
  std::atomic<std::uint32_t> begun[kKeys], acknowledged[kKeys];
};
struct Life {  // of one worker process
  std::atomic<std::uint64_t> rounds;
  Pushes kept, few;
};
struct TableWishes {
  std::atomic<bool> finish, quit_ps, keeps;
  std::atomic<std::uint32_t> lives;
  std::atomic<bool> has_joined[kStarts];  // by the order in which workers were started
  Life life[kLives];
  char message[512];
};

inline std::uint64_t key_of(std::uint64_t number) { return shm::mixed(number); }

// What the tables of a case hold.
struct Rows {
  DType dtype;

  bool are_rounded() const { return dtype == DType::kBFloat16; }
  // What a push adds to each element of the key's row, so that a push of another key would show.
  float gradient_of(std::uint64_t number) const {
    return are_rounded() ? std::ldexp(1.0F, int(number % 41) - 20) : float(2 * number + 3);
  }
  // How many pushes an element of the key's row has; -1: it is no such element.
  double pushes_in(std::uint64_t number, float value) const {
    const double pushes = double(value) / double(gradient_of(number));
    return pushes >= 0 && pushes == std::floor(pushes) ? pushes : -1;
  }
  TableSpec spec(const char* name, std::uint64_t max_rows) const {
    return {.name = name,
            .row_size = kWidth,
            .dtype = dtype,
            .max_rows = max_rows,
            .rule = UpdateRule::kAdd,
            .initial_range = 0};
  }
  TableSpec kept() const { return spec("kept", 2 * kKeys); }
  TableSpec few() const { return spec("few", 64); }
};

struct TableStrike {
  std::optional<FaultPoint> point{};
  Action action = Action::kKill;
  int passes = 1;
  std::uint64_t store = 0;  // or before this store; 0: none

  // What makes two workers meet takes its time now and then.
  void arm_it(std::uint64_t seed) const {
    static std::mt19937_64 random;
    random.seed(seed);
    static TableStrike own;
    own = *this;
    shm::g_fault_hooks.reached = [](FaultPoint reached) {
      const bool is_slow =
          reached == FaultPoint::kRowFilled || reached == FaultPoint::kRowPinned || reached == FaultPoint::kRowSealed;
      if (is_slow && random() % 64 == 0) usleep(100);
      if (own.point != reached || --own.passes != 0) return;
      raise(own.action == Action::kKill ? SIGKILL : SIGSTOP);
    };
    if (store != 0) arm_store(store);
  }
};

}  // namespace ps_shm::test
