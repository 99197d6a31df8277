// The age limit of modes async and ssp (docs/protocols.md, steps.D1): which steps are dropped because other workers
// have made too many since the gradient's values were pulled. One object per worker, for one thread. Nothing of it is
// shared.
#pragma once

#include <cstdint>
#include <optional>

namespace ps_shm {

class AgeLimit {
 public:
  // `global_step`: loaded before the first value of a pull is.
  void note_pull(std::uint64_t global_step) noexcept {
    std::optional<std::uint64_t>& pull = is_decided() ? next_pull_ : pull_;
    if (!pull) pull = global_step;
  }

  bool is_decided() const noexcept { return drops_.has_value(); }

  // Whether the gradient is too old: `limit` or more steps of other workers were counted since the first pull of this
  // step or, if nothing was pulled in it, since that of an earlier step. One that no pull has preceded is of age 0.
  bool is_too_old(std::uint64_t global_step, std::uint64_t limit) const noexcept {
    const std::optional<std::uint64_t>& pull = pull_ ? pull_ : last_pull_;
    return pull && global_step - *pull >= limit;
  }

  void decide(bool drops) noexcept { drops_ = drops; }
  bool drops() const noexcept { return drops_.value_or(false); }

  void end_step(bool is_counted) noexcept {
    if (pull_) last_pull_ = pull_;
    pull_ = next_pull_;
    next_pull_.reset();
    drops_.reset();
    if (!is_counted) return;
    if (pull_) ++*pull_;  // own steps do not age a gradient
    if (last_pull_) ++*last_pull_;
  }

 private:
  std::optional<std::uint64_t> pull_;       // of the values that the step's gradient may be computed from
  std::optional<std::uint64_t> next_pull_;  // the same for the next step: since this step's first push
  std::optional<std::uint64_t> last_pull_;  // of an earlier step
  std::optional<bool> drops_;               // decided by the step's first push
};

}  // namespace ps_shm
