#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ps/errors.hpp"
#include "worker/impl.hpp"
#include "worker/sync_step.hpp"

namespace ps {

using shm::Counter;

PushContext Worker::Impl::push_context(std::uint64_t step) const noexcept {
  return {.label = {rank, step},
          .learning_rate = scheduled_rate(job.config(), live.settings.learning_rate, step),
          .scale = 1.0F,
          .staleness_scaling = config.optimizer.staleness_scaling,
          .adds = config.adds};
}

void Worker::Impl::record_observed(Variable::State& state) noexcept {
  for (std::uint64_t& staleness : state.observed) {
    if (staleness == Variable::State::kNotPulled) continue;
    shm::record_staleness(entry, staleness);
    staleness = Variable::State::kNotPulled;
  }
}

namespace {

// What pushes take: gradients that are all there, or that come piece by piece. whole(i) may wait.
struct WholeGradients {
  std::span<const std::span<const float>> all;

  std::span<const float> whole(std::size_t i) const { return all[i]; }
  std::span<const float> of_part(std::size_t i, const VariablePart& part) const {
    return all[i].subspan(part.begin, part.record.elements);
  }
  std::span<const float> at(std::size_t i) const { return all[i]; }
  bool is_added_by_device(std::size_t) const { return false; }
};

struct ArrivingGradients {
  std::span<GradientSource* const> all;

  std::span<const float> whole(std::size_t i) const { return all[i]->whole(); }
  GradientSource& of_part(std::size_t i, const VariablePart&) const { return *all[i]; }
  GradientSource& at(std::size_t i) const { return *all[i]; }
  bool is_added_by_device(std::size_t i) const { return all[i]->is_added_by_device(); }
};

}  // namespace

template <class Gradients>
void Worker::Impl::push_from(std::span<const Variable> handles, const Gradients& given) {
  count(Counter::kPushes).bump_relaxed(handles.size());
  if (is_sync()) {
    if (!has_pushed) {
      pushed_for = pulled_in.value_or(steps.round());  // a gradient belongs to the step whose values it was made of
      pushed_states.clear();
    }
    has_pushed = true;
    if (pushed_for != steps.round()) {  // too late: step() drops it
      for (std::size_t i = 0; i < handles.size(); ++i) static_cast<void>(given.whole(i));
      return;
    }
  }
  PushContext context = push_context(is_sync() ? pushed_for : job.global_step().load_acquire());
  float clip = 1.0F;
  if (live.settings.clip_norm > 0 && (!is_sync() || is_summed())) {
    double squares = 0;
    for (std::size_t i = 0; i < handles.size(); ++i) {
      if (!handles[i].state_->is_clipped()) continue;
      const std::span<const float> gradient = given.whole(i);
      squares += update::squared_norm(gradient.data(), gradient.size());
    }
    clip = update::clip_scale(squares, live.settings.clip_norm);
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    Variable::State& state = *handles[i].state_;
    context.scale = state.is_clipped() ? clip : 1.0F;
    if (given.is_added_by_device(i)) {
      static_cast<void>(given.whole(i));
      state.count_push();
      record_observed(state);
    } else if (!is_sync()) {
      const std::uint64_t retries = state.push(given.at(i), context, threads);
      if (retries != 0) count(Counter::kPushRetries).bump_relaxed(retries);
      record_observed(state);
    } else if (is_summed()) {
      state.contribute(given.at(i), context, threads);
    } else {
      for (const VariablePart& part : state.parts) gradients.write(part, pushed_for, given.of_part(i, part), threads);
      if (std::find(pushed_states.begin(), pushed_states.end(), &state) == pushed_states.end())
        pushed_states.push_back(&state);
    }
  }
}

void Worker::Impl::push(std::span<const Variable> handles, std::span<const std::span<const float>> all) {
  if (handles.size() != all.size())
    throw Error(fmt::format("push of {} variables with {} gradients: give one for each", handles.size(), all.size()));
  for (std::size_t i = 0; i < handles.size(); ++i) handles[i].state_->require_size(all[i].size(), "push");
  push_from(handles, WholeGradients{all});
}

void Worker::Impl::push(std::span<const Variable> handles, std::span<GradientSource* const> all) {
  push_from(handles, ArrivingGradients{all});
}

// Of the gradients as they were written, so that several pushes of one variable count as their sum. In the order of the
// pushes and over whole variables, so that neither placement nor threads change its bits.
void Worker::Impl::write_norm() {
  if (live.settings.clip_norm == 0) return gradients.write_norm(std::nullopt);
  double squares = 0;
  std::vector<float> whole;
  for (const Variable::State* state : pushed_states) {
    if (!state->is_clipped()) continue;
    if (state->parts.size() == 1) {
      const auto written = gradients.written(state->parts.front().record);
      squares += update::squared_norm(written.data(), written.size());
      continue;
    }
    whole.clear();
    for (const VariablePart& part : state->parts) {
      const auto written = gradients.written(part.record);
      whole.insert(whole.end(), written.begin(), written.end());
    }
    squares += update::squared_norm(whole.data(), whole.size());
  }
  gradients.write_norm(squares);
}

std::span<float> Worker::gradient(const Variable& variable) {
  Impl& impl = *impl_;
  Variable::State& state = *variable.state_;
  if (impl.is_sync() && !impl.is_summed() && state.parts.size() == 1)
    return impl.gradients.place(state.parts.front().record);
  if (!state.room) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = (state.elements * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    state.room.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
    if (!state.room) throw Error(fmt::format("no memory for a gradient of variable '{}': {} bytes", state.name, bytes));
    std::memset(state.room.get(), 0, bytes);
  }
  return {state.room.get(), state.elements};
}

void Worker::push(const Variable& variable, float gradient) {
  Impl& impl = *impl_;
  Variable::State& state = *variable.state_;
  const std::span<const float> whole(&gradient, 1);
  if (!state.is_scalar || impl.live.settings.clip_norm > 0)
    return impl.push(std::span(&variable, 1), std::span(&whole, 1));
  impl.count(Counter::kPushes).bump_relaxed(1);
  const bool is_sum = state.settings.rule == UpdateRule::kAdd;  // it needs neither rate nor step
  state.push_scalar(gradient, is_sum ? PushContext{.label = {}, .adds = impl.config.adds}
                                     : impl.push_context(impl.job.global_step().load_acquire()));
  impl.record_observed(state);
}

void Worker::push(const Variable& variable, std::span<const float> gradient) {
  if (variable.state_->is_scalar && gradient.size() == 1) return push(variable, gradient[0]);
  impl_->push(std::span(&variable, 1), std::span(&gradient, 1));
}

void Worker::push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients) {
  impl_->push(variables, gradients);
}

}  // namespace ps
