// What a worker does while it waits: listens to its caller's stop, says what it waits for, keeps deadlines, and shows
// in its table entry whom it waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ps/worker.hpp"
#include "shm/job_segments.hpp"

namespace ps {

// One wait under way. Call slice() before each sleep.
class Wait {
 public:
  // `deadline_seconds`: 0 for none. `notice_seconds`: how often to say what it waits for; the first time after as long.
  Wait(const WorkerOptions& options, double deadline_seconds, double notice_seconds);

  // Throws Interrupted when the caller wants to stop. False: the deadline is over. what() is called when it is time
  // to say something.
  [[nodiscard]] bool slice(const std::function<std::string()>& what);

  void notice(const std::string& line) const;

 private:
  const WorkerOptions& options_;
  std::uint64_t deadline_ns_, notice_ns_, period_ns_;
};

// Shows in a worker's table entry what it waits for, as long as it lives.
class WaitMark {
 public:
  WaitMark(shm::WorkerShm& entry, shm::WaitingFor what, std::uint64_t on) noexcept;
  ~WaitMark();
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  shm::WorkerShm& entry_;
};

}  // namespace ps
