// The apply phase of a sync step: every worker helps to apply the contributors' gradients, chunk by chunk.
//
// What there may be to apply is listed once, and again only when the directory has changed: variables come, and none
// goes. From step to step only which of them somebody has pushed is looked at.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/barrier.hpp"
#include "shm/directory.hpp"
#include "shm/futex.hpp"
#include "shm/versioned_slot.hpp"
#include "update/rules.hpp"
#include "worker/core.hpp"
#include "worker/gradients.hpp"

namespace ps {

class SyncWork {
 public:
  explicit SyncWork(WorkerCore& core);

  // Applies step `step` to each chunk that does not include it yet, beginning at a different chunk on each worker; when it
  // returns every chunk includes the step, whoever did it. Gradients are combined in rank order (invariant.I6). Lock-free.
  void apply_gradients(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients);

  // The same with the sums of the accumulators (reduce atomic): each chunk is divided by the number of its own
  // contributors, who may be more than the decision's where a late or dying one was in time for it. Not deterministic.
  void apply_sums(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients);

 private:
  // What is assigned and added to a record in the step under way (barrier.B13).
  struct Changes {
    const float* values = nullptr;  // of the highest rank that assigns
    bool resets = false;            // one of those that assign does
    std::vector<const float*> deltas{};

    bool are_any() const noexcept { return values != nullptr || !deltas.empty(); }
    void clear() noexcept { values = nullptr, resets = false, deltas.clear(); }
  };

  // A record of the directory that steps are applied to.
  struct Target {
    const shm::VariableShm& record;
    std::uint32_t position;
    shm::VersionedVariable variable;
    std::optional<shm::VersionedVariable> accumulator;  // reduce atomic
    update::Settings settings;
    std::vector<update::Contribution> pushed{};  // in the step under way, in rank order
    Changes changes{};
    std::uint64_t first = 0;  // of its chunks among those of all that are under way
  };

  bool is_listed() const;
  void list();
  void begin();
  void add(Target& target);
  void scale_contributors(std::uint64_t step, float clip_norm, GradientSegments& gradients);
  double squared_norm_of(std::uint32_t contributor, std::uint64_t step, GradientSegments& gradients) const;
  void note_change(Target& target, const GradientSegments::Pushed& pushed);
  void clear_changes() noexcept;
  void find_changes(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients);
  template <class Step>
  void change(const Target& target, std::uint64_t chunk, std::uint32_t thread, float rate, float* out, const float* in,
              bool has_step, Step&& step);
  template <class ApplyChunk>
  void for_chunks(std::uint64_t step, ApplyChunk&& apply_chunk);
  bool is_done_by_others(std::uint64_t step, bool has_own) const noexcept;

  struct Contributor {
    std::uint32_t rank;
    float scale;  // that limits its gradients' norm
  };

  WorkerCore& core_;
  const bool is_summed_;
  const shm::Directory directory_;
  const shm::Patience patience_;
  std::uint32_t records_ = 0;            // that the directory had when it was listed
  std::vector<std::uint32_t> unfilled_;  // positions of accumulators that were not initialised then
  std::vector<Target> targets_;
  // The step under way:
  std::vector<Target*> work_;
  std::uint64_t chunks_ = 0;  // of all of `work_`
  bool has_changes_ = false;  // some target has
  std::vector<Contributor> contributors_;
  std::vector<std::vector<update::Contribution>> inputs_;  // of a chunk, per thread
  std::vector<std::vector<float>> assigned_;               // a chunk that the step's gradients come to, per thread
};

}  // namespace ps
