// The settings of a stress test from the environment: seed, rounds, and whether to run long.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "shm/base/racing.hpp"

namespace ps_shm::test {

// PS_SHM_TEST_ROUNDS, or by default `rounds`; a tenth under the thread sanitizer, twenty times as many with
// PS_SHM_TEST_FULL=1.
inline std::uint64_t stress_rounds(std::uint64_t rounds) {
  if constexpr (shm::kThreadSanitizer) rounds = rounds / 10 + 1;
  if (const char* wanted = std::getenv("PS_SHM_TEST_ROUNDS")) return std::strtoull(wanted, nullptr, 10);
  const char* full = std::getenv("PS_SHM_TEST_FULL");
  return full != nullptr && full[0] == '1' ? 20 * rounds : rounds;
}

// PS_SHM_TEST_SEED, or by default a random seed; printed, so that a failure can be reproduced.
inline std::uint64_t stress_seed() {
  const char* wanted = std::getenv("PS_SHM_TEST_SEED");
  const std::uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  std::printf("PS_SHM_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace ps_shm::test
