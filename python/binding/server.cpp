#include "server.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "settings.hpp"
#include "worker.hpp"

namespace ps_shm::python {
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

  // Ends the job, unless it has ended, and removes it. Called without the global interpreter lock, by one thread at a
  // time. Rethrows the exception that ended the serving thread, unless wait() has.
  void close() {
    stop();
    throw_failure();
  }

  // Waits up to `timeout` for the job to end, and returns whether it has. Called without the global interpreter lock.
  // Rethrows the exception that ended the serving thread, once.
  bool wait(Limit timeout) {
    const auto began = std::chrono::steady_clock::now();
    constexpr std::chrono::milliseconds kLook{10};
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        if (ended_.wait_for(lock, kLook, [&] { return has_ended_; })) break;
      }
      look_for_signals();
      if (timeout && !(std::chrono::steady_clock::now() - began < Seconds(*timeout))) return false;  // also of NaN
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
    hooks.stop_at_once = [this] { return are_all_own(); };
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

  // Whether the workers that are left are all of this process: they may be unable to leave before close() returns.
  bool are_all_own() const {
    try {
      const std::vector<WorkerInfo> workers = JobView(job).workers();
      return std::all_of(workers.begin(), workers.end(),
                         [&](const WorkerInfo& one) { return one.state != WorkerState::kAlive || is_own(job, one); });
    } catch (const Error&) {
      return false;  // another job has the name by now
    }
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
  std::exception_ptr failure_;  // that ended the thread and has not been rethrown yet
  std::thread thread_;
};

struct ServerHandle {
  std::shared_ptr<Serving> serving;
};

// Destroying the last reference releases the global interpreter lock, because the thread may wait for workers to leave.
std::shared_ptr<Serving> serve(JobConfig config, bool adopt) {
  const Released release;
  Server server(config, {.task = {}, .adopt = adopt, .stop_requested = look_for_signals, .log = tell});
  return {new Serving(config, std::move(server)), [](Serving* serving) {
            if (serving->is_inherited()) return;  // its thread exists in the parent only
            const Released release_again(Released::AtEnd::kKeep);
            delete serving;
          }};
}

using ServerClass = nb::class_<ServerHandle>;

ServerClass make_class(nb::module_& module) {
  return ServerClass(module, "Server",
                     "The server (ps) of a job, on a thread of this process. Programs use ps_shm.Server, which derives "
                     "from it.")
      .def(
          "__init__",
          [](ServerHandle* self, const std::string& job, bool adopt, const std::string& restore,
             const nb::dict& settings) {
            JobConfig config;
            if (adopt)  // what is not given is as in the job; if there is none, the server says so
              if (const std::optional<JobView> there = JobView::try_open(job)) config = there->info().config;
            config.job = job;
            config.restore = restore;
            config.first_step = 0;  // the checkpoint says it
            alter(config, settings);
            new (self) ServerHandle{serve(config, adopt)};
          },
          "job"_a, "adopt"_a, "restore"_a, "settings"_a,
          nb::sig("def __init__(self, job: str, adopt: bool, restore: str, settings: dict[str, typing.Any]) -> None"));
}

void add_state(ServerClass& server) {
  server
      .def_prop_ro(
          "job", [](const ServerHandle& self) { return self.serving->job; }, "The job's name.")
      .def_prop_ro(
          "global_step",
          [](const ServerHandle& self) {
            const Turn turn(*self.serving);
            return self.serving->server().global_step();
          },
          "The number of global steps that the job has done so far.")
      .def_prop_ro(
          "ended", [](const ServerHandle& self) { return self.serving->check(), self.serving->has_ended(); },
          "Whether the job has ended, in one of the ways that wait() lists.")
      .def(
          "wait",
          [](const ServerHandle& self, Limit timeout) {
            self.serving->check();
            const Released release;
            return self.serving->wait(timeout);
          },
          "timeout"_a.none() = nb::none(),
          R"(Waits until the job has ended, and returns True; False if it has not ended within `timeout` seconds.

A job ends when its last step is done and its workers have left; if it has no last step, when its `workers` workers
have joined and left; or when no worker was there for the time of its setting `linger` after the last one left or
died. Ctrl-C raises KeyboardInterrupt at once; the job goes on.

Args:
    timeout: how many seconds to wait; None: without a limit.

Raises:
    Error: the thread that serves the job has failed. This is reported once.)");
}

void add_control(ServerClass& server) {
  // nanobind keeps a copy.
  const std::string set_help =
      R"(Changes runtime settings while the job runs. All workers use them from their next step on.

    server.set(lr=0.05, clip_norm=1.0)

The change is atomic: all of it takes effect or nothing. A value of None leaves the setting as it is. The modes async
and ssp can change into each other; sync can be neither entered nor left.

Args:
)" + runtime_settings_help() +
      R"(
Raises:
    TypeError: there is no runtime setting of that name.
    Error: the job cannot have that value (INVALID_ARGUMENT), the job is over (INVALID_STATE), or another process is
        changing the settings at this moment (UNAVAILABLE). Nothing is changed then.)";
  server
      .def(
          "set",
          [](const ServerHandle& self, const nb::kwargs& settings) {
            self.serving->check();
            JobControl control(self.serving->job);
            control.change([&](LiveSettings& live) { alter(live, control.config(), settings); });
          },
          "settings"_a, nb::sig("def set(self, **settings: Setting) -> None"), set_help.c_str())
      .def(
          "keep_segments",
          [](const ServerHandle& self) {
            const Turn turn(*self.serving);
            self.serving->server().keep_segments();
          },
          "Makes the job's segments stay in /dev/shm when it ends, for View and inspect_shm. Wait-free.")
      .def(
          "close",
          [](const ServerHandle& self) {
            if (self.serving->is_inherited() || self.serving->is_closed) return;
            const Turn turn(*self.serving);
            self.serving->is_closed = true;
            self.serving->close();
          },
          R"(Ends the job: tells the workers to leave, and waits up to 5 s for those of other processes to do so.

It removes the job from shared memory unless keep_segments() was called. Calling it again does nothing. In a forked
child it has no effect.

Raises:
    Error: the thread that serves the job has failed, unless wait() has reported that.)")
      .def("__repr__", [](const ServerHandle& self) { return fmt::format("<{}>", self.serving->what()); });
}

}  // namespace

void add_server(nb::module_& module) {
  ServerClass server = make_class(module);
  add_state(server);
  add_control(server);
}

}  // namespace ps_shm::python
