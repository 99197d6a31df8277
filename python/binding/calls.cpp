#include "calls.hpp"

#include <pthread.h>

#include <chrono>

#include "ps_shm/errors.hpp"

namespace ps_shm::python {
namespace {

std::atomic<std::uint32_t> forks{0};

[[gnu::constructor]] void count_forks() {
  pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
}

// Checked only after the interpreter's lock was given up, so never inlined into what needs it.
void check_again(const Guarded& object) {
  const nb::gil_scoped_acquire gil;
  object.check();
}

}  // namespace

std::uint32_t fork_count() noexcept { return forks.load(std::memory_order_relaxed); }

bool look_for_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return false;
}

void tell(const std::string& line) {
  const nb::gil_scoped_acquire gil;
  PySys_FormatStderr("%s\n", line.c_str());
}

void Guarded::check() const {
  if (is_inherited())
    throw Error(what_ + " is the parent process's: a forked child makes its own", ErrorCode::kInvalidState);
  if (is_closed.load(std::memory_order_relaxed)) throw Error(what_ + " has left", ErrorCode::kInvalidState);
}

Turn::Turn(Guarded& object) : object_((object.check(), object)) {
  lock();
  if (!object.is_closed.load(std::memory_order_relaxed)) return;
  object_.holder_.store({}, std::memory_order_relaxed);
  object_.mutex_.unlock();
  check_again(object);
}

void Turn::lock() {
  constexpr std::chrono::milliseconds kLook{10};
  const std::thread::id self = std::this_thread::get_id();
  if (object_.holder_.load(std::memory_order_relaxed) == self)
    throw Error(object_.what_ + " is in a call of this thread already", ErrorCode::kInvalidState);
  if (!object_.mutex_.try_lock()) {
    while (!object_.mutex_.try_lock_for(kLook)) look_for_signals();
  }
  object_.holder_.store(self, std::memory_order_relaxed);
}

Turn::~Turn() {
  object_.holder_.store({}, std::memory_order_relaxed);
  object_.mutex_.unlock();
}

}  // namespace ps_shm::python
