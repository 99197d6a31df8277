// A worker's access to the rows of one in-place variable: reads and updates them, counts pushes, measures staleness.
//
// Staleness is measured on a sample, because reading the counters of the other workers costs more than a short push: up
// to kWatched rows of one pull in kWatchEvery. For these rows, the number of pushes by other workers that reached the
// row's block between that pull and this worker's next push is counted, not estimated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "update/rules.hpp"
#include "worker/function_ref.hpp"
#include "worker/row_sums.hpp"
#include "worker/threads.hpp"

namespace ps_shm {

struct VariablePart;

class RowAccess {
 public:
  static constexpr std::uint32_t kWatchEvery = 32;
  static constexpr std::uint32_t kWatched = 4;

  // Requires: the parts are in-place, of one variable with an axis.
  RowAccess(std::span<const VariablePart> parts, std::uint32_t rank, const update::KeyHash& hash);

  const shm::Rows& table() const noexcept { return table_; }

  // Returns the first id that is out of range, or nullptr. `are_ascending`: whether each id is larger than the one
  // before, so that none is repeated.
  const std::uint64_t* find_outside(std::span<const std::uint64_t> ids, bool& are_ascending) const noexcept;

  // Required by all functions below: ids are in range; values and gradients have row_elements() floats for each id.

  void pull(std::span<const std::uint64_t> ids, float* out, const update::Settings& settings, float lr,
            Threads& threads) const noexcept;

  // RowSums::combine().
  [[nodiscard]] bool combine(std::span<const std::uint64_t>& ids, std::span<const float>& gradients) {
    return sums_.combine(ids, gradients);
  }

  // Requires: no id is repeated.
  void push(std::span<const std::uint64_t> ids, const float* gradients, const update::Settings& settings,
            float lr, float scale, Adds adds, bool are_ascending, Threads& threads) noexcept;

  // Changes rows bypassing the optimizer, each element exactly once, also if the job uses Hogwild! updates. Requires
  // for Change::kAdd: no id is repeated. Of values for a repeated id the last ones stay; this takes one thread.
  void change(update::Change how, std::span<const std::uint64_t> ids, const float* values,
              const update::Settings& settings, float lr, bool are_ascending, Threads& threads) noexcept;

  void prefetch(std::span<const std::uint64_t> ids) const noexcept;

  // From time to time begin_watch() records how often other workers have pushed the blocks of some of these rows. At
  // the next push, end_watch() calls body(staleness) for each recorded row with the number of pushes since then.
  void begin_watch(std::span<const std::uint64_t> ids, const shm::JobSegments& job) noexcept;
  template <class Body>
  void end_watch(Body&& body) noexcept {
    for (std::uint32_t i = 0; i < watched_; ++i) body(pushes_by_others(watches_[i]) - watches_[i].pushes);
    watched_ = 0;
  }

 private:
  struct Watch {
    const shm::RowPart* part;
    std::uint64_t block, pushes;
  };

  // The places of `count` rows, of which the first is that of ids[first].
  using BatchBody = FunctionRef<void(std::byte* const* rows, std::size_t count, std::size_t first)>;
  // Calls body() for all ids, and prefetches the rows of the ids that follow. Threads share the ids if each gets `grain`.
  void for_batches(std::span<const std::uint64_t> ids, std::uint64_t grain, Threads& threads,
                   BatchBody body) const noexcept;

  shm::BFloat16Row<shm::RoundStochastically> pushed_row(std::byte* row, std::uint64_t id,
                                                        std::uint64_t seed) const noexcept;
  void count(std::span<const std::uint64_t> ids, bool are_ascending) noexcept;
  std::uint64_t pushes_by_others(const Watch& watch) const noexcept;
  std::uint64_t grain() const noexcept;

  shm::Rows table_;
  std::uint32_t rank_;
  std::vector<std::uint32_t> last_push_;  // per block: the number of the last push that touched it
  std::uint32_t push_number_ = 0;

  std::uint32_t pulls_ = 0, watched_ = 0, ranks_ = 0;  // ranks_: number of ranks that had an owner at the last check
  std::array<Watch, kWatched> watches_{};

  RowSums sums_;
};

}  // namespace ps_shm
