#include "calls.hpp"

#include <nanobind/stl/string.h>
#include <pthread.h>

#include <chrono>
#include <cstdio>

#include "ps_shm/errors.hpp"

namespace ps_shm::python {
namespace {

std::atomic<std::uint32_t> forks{0};

// Counts the threads that are in a call without the interpreter's lock, or about to ask for it.
class Outside {
 public:
  Outside() { enter(); }
  ~Outside() { leave(); }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  static void enter() noexcept {
    ++own;
    count.fetch_add(1);
  }
  static void leave() noexcept {
    --own;
    count.fetch_sub(1);
    if (is_end) count.notify_all();
  }
  // Whether another thread has called end().
  static bool is_end_for_this_thread() noexcept { return is_end && ender != std::this_thread::get_id(); }
  static void end() noexcept {
    ender = std::this_thread::get_id();
    is_end = true;
  }
  static void wait_for_others() noexcept {
    for (std::uint32_t now; (now = count.load()) > own;) count.wait(now);
  }
  static void forget_other_threads() noexcept { count = own; }  // in a forked child

 private:
  static inline std::atomic<std::uint32_t> count{0};
  static inline std::atomic<bool> is_end{false};
  static inline std::atomic<std::thread::id> ender{};
  static inline thread_local std::uint32_t own = 0;
};

[[gnu::constructor]] void count_forks() {
  pthread_atfork(nullptr, nullptr, [] {
    forks.fetch_add(1, std::memory_order_relaxed);
    Outside::forget_other_threads();
  });
}

// Called with the interpreter's lock.
void throw_at_end() {
  if (!Outside::is_end_for_this_thread()) return;
  PyErr_SetNone(PyExc_SystemExit);
  throw nb::python_error();
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
  throw_at_end();
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return false;
}

void tell(const std::string& line) {
  const Outside self;  // end_waits() waits for this, whatever thread it is
  if (Outside::is_end_for_this_thread()) {
    std::fprintf(stderr, "%s\n", line.c_str());
    return;
  }
  const nb::gil_scoped_acquire gil;
  try {
    nb::module_::import_("logging").attr("getLogger")("ps_shm").attr("warning")("%s", line);
  } catch (const nb::python_error&) {  // such as one of a handler that the program has installed
    PySys_FormatStderr("%s\n", line.c_str());
  }
}

Released::Released(AtEnd at_end) {
  if (Outside::is_end_for_this_thread()) {
    if (at_end == AtEnd::kThrow) throw_at_end();
    return;
  }
  Outside::enter();
  state_ = PyEval_SaveThread();
}

Released::~Released() {
  if (state_ == nullptr) return;
  PyEval_RestoreThread(state_);
  Outside::leave();
}

void end_waits() {
  Outside::end();
  // What a thread that goes on has in its frames is never destroyed.
  if (nb::cast<std::size_t>(nb::module_::import_("threading").attr("active_count")()) > 1) nb::set_leak_warnings(false);
  const Released release;
  Outside::wait_for_others();
}

void Guarded::check() const {
  if (is_inherited())
    throw Error(what_ + " is the parent process's: a forked child makes its own", ErrorCode::kInvalidState);
  if (is_closed.load(std::memory_order_relaxed)) throw Error(what_ + " " + closed_, ErrorCode::kInvalidState);
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
