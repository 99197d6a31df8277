// A whole job: one ps and its workers as children, watched from their start to the summary.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "children.hpp"
#include "curve.hpp"
#include "guard.hpp"
#include "options.hpp"
#include "ps/job_view.hpp"
#include "recording.hpp"
#include "report/progress.hpp"
#include "report/summary.hpp"
#include "tracing.hpp"
#include "workload.hpp"

namespace ps::tools {

class Launch {
 public:
  // Loads what the summary will need. Throws Error.
  explicit Launch(const LaunchSettings& settings);

  // Starts ps and workers, waits for all of them, says on stderr what goes wrong. Returns the exit code of the whole.
  // However it ends, also by an exception, its children have ended, and no segment of theirs is left.
  int run();

  // Requires: run() has returned. None: it was interrupted, or nobody has trained.
  const std::optional<report::RunReport>& report() const { return report_; }

 private:
  // A worker of the job, alive or ended.
  struct Member {
    Member(std::uint32_t rank, const std::optional<WorkerInfo>& before, const std::vector<std::string>& command,
           const std::vector<std::string>& variables, bool is_ours);

    std::uint32_t rank;
    std::uint64_t steps_before, holders_before;  // of the rank
    bool was_asked_to_leave = false;
    Child child;
  };

  int run_job();
  int start_ps();
  void start_workers();
  void start_worker(std::uint32_t rank, bool together);
  void keep_ps();
  void keep_number();
  void ask_to_leave(Member& member, const std::string& why);
  void call_off();
  void begin_next_lives();
  bool has_program() const { return !settings_.program.empty(); }
  bool is_elastic() const { return settings_.ps.job.elastic_max != 0; }
  bool replaces_workers() const { return is_elastic() || settings_.restart_workers; }
  const Member* last_of(std::uint32_t rank) const;
  std::optional<WorkerInfo> holder_of(std::uint32_t rank) const;
  bool may_follow(const Child& child, bool has_worked);
  void note_worker_end(Member& member);
  std::string describe_end(const Child& child, const char* what_now);
  void attend(int timeout_ms);
  void take_line(const Child& child, bool is_error, const std::string& line);
  void note_ends();
  void note_beginnings();
  void show_progress();
  void attempt(const std::function<void()>& act);
  void finish_record();
  void collect();
  void end_ps();
  void end_all() noexcept;
  void remove_leftovers();
  Child& ps() { return servers_.back(); }
  std::vector<Child*> children();
  bool is_ps(const Child& child) const;
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

  std::optional<Curve> curve_;
  std::optional<RecordedLaunch> recorded_;
  std::optional<ReplayedLaunch> replayed_;
  std::optional<Traces> traces_;

  std::optional<report::Progress> progress_;
  std::optional<JobView> view_;                   // its mappings outlive the job's names
  std::optional<std::vector<std::string>> gpus_;  // of which each worker is shown one; asked when one may take it
  std::optional<Guard> guard_;                    // of another program's processes; ends after they have
  std::deque<Member> workers_;
  bool has_begun_ = false;                    // all of the first ones have joined
  std::map<std::uint32_t, double> began_of_;  // when a rank's first holder joined, where holders are replaced
  std::optional<Child> evaluator_;
  bool evaluator_failed_ = false;
  bool evaluates_ = false;                               // it has found its publication
  std::vector<report::CurvePoint> evaluations_;          // their seconds are Unix time
  std::deque<Child> servers_;                            // the last one is the ps; destroyed before the workers are
  std::map<const Child*, std::string> error_of_;         // a program's last words
  std::map<const Child*, report::Json> last_object_of_;  // what a worker says about itself at its end
  std::set<const Child*> noted_;                         // whose end has been looked at
  int signals_sent_ = 0;
  double give_up_at_ = 0.0;  // on a clean end
  bool has_failed_ = false;
  bool was_free_ = false;    // nothing had the job's name before
  bool wants_ps_ = false;    // another one, when the pause is over
  bool is_pausing_ = false;  // before workers are replaced
  double restart_at_ = 0.0;  // no replacement before
  struct {
    int own = 0, killed = 0, all = 0;
  } early_ends_;  // of replaced workers and ps, one after the other
  std::optional<report::RunReport> report_;
};

}  // namespace ps::tools
