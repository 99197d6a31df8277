// Ends the programs that a launcher has started if the launcher itself is killed: a process that waits for its end.
#pragma once

#include <sys/types.h>

namespace ps_shm::tools {

class Guard {
 public:
  Guard();   // forks. Throws Error if no process can be created.
  ~Guard();  // for a launcher that ends normally, after its programs
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // From now on the process group gets SIGTERM when this process dies, and SIGKILL if it does not end.
  // Requires: until the guard's end, its leader is a child that was not waited for, so its number cannot be reused.
  void watch(pid_t group) noexcept;

 private:
  int to_guard_ = -1;
  pid_t pid_ = -1;
};

}  // namespace ps_shm::tools
