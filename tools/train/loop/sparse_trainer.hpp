// The training loop for models of sparse examples: as a worker of a job, and standalone.
//
// A global step is a batch. Within it, each example is pulled, its gradient computed and pushed individually, as in the
// Hogwild! paper (Niu et al. 2011, algorithm 1), or `combine` of them at once. Both run on the calling thread, which
// computes the gradients, or has a GPU compute them (gpu_examples.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "ps_shm/table.hpp"
#include "ps_shm/worker.hpp"
#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_stream.hpp"
#include "train/log/straggler.hpp"
#include "train/log/train_log.hpp"
#include "train/loop/gpu_place.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::train {

struct SparseTrainOptions : TrainHooks {
  static constexpr std::size_t kBatch = 100;  // so large that workers do not contend for the global step's counter

  std::size_t batch = kBatch;
  std::size_t combine = 1;            // number of examples whose gradients are summed and pushed together
  std::optional<std::uint64_t> seed;  // of the data order; none: the job's, which always determines the initial values
  std::optional<float> factor_l2;     // for the factors of mf and fm; none: the optimizer's l2
  DType dtype = DType::kFloat32;      // of the rows that the job has
  Delay delay;                        // simulates a straggler: between a batch's last push and its step
  std::optional<GpuPlace> gpu;        // of a worker of a job: it computes there; none: on the CPU
};

// The table by key of a model of keyed data.
struct TableOptions {
  std::uint64_t max_rows = 1'000'000;
  std::uint32_t admit_after = 1;
  // The order of use is known to a quarter of a second, in which workers push more
  // features than a small table has rows, so how often they come says more (docs/sparse.md has the figures).
  Evict evict = Evict::kLfu;
  double ttl = 0;  // as TableSpec::ttl

  bool operator==(const TableOptions&) const = default;
};

struct SparseResult : TrainTotals {
  std::optional<GpuReport> gpu;
};

// Trains as a worker of its job, until that is finished or a stop is requested; `table` gets the table's variable.
// Throws Error in sync mode, with optimizer add, and if the job has a different variable of the table's name, or
// trains on keyed data.
SparseResult train_sparse(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                          const SparseTrainOptions& options, std::optional<Variable>* table = nullptr);

// The same on keyed data, with the rows in a table by key. Throws Error in sync mode, with optimizer add, and if the job
// has a different table of the model's name, or trains on data with ids.
SparseResult train_keyed(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                         const SparseTrainOptions& options, const TableOptions& rows,
                         std::optional<Table>* table = nullptr);

// The metrics of a model with its rows in a table by key, on keyed data.
SparseMetrics evaluate(SparseModel& model, Table& table, const SparseData& data, const SparsePart& part);

struct SparseAloneResult : TrainTotals {
  std::vector<float> table;  // values, after the last step
};

// Trains standalone for config.steps steps, on a table in ordinary memory, with the arithmetic of a one-worker job.
SparseAloneResult train_sparse_alone(const JobConfig& config, SparseModel& model, const SparseData& data,
                                     const SparsePart& part, const SparseTrainOptions& options);

// Equal to JobView::digest of a job with only this table.
std::uint64_t digest(const SparseModel& model, std::span<const float> table);

// Number of examples of a part.
std::uint64_t count_examples(const SparseInfo& info, const SparsePart& part);

}  // namespace ps_shm::train
