// Which tasks are alive: each holds one OFD lock byte on the control segment's descriptor. The kernel drops a lock when its
// process ends, however it ends; no clock or heartbeat is involved. A stopped process is not dead (locks.L3).
#pragma once

#include <cstdint>
#include <vector>

namespace ps::shm {

// Locks through one descriptor: one per Server or Worker (locks.L1). Every call is one system call of about half a
// microsecond and waits for nothing.
class TaskLocks {
 public:
  explicit TaskLocks(int descriptor) noexcept : descriptor_(descriptor) {}

  // Taking the byte is joining: the kernel arbitrates. False: another task is alive there.
  [[nodiscard]] bool try_take(std::uint32_t byte) const noexcept;

  // Only for a byte that this object has taken.
  void release(std::uint32_t byte) const noexcept;

  // Whether another descriptor holds the byte. Never ask for one's own byte: the answer would be "nobody" (locks.L1).
  bool is_held_by_other(std::uint32_t byte) const noexcept;

  // Whether any byte of the job is held by another descriptor.
  bool is_any_held_by_other() const noexcept;

  // The same for the bytes of ps tasks alone, and of workers alone.
  bool is_any_task_held_by_other() const noexcept;
  bool is_any_rank_held_by_other() const noexcept;

  // Whether somebody is removing the job at this moment: its name will be gone in a few microseconds.
  bool is_being_removed() const noexcept;

  // Whether a task or worker of the job is alive, which somebody who removes it is not. In one look: two would take the
  // remover that comes between them for alive.
  bool is_in_use_by_other() const noexcept;

  // All bytes at once: true only if nobody else has any (names.N2).
  [[nodiscard]] bool try_take_all() const noexcept;
  void release_all() const noexcept;

 private:
  int descriptor_;
};

// A process, and bytes that it holds.
struct LockHolder {
  std::uint32_t pid, first, last;
};

// Finds the processes that hold bytes of the segment that is open as `descriptor`, for messages. The kernel names no
// process for such a lock, but /proc lists each open file's locks. Looks at every process; misses those that /proc does
// not show: other users', other containers'.
std::vector<LockHolder> lock_holders(int descriptor);

}  // namespace ps::shm
