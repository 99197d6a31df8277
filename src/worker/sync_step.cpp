#include "worker/sync_step.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "shm/directory.hpp"
#include "shm/versioned_slot.hpp"
#include "update/rules.hpp"

namespace ps {
namespace {

constexpr std::uint64_t kGrain = 8;  // chunks, of at most 32 KiB for most variables: 256 KiB a thread

// A record that somebody has pushed in this step.
struct Work {
  shm::VersionedVariable variable;
  update::Settings settings;
  std::uint64_t first;                                // of its chunks among those of all
  std::vector<update::Contribution> contributions;    // in rank order
  std::optional<shm::VersionedVariable> accumulator;  // or this
};

update::Settings settings_of(const Optimizer& optimizer, const shm::VariableShm& record) {
  return update::settings_of(optimizer, static_cast<UpdateRule>(record.rule), (record.flags & shm::kRegularize) != 0);
}

// Calls apply_chunk(work, chunk, thread) for every chunk, each worker from a different one on.
template <class ApplyChunk>
void for_chunks(shm::JobSegments& job, std::uint32_t rank, std::vector<Work>& work, Threads& threads,
                ApplyChunk&& apply_chunk) {
  if (work.empty()) return;
  const std::uint64_t chunks = work.back().first + work.back().variable.chunks();
  const std::uint64_t start = chunks * (rank % job.config().workers) / job.config().workers;
  threads.split(chunks, kGrain, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    std::uint64_t index = (begin + start) % chunks;
    auto at = std::upper_bound(work.begin(), work.end(), index,
                               [](std::uint64_t chunk, const Work& w) { return chunk < w.first; }) -
              1;
    for (std::uint64_t done = begin; done < end; ++done) {
      apply_chunk(*at, index - at->first, thread);
      shm::fault_point(shm::FaultPoint::kHelpChunk);
      if (++index == chunks) {
        index = 0;
        at = work.begin();
      } else if (index == at->first + at->variable.chunks()) {
        ++at;
      }
    }
  });
}

// Of all gradients that limits of the norm apply to. Whoever published them did not know of the limit yet.
double squared_norm_of(std::uint32_t contributor, std::uint64_t step, const shm::Directory& directory,
                       GradientSegments& gradients) {
  double squares = 0;
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
    const shm::VariableShm& record = directory.at(position);
    if (static_cast<UpdateRule>(record.rule) == UpdateRule::kAdd) continue;
    if (const float* gradient = gradients.find(contributor, record, position, step))
      squares += update::squared_norm(gradient, record.elements);
  }
  return squares;
}

}  // namespace

float scheduled_rate(const shm::JobConfigShm& config, float learning_rate, std::uint64_t step) noexcept {
  if (config.schedule_kind == static_cast<std::uint32_t>(Schedule::Kind::kConstant) &&
      config.schedule_warmup_steps == 0)
    return learning_rate;
  const Schedule schedule{static_cast<Schedule::Kind>(config.schedule_kind), config.schedule_decay,
                          config.schedule_decay_steps, config.schedule_warmup_steps};
  return learning_rate * schedule.factor(step);
}

void apply_ordered_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::Decision& decision,
                        GradientSegments& gradients, Threads& threads) {
  const float rate = scheduled_rate(job.config(), decision.learning_rate, step);
  const Optimizer optimizer = optimizer_of(job.config());
  const shm::Directory directory(job);
  std::vector<Work> work;
  std::uint64_t chunks = 0;
  std::vector<float> scales(job.ranks(), 1.0F);
  if (decision.clip_norm > 0)
    for (std::uint32_t rank_in = 0; rank_in < job.ranks(); ++rank_in)
      if (decision.contributors.contains(rank_in)) {
        std::optional<double> squares = gradients.norm(rank_in);
        if (!squares) squares = squared_norm_of(rank_in, step, directory, gradients);
        scales[rank_in] = update::clip_scale(*squares, decision.clip_norm);
      }
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
    const shm::VariableShm& record = directory.at(position);
    const bool clips = decision.clip_norm > 0 && static_cast<UpdateRule>(record.rule) != UpdateRule::kAdd;
    std::vector<update::Contribution> pushed;
    for (std::uint32_t contributor = 0; contributor < job.ranks(); ++contributor)
      if (decision.contributors.contains(contributor))
        if (const float* gradient = gradients.find(contributor, record, position, step))
          pushed.push_back({gradient, clips ? scales[contributor] : 1.0F});
    if (pushed.empty()) continue;
    work.push_back({shm::VersionedVariable(job.shard_data(record.shard), record), settings_of(optimizer, record),
                    chunks, std::move(pushed), std::nullopt});
    chunks += record.pieces;
  }
  std::vector<std::vector<update::Contribution>> inputs(threads.count());
  for_chunks(job, rank, work, threads, [&](Work& current, std::uint64_t chunk, std::uint32_t thread) {
    std::vector<update::Contribution>& input = inputs[thread];
    input = current.contributions;
    for (update::Contribution& one : input) one.gradient += current.variable.chunk_begin(chunk);
    const std::uint64_t count = current.variable.chunk_size(chunk), stride = current.variable.stride();
    const float* following = chunk + 1 < current.variable.chunks() ? current.variable.likely_place(chunk + 1) : nullptr;
    const auto update = [&](float* out, const float* in, std::uint64_t version) {
      update::apply_combined(current.settings, {rate, version}, out, in, stride, input, count, following);
      return true;
    };
    static_cast<void>(current.variable.apply_step(chunk, step, threads.spares(thread), {rank, step}, update));
  });  // whoever did it: it is done
}

void apply_summed_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::Decision& decision,
                       Threads& threads) {
  const float rate = scheduled_rate(job.config(), decision.learning_rate, step);
  const Optimizer optimizer = optimizer_of(job.config());
  const shm::Directory directory(job);
  std::vector<Work> work;
  std::uint64_t chunks = 0;
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
    const shm::VariableShm& sums = directory.at(position);
    if (sums.base == 0 || sums.init.load_acquire() != shm::kInitialised) continue;
    const shm::VariableShm& record = directory.at(sums.base - 1);
    update::Settings settings = settings_of(optimizer, record);
    settings.clip_value = 0;  // each contribution was clipped
    work.push_back({shm::VersionedVariable(job.shard_data(record.shard), record),
                    settings,
                    chunks,
                    {},
                    shm::VersionedVariable(job.shard_data(sums.shard), sums)});
    chunks += record.pieces;
  }
  for_chunks(job, rank, work, threads, [&](Work& current, std::uint64_t chunk, std::uint32_t thread) {
    // Those in the decision had added all they pushed before it, so all helpers agree on whether the chunk has a sum; one
    // that only a late worker has added to is not applied.
    if (!current.accumulator->has_sum(chunk, step, decision.contributors)) return;
    const std::uint64_t count = current.variable.chunk_size(chunk), stride = current.variable.stride();
    const bool means = current.settings.rule != UpdateRule::kAdd;
    const auto update = [&](float* out, const float* in, std::uint64_t version) {
      bool found = false;
      const bool whole =
          current.accumulator->try_use_sum(chunk, step, [&](const float* sum, const shm::RankSet& contributors) {
            found = true;
            update::apply(current.settings, {rate, version}, out, in, stride, sum,
                          means ? 1.0F / static_cast<float>(contributors.size()) : 1.0F, count);
          });
      return whole && found;  // B9: looked at again before the swap; not found: the step is over, the chunk includes it
    };
    static_cast<void>(current.variable.apply_step(chunk, step, threads.spares(thread), {rank, step}, update));
  });
}

}  // namespace ps
