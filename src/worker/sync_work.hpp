// The apply phase of a sync step: every worker helps to apply the contributors' gradients, chunk by chunk.
//
// The list of variables is built once, and again only after the directory has changed: variables are added and never
// removed. In each step only the pushes to them are looked up.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shm/base/futex.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/barrier.hpp"
#include "update/rules.hpp"
#include "worker/core.hpp"
#include "worker/gradients.hpp"

namespace ps_shm {

class SyncWork {
 public:
  explicit SyncWork(WorkerCore& core);

  // Applies step `step` to each chunk that does not include it yet. Each worker begins at a different chunk. After it,
  // every chunk includes the step, whichever worker applied it. Gradients are combined in rank order (invariant.I6).
  // Lock-free.
  void apply_gradients(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients);

  // The same with the sums of the accumulators (reduce atomic). Each chunk is divided by the number of its own
  // contributors. They may be more than the decision's, if a late or dying worker was in time for that chunk. Not
  // deterministic.
  void apply_sums(std::uint64_t step, const shm::Decision& decision, GradientSegments& gradients);

 private:
  // The values assigned and added to a record in the step under way (barrier.B13).
  struct Changes {
    const float* values = nullptr;  // of the highest rank that assigns
    bool resets = false;            // whether any of the assigns resets the optimizer state
    std::vector<const float*> deltas{};

    bool are_any() const noexcept { return values != nullptr || !deltas.empty(); }
    void clear() noexcept { values = nullptr, resets = false, deltas.clear(); }
  };

  // A record of the directory to which steps are applied.
  struct Target {
    const shm::VariableShm& record;
    std::uint32_t position;
    shm::VersionedVariable variable;
    std::optional<shm::VersionedVariable> accumulator;  // reduce atomic
    update::Settings settings;
    std::uint64_t factors = record.factors.load_relaxed();  // as `settings` have them, or older ones
    std::vector<update::Contribution> pushed{};  // in the step under way, in rank order
    Changes changes{};
    std::uint64_t first = 0;  // index of its first chunk among the chunks of all targets in the step
    const std::uint64_t part_begin = record.part_begin * shm::gradients_per_float(record);  // in elements

    // The number of the chunk's first element in the whole variable, which may be in parts.
    std::uint64_t first_element(std::uint64_t chunk) const noexcept {
      return part_begin + variable.gradient_begin(chunk);
    }
  };

  bool is_listed() const;
  void list();
  void begin(const shm::Decision& decision);
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
    float scale;  // limits the norm of its gradients
  };

  WorkerCore& core_;
  const bool is_summed_;
  const shm::Directory directory_;
  const shm::Patience patience_;
  std::uint32_t records_ = 0;            // number of records in the directory when the list was built
  std::vector<std::uint32_t> unfilled_;  // positions of accumulators that were not initialised at that time
  std::vector<Target> targets_;
  // The step under way:
  std::vector<Target*> work_;
  std::uint64_t chunks_ = 0;  // number of chunks of all of `work_`
  bool has_changes_ = false;  // whether any target has changes
  std::vector<Contributor> contributors_;
  std::vector<std::vector<update::Contribution>> inputs_;  // contributions to a chunk, per thread
  std::vector<std::vector<float>> assigned_;               // a chunk after its assign, per thread
};

}  // namespace ps_shm
