#include "shm/liveness.hpp"

#include <fcntl.h>

#include "shm/layout.hpp"

namespace ps::shm {
namespace {

struct flock range(short type, std::uint32_t first, std::uint32_t count) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = count;
  return lock;
}

bool set(int descriptor, short type, std::uint32_t first, std::uint32_t count) {
  struct flock lock = range(type, first, count);
  return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

bool conflicts(int descriptor, std::uint32_t first, std::uint32_t count) {
  struct flock lock = range(F_WRLCK, first, count);
  return fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

}  // namespace

// Who removes a job holds the remover's byte with all others, as one lock.
bool TaskLocks::is_in_use_by_other() const noexcept {
  struct flock lock = range(F_WRLCK, 0, kRemoverByte);
  if (fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return false;
  return lock.l_start + lock.l_len <= kRemoverByte;
}
bool TaskLocks::try_take(std::uint32_t byte) const noexcept { return set(descriptor_, F_WRLCK, byte, 1); }
void TaskLocks::release(std::uint32_t byte) const noexcept { set(descriptor_, F_UNLCK, byte, 1); }
bool TaskLocks::is_held_by_other(std::uint32_t byte) const noexcept { return conflicts(descriptor_, byte, 1); }
bool TaskLocks::is_any_held_by_other() const noexcept { return conflicts(descriptor_, 0, kLockBytes); }
bool TaskLocks::is_any_task_held_by_other() const noexcept { return conflicts(descriptor_, kTaskByte, kMaxShards); }
bool TaskLocks::is_any_rank_held_by_other() const noexcept { return conflicts(descriptor_, kRankByte, kMaxRanks); }
bool TaskLocks::is_being_removed() const noexcept { return conflicts(descriptor_, kRemoverByte, 1); }
bool TaskLocks::try_take_all() const noexcept { return set(descriptor_, F_WRLCK, 0, kLockBytes); }
void TaskLocks::release_all() const noexcept { set(descriptor_, F_UNLCK, 0, kLockBytes); }

}  // namespace ps::shm
