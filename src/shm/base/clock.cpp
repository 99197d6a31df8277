#include "shm/base/clock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace ps_shm::shm {
namespace {

// The text of a link of /proc/self/ns; empty if there is none.
std::string_view namespace_of(const char* path, char (&text)[64]) noexcept {
  const ssize_t count = readlink(path, text, sizeof text);
  return {text, count > 0 ? static_cast<std::size_t>(count) : 0};
}

}  // namespace

void note_time_namespace() noexcept {
  // The file has the offsets of the children's namespace. Between unshare() and exec() the process is in another one.
  char own[64], of_children[64];
  if (namespace_of("/proc/self/ns/time", own) != namespace_of("/proc/self/ns/time_for_children", of_children)) return;
  const int file = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;  // a kernel without time namespaces, or no /proc
  char text[256] = {};   // "monotonic SECONDS NANOSECONDS" and "boottime ...", each in a line
  const ssize_t count = read(file, text, sizeof text - 1);
  close(file);
  long long seconds = 0, nanoseconds = 0;
  if (count <= 0 || std::sscanf(text, "monotonic %lld %lld", &seconds, &nanoseconds) != 2) return;
  g_time_offset.store(static_cast<std::uint64_t>(seconds) * 1'000'000'000U + static_cast<std::uint64_t>(nanoseconds),
                      std::memory_order_relaxed);
}

}  // namespace ps_shm::shm
