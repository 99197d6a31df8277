// Hooks that end a loop.
#include <memory>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/hooks.hpp"

namespace ps_shm {
namespace {

class StopAtStep final : public Hook {
 public:
  explicit StopAtStep(std::uint64_t global_step) : global_step_(global_step) {}
  void begin(StepLoop& loop) override { look(loop, loop.last().global_step); }
  void after_step(StepLoop& loop, const StepReport& report) override { look(loop, report.global_step); }

 private:
  void look(StepLoop& loop, std::uint64_t global_step) const {
    if (global_step >= global_step_) loop.stop();
  }
  const std::uint64_t global_step_;
};

class StopAtLoss final : public Hook {
 public:
  StopAtLoss(double loss, std::size_t steps) : loss_(loss), losses_(steps) {}
  void begin(StepLoop&) override { count_ = 0; }
  void after_step(StepLoop& loop, const StepReport& report) override {
    losses_[count_++ % losses_.size()] = report.loss;
    if (count_ < losses_.size()) return;
    double sum = 0.0;  // summed again each time: a running sum drifts, and a NaN would stay in it
    for (const double loss : losses_) sum += loss;
    if (sum / double(losses_.size()) <= loss_) loop.stop();
  }

 private:
  const double loss_;
  std::vector<double> losses_;
  std::size_t count_ = 0;
};

}  // namespace

std::shared_ptr<Hook> stop_at_step(std::uint64_t global_step) { return std::make_shared<StopAtStep>(global_step); }

std::shared_ptr<Hook> stop_at_loss(double loss, std::size_t steps) {
  if (steps == 0) throw Error("stop_at_loss: the number of steps is 0; give at least 1");
  return std::make_shared<StopAtLoss>(loss, steps);
}

}  // namespace ps_shm
