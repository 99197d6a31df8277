// What a worker does while it waits: it polls the caller's stop request, reports what it waits for, keeps deadlines,
// and shows in its table entry what it waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm {

// A wait in progress. slice() is to be called before each sleep.
class Wait {
 public:
  // `notice_seconds`: the interval of progress messages; the first comes after one interval.
  Wait(const WorkerOptions& options, WaitLimit limit, double notice_seconds);

  // Throws Interrupted if the caller asks to stop. Returns false if the deadline has passed. what() is called when a
  // progress message is due.
  [[nodiscard]] bool slice(const std::function<std::string()>& what);

  void log(const std::string& line) const { log(options_, line); }
  static void log(const WorkerOptions& options, const std::string& line);  // stderr, if there is no callback

 private:
  const WorkerOptions& options_;
  std::uint64_t deadline_ns_, notice_ns_, period_ns_;
};

// While it exists, a worker's table entry shows what the worker waits for.
class WaitMark {
 public:
  WaitMark(shm::WorkerShm& entry, shm::WaitingFor what, std::uint64_t on) noexcept;
  ~WaitMark();
  WaitMark(const WaitMark&) = delete;
  WaitMark& operator=(const WaitMark&) = delete;

 private:
  shm::WorkerShm& entry_;
};

}  // namespace ps_shm
