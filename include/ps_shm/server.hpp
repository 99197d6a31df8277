/// @file
/// The ps of a job: it creates the job's segments, watches its workers, and removes the segments at the end.
/// @code
///   ps_shm::Server server({.job = "demo", .workers = 4, .steps = 1000});
///   server.serve({});  // until the workers have done these steps and left
/// @endcode
/// A Server is used by one thread at a time. After a fork() it belongs to the parent: in the child its destructor does
/// nothing, and every call that needs the shared memory throws Error with kInvalidState.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ps_shm/export.hpp"
#include "ps_shm/job_config.hpp"
#include "ps_shm/snapshot.hpp"

namespace PS_SHM_API ps_shm {

/// Why a job ended.
enum class EndReason {
  kAllWorkersLeft,  ///< the work is done, and all workers have left
  kLingerOver,      ///< no worker was there for `linger`
  kStopRequested    ///< ServeHooks::stop_requested returned true
};

/// In words: "all workers left", "linger over" or "stop requested".
/// @progress wait-free.
PS_SHM_API const char* to_string(EndReason reason) noexcept;

/// What Server::serve() calls. Each member may be unset.
struct ServeHooks {
  std::function<bool()> stop_requested{};         ///< polled; true ends the job
  std::function<bool()> stop_at_once{};           ///< polled while the job ends; true: do not wait for workers to leave
  std::function<void(const std::string&)> log{};  ///< log callback: a line for each join, leave and death
  std::function<void()> every_second{};           ///< called once a second
};

/// Options of a Server.
struct ServerOptions {
  std::optional<std::uint32_t> task{};  ///< the one ps task of config.ps_tasks that this object is; unset: all of them
  bool adopt = false;  ///< take over an existing job, even one that has no living process, instead of creating one
  WaitLimit wait_job = Seconds(60);  ///< tasks other than 0: how long the constructor waits for task 0
  std::function<bool()> stop_requested{};         ///< polled while the constructor waits; true: it throws Interrupted
  std::function<void(const std::string&)> log{};  ///< log callback: progress while it waits, and warnings
};

/// The ps of a job, or one of its tasks.
///
/// A Server is used by one thread at a time.
class Server {
 public:
  /// Creates the job, after reclaiming what a dead job of that name has left. If the job has lost its ps while other
  /// processes of it are alive, this object takes it over as it is, without a pause for anybody; the settings must be
  /// the job's.
  ///
  /// Task k > 0 waits for the job and adds shard k to it, or takes over the task of a ps that has died. Of `config`
  /// only the job's name, `ps_tasks` and `group` then count.
  ///
  /// @throws Error with kAlreadyExists if a living ps serves the job or the task, or if the job was ended and workers
  /// of it have not left; kIncompatible if the job has other settings; kInvalidArgument if the settings are invalid;
  /// kNoSpace if /dev/shm is full; kNotFound with `adopt` if there is no such job; Timeout if the job was not there in
  /// time; what reading the checkpoint config.restore throws; Interrupted.
  explicit Server(const JobConfig& config, const ServerOptions& options = {});

  /// The last task to go removes the job's segments if no worker is left, unless a task has called keep_segments().
  /// Otherwise the workers go on, and the last of them removes a job that has ended (serve() has returned). Another job
  /// stays, so that another Server may take it over or begin it anew.
  ~Server();
  Server(Server&&) noexcept;
  Server& operator=(Server&&) = delete;

  /// Watches the job until one of these is true: the last step is done and the job's `workers` workers have joined and
  /// left (in a job without a last step: they have joined and left); no worker was there for `linger` after the
  /// last one left or died; another task has ended the job; or a stop is requested.
  ///
  /// Then it ends the job for all its tasks: workers are told to leave, and serve() waits up to 5 s for that; workers
  /// that come later are told that the job is over. All tasks return the same reason.
  ///
  /// @throws whatever the functions in `hooks` throw.
  /// @progress blocks until the job ends.
  EndReason serve(const ServeHooks& hooks);

  /// The number of global steps done so far.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  std::uint64_t global_step() const;

  /// Takes a consistent snapshot of all variables while the workers go on, see Worker::snapshot(). The Server must
  /// outlive the Snapshot.
  ///
  /// @throws_and_progress as Worker::snapshot().
  Snapshot snapshot(const SnapshotOptions& options = {});

  /// Leaves the job's segments in /dev/shm at the end, for the inspector.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  void keep_segments();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
