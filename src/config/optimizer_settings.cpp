// The table of an optimizer's settings.
#include "config/job_settings.hpp"
#include "config/values.hpp"

namespace ps_shm::config {
namespace {

// Accepts what Schedule::parse accepts.
void check_schedule(const Schedule& schedule) {
  const auto is_amount = [](float value) {
    return value >= 0 && value <= std::numeric_limits<float>::max();  // false for NaN
  };
  if (!is_amount(schedule.decay) || !is_amount(schedule.decay_steps) || schedule.decay_steps == 0 ||
      (schedule.kind == Schedule::Kind::kCosine ? schedule.decay > 1 : schedule.decay == 0))
    throw Error("must have a decay and steps above 0, cosine a floor from 0 to 1");
  if (!(schedule.warmup_steps >= 0 && schedule.warmup_steps <= 16777216.0F))
    throw Error("must have at most 16777216 steps of warmup");
}

Value<Optimizer> schedule() {
  return {.kind = Kind::kWord,
          .form = "SPEC",
          .bounds = "",
          .words = {},
          .read = [](Optimizer& in, const std::string& text) { in.schedule = Schedule::parse(text); },
          .check = [](const Optimizer& in) { check_schedule(in.schedule); },
          .write = [](const Optimizer& in) { return in.schedule.to_string(); }};
}

}  // namespace

const Settings<Optimizer>& optimizer_settings() {
  using O = Optimizer;
  constexpr auto kGroup = Group::kOptimizer;
  constexpr unsigned kAll = kPs | kWorker | kLaunch;
  // clang-format off
  static const Settings<O> kRows = {
      {"optimizer", choice(&O::rule), kGroup, kAll, "update rule; with `push-every` the default is add",
       {.common = kPs | kLaunch}},
      {"lr", amount(&O::lr), kGroup, kAll, "learning rate at step 0",
       {.otherwise = "depends on the optimizer: sgd 0.1, adam 0.001, ...", .common = kPs | kLaunch}},
      {"lr-schedule", schedule(), kGroup, kAll,
       "learning-rate schedule: constant, exp:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS[:FLOOR]; any of them may "
       "be preceded by warmup:STEPS+"},
      {"lr-staleness", flag(&O::lr_staleness), kGroup, kAll,
       "async, ssp: scale the learning rate by 1 / (1 + staleness)"},
      {"momentum", share(&O::momentum), kGroup, kAll,
       "momentum, nesterov: momentum coefficient", {.hyper_parameter = &O::momentum}},
      {"beta1", share(&O::beta1), kGroup, kAll, "adam, adamw: decay of m",
       {.hyper_parameter = &O::beta1}},
      {"beta2", share(&O::beta2), kGroup, kAll, "adam, adamw: decay of v", {.hyper_parameter = &O::beta2}},
      {"rho", share(&O::rho), kGroup, kAll, "rmsprop: decay of the mean square", {.hyper_parameter = &O::rho}},
      {"epsilon", amount(&O::epsilon), kGroup, kAll,
       "adagrad, rowwise_adagrad, rmsprop, adam, adamw: constant added in the denominator",
       {.hyper_parameter = &O::epsilon}},
      {"initial-accumulator", amount(&O::initial_accumulator), kGroup, kAll,
       "adagrad, rowwise_adagrad: initial value of the accumulators", {.hyper_parameter = &O::initial_accumulator}},
      {"ftrl-beta", amount(&O::ftrl_beta), kGroup, kAll,
       "ftrl: beta, which is added to the root in the denominator", {.hyper_parameter = &O::ftrl_beta}},
      {"l1", amount(&O::l1), kGroup, kAll, "ftrl: L1 regularisation of weights", {.hyper_parameter = &O::l1}},
      {"l2", amount(&O::l2), kGroup, kAll, "L2 regularisation of weights"},
      {"weight-decay", amount(&O::weight_decay), kGroup, kAll, "decoupled weight decay",
       {.otherwise = "0; adamw 0.01"}},
      {"clip-value", amount(&O::clip_value), kGroup, kAll, "clip each element of a gradient to this magnitude",
       {.otherwise = "none"}},
      {"clip-norm", amount(&O::clip_norm), kGroup, kAll, "clip the global norm of a gradient to this value",
       {.otherwise = "none"}},
      {"ema", share(&O::ema), kGroup, kAll,
       "decay of the moving averages of the parameters", {.otherwise = "no averages"}},
  };
  // clang-format on
  return kRows;
}

}  // namespace ps_shm::config
