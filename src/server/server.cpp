#include "ps/server.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <vector>

#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/counters.hpp"
#include "shm/futex.hpp"
#include "shm/job_segments.hpp"
#include "shm/worker_table.hpp"

namespace ps {
namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;
constexpr std::uint64_t kFarewellNs = 5 * kSecondNs;  // how long a ps that was asked to end waits for its workers

shm::JobSegments create(const JobConfig& config) {
  check(config);
  return shm::JobSegments::create(config);
}

}  // namespace

struct Server::Impl {
  explicit Impl(const JobConfig& config) : job(create(config)), seen(job.ranks()) {}

  struct Seen {
    WorkerState state = WorkerState::kNever;
    std::uint64_t holders = 0;
  };
  struct Census {
    std::uint32_t ever_joined = 0, left = 0;
    bool anybody_alive = false;  // by the locks: who has left holds its byte for some instructions more
  };

  Census look(const ServeHooks& hooks);
  void wait_for_farewells(const ServeHooks& hooks);

  shm::JobSegments job;
  std::vector<Seen> seen;
  pid_t owner = getpid();
  bool keeps_segments = false;
};

Server::Server(const JobConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Server::Server(Server&&) noexcept = default;

Server::~Server() {
  if (!impl_ || impl_->keeps_segments || impl_->owner != getpid()) return;  // a forked child has no lock (L2)
  try {
    shm::remove_job(impl_->job.job(), impl_->job.control().descriptor());  // with workers alive nothing is touched (N2)
  } catch (const Error&) {
    // Nothing can be done about it here; the next ps of that name reclaims what is left.
  }
}

// Reports what has changed since the last look, and counts.
Server::Impl::Census Server::Impl::look(const ServeHooks& hooks) {
  Census census;
  census.anybody_alive = job.locks().is_any_rank_held_by_other();
  for (std::uint32_t rank = 0; rank < job.ranks(); ++rank) {
    const shm::WorkerShm& entry = job.worker(rank);
    const Seen now{shm::worker_state(job, rank), entry.holders.load_acquire()};
    census.ever_joined += now.state != WorkerState::kNever;
    census.left += now.state == WorkerState::kLeft;
    Seen& before = seen[rank];
    if (now.state == before.state && now.holders == before.holders) continue;
    before = now;
    if (!hooks.notice) continue;
    const std::uint32_t pid = entry.pid.load_relaxed();
    switch (now.state) {
      case WorkerState::kNever:
        break;
      case WorkerState::kAlive:
        hooks.notice(fmt::format("worker {} (process {}) joined", rank, pid));
        break;
      case WorkerState::kLeft:
        hooks.notice(fmt::format("worker {} left after {} steps", rank, shm::counter(entry, shm::Counter::kSteps)));
        break;
      case WorkerState::kDead:
        hooks.notice(fmt::format("worker {} (process {}) died; the others go on", rank, pid));
        break;
    }
  }
  return census;
}

// Workers see `ended` at their next step or in their wait, and leave.
void Server::Impl::wait_for_farewells(const ServeHooks& hooks) {
  job.state().ended.store_release(1);
  for (std::uint32_t which = 0; which < shm::kBarriers; ++which) shm::futex_announce(job.barrier(which).futex);
  shm::futex_announce(job.state().activity);
  const std::uint64_t until = shm::now_ns() + kFarewellNs;
  while (look(hooks).anybody_alive && shm::now_ns() < until) {
    const std::uint32_t seen_word = job.state().activity.load_acquire();
    shm::futex_wait_slice(job.state().activity, seen_word);
  }
}

EndReason Server::serve(const ServeHooks& hooks) {
  Impl& impl = *impl_;
  const JobConfig config = impl.job.settings();
  std::uint64_t next_second = shm::now_ns() + kSecondNs, alone_since = 0;
  for (;;) {
    const std::uint32_t activity = impl.job.state().activity.load_acquire();
    const Impl::Census census = impl.look(hooks);
    const std::uint64_t now = shm::now_ns();
    const bool everybody_came = census.ever_joined >= config.workers && !census.anybody_alive;
    // A job without a last step is done when all its workers say so by leaving.
    if (everybody_came && (impl.job.is_finished() || (config.steps == 0 && census.left == census.ever_joined)))
      return EndReason::kAllWorkersLeft;
    if (census.ever_joined != 0 && !census.anybody_alive) {
      if (alone_since == 0) alone_since = now;
      if (double(now - alone_since) * 1e-9 >= config.linger_seconds) return EndReason::kLingerOver;
    } else {
      alone_since = 0;
    }
    if (hooks.stop_requested && hooks.stop_requested()) {
      impl.wait_for_farewells(hooks);
      return EndReason::kStopRequested;
    }
    if (now >= next_second) {
      next_second += kSecondNs;
      if (hooks.every_second) hooks.every_second();
    }
    shm::futex_wait_slice(impl.job.state().activity, activity);
  }
}

std::uint64_t Server::global_step() const noexcept { return impl_->job.global_step().load_acquire(); }
void Server::keep_segments() noexcept { impl_->keeps_segments = true; }

}  // namespace ps
