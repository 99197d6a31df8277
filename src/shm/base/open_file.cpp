#include "shm/base/open_file.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

namespace ps_shm::shm {

// The open files of this process, and the lock that keeps a fork apart from changes to them.
struct OpenFiles {
  using Entry = OpenFile::Entry;

  void lock() noexcept {
    // The signals of faults stay unblocked: if they were blocked, the kernel would kill a process that causes one.
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    mutex.lock();
    signals = before;
  }
  void unlock() noexcept {
    const sigset_t before = signals;
    mutex.unlock();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Requires, like all functions below: locked.
  void add(Entry& entry) noexcept {
    entry.next = first;
    if (first != nullptr) first->previous = &entry;
    first = &entry;
  }
  void remove(Entry& entry) noexcept {
    (entry.previous != nullptr ? entry.previous->next : first) = entry.next;
    if (entry.next != nullptr) entry.next->previous = entry.previous;
  }
  // Called in a forked child. Closing a descriptor there never releases the locks that the parent holds.
  void forget_all() noexcept {
    for (Entry* entry = std::exchange(first, nullptr); entry != nullptr; entry = entry->next)
      ::close(std::exchange(entry->descriptor, -1));
  }

  std::mutex mutex;
  sigset_t signals{};  // the signal mask of the thread that holds the lock
  Entry* first = nullptr;
  int why_no_handlers = 0;
};

namespace {

// Never destroyed, since a child may be forked during the destruction of statics.
constinit OpenFiles open_files;

// Runs before everything that may call this library, so that a program's own handlers, registered later, run outside
// of these.
[[gnu::constructor(101)]] void handle_forks() {
  open_files.why_no_handlers = pthread_atfork([] { open_files.lock(); }, [] { open_files.unlock(); },
                                              [] {
                                                open_files.forget_all();
                                                open_files.unlock();
                                              });
}

// The interface that Boost's mapped_region requires.
struct Mappable {
  int descriptor;
  boost::interprocess::mapping_handle_t get_mapping_handle() const noexcept { return {descriptor, false}; }
};

int open_above_streams(const char* path, int flags, unsigned mode) noexcept {
  constexpr int kFirst = 3;
  const int descriptor = ::open(path, flags | O_CLOEXEC, mode);
  if (descriptor < 0 || descriptor >= kFirst) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, kFirst), error = errno;
  ::close(descriptor);
  errno = error;
  return moved;
}

}  // namespace

constinit OpenFile::Entry OpenFile::closed;

OpenFile::OpenFile() noexcept = default;

OpenFile::OpenFile(OpenFile&& other) noexcept { *this = std::move(other); }

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  entry_.swap(other.entry_);
  region_.swap(other.region_);
  return *this;
}

OpenFile::~OpenFile() {
  if (descriptor() >= 0) {  // before the mapping: unmapping may free the file's memory, and no fork should wait
    const std::lock_guard guard(open_files);
    open_files.remove(*entry_);
    ::close(entry_->descriptor);
  } else if (region_.get_address() != nullptr) {
    // A forked child does not have the mapping, and something of its own may lie there now. The region is forgotten,
    // not unmapped; it owns nothing on the heap.
    using Region = boost::interprocess::mapped_region;
    alignas(Region) std::byte forgotten[sizeof(Region)];
    std::construct_at(reinterpret_cast<Region*>(forgotten), std::move(region_));
  }
}

bool OpenFile::open(const char* path, int flags, unsigned mode) {
  if (errno = open_files.why_no_handlers; errno != 0) return false;
  std::unique_ptr<Entry, Delete> entry(new Entry);
  int error = 0;
  {
    const std::lock_guard guard(open_files);
    entry->descriptor = open_above_streams(path, flags, mode);
    error = errno;
    if (entry->descriptor >= 0) open_files.add(*entry);
  }
  errno = error;
  if (entry->descriptor < 0) return false;
  entry_ = std::move(entry);
  return true;
}

void OpenFile::raise_descriptor() noexcept {
  // The process's table of descriptors has 8 bytes for each number up to the highest, so the number must not follow a
  // limit of a billion, as containers have: the table for 4096 takes 32 KiB. A quarter of the numbers is for
  // descriptors such as this.
  constexpr rlim_t kEnd = 4096;
  struct rlimit limit {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const int first = static_cast<int>(std::min(limit.rlim_cur, kEnd) / 4 * 3);
  const std::lock_guard guard(open_files);
  if (entry_->descriptor >= first) return;
  const int raised = fcntl(entry_->descriptor, F_DUPFD_CLOEXEC, first);  // of the same open file, so with its locks
  if (raised >= 0) ::close(std::exchange(entry_->descriptor, raised));
}

bool OpenFile::map(std::size_t bytes, Access access) {
  namespace interprocess = boost::interprocess;
  unmap();
  const auto mode = access == Access::kReadWrite ? interprocess::read_write : interprocess::read_only;
  int error = 0;
  try {
    const std::lock_guard guard(open_files);
    interprocess::mapped_region made(Mappable{descriptor()}, mode, 0, bytes);
    if (madvise(made.get_address(), made.get_size(), MADV_DONTFORK) == 0)
      region_.swap(made);
    else
      error = errno;
  } catch (const interprocess::interprocess_exception& refused) {
    error = refused.get_native_error();
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  errno = error;
  return error == 0;
}

void OpenFile::unmap() noexcept { region_ = {}; }

}  // namespace ps_shm::shm
