// The order in which hooks are called, and a loop that calls them.
#include <fmt/format.h>

#include <cstddef>
#include <utility>

#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"

namespace ps_shm {

StepLoop::StepLoop(Worker& worker, Hooks hooks) : worker_(worker), hooks_(std::move(hooks)) {
  for (std::size_t i = 0; i < hooks_.size(); ++i)
    if (!hooks_[i]) throw Error(fmt::format("hook {} is null", i), ErrorCode::kInvalidArgument);
}

bool StepLoop::before_step() {
  if (!std::exchange(has_begun_, true)) {
    last_.global_step = worker_.global_step();
    for (const auto& hook : hooks_) hook->begin(*this);
  }
  if (is_stopped_ || worker_.finished()) return false;
  for (const auto& hook : hooks_) hook->before_step(*this);
  return !is_stopped_;
}

bool StepLoop::after_gradient(double loss) {
  loss_ = loss;
  is_pushed_ = true;
  for (const auto& hook : hooks_) is_pushed_ = hook->after_gradient(*this, loss) && is_pushed_;  // every hook is asked
  return is_pushed_;
}

void StepLoop::after_step(std::uint64_t global_step) {
  last_ = {.steps = last_.steps + 1, .global_step = global_step, .loss = loss_, .was_pushed = is_pushed_};
  for (const auto& hook : hooks_) hook->after_step(*this, last_);
}

void StepLoop::end() {
  if (!has_begun_ || std::exchange(has_ended_, true)) return;
  for (const auto& hook : hooks_) hook->end(*this);
}

void StepLoop::saved(const std::string& folder) {
  for (const auto& hook : hooks_) hook->after_save(*this, folder);
}

StepReport run_steps(Worker& worker, const Hooks& hooks, const std::function<double()>& gradient,
                     const std::function<void()>& push) {
  StepLoop loop(worker, hooks);
  try {
    while (loop.before_step()) {
      if (loop.after_gradient(gradient())) push();
      loop.after_step(worker.step());
    }
  } catch (const JobFinished&) {  // the ps was told to end the job while this worker waited
  } catch (const Interrupted&) {
  }
  loop.end();
  return loop.last();
}

}  // namespace ps_shm
