// An open file and its mapping, such as a segment or a folder that is locked. A forked child has neither, whatever other threads do at the moment of the
// fork (locks.L2). Only this file uses Boost.Interprocess, and only for the mapping: none of its locks and managed
// segments.
//
// A fork waits while a descriptor is open that the child's handler does not know yet, and while a mapping exists that
// would still be copied. That takes a few system calls; no memory is allocated meanwhile, and no file's memory is
// freed. Signals wait, too, so that their handlers may fork. vfork(), _Fork() and clone() do not run the handlers of
// pthread_atfork: their children keep the descriptors until they call exec.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <memory>

namespace ps_shm::shm {

enum class Access { kReadOnly, kReadWrite };

class OpenFile {
 public:
  OpenFile() noexcept;
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();

  // As open(2), with close-on-exec, but never returns descriptors 0, 1 and 2, to which programs print. False: errno
  // says why. Requires: no file is open.
  [[nodiscard]] bool open(const char* path, int flags, unsigned mode = 0);

  // Gives the descriptor a high number, above those that other libraries use, now or later. As the kernel releases the
  // files of a dead process from the highest number down, its locks then go first, before anything that takes long to
  // release, such as the context of a GPU or the memory of a large file (locks.L6). If no high number is free, the
  // descriptor stays as it is. Requires: a file is open.
  void raise_descriptor() noexcept;

  // Maps the first `bytes`, and unmaps what was mapped before. False: errno says why.
  [[nodiscard]] bool map(std::size_t bytes, Access access);
  void unmap() noexcept;

  int descriptor() const noexcept { return entry_->descriptor; }  // -1 also in a forked child
  void* address() const noexcept { return region_.get_address(); }
  std::size_t mapped_bytes() const noexcept { return region_.get_size(); }

 private:
  friend struct OpenFiles;
  struct Entry {  // of the list that the child's handler walks
    int descriptor = -1;
    Entry *previous = nullptr, *next = nullptr;
  };

  static Entry closed;  // of every object that has no open file, so that descriptor() need not ask
  struct Delete {
    void operator()(Entry* entry) const noexcept {
      if (entry != &closed) delete entry;
    }
  };

  std::unique_ptr<Entry, Delete> entry_{&closed};
  boost::interprocess::mapped_region region_;
};

}  // namespace ps_shm::shm
