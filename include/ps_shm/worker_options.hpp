/// @file
/// How a worker joins a job, and where its messages go (ps_shm/worker.hpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

/// Options of a Worker.
struct WorkerOptions {
  std::string job{};                    ///< name of the job
  std::string group{};                  ///< Unix group whose users' job this may be; empty: only this process's user's
  std::optional<std::uint32_t> rank{};  ///< unset: the first free rank, preferring ranks never used
  bool guest = false;                   ///< joins beside the workers, with the last rank (Worker::add_once)
  std::uint32_t threads = 1;            ///< that share large pulls and pushes, up to JobConfig::threads; 0: as many
  WaitLimit wait_job = Seconds(60);     ///< how long the constructor waits for the job to exist
  /// Polled while a call blocks. If it returns true, the call throws Interrupted. (It is not polled while a push waits
  /// for a snapshot that is being taken.)
  std::function<bool()> stop_requested{};
  /// Log callback, which gets one line at a time: a progress message while a call blocks, once a second (step() and
  /// barrier(): every 10 s), and warnings. Unset: stderr.
  std::function<void(const std::string&)> log{};
  /// Called after each phase of step(): "wait" (for other workers) or "apply" (of the gradients, mode sync). Times are
  /// of CLOCK_MONOTONIC, in nanoseconds.
  std::function<void(const char* part, std::uint64_t begin_ns, std::uint64_t end_ns)> on_part{};
  /// Record and replay (docs/replay.md), for modes async and ssp, versioned variables, one thread and no GPU;
  /// otherwise Error is thrown, also by pull_all(), pull_if_changed() and snapshot().
  std::string record{};  ///< folder that the order of this worker's pulls and pushes is recorded in; empty: none
  std::string replay{};  ///< folder with a job's records; the worker follows the next record of its rank
  std::string
      replay_coordinator{};  ///< replay only: file of the replay coordinator, which launch_shm gives to the workers
};

}  // namespace ps_shm
