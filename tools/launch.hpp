// A whole job: one ps and its workers as children, watched from their start to the summary.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "children.hpp"
#include "curve.hpp"
#include "options.hpp"
#include "ps/job_view.hpp"
#include "report/progress.hpp"
#include "report/summary.hpp"
#include "subject.hpp"

namespace ps::tools {

class Launch {
 public:
  // Loads what the summary will need. Throws Error.
  explicit Launch(const LaunchSettings& settings);

  // Starts ps and workers, waits for all of them, says on stderr what goes wrong. Returns the exit code of the whole.
  int run();

  // Requires: run() has returned. None: it was interrupted, or nobody has trained.
  const std::optional<report::RunReport>& report() const { return report_; }

 private:
  // A worker of the job, alive or ended.
  struct Member {
    Member(const LaunchSettings& settings, std::uint32_t rank, bool together);

    std::uint32_t rank;
    double started;
    bool was_asked_to_leave = false;
    Child child;
  };

  int start_ps();
  void start_workers();
  void start_worker(std::uint32_t rank, bool together);
  void keep_number();
  bool is_elastic() const { return settings_.ps.job.elastic_max != 0; }
  bool replaces_workers() const { return is_elastic() || settings_.restart_workers; }
  const Member* last_of(std::uint32_t rank) const;
  bool has_joined(std::uint32_t rank) const;
  void note_worker_end(Member& member);
  std::string describe_end(const Child& child, const char* what_now);
  void attend(int timeout_ms);
  void take_line(const Child& child, bool is_error, const std::string& line);
  void note_ends();
  void show_progress();
  void collect();
  void end_ps();
  Child& ps() { return servers_.back(); }
  bool is_ps(const Child& child) const;
  bool is_any_worker_running() const;
  void send_all(int signal);

  std::unique_ptr<Subject> subject_;  // none: count
  const LaunchSettings settings_;
  std::uint64_t target_steps_ = 0;

  std::optional<Curve> curve_;

  std::optional<report::Progress> progress_;
  std::optional<JobView> view_;  // its mappings outlive the job's names
  std::deque<Member> workers_;
  double server_started_ = 0.0;
  std::deque<Child> servers_;                            // the last one is the ps; destroyed before the workers are
  std::map<const Child*, std::string> error_of_;         // a program's last words
  std::map<const Child*, report::Json> last_object_of_;  // what a worker says about itself at its end
  std::set<const Child*> noted_;                         // whose end has been looked at
  int signals_sent_ = 0;
  double give_up_at_ = 0.0;  // on a clean end
  bool has_failed_ = false;
  int quick_failures_ = 0;  // of replaced workers and ps, one after the other
  std::optional<report::RunReport> report_;
};

}  // namespace ps::tools
