#include "train/loop/local_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "update/rules.hpp"

namespace ps_shm::train {

float local_rate(const Worker& worker, const TrainOptions& options, std::uint64_t global_step) {
  const Optimizer& optimizer = worker.config().optimizer;
  const float usual = default_lr(UpdateRule::kSgd);
  const bool is_sum = update::traits_of(optimizer.rule).is_sum;
  return options.local_lr.value_or(is_sum ? worker.live().lr : usual) *
         optimizer.schedule.factor(global_step);
}

float pushed_factor(const Worker& worker) {
  if (!update::traits_of(worker.config().optimizer.rule).is_sum) return -1.0F;
  const LiveSettings live = worker.live();
  if (!traits_of(live.mode).steps_together()) return 1.0F;
  if (live.quorum != 0)
    throw Error(
        "local steps under optimizer add need the number of differences in a step before it ends, which a job with "
        "`quorum` does not know: make it with optimizer sgd and lr 1, which applies their mean");
  return 1.0F / static_cast<float>(live.workers);
}

std::string warn_of_overshooting(const JobConfig& config, float lr) {
  const Optimizer& optimizer = config.optimizer;
  const auto& all = update::traits_of(optimizer.rule).hyper_parameters;
  const bool has_momentum = std::any_of(std::begin(all), std::end(all), [](const update::HyperParameter& one) {
    return one.from == &Optimizer::momentum;
  });
  if (!has_momentum || config.workers < 2 || traits_of(config.mode).steps_together()) return {};
  const float most = 2.0F * (1.0F - optimizer.momentum) / static_cast<float>(config.workers);
  if (lr <= most) return {};
  return fmt::format(
      "with `lr` {} and `momentum` {}, the pushes of {} workers in mode {} overshoot, and training may not "
      "converge; use `mode` sync, or `lr` {:.2g} at most",
      lr, optimizer.momentum, config.workers, to_string(config.mode), most);
}

LocalSteps::LocalSteps(const Worker& worker, const Model& model, const TrainOptions& options)
    : worker_(worker), model_(model), options_(options), start_(model.parameters()), updated_(model.parameters()) {}

void LocalSteps::begin(ParameterArrays& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    std::copy(parameters[i].begin(), parameters[i].end(), start_[i].begin());
}

void LocalSteps::step(ParameterArrays& parameters, ParameterArrays& gradients, std::uint64_t global_step) {
  const Optimizer& optimizer = worker_.config().optimizer;
  const float rate = local_rate(worker_, options_, global_step);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    update::Settings settings = update::settings_of(optimizer, UpdateRule::kSgd, model_.parameters()[i].regularize);
    settings.ema = 0;  // averages are of the shared values
    update::apply(settings, {rate, 0}, updated_[i].data(), parameters[i].data(), 0, gradients[i].data(), 1.0F,
                  updated_[i].size());
  }
  std::swap(parameters, updated_);
}

void LocalSteps::end(ParameterArrays& parameters, ParameterArrays& out) {
  const float factor = pushed_factor(worker_);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    for (std::size_t k = 0; k < out[i].size(); ++k) out[i][k] = factor * (parameters[i][k] - start_[i][k]);
}

}  // namespace ps_shm::train
