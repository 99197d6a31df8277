// Which tasks are alive: each holds one OFD lock byte through its descriptor of the control segment. The kernel
// releases the lock when the process ends, however it ends; there are no clocks or heartbeats. A stopped process is
// alive (locks.L3).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ps_shm::shm {

// Locks through one descriptor, one for each Server or Worker (locks.L1). Every call is one system call of about 0.5
// us and never waits.
class TaskLocks {
 public:
  explicit TaskLocks(int descriptor) noexcept : descriptor_(descriptor) {}

  // Taking the byte is joining; the kernel arbitrates. False: another task is alive there.
  [[nodiscard]] bool try_take(std::uint32_t byte) const noexcept;

  // Only for a byte that this object has taken.
  void release(std::uint32_t byte) const noexcept;

  // Whether another descriptor holds the byte. Never query your own byte: the answer would be "nobody" (locks.L1).
  bool is_held_by_other(std::uint32_t byte) const noexcept;

  // Whether another descriptor holds any byte of the job.
  bool is_any_held_by_other() const noexcept;

  // The same for the bytes of ps tasks only, and of workers only.
  bool is_any_task_held_by_other() const noexcept;
  bool is_any_rank_held_by_other() const noexcept;
  bool is_any_rank_below_held_by_other(std::uint32_t rank) const noexcept;

  // Whether a process is removing the job at this moment. Its name will be gone within a few microseconds.
  bool is_being_removed() const noexcept;

  // Whether a task or worker of the job is alive; a process that removes the job does not count. This is a single
  // query: with two, a remover that comes between them would be taken for a task.
  bool is_in_use_by_other() const noexcept;

  // Takes all bytes at once. True only if no other process holds any of them (names.N2).
  [[nodiscard]] bool try_take_all() const noexcept;
  void release_all() const noexcept;

 private:
  int descriptor_;
};

// A process, and a range of bytes that it holds.
struct LockHolder {
  std::uint32_t pid, first, last;
};

// Finds the processes that hold bytes of the segment open as `descriptor`, for messages. The kernel does not name the
// holder of such a lock, but /proc lists the locks of each open file. Scans all processes, but misses those that /proc
// does not show, such as those of other users or containers.
std::vector<LockHolder> lock_holders(int descriptor);
// The process among them that holds this byte.
std::optional<std::uint32_t> holder_of(const std::vector<LockHolder>& holders, std::uint32_t byte);

}  // namespace ps_shm::shm
