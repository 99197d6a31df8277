// The bridge to other boxes: it is started beside the workers, and again when it dies. Its failures are not those of the
// training.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>

#include "launch_shm/child_arguments.hpp"
#include "launch_shm/launch.hpp"

namespace ps_shm::tools {
namespace {

constexpr int kSecondBridge = 3;       // its exit code if the box has another bridge
constexpr int kMaxBridgeFailures = 5;  // by itself, without having been in a group
constexpr double kFirstBridgePause = 0.3,
                 kLongestBridgePause = 5;  // seconds before it is started again; doubled each time

}  // namespace

// It is another program: of the Python that is installed beside this program, or the first on the PATH.
void Launch::start_bridge() {
  wants_bridge_ = bridge_has_joined_ = false;
  if (settings_.bridge.empty()) return;
  bridges_.emplace_back("bridge", "python3", bridge_arguments(settings_),
                        std::vector<std::string>{"PYTHONUNBUFFERED=1"}, false);
}

void Launch::keep_bridge() {
  if (wants_bridge_ && !is_ending() && now_seconds() >= bridge_at_) start_bridge();
}

void Launch::note_bridge_end(const Child& bridge) {
  if (!is_any_worker_running()) return;
  const bool ended_by_itself = !bridge.was_killed();
  wants_bridge_ = !ended_by_itself || (bridge.exit_code() != kWrongUsage && bridge.exit_code() != kSecondBridge &&
                                        bridge_failures_ + 1 < kMaxBridgeFailures);
  bridge_at_ = now_seconds() + std::min(std::ldexp(kFirstBridgePause, bridge_failures_), kLongestBridgePause);
  if (ended_by_itself) ++bridge_failures_;
  progress_->print_error(describe_end(
      bridge, wants_bridge_ ? "; the workers continue, and it is started again" : "; the workers continue without it"));
}

// It ends by itself, together with those of the other boxes, which may train longer.
void Launch::end_bridge() {
  if (bridges_.empty()) return;
  Child& bridge = bridges_.back();
  if (stop_requests() == 0) give_up_at_ = 0.0;
  const bool is_wanted = !has_failed_ && stop_requests() == 0;
  if (is_wanted && !bridge_has_joined_ && !bridge.has_ended())
    progress_->print("launch_shm: the job is done before its bridge had found it: no bridge exchanges its last steps");
  if (!is_wanted || !bridge_has_joined_) bridge.send(SIGTERM);  // it would wait for the job
  bool has_told = false;
  const double tell_at = now_seconds() + 1;
  while (!bridge.has_ended()) {
    attend(kTickMs);
    if (has_told || now_seconds() < tell_at) continue;
    has_told = true;
    progress_->print("launch_shm: the job is done; waiting for the other boxes' bridges (Ctrl-C ends the wait)");
  }
}

}  // namespace ps_shm::tools
