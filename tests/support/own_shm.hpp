// A /dev/shm of a test's own, and one that is nearly full.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>

#include "shm/segment/names.hpp"
#include "support/processes.hpp"

namespace ps_shm::test {

// A /dev/shm private to this process. False: mounts are not allowed here.
inline bool mount_own_shm(const char* size) {
  return unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("none", shm::kDirectory, "tmpfs", 0, size) == 0;
}

// Runs the function, which returns 0 if all is well, in a process that has a /dev/shm of that size for itself.
template <class Run>
void check_in_own_shm(const char* size, Run run) {
  constexpr int kNoMount = 77;
  Child child([&] { return mount_own_shm(size) ? run() : kNoMount; });
  const int code = child.join();
  if (code == kNoMount)
    MESSAGE("skipped: this user may not mount");
  else
    CHECK(code == 0);
}

// Takes all of /dev/shm except this many bytes, until it is destroyed.
class Filler {
 public:
  explicit Filler(std::size_t left) : descriptor_(open(shm::kDirectory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
    if (posix_fallocate(descriptor_, 0, static_cast<off_t>(shm::shm_free_bytes() - left)) != 0)
      throw std::runtime_error("cannot fill /dev/shm");
  }
  ~Filler() { close(descriptor_); }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

 private:
  int descriptor_;
};

}  // namespace ps_shm::test
