// Whether a worker is recorded or replayed, and which operations are then rejected.
#include <fmt/format.h>

#include <utility>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "record/recorder.hpp"
#include "record/replayer.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {

void WorkerCore::fail_recorded(const char* what) const {
  throw Error(fmt::format("worker {}: {} cannot be recorded or replayed (`record`, `replay`)", rank, what));
}

std::unique_ptr<record::Recording> Worker::Impl::make_recording() {
  if (options.record.empty() && options.replay.empty()) return nullptr;
  const char* const what = options.record.empty() ? "replay" : "record";
  if (traits_of(config.mode).steps_together())
    throw Error(fmt::format("`{}`: a job of mode {} has no order to record; its steps are deterministic", what,
                            to_string(config.mode)),
                ErrorCode::kInvalidState);
  if (threads.count() != 1)
    throw Error(
        fmt::format("`{}`: the chunks of a worker with `threads` {} have no order; use 1", what, threads.count()));
  if (!config.restore.empty())
    throw Error(fmt::format("`{}` needs a job that starts from scratch; this one continues from a checkpoint", what));
  if (options.replay.empty()) return std::make_unique<record::Recorder>(options.record, rank);
  constexpr double kNoticeSeconds = 10.0;
  const auto wait = std::make_shared<Wait>(options, std::nullopt, kNoticeSeconds);
  record::ReplayWaits waits{
      .each_slice = [wait](const std::function<std::string()>& for_what) { static_cast<void>(wait->slice(for_what)); },
      .log = [wait](const std::string& line) { wait->log(line); }};
  return std::make_unique<record::Replayer>(options.replay, options.replay_coordinator, job, rank, std::move(waits));
}

}  // namespace ps_shm
