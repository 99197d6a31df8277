// The runtime settings, one row per setting. A new one is a member of LiveSettings, its row here, and its use.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>

#include "config/modes.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::config {

// A setting's number in the segments: in LiveShm, and in events.
enum class LiveKey : std::uint32_t {
  kMode = 1,
  kStaleness = 2,
  kQuorum = 3,
  kLearningRate = 4,
  kClipNorm = 5,
  kWorkers = 6,
  kMomentum = 7,
  kBeta1 = 8,
  kStaleLimit = 9
};

// Whether the overview of `inspect_shm watch` shows it. In use: the mode has it, or without `of_mode`, it is not 0.
enum class Shown { kAlways, kInUse, kNever };

template <class Value, class Owner, class Stored>
struct LiveRow {
  LiveKey key;
  const char* name;  // of the job's setting
  Value LiveSettings::*live;
  Stored Owner::*stored;  // in the JobConfig, or in its Optimizer
  Shown shown = Shown::kNever;
  bool ModeTraits::*of_mode = nullptr;
};
template <class Value, class Owner, class Stored, class... More>
LiveRow(LiveKey, const char*, Value LiveSettings::*, Stored Owner::*, More...) -> LiveRow<Value, Owner, Stored>;

// clang-format off
inline constexpr std::tuple kLiveRows{
    LiveRow{LiveKey::kMode, "mode", &LiveSettings::mode, &JobConfig::mode, Shown::kAlways},
    LiveRow{LiveKey::kStaleness, "staleness", &LiveSettings::staleness, &JobConfig::staleness, Shown::kInUse,
            &ModeTraits::has_staleness_bound},
    LiveRow{LiveKey::kQuorum, "quorum", &LiveSettings::quorum, &JobConfig::quorum, Shown::kInUse,
            &ModeTraits::has_quorum},
    LiveRow{LiveKey::kStaleLimit, "stale-limit", &LiveSettings::stale_limit, &JobConfig::stale_limit, Shown::kInUse},
    LiveRow{LiveKey::kLearningRate, "lr", &LiveSettings::lr, &Optimizer::lr, Shown::kAlways},
    LiveRow{LiveKey::kClipNorm, "clip-norm", &LiveSettings::clip_norm, &Optimizer::clip_norm, Shown::kInUse},
    LiveRow{LiveKey::kMomentum, "momentum", &LiveSettings::momentum, &Optimizer::momentum},
    LiveRow{LiveKey::kBeta1, "beta1", &LiveSettings::beta1, &Optimizer::beta1},
    LiveRow{LiveKey::kWorkers, "workers", &LiveSettings::workers, &JobConfig::workers},
};
// clang-format on

// Calls body(row) for each.
template <class Body>
constexpr void for_each_live(Body&& body) {
  std::apply([&](const auto&... rows) { (body(rows), ...); }, kLiveRows);
}

// A value as a word of a segment: a float as its bits.
template <class Value>
constexpr std::uint64_t live_word(Value value) noexcept {
  static_assert(std::is_same_v<Value, float> || std::is_enum_v<Value> || std::is_unsigned_v<Value>);
  if constexpr (std::is_same_v<Value, float>)
    return std::bit_cast<std::uint32_t>(value);
  else
    return static_cast<std::uint64_t>(value);
}
template <class Value>
constexpr void set_from_word(Value& value, std::uint64_t word) noexcept {
  if constexpr (std::is_same_v<Value, float>)
    value = std::bit_cast<float>(static_cast<std::uint32_t>(word));
  else
    value = static_cast<Value>(word);
}

// The value of the setting of that name as shown to users; of a row, with so many significant digits of a float.
std::string show_live(const char* name, const LiveSettings& live);
template <class Value, class Owner, class Stored>
std::string show_live(const LiveRow<Value, Owner, Stored>& row, const LiveSettings& live, int digits) {
  if constexpr (std::is_same_v<Value, float>)
    return fmt::format("{:.{}g}", live.*row.live, digits);
  else
    return show_live(row.name, live);
}

}  // namespace ps_shm::config
