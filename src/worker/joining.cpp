#include <fmt/format.h>

#include "ps_shm/errors.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/recovery.hpp"
#include "shm/steps/worker_table.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps_shm {
namespace {

bool has_single_writer(shm::JobSegments& job) {
  if (job.config().layout == Layout::kSingleWriter) return true;
  const shm::Directory directory(job);
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position)
    if (directory.at(position).layout == static_cast<std::uint32_t>(Layout::kSingleWriter)) return true;
  return false;
}

// How a job gets more ranks, if it can.
std::string how_to_have_more(shm::JobSegments& job) {
  return has_single_writer(job) ? "`layout` single-writer allows one worker or guest at a time"
                                : "start its ps_shm with more `max-workers`";
}

// The job of that name if it can be joined; otherwise `reason` says why not yet. Throws JobFinished if it is over.
std::optional<shm::JobSegments> find_job(const WorkerOptions& options, const shm::Trust& trust, std::string& reason) {
  shm::AttachOutcome outcome;
  std::optional<shm::JobSegments> job =
      shm::JobSegments::try_attach(options.job, shm::Access::kReadWrite, outcome, trust);
  if (outcome == shm::AttachOutcome::kShardMissing) reason = "one of its ps tasks has not started yet";
  if (!job) return std::nullopt;
  if (!job->locks().is_in_use_by_other()) {
    reason = "a job of that name has died and no ps has replaced it yet";
    return std::nullopt;
  }
  if (job->is_finished() && options.replay.empty())  // for a replay, the recording determines the end
    throw JobFinished(fmt::format("job {} finished at step {}", options.job, job->steps_done()));
  if (job->was_ended()) {
    if (job->locks().is_any_task_held_by_other())
      throw JobFinished(fmt::format("job {} was ended at step {}", options.job, job->steps_done()));
    reason = "it was ended, and no ps has started a new one yet";  // its remains will be removed
    return std::nullopt;
  }
  return job;
}

// Throws Error if the job has too few ranks or threads for the options.
void require_capacity(const WorkerOptions& options, shm::JobSegments& job) {
  if (options.rank && *options.rank >= job.ranks())
    throw Error(fmt::format("rank {} is out of range: job '{}' has ranks 0 to {}; {}", *options.rank, options.job,
                            job.ranks() - 1, how_to_have_more(job)));
  if (options.threads > job.config().threads)
    throw Error(
        fmt::format("job '{}' allows {} thread{} per worker, {} were requested; start its ps_shm with `threads` {}",
                    options.job, job.config().threads, job.config().threads == 1 ? "" : "s", options.threads,
                    options.threads),
        ErrorCode::kExhausted);
}

}  // namespace

std::pair<shm::JobSegments, std::uint32_t> Worker::Impl::join(const WorkerOptions& options) {
  check_job_name(options.job);
  if (options.guest && (options.rank || !options.record.empty() || !options.replay.empty()))
    throw Error("a guest has the job's last rank, and is neither recorded nor replayed");
  if (options.rank && *options.rank >= kMaxWorkers)
    throw Error(fmt::format("rank {} is out of range: ranks are 0 to {}", *options.rank, kMaxWorkers - 1));
  constexpr Seconds kRankPatience{1};  // a successor may come before the kernel has finished ending its predecessor
  Wait wait(options, options.wait_job, 1.0), rank_wait(options, kRankPatience, 60.0);
  const shm::Trust trust{.group = shm::shared_with_group(options.group).group};
  shm::NameWait names;
  std::string reason = "there is no such job yet";
  for (;;) {
    std::optional<shm::JobSegments> job = find_job(options, trust, reason);
    if (job) {
      require_capacity(options, *job);
      std::uint32_t rank = 0;
      const auto check = [&] { check_job(*job); };
      const std::optional<std::uint32_t> wanted = options.guest ? job->ranks() - 1 : options.rank;
      const auto membership = options.guest ? shm::Membership::kGuest : shm::Membership::kWorker;
      switch (shm::try_join(*job, wanted, rank, check, membership)) {
        case shm::JoinOutcome::kJoined:
          return {std::move(*job), rank};
        case shm::JoinOutcome::kTableFull:
          throw Error(fmt::format("job '{}' has {} worker{} already; {}", options.job, job->ranks(),
                                  job->ranks() == 1 ? "" : "s", how_to_have_more(*job)),
                      ErrorCode::kExhausted);
        case shm::JoinOutcome::kRankTaken: {
          const std::uint32_t taken_by = job->worker(*wanted).pid.load_relaxed();
          reason = fmt::format("rank {} is taken by process {}", *wanted, taken_by);
          if (!rank_wait.slice([&] { return reason; }))
            throw Error(fmt::format("rank {} of job '{}' is taken by process {}; {}", *wanted, options.job, taken_by,
                                    options.guest ? "a guest has the last rank; " + how_to_have_more(*job)
                                                  : "choose another `rank`, or none"),
                        ErrorCode::kRankTaken);
          break;
        }
        case shm::JoinOutcome::kJobRemoved:
          break;
      }
    }
    const auto why = [&] {
      const std::string keeper = shm::who_keeps(options.job, trust);
      return keeper.empty() ? reason : keeper;
    };
    if (!wait.slice([&] { return fmt::format("waiting for job '{}': {}", options.job, why()); }))
      throw Timeout(fmt::format("waited {} s for job '{}': {}; start its ps_shm, or list the jobs with inspect_shm ls",
                                options.wait_job->count(), options.job, why()));
    names.pause();
  }
}

void Worker::Impl::take_over() {
  has_recovered = shm::recover_buffers(job, rank, job.locks());
  recording = make_recording();
  note_limits();
  mode = StepMode::make(*this);
  mode->begin();
}

}  // namespace ps_shm
