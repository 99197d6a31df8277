#include "hooks/nan_guard.hpp"

#include <fmt/format.h>

#include <bit>
#include <optional>
#include <utility>

#include "hooks/due.hpp"

namespace ps_shm {

const char* to_string(OnNan on_nan) noexcept {
  switch (on_nan) {
    case OnNan::kWarn:
      return "warn";
    case OnNan::kStop:
      return "stop";
    case OnNan::kSkip:
      return "skip";
    case OnNan::kRestore:
      return "restore";
  }
  return "unknown";
}

namespace hooks {

NanGuard::NanGuard(NanGuardOptions options, Worker* worker, std::string who)
    : options_(std::move(options)), worker_(worker), who_(std::move(who)) {
  if (options_.on_nan != OnNan::kRestore) return;
  if (worker_ == nullptr) throw Error("`on-nan` restore: there is no job to restore; choose stop, and start again");
  if (options_.dir.empty()) throw Error("`on-nan` restore: name the folder of the job's checkpoints");
}

void NanGuard::begin_step() {
  ++steps_;
  if (options_.on_nan == OnNan::kRestore) pulled_ = moment_of(*worker_);
}

std::string NanGuard::where(double loss) const {
  return fmt::format("the loss is {} at training step {}{}", std::isnan(loss) ? NAN : loss, steps_,
                     worker_ == nullptr ? "" : fmt::format(" (global step {})", worker_->global_step()));
}

bool NanGuard::take_nan(double loss) {
  switch (options_.on_nan) {
    case OnNan::kWarn:
      if (!std::exchange(has_warned_, true))
        tell(options_.log,
             fmt::format("{}: the loss is not finite at training step {}; try a smaller `lr`", who_, steps_));
      return true;
    case OnNan::kStop:
      throw Error(fmt::format("{} stops: {}; try a smaller `lr`", who_, where(loss)), ErrorCode::kNotFinite);
    case OnNan::kSkip:
      note_skip(loss);
      return false;
    case OnNan::kRestore:
      put_back(loss);
      return false;
  }
  return true;
}

void NanGuard::note_skip(double loss) {
  if (!std::has_single_bit(++skipped_)) return;
  tell(options_.log, fmt::format("{}: {}: its gradient is not pushed{}", who_, where(loss),
                                 skipped_ == 1 ? "" : fmt::format(" ({} so far)", skipped_)));
}

void NanGuard::put_back(double loss) {
  const Restoration done = [&] {
    try {
      return restore_once(*worker_, options_, pulled_);
    } catch (const Error& error) {
      throw Error(fmt::format("{} stops: {}, and {}", who_, where(loss), error.what()), ErrorCode::kNotFinite);
    }
  }();
  switch (done.outcome) {
    case Restored::kHere:
      return tell(options_.log,
                  fmt::format("{}: {}: the job was reset to checkpoint {}", who_, where(loss), done.folder));
    case Restored::kByAnother:
      return note_skip(loss);
    case Restored::kTooOften:
      throw Error(fmt::format("{} stops: {}, again, and checkpoint {} was restored {} times; try a smaller `lr`", who_,
                              where(loss), done.folder, options_.max_restores),
                  ErrorCode::kNotFinite);
  }
}

}  // namespace hooks

namespace {

class NanGuardHook final : public Hook {
 public:
  explicit NanGuardHook(NanGuardOptions options) : options_(std::move(options)) {
    if (options_.on_nan == OnNan::kRestore && options_.dir.empty())
      throw Error("nan_guard: kRestore needs the folder of the checkpoints: give `dir`");
  }
  void begin(StepLoop& loop) override {
    guard_.emplace(options_, &loop.worker(), fmt::format("worker {}", loop.worker().rank()));
  }
  void before_step(StepLoop&) override { guard_->begin_step(); }
  bool after_gradient(StepLoop&, double loss) override { return guard_->takes(loss); }

 private:
  const NanGuardOptions options_;
  std::optional<hooks::NanGuard> guard_;
};

}  // namespace

std::shared_ptr<Hook> nan_guard(NanGuardOptions options) { return std::make_shared<NanGuardHook>(std::move(options)); }

}  // namespace ps_shm
