// The ps of a job: creates its segments, watches over its workers, and removes the segments at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ps/export.hpp"
#include "ps/job_config.hpp"
#include "ps/snapshot.hpp"

namespace PS_API ps {

enum class EndReason { kAllWorkersLeft, kLingerOver, kStopRequested };

struct ServeHooks {
  std::function<bool()> stop_requested;            // looked at in every wait
  std::function<bool()> stop_at_once;              // asked again: the workers' leaving is not waited for any more
  std::function<void(const std::string&)> notice;  // joins, leaves, deaths: a line each
  std::function<void()> every_second;
};

struct ServerOptions {
  std::optional<std::uint32_t> task{};     // one ps task of config.tasks; none: this object is all of them
  bool adopt = false;                      // take the job over also where nobody is alive, instead of beginning anew
  double wait_job_seconds = 60.0;          // a task other than 0: how long to wait for task 0 to create the job
  std::function<bool()> stop_requested{};  // looked at in that wait; true ends it with Interrupted
  std::function<void(const std::string&)> notice{};  // what it waits for, and warnings (no huge pages and the like)
};

class Server {
 public:
  // Creates the job; reclaims what a dead job of that name has left. A job that has lost its ps while others of it are
  // alive is taken over as it is, without a pause for anybody: its settings must be these. Task k > 0 waits for the job
  // and adds shard k to it, or takes a dead task's over; of `config` only the name and the number of tasks count then.
  // Throws Error: served already, ended with workers that have not left, other settings, /dev/shm full, wrong settings,
  // no job in time.
  explicit Server(const JobConfig& config, const ServerOptions& options = {});
  // The last one out removes the job's segments, unless keep_segments() was called by any task. Where serve() has not
  // returned, workers that are there go on, and another Server may take the job over.
  ~Server();
  Server(Server&&) noexcept;
  Server& operator=(Server&&) = delete;

  // Watches until the last step is done and the job's N workers have joined and left, or linger_seconds after the last
  // one left or died, or until a stop is requested. Then ends the job for all its tasks: workers are told to leave, and
  // are waited for up to 5 s; whoever comes is told that the job is over. All tasks return the same reason.
  EndReason serve(const ServeHooks& hooks);

  std::uint64_t global_step() const noexcept;

  // One consistent state of all variables, while the workers go on (ps/snapshot.hpp), as Worker::snapshot(). The server
  // outlives it.
  Snapshot snapshot(const SnapshotOptions& options = {});

  // Leaves the job's segments behind for the inspector.
  void keep_segments() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
