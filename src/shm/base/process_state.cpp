#include "shm/base/process_state.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace ps_shm::shm {
namespace {

// The letter behind the name in a file such as /proc/1/stat; 0 if that cannot be read.
char state_in(const char* path) noexcept {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[256];  // the number, a name of at most 64 characters, the letter
  const ssize_t count = read(file, text, sizeof text);
  close(file);
  if (count <= 0) return 0;
  const auto* const name_end = static_cast<const char*>(memrchr(text, ')', static_cast<std::size_t>(count)));
  return name_end != nullptr && name_end + 2 < text + count ? name_end[2] : '\0';
}

}  // namespace

char process_state(std::uint32_t pid) noexcept {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%u/stat", pid);
  return state_in(path);
}

bool is_stopped(std::uint32_t pid) noexcept {
  const char state = process_state(pid);
  return state == 'T' || state == 't';
}

bool is_runnable(std::uint32_t pid) noexcept {
  char path[64 + sizeof(dirent::d_name)];
  std::snprintf(path, sizeof path, "/proc/%u/task", pid);
  DIR* const tasks = opendir(path);
  if (tasks == nullptr) return false;
  bool result = false;
  while (const dirent* task = result ? nullptr : readdir(tasks)) {
    std::snprintf(path, sizeof path, "/proc/%u/task/%s/stat", pid, task->d_name);
    result = state_in(path) == 'R';
  }
  closedir(tasks);
  return result;
}

}  // namespace ps_shm::shm
