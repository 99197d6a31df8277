// The processes of the workers: which there are, which ranks they have, and when they start, follow and leave.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "launch_shm/child_arguments.hpp"
#include "launch_shm/launch.hpp"
#include "launch_shm/visible_gpus.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm::tools {

void Launch::start_workers() {
  for (std::uint32_t process = 0; process < settings_.worker_processes; ++process)
    if (!replayed_ || replayed_->lives_of(process) != 0) start_process(process, true);
}

// Processes have about the same number of workers. A process that an elastic job adds has one, as all of its processes.
Launch::Ranks Launch::ranks_of(std::uint32_t process) const {
  const std::uint32_t processes = settings_.worker_processes, share = settings_.ps.job.workers / processes,
                      longer = settings_.ps.job.workers % processes;
  return {process * share + std::min(process, longer), process < longer ? share + 1 : share};
}

std::string Launch::Ranks::name() const {
  return count == 1 ? fmt::format("{}", first) : fmt::format("{}-{}", first, first + count - 1);
}

std::string Launch::Ranks::title() const { return (count == 1 ? "worker " : "workers ") + name(); }

void Launch::start_process(std::uint32_t process, bool together) {
  const Ranks ranks = ranks_of(process);
  WorkerSettings worker = worker_settings(settings_, ranks.first, together);
  worker.workers_per_process = ranks.count;
  if (replayed_) worker.replay_coordinator = replayed_->coordinator();
  if (traces_) worker.trace = traces_->add(ranks.first, ranks.count);
  if (!gpus_ && worker.device.may_be_cuda()) gpus_ = visible_gpus();
  std::vector<std::string> variables = show_one_gpu(gpus_.value_or(std::vector<std::string>()), process, worker.device);
  std::vector<std::string> command = settings_.program;
  if (has_program()) {
    const std::vector<std::string> place = program_variables(settings_, ranks.first);
    variables.insert(variables.end(), place.begin(), place.end());
  } else {
    command = worker_arguments(worker);
    command.insert(command.begin(), "worker_shm");
  }
  workers_.emplace_back(ranks, past_of(ranks), command, variables, !has_program());
  if (guard_) guard_->watch(workers_.back().child.pid());
}

Launch::Member::Member(const Ranks& of, const Past& past, const std::vector<std::string>& command,
                       const std::vector<std::string>& variables, bool is_ours)
    : ranks(of),
      before(past),
      child(ranks.title(), command.front(), {command.begin() + 1, command.end()}, variables, is_ours) {}

// The last process that has had this rank.
const Launch::Member* Launch::last_of(std::uint32_t rank) const {
  const auto found =
      std::find_if(workers_.rbegin(), workers_.rend(), [&](const Member& m) { return m.ranks.has(rank); });
  return found == workers_.rend() ? nullptr : &*found;
}

// Starts replacements for dead workers; in elastic jobs up to the current number, and asks the youngest to leave
// if there are more.
void Launch::keep_number() {
  is_pausing_ = false;
  if (!replaces_workers() || has_failed_ || stop_requests() != 0 || view_->info().finished) return;
  std::uint32_t running = 0;
  for (const Member& member : workers_) {
    if (member.child.has_ended() && member.child.exit_code() == 0 && !member.was_asked_to_leave)
      return;  // it has seen the end of the job
    running += !member.child.has_ended() && !member.was_asked_to_leave;
  }
  const std::uint32_t wanted = is_elastic() ? view_->info().live.workers : settings_.worker_processes;
  const std::uint32_t most = is_elastic() ? settings_.ps.job.elastic_max : settings_.worker_processes;
  is_pausing_ = running < wanted && now_seconds() < restart_at_;
  for (std::uint32_t process = 0; !is_pausing_ && running < wanted && process < most; ++process) {
    const Member* last = last_of(ranks_of(process).first);
    if (last != nullptr && !last->child.has_ended()) continue;
    start_process(process, false);
    progress_->print(fmt::format("launch_shm: started {}", ranks_of(process).title()));
    ++running;
  }
  for (auto member = workers_.rbegin(); running > wanted && member != workers_.rend(); ++member) {
    if (member->child.has_ended() || member->was_asked_to_leave) continue;
    ask_to_leave(*member, fmt::format("told {} to leave", member->ranks.title()));
    --running;
  }
}

void Launch::ask_to_leave(Member& member, const std::string& why) {
  member.was_asked_to_leave = true;
  member.child.send(SIGTERM);
  progress_->print("launch_shm: " + why);
}

// A worker that has not joined when the job ends would wait in vain. Others of its process have seen the end by then.
void Launch::call_off() {
  if (has_program() || !ps().has_ended() || ps().exit_code() != 0) return;
  for (Member& member : workers_) {
    const std::uint64_t joined = past_of(member.ranks).holders - member.before.holders;  // or successors
    if (joined < member.ranks.count && !member.child.has_ended() && !member.was_asked_to_leave)
      ask_to_leave(member, fmt::format("the job ended before {} joined", member.ranks.title()));
  }
}

bool Launch::has_anybody_joined() const {
  const std::vector<WorkerInfo> all = view_->workers();
  return std::any_of(all.begin(), all.end(), [&](const WorkerInfo& worker) {
    return std::none_of(bridges_.begin(), bridges_.end(),
                        [&](const Child& bridge) { return bridge.pid() == static_cast<pid_t>(worker.pid); });
  });
}

// Whether a program, or what it has started, is a worker of another job.
void Launch::look_elsewhere() {
  constexpr double kLookSeconds = 1;
  if (!has_program() || !elsewhere_.empty() || now_seconds() < look_at_ || has_anybody_joined()) return;
  look_at_ = now_seconds() + kLookSeconds;
  for (const std::string& segment : shm::list_segments(shm::kJobPrefix)) {
    const std::string job = shm::job_of(segment);
    if (job.empty() || segment != shm::control_name(job) || job == settings_.ps.job.job) continue;
    try {
      const std::optional<JobView> view = JobView::try_open(job);
      if (!view) continue;
      for (const WorkerInfo& worker : view->workers())
        for (const Member& member : workers_) {
          if (worker.state != WorkerState::kAlive || getpgid(static_cast<pid_t>(worker.pid)) != member.child.pid())
            continue;
          elsewhere_ = job;
          return progress_->print(fmt::format("launch_shm: {} has joined job '{}', not job '{}'", member.ranks.title(),
                                              job, settings_.ps.job.job));
        }
    } catch (const Error&) {
      // a job that is damaged, of another build or of another user
    }
  }
}

// Programs that end well without having taken part have not done what they were started for.
void Launch::check_joined() {
  if (!has_program() || has_failed_ || has_anybody_joined()) return;
  has_failed_ = true;
  progress_->print_error(fmt::format(
      "launch_shm: none of the {} processes joined job '{}'{}; PS_SHM_JOB names it, and ps_shm.Worker() and "
      "ps_shm.torch.Optimizer(model) join it unless they are given another name",
      workers_.size(), settings_.ps.job.job, elsewhere_.empty() ? "" : fmt::format(", but job '{}'", elsewhere_)));
}

// A worker that was killed in the recorded run ends in its replay where its recording does. Then its successor begins.
void Launch::begin_next_lives() {
  if (!replayed_ || has_failed_ || stop_requests() != 0) return;
  for (std::uint32_t rank = 0; rank < settings_.ps.job.workers; ++rank) {
    const auto begun =
        std::count_if(workers_.begin(), workers_.end(), [&](const Member& m) { return m.ranks.has(rank); });
    if (begun == 0 || begun >= replayed_->lives_of(rank) || !last_of(rank)->child.has_ended()) continue;
    start_process(rank, false);
    progress_->print(fmt::format("launch_shm: started worker {} again, as in the recorded run", rank));
  }
}

Launch::Past Launch::past_of(const Ranks& ranks) const {
  Past past;
  for (const WorkerInfo& worker : view_->workers()) {
    if (!ranks.has(worker.rank)) continue;
    past.steps += worker.steps;
    past.holders += worker.owners;
    ++past.held;
  }
  return past;
}

}  // namespace ps_shm::tools
