#include <fmt/format.h>

#include "ps/errors.hpp"
#include "shm/validation.hpp"
#include "shm/worker_table.hpp"
#include "worker/impl.hpp"
#include "worker/waits.hpp"

namespace ps {

std::pair<shm::JobSegments, std::uint32_t> Worker::Impl::join(const WorkerOptions& options) {
  check_job_name(options.job);
  if (options.rank && *options.rank >= kMaxWorkers)
    throw Error(fmt::format("rank {} is out of range: ranks are 0 to {}", *options.rank, kMaxWorkers - 1));
  constexpr double kRankPatience = 1.0;  // a successor may come before the kernel has finished ending its predecessor
  Wait wait(options, options.wait_job_seconds, 1.0), rank_wait(options, kRankPatience, 60.0);
  shm::NameWait names;
  std::string reason = "there is no such job yet";
  for (;;) {
    shm::AttachOutcome outcome;
    std::optional<shm::JobSegments> job = shm::JobSegments::try_attach(options.job, shm::Access::kReadWrite, outcome);
    if (outcome == shm::AttachOutcome::kShardMissing) reason = "one of its ps tasks has not come yet";
    if (job && !job->locks().is_in_use_by_other()) {
      job.reset();
      reason = "a job of that name has died and no ps has taken its place yet";
    }
    if (job) {
      if (job->is_over())
        throw JobFinished(fmt::format("job {} finished at step {}", options.job, job->global_step().load_acquire()));
      if (options.rank && *options.rank >= job->ranks())
        throw Error(
            fmt::format("rank {} is out of range: job '{}' has ranks 0 to {}; start its ps_shm with more "
                        "--max-workers",
                        *options.rank, options.job, job->ranks() - 1));
      if (options.threads > job->config().threads)
        throw Error(fmt::format(
            "job '{}' allows {} thread{} a worker, {} are asked for; start its ps_shm with --threads {}", options.job,
            job->config().threads, job->config().threads == 1 ? "" : "s", options.threads, options.threads));
      std::uint32_t rank = 0;
      const auto check = [&] { check_job(*job, update::slots_per_element); };
      switch (shm::try_join(*job, options.rank, rank, check)) {
        case shm::JoinOutcome::kJoined:
          return {std::move(*job), rank};
        case shm::JoinOutcome::kTableFull:
          throw Error(fmt::format("job '{}' has {} workers already; start its ps_shm with more --max-workers",
                                  options.job, job->ranks()));
        case shm::JoinOutcome::kRankTaken:
          if (!rank_wait.slice([] { return std::string(); }))
            throw Error(fmt::format("rank {} of job '{}' is taken by process {}; choose another --rank, or none",
                                    *options.rank, options.job, job->worker(*options.rank).pid.load_relaxed()));
          break;
        case shm::JoinOutcome::kJobRemoved:
          break;
      }
    }
    const auto what = [&] { return fmt::format("waiting for job '{}': {}", options.job, reason); };
    if (!wait.slice(what))
      throw Error(
          fmt::format("waited {} s for job '{}': {}; start its ps_shm, or see inspect_shm ls for the jobs there are",
                      options.wait_job_seconds, options.job, reason));
    names.pause();
  }
}

void Worker::Impl::take_over() {
  has_settled = shm::settle_spares(job, rank, job.locks());
  if (live.settings.mode == Mode::kSsp) clock.enter(live.clock_epoch);
  if (!is_sync()) return;
  const std::uint64_t round = steps.round();
  if (steps.has_arrived(round)) finish(steps, round, true);  // B4: its gradient counts; nothing of it is overwritten
  if (!is_summed()) gradients.create_own();
}

}  // namespace ps
