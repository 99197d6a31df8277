// Ends the programs that a launcher has started when the launcher itself is killed: a process that waits for its end.
#pragma once

#include <sys/types.h>

namespace ps::tools {

class Guard {
 public:
  Guard();   // forks. Throws Error: there can be no further process.
  ~Guard();  // the launcher ends by itself, and has ended its programs
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // From here on the process group gets SIGTERM when this process dies, and SIGKILL where it does not end.
  // Requires: until the guard's end it is a child's that was not waited for, so that no other process has its number.
  void watch(pid_t group) noexcept;

 private:
  int to_guard_ = -1;
  pid_t pid_ = -1;
};

}  // namespace ps::tools
