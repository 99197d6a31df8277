#include "worker/sync_work.hpp"

#include <algorithm>
#include <utility>

#include "shm/segment/placement.hpp"

namespace ps_shm {
namespace {

constexpr std::uint64_t kUsualChunkBytes = 32 << 10;  // default for large variables

}  // namespace

SyncWork::SyncWork(WorkerCore& core)
    : core_(core),
      is_summed_(core.config.reduce == Reduce::kAtomic),
      directory_(core.job),
      patience_(shm::patience_among(core.config.workers)),
      inputs_(core.threads.count()),
      assigned_(core.threads.count()) {}

bool SyncWork::is_listed() const {
  return !directory_.has(records_) && std::none_of(unfilled_.begin(), unfilled_.end(), [&](std::uint32_t position) {
    return directory_.at(position).init.load_acquire() == shm::kInitialised;  // (directory.D6)
  });
}

void SyncWork::list() {
  targets_.clear();
  unfilled_.clear();
  records_ = directory_.count();
  for (std::uint32_t position = 0; position < records_; ++position) {
    const shm::VariableShm& listed = directory_.at(position);
    if (is_summed_ ? !shm::is_accumulator(listed) : !shm::is_variable(listed)) continue;
    if (is_summed_) {
      if (listed.init.load_acquire() != shm::kInitialised) {  // (directory.D6)
        unfilled_.push_back(position);
        continue;
      }
    }
    const shm::VariableShm& record = is_summed_ ? directory_.at(listed.base - 1) : listed;
    Target& target = targets_.emplace_back(Target{record, is_summed_ ? listed.base - 1 : position,
                                                  shm::VersionedVariable(core_.job.shard(record.shard), record),
                                                  std::nullopt, shm::settings_of(core_.config, record)});
    if (!is_summed_) continue;
    target.accumulator.emplace(core_.job.shard(listed.shard), listed);
    target.settings.clip_value = 0;  // each contribution was clipped
  }
}

void SyncWork::begin(const shm::Decision& decision) {
  if (!is_listed()) list();
  for (Target& target : targets_) {
    target.settings.momentum = decision.momentum;
    target.settings.beta1 = decision.beta1;
    // A worker changes them before it publishes a gradient, so that the decision, which was acquired, orders this load.
    const std::uint64_t factors = target.record.factors.load_relaxed();
    if (factors == target.factors) continue;
    target.factors = factors;
    shm::follow_factors(target.settings, core_.config, shm::factors_of(factors));
  }
  work_.clear();
  chunks_ = 0;
}

void SyncWork::add(Target& target) {
  target.first = chunks_;
  chunks_ += target.variable.chunks();
  work_.push_back(&target);
}

// Returns whether the step is over. If there are fewer chunks than workers, some workers have no chunk to begin with.
// Such a worker would repeat what another one is doing, and take its cache lines meanwhile. It first gives the others a
// tenth of a waiter's patience, which is 1 or 2 us.
bool SyncWork::is_done_by_others(std::uint64_t step, bool has_own) const noexcept {
  const auto is_over = [&] { return core_.job.steps_done() != step; };
  for (int look = has_own ? 0 : patience_.spins / 10; look > 0 && !is_over(); --look) shm::spin_pause();
  return is_over();
}

// Calls apply_chunk(target, chunk, thread) for every chunk. Each worker starts at a different one.
template <class ApplyChunk>
void SyncWork::for_chunks(std::uint64_t step, ApplyChunk&& apply_chunk) {
  if (work_.empty()) return;
  const std::uint64_t workers = core_.config.workers, place = core_.rank % workers;
  const std::uint64_t start = chunks_ * place / workers;
  if (is_done_by_others(step, start != chunks_ * (place + 1) / workers)) return;
  core_.threads.split(
      chunks_, Threads::grain(kUsualChunkBytes), [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
        std::uint64_t index = (begin + start) % chunks_;
        auto at = std::upper_bound(work_.begin(), work_.end(), index,
                                   [](std::uint64_t chunk, const Target* t) { return chunk < t->first; }) -
                  1;
        for (std::uint64_t done = begin; done < end; ++done) {
          apply_chunk(**at, index - (*at)->first, thread);
          shm::fault_point(shm::FaultPoint::kHelpChunk);
          if (++index == chunks_) {
            index = 0;
            at = work_.begin();
          } else if (index == (*at)->first + (*at)->variable.chunks()) {
            ++at;
          }
        }
      });
}

// The norm of all gradients to which the limit applies, if their publisher did not know of the limit yet.
double SyncWork::squared_norm_of(std::uint32_t contributor, std::uint64_t step, GradientSegments& gradients) const {
  double squares = 0;
  for (const Target& target : targets_) {
    if (update::traits_of(target.settings.rule).is_sum) continue;
    const GradientSegments::Pushed pushed = gradients.find(contributor, target.record, target.position, step);
    if (pushed.numbers != nullptr && pushed.how == update::Change::kStep)
      squares += update::squared_norm(pushed.numbers, shm::gradient_floats(target.record));
  }
  return squares;
}

void SyncWork::scale_contributors(std::uint64_t step, float clip_norm, GradientSegments& gradients) {
  for (Contributor& one : contributors_) {
    std::optional<double> squares = gradients.norm(one.rank);
    if (!squares) squares = squared_norm_of(one.rank, step, gradients);
    one.scale = update::clip_scale(*squares, clip_norm);
  }
}

// barrier.B13: first assigned values, then the step by the update rule, then adds in rank order. `step(out, in)` is the
// part in the middle. Requires: the target has changes.
template <class Step>
void SyncWork::change(const Target& target, std::uint64_t chunk, std::uint32_t thread, float rate, float* out,
                      const float* in, bool has_step, Step&& step) {
  const Changes& changes = target.changes;
  const std::uint64_t begin = target.variable.chunk_begin(chunk);
  const std::uint64_t count = target.variable.gradient_size(chunk), stride = target.variable.stride();
  const auto apply = [&](update::Change how, float* to, const float* from, const float* values) {
    update::change(target.settings, how, rate, to, from, stride, values + begin, count);
  };
  const float* now = in;
  if (changes.values != nullptr) {
    std::vector<float>& buffer = assigned_[thread];
    if (has_step) buffer.resize(target.variable.place_of(1 + update::slots_per_element(target.settings)));
    float* const to = has_step ? buffer.data() : out;
    apply(changes.resets ? update::Change::kReset : update::Change::kAssign, to, in, changes.values);
    now = to;
  }
  if (has_step) {
    step(out, now);
    now = out;
  }
  for (const float* delta : changes.deltas) {
    apply(update::Change::kAdd, out, now, delta);
    now = out;
  }
}

// To be called in rank order.
void SyncWork::note_change(Target& target, const GradientSegments::Pushed& pushed) {
  has_changes_ = true;
  if (pushed.how == update::Change::kAdd) return target.changes.deltas.push_back(pushed.numbers);
  target.changes.values = pushed.numbers;
  target.changes.resets = target.changes.resets || pushed.how == update::Change::kReset;
}

void SyncWork::clear_changes() noexcept {
  if (!std::exchange(has_changes_, false)) return;
  for (Target& target : targets_) target.changes.clear();
}

// With reduce atomic: finds the adds and assigns that lie in the contributors' segments beside the sums.
void SyncWork::find_changes(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients) {
  clear_changes();
  for (std::uint32_t rank = 0; rank < core_.job.ranks(); ++rank) {
    // relaxed: barrier.A5 has brought it
    if (!decision.contributors.contains(rank) || core_.job.worker(rank).barriers[0].changed.load_relaxed() != step + 1)
      continue;
    for (Target& target : targets_)
      if (const auto pushed = gradients.find(rank, target.record, target.position, step); pushed.numbers != nullptr)
        note_change(target, pushed);
  }
}

void SyncWork::apply_gradients(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients) {
  begin(decision);
  clear_changes();
  contributors_.clear();
  for (std::uint32_t rank = 0; rank < core_.job.ranks(); ++rank)
    if (decision.contributors.contains(rank)) contributors_.push_back({rank, 1.0F});
  if (decision.clip_norm > 0) scale_contributors(step, decision.clip_norm, gradients);
  for (Target& target : targets_) {
    const bool clips = !update::traits_of(target.settings.rule).is_sum;
    target.pushed.clear();
    for (const Contributor& one : contributors_) {
      const GradientSegments::Pushed pushed = gradients.find(one.rank, target.record, target.position, step);
      if (pushed.how != update::Change::kStep)
        note_change(target, pushed);
      else if (pushed.numbers != nullptr)
        target.pushed.push_back({pushed.numbers, clips ? one.scale : 1.0F});
    }
    if (!target.pushed.empty() || target.changes.are_any()) add(target);
  }
  const float rate = core_.config.optimizer.schedule.rate(decision.lr, step);
  for_chunks(step, [&](Target& target, std::uint64_t chunk, std::uint32_t thread) {
    std::vector<update::Contribution>& input = inputs_[thread];
    input = target.pushed;
    for (update::Contribution& one : input) one.gradient += target.variable.gradient_begin(chunk);
    const std::uint64_t count = target.variable.gradient_size(chunk), stride = target.variable.stride();
    const std::uint64_t first = target.first_element(chunk);
    const float* following = chunk + 1 < target.variable.chunks() ? target.variable.likely_place(chunk + 1) : nullptr;
    const auto update = [&](float* out, const float* in, shm::ChunkPast past) {
      const auto apply_step = [&](float* to, const float* from) {
        update::apply_combined(target.settings, {rate, past.steps, first}, to, from, stride, input, count, following);
      };
      if (target.changes.are_any())
        change(target, chunk, thread, rate, out, in, !input.empty(), apply_step);
      else
        apply_step(out, in);
      return true;
    };
    const shm::UpdateLabel label{core_.rank, step, decision.epoch, !input.empty(), target.changes.resets};
    static_cast<void>(target.variable.apply_step(chunk, step, core_.threads.free_buffers(thread), label, update));
  });  // it does not matter which helper has applied it
}

void SyncWork::apply_sums(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients) {
  begin(decision);
  find_changes(step, decision, gradients);
  for (Target& target : targets_) add(target);
  const float rate = core_.config.optimizer.schedule.rate(decision.lr, step);
  for_chunks(step, [&](Target& target, std::uint64_t chunk, std::uint32_t thread) {
    // The contributors in the decision had added all their pushes before it, so all helpers agree on whether the chunk
    // has a sum. A sum to which only a late worker has added is not applied.
    const bool has_sum = target.accumulator->has_sum(chunk, step, decision.contributors);
    const bool has_changes = target.changes.are_any();
    if (!has_sum && !has_changes) return;
    const std::uint64_t count = target.variable.gradient_size(chunk), stride = target.variable.stride();
    const std::uint64_t first = target.first_element(chunk);
    const bool means = !update::traits_of(target.settings.rule).is_sum;
    const auto update = [&](float* out, const float* in, shm::ChunkPast past) {
      if (!has_sum) {
        change(target, chunk, thread, rate, out, in, false, [](float*, const float*) {});
        return true;
      }
      bool found = false;
      const bool whole =
          target.accumulator->try_use_sum(chunk, step, [&](const float* sum, const shm::RankSet& contributors) {
            found = true;
            const auto apply_step = [&](float* to, const float* from) {
              update::apply(target.settings, {rate, past.steps, first}, to, from, stride, sum,
                            means ? 1.0F / static_cast<float>(contributors.size()) : 1.0F, count);
            };
            if (has_changes)
              change(target, chunk, thread, rate, out, in, true, apply_step);
            else
              apply_step(out, in);
          });
      return whole &&
             found;  // barrier.B9: checked again before the swap; not found: the step is over, the chunk includes it
    };
    const shm::UpdateLabel label{core_.rank, step, decision.epoch, has_sum, target.changes.resets};
    static_cast<void>(target.variable.apply_step(chunk, step, core_.threads.free_buffers(thread), label, update));
  });
}

}  // namespace ps_shm
