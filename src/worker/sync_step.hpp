// The apply phase of a sync step: every worker helps to apply the contributors' gradients, chunk by chunk.
#pragma once

#include <cstdint>

#include "shm/barrier.hpp"
#include "worker/gradients.hpp"
#include "worker/threads.hpp"

namespace ps {

// The rate of global step `step`, where `learning_rate` is that of step 0.
float scheduled_rate(const shm::JobConfigShm& config, float learning_rate, std::uint64_t step) noexcept;

// Applies step `step` to each chunk that does not include it yet, beginning at a different chunk on each worker; when it
// returns every chunk includes the step, whoever did it. Gradients are combined in rank order (I6). Lock-free.
void apply_ordered_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::Decision& decision,
                        GradientSegments& gradients, Threads& threads);

// The same with the sums of the accumulators (reduce atomic): each chunk is divided by the number of its own
// contributors, who may be more than the decision's where a late or dying one was in time for it. Not deterministic.
void apply_summed_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::Decision& decision,
                       Threads& threads);

}  // namespace ps
