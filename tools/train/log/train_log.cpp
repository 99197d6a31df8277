#include "train/log/train_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ps_shm::train {
namespace {

constexpr double kFirstReportSeconds = 1.0;
constexpr double kReportSeconds = 2.0;

double seconds_between(TrainLog::Clock::time_point begin, TrainLog::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

bool TrainHooks::read_checkpoint(const std::string& variable, const std::string& slot, std::span<float> out) const {
  if (checkpoint == nullptr) return false;
  const std::vector<StoredVariable>& all = checkpoint->variables();
  const auto stored = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == variable; });
  if (stored == all.end()) return false;
  if (!slot.empty() && std::find(stored->slots.begin(), stored->slots.end(), slot) == stored->slots.end()) {
    if (warn)
      warn(fmt::format("the checkpoint has no {} of variable '{}'; they start from their initial values", slot,
                       variable));
    return false;
  }
  checkpoint->read(variable, std::as_writable_bytes(out), slot);
  return true;
}

hooks::NanGuard TrainHooks::nan_guard(const std::string& who, Worker* worker) const {
  NanGuardOptions options{.on_nan = on_nan, .dir = restore_dir, .log = warn};
  if (!warn) options.log = [](const std::string&) {};
  return {std::move(options), worker, who};
}

TrainLog::TrainLog(const TrainHooks& hooks, std::size_t batch) : hooks_(hooks), batch_(batch) {}

void TrainLog::enter(double loss, std::uint64_t global_steps) {
  now_.loss = loss;
  now_.global_steps = global_steps;
  now_.examples += batch_;
  ++now_.steps;
  const Clock::time_point time = Clock::now();
  if (seconds_between(reported_, time) < (has_reported_ ? kReportSeconds : kFirstReportSeconds)) return;
  report(since(reported_, before_, time));
  has_reported_ = true;
  reported_ = time;
  before_ = now_;
}

void TrainLog::finish(TrainTotals& totals) {
  const Clock::time_point time = Clock::now();
  if (now_.steps != before_.steps) report(since(reported_, before_, time));
  totals.last = since(began_, {}, time);
  totals.seconds = seconds_between(began_, time);
  totals.began_unix =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count() - totals.seconds;
}

TrainStatus TrainLog::since(Clock::time_point begin, const TrainStatus& before, Clock::time_point time) const {
  TrainStatus status = now_;
  const double seconds = std::max(seconds_between(begin, time), 1e-9);
  const std::uint64_t steps = now_.steps - before.steps;
  status.examples_per_second = double(now_.examples - before.examples) / seconds;
  status.seconds_per_batch = steps == 0 ? 0.0 : seconds / double(steps);
  return status;
}

void TrainLog::report(const TrainStatus& status) const {
  if (hooks_.report) hooks_.report(status);
}

}  // namespace ps_shm::train
