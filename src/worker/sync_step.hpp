// The apply phase of a sync step: every worker helps to apply the contributors' gradients, chunk by chunk.
#pragma once

#include <cstdint>

#include "shm/barrier.hpp"
#include "shm/spares.hpp"
#include "worker/gradients.hpp"

namespace ps {

// What an update at global step `step` needs; the same for all helpers, since the settings are the job's.
float learning_rate_at(const shm::JobConfigShm& config, std::uint64_t step) noexcept;

// Applies step `step` to each chunk that does not include it yet, beginning at a different chunk on each worker; when it
// returns every chunk includes the step, whoever did it. Gradients are combined in rank order (I6). Lock-free.
void apply_sync_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::RankSet& contributors,
                     GradientSegments& gradients, shm::Spares& spares);

}  // namespace ps
