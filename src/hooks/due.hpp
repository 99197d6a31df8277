// When a hook is due, and where its messages go.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "config/interval.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"

namespace ps_shm::hooks {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void tell(const LogCallback& log, const std::string& line) {
  if (log)
    log(line);
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

inline config::Interval interval_of(const Every& every) {
  if (every.steps == 0 && !(every.seconds > 0)) throw Error("a hook's `Every` is empty: give steps or seconds");
  return {.steps = every.steps, .seconds = every.seconds};
}

}  // namespace ps_shm::hooks
