// Writing runtime settings into their record (settings.S2), at a job's creation and by a change (live_settings.hpp).
#pragma once

#include <bit>
#include <cstdint>

#include "ps_shm/job_config.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

inline void write_live(LiveShm& record, const LiveSettings& settings, std::uint32_t clock_epoch) noexcept {
  record.mode.store_relaxed(static_cast<std::uint32_t>(settings.mode));
  record.quorum.store_relaxed(settings.quorum);
  record.staleness.store_relaxed(settings.staleness);
  record.stale_limit.store_relaxed(settings.stale_limit);
  record.learning_rate.store_relaxed(std::bit_cast<std::uint32_t>(settings.learning_rate));
  record.clip_norm.store_relaxed(std::bit_cast<std::uint32_t>(settings.clip_norm));
  record.momentum.store_relaxed(std::bit_cast<std::uint32_t>(settings.momentum));
  record.beta1.store_relaxed(std::bit_cast<std::uint32_t>(settings.beta1));
  record.workers.store_relaxed(settings.workers);
  record.clock_epoch.store_relaxed(clock_epoch);
}

}  // namespace ps_shm::shm
