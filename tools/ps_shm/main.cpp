// ps_shm: the ps of a job. Creates it in shared memory, monitors its workers, and removes it at the end.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>

#include "cli/output.hpp"
#include "cli/ps_options.hpp"
#include "common/checkpoint_dir.hpp"
#include "common/children.hpp"
#include "ps_shm/checkpointing.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_summaries.hpp"
#include "ps_shm/publishing.hpp"
#include "ps_shm/server.hpp"
#include "report/terminal.hpp"

namespace {

using namespace ps_shm;

void say(const std::string& line) { tools::write_out(report::fitted(line + '\n', report::columns_of(stdout))); }

// `is_first`: what cannot be written ends it; a run that is under way goes on without.
int serve(const tools::PsSettings& settings, bool is_first) {
  JobConfig job = settings.job;
  ServerOptions options;
  options.task = settings.task;
  options.adopt = settings.adopt;
  options.wait_job = settings.wait_job;
  options.stop_requested = [] { return tools::stop_requests() != 0; };
  options.log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const bool keeps = !settings.checkpoint.dir.empty() && settings.task.value_or(0) == 0;
  const bool summarises = !settings.summary.dir.empty() && settings.task.value_or(0) == 0;
  if (summarises && is_first) persistence::check_writable_folder(settings.summary.dir);
  std::optional<persistence::CheckpointDir> dir;  // locked before the checkpoints in it are read
  if (keeps) dir.emplace(settings.checkpoint.dir);
  if (keeps && !settings.adopt)
    if (const std::optional<Checkpoint> found = tools::find_beginning(settings.checkpoint, options.log)) {
      if (const auto done = tools::why_done(*found, job)) throw JobFinished(*done);
      job.restore = found->folder();
    }
  Server server(job, options);
  if (settings.keep_segments) server.keep_segments();
  if (settings.task.value_or(0) != 0)
    say(fmt::format("job {}: task {} serves its shard", job.job, *settings.task));
  else
    say(fmt::format("job {}{}: {}, {}; workers can join; ends when {} {} joined and left", job.job,
                    settings.task ? ": task 0" : "", to_string(job.mode), to_string(job.layout), job.workers,
                    job.workers == 1 ? "has" : "have"));

  ServeHooks hooks;
  hooks.stop_requested = [] { return tools::stop_requests() != 0; };
  hooks.stop_at_once = [] { return tools::stop_requests() > 1; };
  hooks.log = say;
  std::optional<tools::Publishing> publishing;
  if (!settings.publish.name.empty() && settings.task.value_or(0) == 0)
    publishing.emplace(job.job, job.group, settings.publish, options.log);
  std::optional<tools::JobSummaries> summaries;
  if (summarises) summaries.emplace(job, settings.summary, options.log);
  std::optional<tools::Checkpointing> checkpointing;
  if (keeps) checkpointing.emplace(job.job, job.group, settings.checkpoint, say, options.log);
  const EndReason reason = server.serve(hooks);
  const bool has_summaries = summaries.has_value();
  summaries.reset();  // while the job still exists
  const bool is_saved = !checkpointing || checkpointing->finish();
  checkpointing.reset();  // a job can have only one snapshot at a time
  publishing.reset();

  const std::uint64_t step = server.global_step();
  if (reason == EndReason::kAllWorkersLeft) say(fmt::format("job {} finished at step {}", job.job, step));
  if (reason == EndReason::kLingerOver)
    say(fmt::format("job {} ended at step {}: no worker for {} s", job.job, step, job.linger.count()));
  if (reason == EndReason::kStopRequested) say(fmt::format("job {} was interrupted at step {}", job.job, step));
  if (has_summaries) say(tools::summaries_line(settings.summary.dir));
  if (!is_saved) return tools::kFailed;
  return reason == EndReason::kStopRequested ? tools::kInterrupted : 0;
}

int run(int argc, char** argv) {
  tools::catch_signals(tools::SecondSignal::kIsCounted);
  const bool is_launched = tools::end_with_launcher();
  tools::PsSettings settings;
  if (const std::optional<int> code = tools::parse(argc, argv, settings)) return *code;
  try {
    return serve(settings, !is_launched && !settings.adopt);
  } catch (const JobFinished& finished) {  // before: its last checkpoint is of its last step
    fmt::print(stderr, "{}\n", finished.what());
    return 0;
  } catch (const Interrupted&) {
    return tools::kInterrupted;
  } catch (const std::exception& error) {
    return tools::fail("ps_shm", tools::kFailed, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  return ps_shm::tools::run_main("ps_shm", argc, argv, [&] { return run(argc, argv); });
}
