// A record of runtime settings (live_settings.hpp).
#pragma once

#include <cstdint>

#include "config/live_rows.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

// The word of a setting, in a record, whatever its constness.
template <class Record>
auto& word_of(Record& record, config::LiveKey key) noexcept {
  return record.words[static_cast<std::uint32_t>(key) - 1];
}

// settings.S2, at the job's creation and by a change.
inline void write_live(LiveShm& record, const LiveSettings& settings, std::uint32_t clock_epoch) noexcept {
  config::for_each_live(
      [&](const auto& row) { word_of(record, row.key).store_relaxed(config::live_word(settings.*row.live)); });
  record.clock_epoch.store_relaxed(clock_epoch);
}

static_assert(
    [] {
      bool fits = true;
      std::uint64_t seen = 0;
      config::for_each_live([&](const auto& row) {
        const std::uint32_t number = static_cast<std::uint32_t>(row.key) - 1;
        fits = fits && number < kLiveWords && (seen >> number & 1) == 0;
        seen |= std::uint64_t{1} << number;
      });
      return fits;
    }(),
    "each runtime setting has a word of its own");

}  // namespace ps_shm::shm
