// The ps of a job: creates its segments, watches over its workers, and removes the segments at the end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ps/job_config.hpp"

namespace ps {

enum class EndReason { kAllWorkersLeft, kLingerOver, kStopRequested };

struct ServeHooks {
  std::function<bool()> stop_requested;            // looked at in every wait
  std::function<void(const std::string&)> notice;  // joins, leaves, deaths: a line each
  std::function<void()> every_second;
};

class Server {
 public:
  // Creates the job; reclaims what a dead job of that name has left. Throws Error: served already, orphaned workers
  // still alive, /dev/shm full, wrong settings.
  explicit Server(const JobConfig& config);
  ~Server();  // removes the job's segments unless keep_segments() was called
  Server(Server&&) noexcept;
  Server& operator=(Server&&) = delete;

  // Watches until the last step is done and the job's N workers have joined and left, or linger_seconds after the last
  // one left or died, or until a stop is requested.
  EndReason serve(const ServeHooks& hooks);

  std::uint64_t global_step() const noexcept;

  // Leaves the segments behind for the inspector.
  void keep_segments() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
