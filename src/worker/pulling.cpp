// Pulling several variables as one state (docs/protocols.md, state), and pulling only what has changed.
#include <fmt/format.h>

#include <thread>

#include "ps_shm/errors.hpp"
#include "worker/impl.hpp"
#include "worker/versioned_state.hpp"

namespace ps_shm {

using shm::Counter;

// One attempt. Returns the global step, or nothing if another worker has changed a variable meanwhile or is changing
// one.
std::optional<std::uint64_t> Worker::Impl::try_pull_all(std::span<const Variable> handles,
                                                        std::span<const std::span<float>> outs) {
  constexpr int kLooks = 200;  // polls; some microseconds: the rest of a short push
  std::uint64_t retries = 0;
  for (std::size_t i = 0; i < handles.size(); ++i)  // (state.R1)
    retries += state_of(handles[i]).pull(outs[i], 0, live.settings.lr, threads);
  if (retries != 0) count(Counter::kPullRetries).bump_relaxed(retries);
  std::optional<std::uint64_t> step = mode->steady_step(false);
  for (int looks = 1; !step && looks <= kLooks; ++looks) {
    shm::spin_pause();
    step = mode->steady_step(looks == kLooks);
  }
  if (!step) std::this_thread::yield();  // the pushing worker may be waiting for this core
  for (const Variable& handle : handles)
    if (!step || !state_of(handle).is_as_pulled()) return std::nullopt;  // (state.R3)
  return step;
}

std::uint64_t Worker::pull_all(std::span<const Variable> variables, std::span<const std::span<float>> outs) {
  Impl& impl = owned();
  impl.refuse_recorded("pull_all");
  if (variables.size() != outs.size())
    throw Error(fmt::format("pull of {} variables into {} buffers: give one for each", variables.size(), outs.size()));
  for (std::size_t i = 0; i < variables.size(); ++i) {
    variables[i].state_->require_size(outs[i].size(), "pull");
    variables[i].state_->require_versions("pull_all");
  }
  impl.note_pull();
  impl.count(Counter::kPulls).bump_relaxed(variables.size());
  constexpr int kAttempts = 50;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (const std::optional<std::uint64_t> step = impl.try_pull_all(variables, outs)) return *step;
    impl.count(Counter::kPullRetries).bump_relaxed(1);
  }
  // The others never pause for as long as a copy takes.
  const Snapshot state = snapshot();
  if (!state.partial_ranks().empty())
    throw Error(
        fmt::format("pull of {} variables as one state: worker {} is stopped in the middle of a push; continue or "
                    "end it",
                    variables.size(), fmt::join(state.partial_ranks(), ", ")),
        ErrorCode::kUnavailable);
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (variables[i].layout() != Layout::kInplace)
      versioned_state(state_of(variables[i])).pull_image(outs[i], state.epoch());
    else
      state.copy(variables[i].name(), outs[i]);
  }
  return state.global_step();
}

std::uint64_t Worker::pull_if_changed(const Variable& variable, std::span<float> out, Versions& since) {
  Impl& impl = owned();
  VariableState& state = *variable.state_;
  impl.refuse_recorded("pull_if_changed");
  state.require_size(out.size(), "pull");
  state.require_versions("pull_if_changed");
  impl.note_pull();
  impl.count(Counter::kPulls).bump_relaxed(1);
  std::uint64_t retries = 0;
  const std::uint64_t copied = state.pull_changed(out, since.of_chunks, impl.threads, retries);
  if (retries != 0) impl.count(Counter::kPullRetries).bump_relaxed(retries);
  return copied;
}

}  // namespace ps_shm
