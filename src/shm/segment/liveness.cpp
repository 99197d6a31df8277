#include "shm/segment/liveness.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "shm/base/memory_model.hpp"
#include "shm/segment/layout.hpp"

namespace ps_shm::shm {
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

// A remover holds the remover's byte and all others as a single lock.
bool TaskLocks::is_in_use_by_other() const noexcept {
  struct flock lock = range(F_WRLCK, 0, kRemoverByte);
  if (fcntl(descriptor_, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return false;
  return lock.l_start + lock.l_len <= kRemoverByte;
}
bool TaskLocks::try_take(std::uint32_t byte) const noexcept { return set(descriptor_, F_WRLCK, byte, 1); }
void TaskLocks::release(std::uint32_t byte) const noexcept { set(descriptor_, F_UNLCK, byte, 1); }
bool TaskLocks::is_held_by_other(std::uint32_t byte) const noexcept {
  if (auto* model = model_of_fences()) {
    if (const std::optional<bool> is_held = model->is_held(byte)) return *is_held;
  }
  return conflicts(descriptor_, byte, 1);
}
bool TaskLocks::is_any_held_by_other() const noexcept { return conflicts(descriptor_, 0, kLockBytes); }
bool TaskLocks::is_any_task_held_by_other() const noexcept {
  if (auto* model = model_of_fences())  // it has the byte of the first task only
    if (const std::optional<bool> is_held = model->is_held(kTaskByte)) return *is_held;
  return conflicts(descriptor_, kTaskByte, kMaxShards);
}
bool TaskLocks::is_any_rank_held_by_other() const noexcept { return conflicts(descriptor_, kRankByte, kMaxRanks); }
bool TaskLocks::is_any_rank_below_held_by_other(std::uint32_t rank) const noexcept {
  return rank != 0 && conflicts(descriptor_, kRankByte, rank);
}
bool TaskLocks::is_being_removed() const noexcept { return conflicts(descriptor_, kRemoverByte, 1); }
bool TaskLocks::try_take_all() const noexcept { return set(descriptor_, F_WRLCK, 0, kLockBytes); }
void TaskLocks::release_all() const noexcept { set(descriptor_, F_UNLCK, 0, kLockBytes); }

std::vector<LockHolder> lock_holders(int descriptor) {
  namespace fs = std::filesystem;
  std::vector<LockHolder> holders;
  struct stat wanted, found;
  if (fstat(descriptor, &wanted) != 0) return holders;
  std::error_code hidden;  // for processes that have ended in the meantime or cannot be inspected
  const fs::directory_iterator end;
  for (fs::directory_iterator process("/proc", hidden); process != end; process.increment(hidden)) {
    const auto pid = static_cast<std::uint32_t>(std::strtoul(process->path().filename().c_str(), nullptr, 10));
    if (pid == 0) continue;
    for (fs::directory_iterator file(process->path() / "fd", hidden); file != end; file.increment(hidden)) {
      if (stat(file->path().c_str(), &found) != 0 || found.st_ino != wanted.st_ino || found.st_dev != wanted.st_dev)
        continue;
      std::ifstream info(process->path() / "fdinfo" / file->path().filename());
      for (std::string line; std::getline(info, line);) {
        unsigned long first = 0, last = kLockBytes;  // unchanged if it is printed as "EOF"
        if (std::sscanf(line.c_str(), "lock: %*d: OFDLCK %*s %*s %*d %*s %lu %lu", &first, &last) >= 1)
          holders.push_back({pid, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last)});
      }
    }
  }
  return holders;
}

std::optional<std::uint32_t> holder_of(const std::vector<LockHolder>& holders, std::uint32_t byte) {
  for (const LockHolder& holder : holders)
    if (holder.first <= byte && byte <= holder.last) return holder.pid;
  return std::nullopt;
}

}  // namespace ps_shm::shm
