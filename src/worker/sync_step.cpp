#include "worker/sync_step.hpp"

#include <array>
#include <vector>

#include "shm/directory.hpp"
#include "shm/versioned_slot.hpp"
#include "update/rules.hpp"

namespace ps {
namespace {

// A variable that somebody has pushed in this step.
struct Work {
  shm::VersionedVariable variable;
  UpdateRule rule;
  update::Hyper hyper;
  std::vector<const float*> gradients;  // in rank order
};

}  // namespace

float learning_rate_at(const shm::JobConfigShm& config, std::uint64_t step) noexcept {
  const Schedule schedule{static_cast<Schedule::Kind>(config.schedule_kind), config.schedule_decay,
                          config.schedule_decay_steps};
  return config.learning_rate * schedule.factor(step);
}

void apply_sync_step(shm::JobSegments& job, std::uint32_t rank, std::uint64_t step, const shm::RankSet& contributors,
                     GradientSegments& gradients, shm::Spares& spares) {
  const float rate = learning_rate_at(job.config(), step);
  const shm::Directory directory(job);
  std::vector<Work> work;
  std::uint64_t chunks = 0;
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
    const shm::VariableShm& record = directory.at(position);
    std::vector<const float*> pushed;
    for (std::uint32_t contributor = 0; contributor < job.ranks(); ++contributor)
      if (contributors.contains(contributor))
        if (const float* gradient = gradients.find(contributor, record, position, step)) pushed.push_back(gradient);
    if (pushed.empty()) continue;
    work.push_back({shm::VersionedVariable(job.shard_data(record.shard), record),
                    static_cast<UpdateRule>(record.rule),
                    {rate, (record.flags & shm::kRegularize) != 0 ? job.config().l2 : 0.0F},
                    std::move(pushed)});
    chunks += record.pieces;
  }
  if (chunks == 0) return;

  const shm::UpdateLabel label{rank, step};
  std::uint64_t skip = chunks * (rank % job.config().workers) / job.config().workers;  // where this worker begins
  std::size_t at = 0;
  while (skip >= work[at].variable.chunks()) skip -= work[at++].variable.chunks();
  std::array<const float*, shm::kMaxRanks> inputs;
  for (std::uint64_t done = 0, chunk = skip; done < chunks; ++done) {
    Work& current = work[at];
    const std::uint64_t begin = current.variable.chunk_begin(chunk), count = current.variable.chunk_size(chunk);
    for (std::size_t i = 0; i < current.gradients.size(); ++i) inputs[i] = current.gradients[i] + begin;
    const std::span<const float* const> parts(inputs.data(), current.gradients.size());
    const auto result = current.variable.apply_step(chunk, step, spares, label, [&](float* out, const float* in) {
      update::apply_combined(current.rule, out, in, parts, count, current.hyper);
    });
    static_cast<void>(result);  // whoever did it: it is done
    if (++chunk == current.variable.chunks()) {
      chunk = 0;
      at = (at + 1) % work.size();
    }
  }
}

}  // namespace ps
