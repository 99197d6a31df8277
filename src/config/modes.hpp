// The properties of each mode, one row per mode, for the rest of the program. The StepMode of a mode's family
// implements how the mode works (worker/step_mode.hpp).
#pragma once

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "ps_shm/job_config.hpp"

namespace ps_shm {

// Modes of one family share their StepMode, so a running job can change from one of them to another.
enum class ModeFamily {
  kAtOnce,    // a push applies at once, and each worker has steps of its own
  kTogether,  // pushes are combined and applied when the step ends, for all workers at once
};

struct ModeTraits {
  Mode mode;
  const char* name;
  ModeFamily family;
  bool needs_versioned;      // helping is exact for versioned chunks only; nothing is updated in place
  bool has_staleness_bound;  // `staleness`: a worker that is too far ahead of the slowest waits
  bool has_quorum;           // `quorum`: number of gradients that complete a step
  bool has_reduce;           // `reduce`: how the gradients of a step are combined

  // Whether a step is common to all workers and combines the gradients of several.
  constexpr bool steps_together() const noexcept { return family == ModeFamily::kTogether; }
};

// clang-format off
inline constexpr ModeTraits kModes[] = {
  // mode          name     family                  versioned  bound  quorum  reduce
    {Mode::kAsync, "async", ModeFamily::kAtOnce,    false,     false, false,  false},
    {Mode::kSsp,   "ssp",   ModeFamily::kAtOnce,    false,     true,  false,  false},
    {Mode::kSync,  "sync",  ModeFamily::kTogether,  true,      false, true,   true},
};
// clang-format on
static_assert(
    [] {
      for (std::uint32_t i = 0; i < std::size(kModes); ++i)
        if (static_cast<std::uint32_t>(kModes[i].mode) != i + 1) return false;
      return true;
    }(),
    "rows are found by their mode's number, which counts from 1");

// The row of the mode with that number, as stored in the segments; or nullptr.
constexpr const ModeTraits* find_mode(std::uint32_t number) noexcept {
  return number - 1 < std::size(kModes) ? &kModes[number - 1] : nullptr;
}

// For values that checks reject: they have no row and no property.
inline constexpr ModeTraits kUnknownMode{Mode{}, "unknown", ModeFamily::kAtOnce, false, false, false, false};

constexpr const ModeTraits& traits_of(Mode mode) noexcept {
  const ModeTraits* row = find_mode(static_cast<std::uint32_t>(mode));
  return row != nullptr ? *row : kUnknownMode;
}

constexpr std::optional<Mode> mode_named(std::string_view name) noexcept {
  for (const ModeTraits& row : kModes)
    if (name == row.name) return row.mode;
  return std::nullopt;
}

// The names of all modes, for error messages: "async, ssp or sync".
inline std::string mode_names() {
  std::string names;
  for (const ModeTraits& row : kModes)
    names += (names.empty() ? "" : &row == std::end(kModes) - 1 ? " or " : ", ") + std::string(row.name);
  return names;
}

// Whether a running job can change from one mode to the other.
constexpr bool may_change_live(Mode from, Mode to) noexcept { return traits_of(from).family == traits_of(to).family; }

// The number of workers whose pushes one step combines.
constexpr std::uint64_t pushes_of_step(const JobConfig& config) noexcept {
  if (!traits_of(config.mode).steps_together()) return 1;
  return config.quorum != 0 ? config.quorum : config.workers;
}

}  // namespace ps_shm
