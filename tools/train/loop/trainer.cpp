#include "train/loop/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <new>
#include <numeric>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "train/data/batch_stream.hpp"
#include "train/log/digest.hpp"
#include "train/loop/engine.hpp"
#include "train/loop/local_steps.hpp"
#include "update/bytes.hpp"
#include "update/rules.hpp"

namespace ps_shm::train {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t count) {
  constexpr std::size_t kFloats = kAlignment / sizeof(float);
  return (count + kFloats - 1) / kFloats * kFloats;
}

std::vector<Variable> declare(Worker& worker, const Model& model, const TrainOptions& options) {
  std::vector<VariableSpec> specs;
  for (const ParameterSpec& parameter : model.parameters()) {
    VariableSpec& spec = specs.emplace_back();
    spec.name = parameter.name;
    spec.shape.assign(parameter.shape.begin(), parameter.shape.end());
    spec.regularize = parameter.regularize;
    spec.dtype = options.dtype;
  }
  return worker.variables(specs, [&](std::size_t i, std::span<float> out) {
    update::fill_values(out, specs[i].element_count(), options.dtype, [&](std::span<float> values) {
      model.initialize(i, config::seed_of(worker.config()), values);
      options.replace_first(specs[i].name, values);
    });
  });
}

// Parameters with their optimizer slots, as a ps would hold them, updated in this process.
class LocalVariables {
 public:
  LocalVariables(const JobConfig& config, const Model& model, const TrainHooks& hooks) : config_(config) {
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      const ParameterSpec& spec = model.parameters()[i];
      One& one = all_.emplace_back();
      one.settings = update::settings_of(config.optimizer, config.optimizer.rule, spec.regularize);
      one.stride = padded(spec.count());
      one.now.resize(one.stride * (1 + update::slots_per_element(one.settings)));
      one.next.resize(one.now.size());
      const std::span<float> values(one.now.data(), spec.count());
      one.spec = &spec;
      if (!hooks.read_checkpoint(spec.name, "", values)) {
        model.initialize(i, config::seed_of(config), values);
        hooks.replace_first(spec.name, values);
      }
      update::initialise_slots(one.settings, base_rate(), values.data(), values.data() + one.stride, one.stride,
                               values.size());
      for (std::size_t slot = 0; slot < update::slots_per_element(one.settings); ++slot)
        hooks.read_checkpoint(spec.name, one.slot_name(slot), one.array(1 + slot));
    }
  }

  std::vector<LocalArray> arrays() {
    std::vector<LocalArray> all;
    for (One& one : all_)
      for (std::size_t array = 0; array <= update::slots_per_element(one.settings); ++array) {
        const std::span<const float> numbers = one.array(array);
        all.push_back({.variable = one.spec->name,
                       .slot = array == 0 ? "" : one.slot_name(array - 1),
                       .shape = {one.spec->shape.begin(), one.spec->shape.end()},
                       .numbers = {numbers.begin(), numbers.end()}});
      }
    return all;
  }

  void copy_to(ParameterArrays& out, std::size_t array = 0) const {
    for (std::size_t i = 0; i < out.size(); ++i)
      std::copy_n(all_[i].now.begin() + std::ptrdiff_t(array * all_[i].stride), out[i].size(), out[i].begin());
  }

  void copy_averages_to(ParameterArrays& out) const { copy_to(out, update::slots_per_element(all_.front().settings)); }

  void update(ParameterArrays& gradients, std::uint64_t step) {
    double squares = 0;
    if (config_.optimizer.clip_norm > 0)
      for (std::size_t i = 0; i < gradients.size(); ++i)
        squares += update::squared_norm(gradients[i].data(), gradients[i].size());
    const float scale = update::clip_scale(squares, config_.optimizer.clip_norm);
    const float rate = base_rate() * config_.optimizer.schedule.factor(step);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      One& one = all_[i];
      update::apply(one.settings, {rate, step}, one.next.data(), one.now.data(), one.stride, gradients[i].data(), scale,
                    gradients[i].size());
      one.now.swap(one.next);
    }
  }

 private:
  struct One {
    std::string slot_name(std::size_t slot) const { return update::slot_name(settings.rule, false, slot); }
    std::span<float> array(std::size_t which) { return {now.data() + which * stride, spec->count()}; }

    const ParameterSpec* spec = nullptr;
    update::Settings settings;
    std::size_t stride = 0;
    std::vector<float> now, next;
  };

  float base_rate() const {
    return config_.optimizer.lr.value_or(default_lr(config_.optimizer.rule));
  }

  const JobConfig& config_;
  std::vector<One> all_;
};

}  // namespace

ParameterArrays::ParameterArrays(std::span<const ParameterSpec> specs) {
  std::size_t total = 0;
  for (const ParameterSpec& spec : specs) {
    counts_.push_back(spec.count());
    total += padded(spec.count());
  }
  memory_.reset(static_cast<float*>(::operator new(total * sizeof(float), std::align_val_t(kAlignment))));
  std::fill_n(memory_.get(), total, 0.0F);
  float* next = memory_.get();
  for (const std::size_t count : counts_) {
    arrays_.push_back(next);
    next += padded(count);
  }
}

ParameterArrays::ParameterArrays(std::span<const std::span<float>> arrays) {
  for (const std::span<float> array : arrays) {
    counts_.push_back(array.size());
    arrays_.push_back(array.data());
  }
}

void ParameterArrays::Free::operator()(float* memory) const { ::operator delete(memory, std::align_val_t(kAlignment)); }

std::vector<NamedValues> named(std::span<const ParameterSpec> specs, std::span<const std::span<const float>> values) {
  std::vector<NamedValues> all;
  for (std::size_t i = 0; i < specs.size(); ++i) all.push_back({specs[i].name, values[i]});
  return all;
}

std::vector<NamedValues> named(std::span<const ParameterSpec> specs, ParameterArrays& values) {
  std::vector<NamedValues> all;
  for (std::size_t i = 0; i < specs.size(); ++i) all.push_back({specs[i].name, values[i]});
  return all;
}

namespace {

// What happens between a gradient and its use. None: a GPU's push may begin before its loss is there.
Engine::Pause pause_of(Straggler& straggler, PhaseTimer& timer, PhaseSeconds& phases,
                       const std::function<bool()>& is_over, bool pushes_unseen) {
  if (straggler.is_one())
    return [&straggler, &timer, &phases, is_over] {
      timer.end(phases.gradient, "gradient");
      const bool goes_on = straggler.slow_down(is_over);
      timer.end(phases.delay, "delay");
      straggler.begin_work();
      return goes_on;
    };
  return pushes_unseen ? Engine::Pause() : [] { return true; };
}

void warn_of_local_rate(const EngineParts& parts, const std::string& who) {
  Worker& worker = parts.worker;
  if (!parts.has_local_steps() || !worker.is_chief() || !parts.options.warn) return;
  const std::string warning = warn_of_overshooting(worker.config(), worker.live().lr);
  if (!warning.empty()) parts.options.warn(fmt::format("{}: {}", who, warning));
}

void observe(const EngineParts& parts, const Engine& engine, std::uint64_t global_steps, std::uint64_t steps) {
  parts.options.observer->observe({.step = global_steps,
                                   .steps = steps,
                                   .examples = steps * parts.batch() * parts.push_every(),
                                   .loss = double(engine.loss()),
                                   .is_update = parts.has_local_steps(),
                                   .gradients = engine.gradients()});
}

// Returns the number of global steps. `log` has not been told of the first step of a job whose workers wait for each
// other, since their programs are still starting.
std::uint64_t end_step(Worker& worker, Engine& engine, bool waits_for_start, TrainLog& log, PhaseTimer& timer,
                       PhaseSeconds& phases) {
  const Clock::time_point begin = Clock::now();
  const std::uint64_t global_steps = worker.step();
  engine.begin_next();
  double start = 0.0;
  if (waits_for_start) log.skip(Clock::now() - begin);
  timer.end(waits_for_start ? start : phases.step, "step()");
  timer.end_step();
  return global_steps;
}

void pull_result(Worker& worker, std::span<const Variable> variables, const Model& model, TrainResult& result) {
  for (std::size_t i = 0; i < variables.size(); ++i) worker.pull(variables[i], result.parameters[i]);
  const Optimizer& optimizer = worker.config().optimizer;
  if (optimizer.ema == 0 || update::traits_of(optimizer.rule).is_sum) return;
  result.averages.emplace(model.parameters());
  for (std::size_t i = 0; i < variables.size(); ++i) worker.pull_average(variables[i], (*result.averages)[i]);
}

}  // namespace

TrainResult train(Worker& worker, Model& model, const Dataset& data, const TrainOptions& options) {
  const std::string who = fmt::format("worker {}", worker.rank());
  hooks::NanGuard guard = options.nan_guard(who, &worker);
  const std::vector<Variable> variables = declare(worker, model, options);
  TrainResult result(model.parameters());
  const EngineParts parts{worker, variables, model, data, options};
  const std::unique_ptr<Engine> engine =
      options.gpu ? make_gpu_engine(parts) : make_cpu_engine(parts, result.parameters);
  const std::uint64_t examples = parts.batch() * parts.push_every();  // per step
  warn_of_local_rate(parts, who);
  const bool waits_for_others = traits_of(worker.config().mode).steps_together();
  // With `stop`, a GPU's step does not wait for its loss: the worker stops after the push.
  const bool pushes_unseen = !guard.is_on() || (options.gpu && options.on_nan == OnNan::kStop);
  Straggler straggler(options.delay, config::seed_of(worker.config()), worker.rank(),
                      [&] { return engine->work_seconds(); });

  TrainLog log(options, examples);
  const auto is_over = [&] { return worker.finished() || log.is_stop_requested(); };
  std::uint64_t steps = 0, global_steps = worker.global_step();
  PhaseSeconds& phases = result.phases;
  PhaseTimer timer(options.trace);
  const Engine::Pause pause = pause_of(straggler, timer, phases, is_over, pushes_unseen);
  try {
    while (!is_over()) {
      timer.begin_step(global_steps);
      straggler.begin_work();
      guard.begin_step();
      engine->pull();
      timer.end(phases.pull, "pull");
      const bool goes_on = engine->compute(pause);
      timer.end(phases.gradient, "gradient");
      if (!goes_on || (straggler.is_one() && is_over())) break;
      if (options.is_observed(global_steps)) {
        observe(parts, *engine, global_steps, steps);
        timer.begin();
      }
      if (pushes_unseen || guard.takes(engine->loss()))
        engine->push();
      else
        engine->skip();
      timer.end(phases.push, "push");
      global_steps = end_step(worker, *engine, waits_for_others && steps == 0, log, timer, phases);
      if (pushes_unseen) guard.takes(engine->loss());  // warns, or stops this worker
      worker.report(engine->loss(), ++steps * examples);
      log.enter(engine->loss(), global_steps);
    }
  } catch (const JobFinished&) {  // the ps was told to end while this worker waited
  } catch (const Interrupted&) {
  }
  result.is_interrupted = log.is_stop_requested();
  log.finish(result);
  engine->finish(result);
  pull_result(worker, variables, model, result);
  return result;
}

TrainResult train_alone(const JobConfig& config, Model& model, const Dataset& data, const TrainOptions& options) {
  if (update::traits_of(config.optimizer.rule).is_sum)
    throw Error(fmt::format(
        "optimizer {} sums the differences that workers push, which a standalone process does not have; use sgd",
        to_string(config.optimizer.rule)));
  hooks::NanGuard guard = options.nan_guard("standalone", nullptr);
  TrainResult result(model.parameters());
  ParameterArrays& parameters = result.parameters;
  ParameterArrays gradients(model.parameters());
  LocalVariables variables(config, model, options);
  const std::size_t batch = options.batch != 0 ? options.batch : default_batch(data);
  BatchStream batches(data, batch, options.seed.value_or(config::seed_of(config)), 0, {}, options.examples_before());

  Straggler straggler(options.delay, options.seed.value_or(config::seed_of(config)), 0);

  TrainLog log(options, batch);
  const auto is_over = [&] { return log.is_stop_requested(); };
  float loss = 0.0F;
  std::uint64_t step = options.first_step(), examples = options.examples_before();
  const auto keep = [&](bool is_last) {
    if (options.keep) options.keep(step, loss, is_last, [&] { return LocalState{step, examples, variables.arrays()}; });
  };
  while (step < config.steps && !is_over()) {
    straggler.begin_work();
    guard.begin_step();
    variables.copy_to(parameters);
    loss = model.gradient(parameters.values(), batches.next(), gradients.pointers());
    if (!straggler.slow_down(is_over)) break;
    if (options.is_observed(step))
      options.observer->observe({.step = step,
                                 .steps = step,
                                 .examples = step * batch,
                                 .loss = double(loss),
                                 .gradients = named(model.parameters(), gradients),
                                 .parameters = named(model.parameters(), parameters)});
    if (guard.takes(loss)) variables.update(gradients, step);
    log.enter(loss, ++step);
    examples += batch;
    keep(false);
  }
  keep(true);
  result.is_interrupted = is_over();
  log.finish(result);
  variables.copy_to(parameters);
  if (config.optimizer.ema > 0) variables.copy_averages_to(result.averages.emplace(model.parameters()));
  return result;
}

std::uint64_t digest(const Model& model, ParameterArrays& parameters) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return model.parameters()[a].name < model.parameters()[b].name; });
  Digest all;
  for (const std::size_t i : order) all.add(model.parameters()[i].name, parameters[i]);
  return all.value();
}

// 100 is the batch size of tutorials for MNIST.
std::size_t default_batch(const Dataset& data) { return data.features >= 784 ? 100 : 32; }

// About 130 epochs of the 1437 digits with default batches; 50 of MNIST.
std::uint64_t default_steps(const std::string& source) { return source == "digits" ? 6000 : 30000; }

}  // namespace ps_shm::train
