#include "worker/barrier_wait.hpp"

#include <fmt/format.h>

#include <string>

#include "ps_shm/errors.hpp"
#include "shm/segment/events.hpp"

namespace ps_shm {

bool BarrierWait::operator()(const std::vector<std::uint32_t>& missing) {
  const WaitLimit timeout = core_.options.guest ? std::nullopt : core_.config.step_timeout;  // it leaves nobody out
  if (!wait_) {
    constexpr double kWarnSeconds = 10.0;
    wait_.emplace(core_.options, timeout, kWarnSeconds);
    mark_.emplace(core_.entry, is_step_ ? shm::WaitingFor::kStep : shm::WaitingFor::kBarrier, round_);
  }
  const auto whom = [&] {
    const std::uint32_t to_come = barrier_.still_to_join();
    return to_come != 0 ? fmt::format("{} of {} workers to join", to_come, core_.config.workers)
                        : fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
  };
  if (core_.job.was_ended())
    throw JobFinished(fmt::format("job {} was ended at step {}", core_.job.job(), core_.job.steps_done()));
  if (wait_->slice([&] { return fmt::format("worker {}: waiting at step {} for {}", core_.rank, round_, whom()); }))
    return false;
  if (!is_step_ || barrier_.still_to_join() != 0)
    throw Timeout(
        fmt::format("step {} of job '{}' did not complete within {} s: still waiting for {}; end or continue "
                    "it, or raise `step-timeout`",
                    round_, core_.job.job(), timeout->count(), whom()));
  for (const std::uint32_t other : missing)
    shm::record_event(core_.job,
                      {.kind = shm::EventKind::kLeftOut, .rank = other, .step = round_, .first = core_.rank});
  wait_->log(fmt::format("worker {}: step {} goes on without {}, after {} s of waiting", core_.rank, round_, whom(),
                         timeout->count()));
  return true;
}

}  // namespace ps_shm
