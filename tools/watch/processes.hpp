// The processes behind a job's workers, as /proc shows them here, and ending one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "view/probe.hpp"

namespace ps::watch {

struct ProcessFacts {
  bool is_known = false;    // it is the process that holds the rank's lock, as far as /proc shows
  bool is_stopped = false;  // by a signal or a debugger
  std::string device;       // "cpu", "gpu 0", "gpu 0,1"
};

class Processes {
 public:
  // Of a living worker. Looks at every process when a rank has a new holder, else at one.
  ProcessFacts facts_of(const Probe& probe, const RankLook& worker);

 private:
  struct Holder {
    std::uint64_t holders = 0;
    bool is_known = false;
    std::string device;
    int until_device = 0;  // looks until the device is looked up again: a program opens it after it has joined
  };
  std::map<std::uint32_t, Holder> holders_;  // by rank
};

// The process that holds a rank, and no other: found by its pid, then kept by a descriptor that no later process of that
// pid can have.
class WorkerProcess {
 public:
  // Throws Error: the worker is gone, its process is another user's or of another PID namespace, or somebody else holds
  // its lock.
  WorkerProcess(const Probe& probe, std::uint32_t rank);
  ~WorkerProcess();
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  std::uint32_t pid() const { return pid_; }

  // Looks at the lock and its holder once more, then sends the signal. Throws Error as above.
  void send(int signal) const;

 private:
  void check() const;

  const Probe& probe_;
  std::uint32_t rank_, pid_ = 0;
  std::uint64_t holders_ = 0;
  int descriptor_ = -1;
};

}  // namespace ps::watch
