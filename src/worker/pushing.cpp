// Pushing, adding and assigning: the part that is common to all modes.
#include <fmt/format.h>

#include <cstring>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "snapshot/snapshot.hpp"
#include "update/bytes.hpp"
#include "update/dtypes.hpp"
#include "worker/gradients.hpp"
#include "worker/impl.hpp"
#include "worker/inplace_state.hpp"
#include "worker/push_scope.hpp"

namespace ps_shm {

using shm::Counter;

void Worker::Impl::push(std::span<const Variable> handles, std::span<const GradientInput> gradients) {
  count(Counter::kPushes).bump_relaxed(handles.size());
  mode->push(handles, gradients);
}

// These two are not inlined: otherwise a push of a scalar would have to save the registers that they use.
[[gnu::noinline]] void Worker::Impl::push(const Variable& handle, float gradient) { push(handle, {&gradient, 1}); }

[[gnu::noinline]] void Worker::Impl::push(const Variable& handle, std::span<const float> gradient) {
  state_of(handle).require_gradient(gradient.size(), "push");
  const GradientInput whole(gradient);
  push(std::span(&handle, 1), std::span(&whole, 1));
}

std::span<float> Worker::gradient(const Variable& variable) {
  Impl& impl = owned();
  VariableState& state = *variable.state_;
  state.require_gradients("a gradient");
  if (GradientSegments* const landing = impl.mode->landing(); landing != nullptr && state.parts.size() == 1)
    return landing->place(state.parts.front().record);
  if (!state.gradient_buffer) {
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = (state.element_count * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
    state.gradient_buffer.reset(static_cast<float*>(std::aligned_alloc(kAlignment, bytes)));
    if (!state.gradient_buffer)
      throw Error(fmt::format("no memory for a gradient of variable '{}': {} bytes", state.name, bytes),
                  ErrorCode::kNoSpace);
    std::memset(state.gradient_buffer.get(), 0, bytes);
  }
  return {state.gradient_buffer.get(), state.element_count};
}

void Worker::push(const Variable& variable, float gradient) {
  Impl& impl = owned();
  VariableState& state = *variable.state_;
  if (!state.is_scalar || impl.limits_pushes) return impl.push(variable, gradient);
  impl.count(Counter::kPushes).bump_relaxed(1);
  state.follow(impl.live.settings);
  // A sum needs neither rate nor step.
  inplace_state(state).push_scalar(gradient, state.is_sum ? PushContext{.label = {}, .adds = impl.config.adds}
                                                          : impl.push_context(impl.job.steps_done()));
  impl.record_observed(state);
}

void Worker::push(const Variable& variable, std::span<const float> gradient) {
  if (variable.state_->is_scalar && gradient.size() == 1) return push(variable, gradient[0]);
  owned().push(variable, gradient);
}

void Worker::push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients) {
  Impl& impl = owned();
  if (variables.size() != gradients.size())
    throw Error(
        fmt::format("push of {} variables with {} gradients: give one for each", variables.size(), gradients.size()));
  for (std::size_t i = 0; i < variables.size(); ++i) variables[i].state_->require_gradient(gradients[i].size(), "push");
  impl.inputs.assign(gradients.begin(), gradients.end());
  impl.push(variables, impl.inputs);
}

void Worker::push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients,
                  std::span<const std::span<float>> outs, std::span<Versions> since) {
  Impl& impl = owned();
  impl.refuse_recorded("a push that copies back");
  const std::size_t count = variables.size();
  if (gradients.size() != count || outs.size() != count || since.size() != count)
    throw Error(fmt::format("push of {} variables with {} gradients, {} buffers and {} versions: give one for each",
                            count, gradients.size(), outs.size(), since.size()));
  for (std::size_t i = 0; i < count; ++i) {
    const VariableState& state = *variables[i].state_;
    state.require_size(gradients[i].size(), "push");
    state.require_size(outs[i].size(), "pull");
    state.require_versions("push that copies back");
  }
  const bool is_applied_at_once = !traits_of(impl.config.mode).steps_together();
  impl.inputs.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const VariableState& state = *variables[i].state_;
    std::vector<std::uint64_t>& versions = since[i].of_chunks;
    if (is_applied_at_once && state.layout != Layout::kInplace) {
      versions.resize(state.pieces, VariableState::kNotPulled);
      impl.inputs.emplace_back(gradients[i], outs[i], versions);
    } else {
      versions.clear();
      impl.inputs.emplace_back(gradients[i]);
    }
  }
  impl.push(variables, impl.inputs);
}

struct PS_SHM_HIDDEN PushGroup::Impl {
  explicit Impl(WorkerCore& worker) noexcept : core(worker), scope(worker) {}
  ~Impl() {
    if (core.job.is_inherited()) scope.abandon();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  WorkerCore& core;
  PushScope scope;
};

PushGroup::PushGroup(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
PushGroup::PushGroup(PushGroup&&) noexcept = default;
PushGroup::~PushGroup() = default;

PushGroup Worker::group_pushes() {
  Impl& impl = owned();
  if (traits_of(impl.config.mode).steps_together()) return PushGroup(nullptr);
  return PushGroup(std::make_unique<PushGroup::Impl>(impl));
}

Snapshot Worker::snapshot(const SnapshotOptions& options) {
  Impl& impl = owned();
  impl.refuse_recorded("a snapshot");
  if (impl.open_pushes != 0)
    throw Error("a snapshot within a PushGroup: end the group first", ErrorCode::kInvalidState);
  const auto listen = [&impl] {
    if (impl.options.stop_requested && impl.options.stop_requested()) throw Interrupted();
  };
  return Snapshot(std::make_unique<Snapshot::Impl>(
      Snapshotter{.job = impl.job, .rank = impl.rank, .each_slice = listen, .is_taking = impl.is_taking_snapshot},
      options));
}

void Worker::Impl::change(VariableState& state, update::Change how, std::span<const float> values, Versions& versions) {
  count(Counter::kPushes).bump_relaxed(1);
  mode->change(state, how, values, versions.of_chunks);
}

std::uint64_t Worker::Impl::change_once(std::uint64_t ticket, std::span<const Variable> handles, update::Change how,
                                        std::span<const std::span<const std::byte>> values,
                                        std::span<const std::span<const std::byte>> in_doubt) {
  if (!options.guest)
    throw Error(fmt::format("add_once() and assign_once() are for guests of job '{}'; a worker adds, assigns and steps",
                            job.job()),
                ErrorCode::kInvalidState);
  if (handles.size() != values.size() || (!in_doubt.empty() && handles.size() != in_doubt.size()))
    throw Error(fmt::format("a change of {} variables with {} arrays{}: give one for each", handles.size(),
                            values.size(), in_doubt.empty() ? "" : fmt::format(" and {} in doubt", in_doubt.size())));
  std::vector<update::TakenBytes> taken;
  const auto floats_of = [&](const VariableState& state, std::span<const std::byte> bytes) {
    return taken.emplace_back(bytes, state.dtype, state.array_dtype).floats();
  };
  std::vector<ChangeOnce> changes;
  for (std::size_t i = 0; i < handles.size(); ++i) {
    const VariableState& state = *handles[i].state_;
    if (state.layout == Layout::kSingleWriter)
      throw Error(fmt::format("variable '{}' has layout single-writer: no guest of job '{}' can change it; declare it "
                              "versioned",
                              state.name, job.job()));
    if (how == update::Change::kAdd)
      state.require_delta(values[i].size());
    else
      state.require_bytes(values[i].size(), "assign");
    changes.push_back({how, floats_of(state, values[i]), {}});
    if (in_doubt.empty()) continue;
    state.require_bytes(in_doubt[i].size(), "assign");
    changes.back().in_doubt = floats_of(state, in_doubt[i]);
  }
  const std::uint64_t before = shm::begin_once(entry, ticket);
  if (ticket == 0 || ticket < before)
    throw Error(fmt::format("ticket {} of a guest of job '{}': the last one was {}, and tickets only grow", ticket,
                            job.job(), before));
  return mode->change_once(ticket, handles, changes);
}

std::uint64_t Worker::add_once(std::uint64_t ticket, std::span<const Variable> variables,
                               std::span<const std::span<const std::byte>> deltas,
                               std::span<const std::span<const std::byte>> in_doubt) {
  return owned().change_once(ticket, variables, update::Change::kAdd, deltas, in_doubt);
}

void Worker::assign_once(std::uint64_t ticket, std::span<const Variable> variables,
                         std::span<const std::span<const std::byte>> values, Slots slots) {
  static_cast<void>(owned().change_once(ticket, variables, how_to_assign(slots), values, {}));
}

void Worker::add(const Variable& variable, std::span<const float> delta) {
  Versions versions;
  variable.state_->require_size(delta.size(), "add");
  owned().change(*variable.state_, update::Change::kAdd, delta, versions);
}
void Worker::add(const Variable& variable, float delta) { add(variable, {&delta, 1}); }

void Worker::add(const Variable& variable, std::span<const std::byte> delta) {
  VariableState& state = *variable.state_;
  state.require_delta(delta.size());
  Versions versions;
  const update::TakenBytes taken(delta, state.dtype, state.array_dtype);
  owned().change(state, update::Change::kAdd, taken.floats(), versions);
}

Versions Worker::assign(const Variable& variable, std::span<const float> values, Slots slots) {
  Versions versions;
  variable.state_->require_size(values.size(), "assign");
  owned().change(*variable.state_, how_to_assign(slots), values, versions);
  return versions;
}
Versions Worker::assign(const Variable& variable, float value, Slots slots) {
  return assign(variable, {&value, 1}, slots);
}

Versions Worker::assign(const Variable& variable, std::span<const std::byte> values, Slots slots) {
  VariableState& state = *variable.state_;
  state.require_bytes(values.size(), "assign");
  Versions versions;
  const update::TakenBytes taken(values, state.dtype, state.array_dtype);
  owned().change(state, how_to_assign(slots), taken.floats(), versions);
  return versions;
}

}  // namespace ps_shm
