#include "worker_shm/several_workers.hpp"

#include <fmt/format.h>

#include <csignal>
#include <future>
#include <mutex>
#include <system_error>
#include <vector>

#include "cli/option_names.hpp"
#include "cli/output.hpp"
#include "common/children.hpp"
#include "ps_shm/errors.hpp"
#include "report/summary.hpp"

namespace ps_shm::tools {
namespace {

WorkerSettings settings_of(const WorkerSettings& all, std::uint32_t number) {
  WorkerSettings one = all;
  if (one.rank) *one.rank += number;
  if (!one.trace.empty()) one.trace += fmt::format(".{}", number);
  return one;
}

// Signals are handled by threads that began before this object: their handler is for one thread at a time.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t these;
    sigemptyset(&these);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&these, number);
    pthread_sigmask(SIG_BLOCK, &these, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

int run_several(const WorkerSettings& settings,
                const std::function<int(const WorkerSettings&, const OnFailure&)>& run) {
  std::mutex mutex;
  int code = 0;
  const auto note_failure = [&](const WorkerSettings& one, int failed, const std::string& what) {
    const std::lock_guard lock(mutex);
    const std::string message = with_option_names(what);
    if (one.json) write_out(report::Json({{"error", message}, {"exit_code", failed}}).dump() + "\n");
    if (code == kFailed || code == failed) return failed;  // it was told to leave, or finds the same as another one
    code = failed;
    if (failed == kFailed) request_stop();
    const std::string who = one.rank ? fmt::format("worker {}: ", *one.rank) : "";
    return fail("worker_shm", failed, message.starts_with(who) ? message : who + message);
  };
  const auto run_one = [&](std::uint32_t number) {
    try {
      const WorkerSettings one = settings_of(settings, number);
      const int ended = run(one, [&](int failed, const std::string& what) { return note_failure(one, failed, what); });
      const std::lock_guard lock(mutex);
      if (code == 0) code = ended;
    } catch (...) {
      request_stop();
      throw;
    }
  };
  std::vector<std::future<void>> workers;  // their destructors wait
  try {
    const SignalsBlocked in_threads;
    for (std::uint32_t number = 0; number < settings.workers_per_process; ++number)
      workers.push_back(std::async(std::launch::async, run_one, number));
  } catch (const std::system_error& error) {
    request_stop();
    throw Error(
        fmt::format("cannot start a thread for worker {} of the {} of this process: {}; raise the limit on "
                    "processes (ulimit -u)",
                    workers.size() + 1, settings.workers_per_process, error.what()));
  }
  for (std::future<void>& worker : workers) worker.get();
  return code;
}

}  // namespace ps_shm::tools
