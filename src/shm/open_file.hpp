// An open file of /dev/shm and its mapping, of which a forked child has neither, whatever any thread does at the moment of
// the fork (locks.L2). The only file that knows Boost.Interprocess: used for the mapping alone, none of its locks and
// none of its managed segments.
//
// A fork waits while a descriptor is open that the child's handler does not know yet, and while a mapping is there that
// would still be copied. That is a few system calls long: no memory is allocated meanwhile, and none of a file's freed.
// Signals wait, too, so that their handlers may fork. vfork(), _Fork() and clone() run no handlers of pthread_atfork: a
// child of these has the descriptors until its exec.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <memory>

namespace ps::shm {

enum class Access { kReadOnly, kReadWrite };

class OpenFile {
 public:
  OpenFile() noexcept;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();

  // As open(2), close-on-exec, and never as descriptor 0, 1 or 2, into which a program prints. False: errno says why.
  // Requires: nothing is open.
  [[nodiscard]] bool open(const char* path, int flags, unsigned mode = 0);

  // Maps the first `bytes`; lets go of what was mapped before. False: errno says why.
  [[nodiscard]] bool map(std::size_t bytes, Access access);
  void unmap() noexcept;

  int descriptor() const noexcept { return entry_ ? entry_->descriptor : -1; }  // -1 also in a child, after the fork
  void* address() const noexcept { return region_.get_address(); }
  std::size_t mapped_bytes() const noexcept { return region_.get_size(); }

 private:
  friend struct OpenFiles;
  struct Entry {  // of the list that the child's handler goes through
    int descriptor = -1;
    Entry *previous = nullptr, *next = nullptr;
  };

  std::unique_ptr<Entry> entry_;
  boost::interprocess::mapped_region region_;
};

}  // namespace ps::shm
