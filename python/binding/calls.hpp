// How Python calls into the library: without the interpreter's lock, one call of an object at a time, and never in a
// forked child.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "ps_shm/errors.hpp"

namespace ps_shm::python {

namespace nb = nanobind;

// How many forks lie between the first process that loaded this module and this one.
std::uint32_t fork_count() noexcept;

// For stop_requested of every wait: lets Python's signal handlers run, in its main thread, and throws what they raise. At
// the end of the process it throws SystemExit in the other threads. Called without the interpreter's lock.
bool look_for_signals();

// For notice of every wait: a warning of Python's logger "ps_shm", which is a line on stderr unless the program has
// configured logging. Called without the interpreter's lock.
void tell(const std::string& line);

// How many seconds a call may wait; None: without a limit.
using Limit = std::optional<double>;
inline WaitLimit limit(Limit seconds) { return seconds ? WaitLimit(Seconds(*seconds)) : std::nullopt; }

// Gives up the interpreter's lock for as long as it lives. A thread that asks for the lock while the interpreter is
// finalized never returns, so none may be without it then: from end_waits() on only the thread that called it gives it
// up. In others the constructor throws SystemExit, or (kKeep, for destructors) the lock is kept.
class Released {
 public:
  enum class AtEnd { kThrow, kKeep };
  explicit Released(AtEnd at_end = AtEnd::kThrow);
  ~Released();
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_ = nullptr;
};

// Makes the waits of all other threads throw SystemExit, and returns when no thread is in a call any more. For atexit.
void end_waits();

// What one thread at a time may use, and no forked child.
class Guarded {
 public:
  explicit Guarded(std::string what, std::string closed = "has left")
      : what_(std::move(what)), closed_(std::move(closed)) {}

  bool is_inherited() const noexcept { return forks_ != fork_count(); }
  const std::string& what() const noexcept { return what_; }
  // Throws Error in a forked child, and where it was closed.
  void check() const;

  // Runs `what` where nobody has the object at this moment. For destructors, which may wait for nothing.
  template <class What>
  void try_run(What&& what) {
    if (holder_.load(std::memory_order_relaxed) == std::this_thread::get_id() || !mutex_.try_lock()) return;
    what();
    mutex_.unlock();
  }

  std::atomic<bool> is_closed{false};

 private:
  friend class Turn;
  std::string what_;    // for messages: worker 0 of job demo
  std::string closed_;  // and what it is once it was closed: has left
  std::uint32_t forks_ = fork_count();
  std::timed_mutex mutex_;
  std::atomic<std::thread::id> holder_{};
};

// While it lives, this thread has the object, and others have the interpreter. Throws Error as Guarded::check(), and where
// this thread has it already, as in a callback or a signal's handler; throws what a signal's handler raises while it waits.
class Turn {
 public:
  explicit Turn(Guarded& object);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  void lock();

  Guarded& object_;
  Released release_;
};

// With the interpreter's lock for as long as `what` runs: for callbacks.
template <class What>
auto with_python(What&& what) {
  const nb::gil_scoped_acquire gil;
  return what();
}

}  // namespace ps_shm::python
