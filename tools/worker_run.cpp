#include "worker_run.hpp"

#include "children.hpp"
#include "report/progress.hpp"

namespace ps::tools {

void print_line(std::FILE* out, const std::string& line) {
  std::fprintf(out, "%s\n", line.c_str());
  std::fflush(out);
}

void say(const WorkerSettings& settings, const std::string& line) {
  if (!settings.quiet) print_line(settings.json ? stderr : stdout, line);
}

bool is_stop_requested() { return stop_requests() != 0; }

void set_hooks(const WorkerSettings& settings, const std::string& who, train::TrainHooks& hooks) {
  hooks.stop_requested = is_stop_requested;
  hooks.report = [=](const train::TrainStatus& status) { say(settings, report::worker_line(who, status)); };
  hooks.warn = [](const std::string& line) { print_line(stderr, line); };
}

Worker join(const WorkerSettings& settings) {
  WorkerOptions options;
  options.job = settings.alone.job;
  options.rank = settings.rank;
  options.threads = settings.threads;
  options.wait_job_seconds = settings.training.wait_job_seconds;
  options.stop_requested = is_stop_requested;
  return Worker(options);
}

}  // namespace ps::tools
