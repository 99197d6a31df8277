// A worker's state of one table by key: its parts, and the lanes that its threads have in them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/table.hpp"
#include "shm/table/row_form.hpp"
#include "shm/table/table_part.hpp"
#include "update/rules.hpp"
#include "worker/core.hpp"
#include "worker/function_ref.hpp"
#include "worker/row_sums.hpp"
#include "worker/step_mode.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN TableState final : shm::RowMaker {
  // The table, made if the job has none of that name; with the rows that it has in the checkpoint that the job began with,
  // if it began with one.
  TableState(WorkerCore& worker, const std::unique_ptr<StepMode>& steps, const TableSpec& given,
             const std::function<const Checkpoint&()>& begun_with);

  // The initial elements of a key's row, with their state: a function of the seed, the key and the element's index.
  void make(std::uint64_t key, float* elements) const noexcept override;
  void initial_values(std::uint64_t key, float* values) const noexcept;
  template <class Body>
  void for_initial(std::uint64_t key, Body&& body) const noexcept;

  // Fills a part that nobody else can see with its rows of the checkpoint. Throws Error.
  void restore(shm::TablePart& part, const Checkpoint& from);

  // Where key i of a batch is among all keys of a call.
  struct Places {
    const std::size_t* of_keys;  // null: the batch is of neighbouring keys, of which this is the first one's
    std::size_t first;
    std::size_t operator()(std::size_t i) const noexcept { return of_keys != nullptr ? of_keys[i] : first + i; }
  };
  using BatchBody = FunctionRef<void(shm::TablePart&, shm::TableLane&, const shm::TablePart::Batch&, Places)>;
  // Calls body() for all keys, in batches of at most shm::kPins, each of one part. Threads share the keys if each gets
  // `grain` of them.
  void for_batches(std::span<const std::uint64_t> keys, std::uint64_t grain, bool to_write, BatchBody body);

  // The row of bfloat16 that is there, for a push.
  shm::BFloat16Row<shm::RoundStochastically> pushed_row(std::uint64_t key, float* row) const noexcept {
    const std::uint64_t of_key = update::mixed(rounding ^ key);
    return {row, {update::rounding_key(of_key, shm::TablePart::count_push(row))}};
  }

  shm::RowForm form() const noexcept { return {settings.rule, spec.dtype, spec.row_size}; }

  void require_size(std::size_t keys, std::size_t floats, std::uint64_t width, const char* verb) const;
  void require_flags(std::size_t keys, std::size_t flags, const char* verb) const;
  void tell_of_memory();
  TableStatistics statistics() const;

  WorkerCore& core;
  const std::unique_ptr<StepMode>& mode;
  TableSpec spec;
  update::Settings settings;  // of float32, in which updates compute
  std::uint64_t rounding;     // rounding_seed(), for bfloat16
  std::vector<std::unique_ptr<shm::TablePart>> parts;
  std::vector<std::vector<shm::TableLane>> lanes;  // of each part, of each thread
  RowSums sums;
  bool has_told = false;  // or another worker has: nothing more to say of memory that /dev/shm lacks
  std::uint64_t version_tag;  // upper half of the versions of its dumps

  // Keys by part: those of part p are by_part[begins[p]] up to by_part[begins[p + 1]]. `places`: where each comes from.
  std::vector<std::uint64_t> by_part;
  std::vector<std::size_t> places;
  std::vector<std::size_t> begins;
};

}  // namespace ps_shm
