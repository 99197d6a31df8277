// A complete job: a ps and its workers as children, supervised from their start to the summary.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/options.hpp"
#include "cli/recording.hpp"
#include "common/children.hpp"
#include "common/workload.hpp"
#include "launch_shm/curve.hpp"
#include "launch_shm/guard.hpp"
#include "launch_shm/tracing.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "report/progress.hpp"
#include "report/summary.hpp"

namespace ps_shm::tools {

inline constexpr int kTickMs = 100;  // maximum delay until a signal is noticed

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Launch {
 public:
  // Loads what the summary needs. Throws Error.
  explicit Launch(const LaunchSettings& settings);

  // Starts the ps and the workers, waits for all of them, and reports errors on stderr. Returns the overall exit code.
  // On return, and if an exception is thrown, its children have ended and none of their segments are left.
  int run();

  // Requires: run() has returned. None if it was interrupted, or nothing was trained. With --json also of a job whose
  // last checkpoint already is of its last step.
  const std::optional<report::RunReport>& report() const { return report_; }

 private:
  // The workers of one process: one, or several of consecutive ranks.
  struct Ranks {
    std::uint32_t first, count;
    bool has(std::uint32_t rank) const { return rank >= first && rank - first < count; }
    std::string name() const;   // "3", "4-7"
    std::string title() const;  // "worker 3", "workers 4-7"
  };

  // What has become of some ranks so far.
  struct Past {
    std::uint64_t steps = 0, holders = 0;
    std::uint32_t held = 0;  // ranks with which somebody has joined
  };

  // A process of workers of the job, alive or ended.
  struct Member {
    Member(const Ranks& ranks, const Past& before, const std::vector<std::string>& command,
           const std::vector<std::string>& variables, bool is_ours);

    Ranks ranks;
    Past before;
    bool was_asked_to_leave = false;
    Child child;
  };

  int run_job();
  int start_ps();
  void start_workers();
  void start_process(std::uint32_t process, bool together);
  Ranks ranks_of(std::uint32_t process) const;
  void keep_ps();
  void keep_number();
  void ask_to_leave(Member& member, const std::string& why);
  void call_off();
  bool has_anybody_joined() const;
  void look_elsewhere();
  void check_joined();
  void begin_next_lives();
  bool has_program() const { return !settings_.program.empty(); }
  bool is_elastic() const { return settings_.ps.job.elastic_max != 0; }
  bool replaces_workers() const { return is_elastic() || settings_.restart_workers; }
  const Member* last_of(std::uint32_t rank) const;
  Past past_of(const Ranks& ranks) const;
  bool may_follow(const Child& child, bool has_worked);
  void note_worker_end(Member& member);
  void tell_failures();
  std::string how_it_ended(const Child& child);
  std::string describe_end(const Child& child, const char* what_now);
  void attend(int timeout_ms);
  void take_line(const Child& child, bool is_error, const std::string& line);
  void note_ends();
  void note_beginnings();
  void show_progress();
  bool attempt(const std::function<void()>& act);
  void finish_record();
  void report_places();
  report::RunReport report_of(const Checkpoint& checkpoint);
  void collect();
  void end_ps();
  void end_all() noexcept;
  void remove_leftovers();
  Child& ps() { return servers_.back(); }
  std::vector<Child*> children();
  bool is_ps(const Child& child) const;
  bool serves(const Child& ps) const;  // the job's ps is this one
  bool is_ending() const;              // all have been asked to end
  void start_bridge();
  void keep_bridge();
  void note_bridge_end(const Child& bridge);
  void end_bridge();
  void end_evaluator();
  void take_evaluation(const report::Json& json);
  void report_evaluations();
  bool is_any_worker_running() const;
  void send_all(int signal);
  void ask_all_to_end();
  void give_up();

  std::unique_ptr<Workload> workload_;  // none: count
  const LaunchSettings settings_;
  std::uint64_t target_steps_ = 0;
  std::optional<std::string> why_done_;  // an earlier run has made all steps: nothing is started

  std::optional<Curve> curve_;
  std::optional<RecordedLaunch> recorded_;
  std::optional<ReplayedLaunch> replayed_;
  std::optional<Traces> traces_;
  bool has_trace_ = false, has_report_file_ = false, has_recording_ = false;  // which results have been written

  std::optional<report::Progress> progress_;
  std::optional<JobView> view_;                   // its mappings remain valid after the job's names are removed
  std::optional<std::vector<std::string>> gpus_;  // each worker sees one; queried when one may be used
  std::optional<Guard> guard_;                    // for the processes of another program; ends after them
  std::deque<Member> workers_;
  bool has_begun_ = false;                    // all initial workers have joined
  std::map<std::uint32_t, double> began_of_;  // when a rank's first owner joined, if owners are replaced
  std::optional<Child> evaluator_;
  bool evaluator_failed_ = false;
  bool evaluates_ = false;                       // it has found its publication
  std::vector<report::CurvePoint> evaluations_;  // with Unix time in seconds
  std::deque<Child> bridges_;                    // the last one is the bridge to other boxes
  bool wants_bridge_ = false;                    // start another one at bridge_at_
  bool bridge_has_joined_ = false;               // the last one has found the job
  int bridge_failures_ = 0;                      // since it was last in a group
  double bridge_at_ = 0.0;
  std::deque<Child> servers_;                     // the last one is the ps; destroyed before the workers
  std::map<const Child*, std::string> error_of_;  // the last error message of a program
  // The JSON object that a worker printed at its end, by rank.
  std::map<const Child*, std::map<std::uint32_t, report::Json>> last_objects_of_;
  std::set<const Child*> noted_;  // children whose end has been handled
  // Workers that have failed and are not replaced, until they are told of: several with the same error in one line.
  struct Failure {
    Ranks ranks;
    std::string how;
    const char* what_now;
    std::size_t number;  // in the order of the ends
  };
  std::vector<Failure> failures_;
  double tell_failures_at_ = 0.0;
  int signals_sent_ = 0;
  double give_up_at_ = 0.0;  // deadline for a clean end
  bool has_failed_ = false;
  std::string elsewhere_;    // the job that a program has joined instead of this one, if one was seen
  double look_at_ = 0.0;     // when to look for it again
  bool was_free_ = false;    // the job's name was unused before
  bool wants_ps_ = false;    // start another one after the pause
  bool is_pausing_ = false;  // before workers are replaced
  double restart_at_ = 0.0;  // no replacement before this time
  struct {
    int own = 0, killed = 0, all = 0;
  } early_ends_;  // consecutive early ends of replacements
  std::optional<report::RunReport> report_;
};

}  // namespace ps_shm::tools
