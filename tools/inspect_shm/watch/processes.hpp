// The processes of a job's workers, as far as /proc shows them here, and ending one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "inspection/probe.hpp"

namespace ps_shm::watch {

struct ProcessFacts {
  bool is_known = false;    // the process that holds the rank's lock is visible in /proc
  bool is_stopped = false;  // by a signal or a debugger
  std::string device;       // "cpu", "gpu 0", "gpu 0,1"
};

class Processes {
 public:
  // For live workers. Scans all processes if a rank has a new owner, otherwise reads only one.
  ProcessFacts facts_of(const Probe& probe, const RankLook& worker);

 private:
  struct Holder {
    std::uint64_t holders = 0;
    bool is_known = false;
    std::string device;
    int until_device = 0;  // calls until the device is looked up again: a program opens it after it has joined
  };
  std::map<std::uint32_t, Holder> holders_;  // by rank
};

// The process that owns a rank: found by its pid, then kept by a descriptor that no later process with the same
// pid can have.
class WorkerProcess {
 public:
  // Throws Error if the worker is gone, if its process belongs to another user or PID namespace, or if another process
  // holds its lock.
  WorkerProcess(const Probe& probe, std::uint32_t rank);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  std::uint32_t pid() const { return pid_; }

  // Checks the lock and its owner again, then sends the signal. Throws Error as above.
  void send(int signal) const;

 private:
  void check() const;

  const Probe& probe_;
  std::uint32_t rank_, pid_ = 0;
  std::uint64_t holders_ = 0;
  int descriptor_ = -1;
};

}  // namespace ps_shm::watch
