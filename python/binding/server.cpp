#include "server.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "calls.hpp"
#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/server.hpp"
#include "settings.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

// A ps and the thread that serves its job.
class Serving : public Guarded {
 public:
  Serving(const JobConfig& config, Server server)
      : Guarded(fmt::format("the ps of job '{}'", config.job)), job(config.job), server_(std::move(server)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Serving() { stop(); }

  const std::string job;

  // Ends the job, unless it has ended, and removes it. Called without the interpreter's lock, by one thread at a time.
  // Throws what has ended the thread, unless wait() has.
  void close() {
    stop();
    throw_failure();
  }

  // Whether the job has ended, within so many seconds. Called without the interpreter's lock. Throws what has ended the
  // thread, once.
  bool wait(double seconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    constexpr std::chrono::milliseconds kLook{10};
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (ended_.wait_for(lock, kLook, [&] { return has_ended_; })) break;
      }
      look_for_signals();
      if (std::chrono::steady_clock::now() >= until) return false;
    }
    throw_failure();
    return true;
  }

  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }

  // Requires: not closed.
  Server& server() { return *server_; }

 private:
  void serve() {
    ServeHooks hooks;
    hooks.stop_requested = [this] { return must_stop_.load(); };
    std::exception_ptr failure;
    try {
      static_cast<void>(server_->serve(hooks));
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    has_ended_ = true;
    ended_.notify_all();
  }

  void stop() {
    must_stop_ = true;
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }

  void throw_failure() {
    std::unique_lock lock(mutex_);
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    lock.unlock();
    if (failure) std::rethrow_exception(failure);
  }

  std::optional<Server> server_;
  std::atomic<bool> must_stop_{false};
  std::mutex mutex_;
  std::condition_variable ended_;
  bool has_ended_ = false;
  std::exception_ptr failure_;  // of the thread; not told yet
  std::thread thread_;
};

struct ServerHandle {
  std::shared_ptr<Serving> serving;
};

// Gives up the interpreter's lock where the last reference goes: its thread may wait for workers to leave.
std::shared_ptr<Serving> serve(JobConfig config, bool adopt) {
  const nb::gil_scoped_release release;
  Server server(config, {.task = {}, .adopt = adopt, .stop_requested = look_for_signals, .notice = tell});
  return {new Serving(config, std::move(server)), [](Serving* serving) {
            if (serving->is_inherited()) return;  // its thread is not there
            const nb::gil_scoped_release release_again;
            delete serving;
          }};
}

}  // namespace

void add_server(nb::module_& module) {
  nb::class_<ServerHandle>(module, "Server", "The ps of a job, served by a thread of this process.")
      .def(
          "__init__",
          [](ServerHandle* self, const std::string& job, bool adopt, const std::string& restore,
             const nb::dict& settings) {
            JobConfig config;
            config.job = job;
            config.restore = restore;
            alter(config, settings);
            new (self) ServerHandle{serve(config, adopt)};
          },
          "job"_a, "adopt"_a, "restore"_a, "settings"_a,
          nb::sig("def __init__(self, job: str, adopt: bool, restore: str, settings: dict[str, typing.Any]) -> None"))
      .def_prop_ro(
          "job", [](const ServerHandle& self) { return self.serving->job; }, "The job's name.")
      .def_prop_ro(
          "global_step",
          [](const ServerHandle& self) {
            const Turn turn(*self.serving);
            return self.serving->server().global_step();
          },
          "Global steps done so far.")
      .def_prop_ro(
          "ended", [](const ServerHandle& self) { return self.serving->check(), self.serving->has_ended(); },
          "Whether the job has ended: its workers have come and left.")
      .def(
          "wait",
          [](const ServerHandle& self, double timeout) {
            self.serving->check();
            const nb::gil_scoped_release release;
            return self.serving->wait(timeout);
          },
          "timeout"_a = 1e9,
          "Waits until the job has ended: its last step is done, or its workers have come and left. Returns whether it "
          "has, within `timeout` seconds.")
      .def(
          "set",
          [](const ServerHandle& self, const nb::kwargs& settings) {
            self.serving->check();
            JobControl control(self.serving->job);
            control.change([&](LiveSettings& live) { alter(live, control.config(), settings); });
          },
          "settings"_a, nb::sig("def set(self, **settings: typing.Any) -> None"),
          "Changes the running job: lr, clip_norm, mode, staleness, quorum, workers. It holds from every worker's next "
          "step on.")
      .def(
          "keep_segments",
          [](const ServerHandle& self) {
            const Turn turn(*self.serving);
            self.serving->server().keep_segments();
          },
          "Leaves the job's values in /dev/shm at its end, for View and inspect_shm.")
      .def(
          "close",
          [](const ServerHandle& self) {
            if (self.serving->is_inherited() || self.serving->is_closed) return;
            const Turn turn(*self.serving);
            self.serving->is_closed = true;
            self.serving->close();
          },
          "Ends the job: workers are told to leave, and waited for up to 5 s.")
      .def("__repr__", [](const ServerHandle& self) { return fmt::format("<{}>", self.serving->what()); });
}

}  // namespace ps::python
