// The training loop for models of sparse examples: as a worker of a job, and alone.
//
// A global step is a batch. Within it each example is pulled, its gradient computed and pushed on its own, as Hogwild! was
// published (Niu et al. 2011, algorithm 1), or `combine` of them at once. Both run on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ps/job_config.hpp"
#include "ps/worker.hpp"
#include "train/sparse/sparse_data.hpp"
#include "train/sparse/sparse_model.hpp"
#include "train/sparse/sparse_stream.hpp"
#include "train/straggler.hpp"
#include "train/train_log.hpp"

namespace ps::train {

struct SparseTrainOptions : TrainHooks {
  static constexpr std::size_t kBatch = 100;  // so that the global step's counter is not what workers contend for

  std::size_t batch = kBatch;
  std::size_t combine = 1;            // examples whose gradients are summed up and pushed together
  std::optional<std::uint64_t> seed;  // of the data order; none: the job's, which gives the initial values in any case
  std::optional<float> factor_l2;     // of the factors of mf and fm; none: the optimizer's l2
  Delay delay;                        // between a batch's last push and its step: makes a straggler
};

// Trains as a worker of its job, until that is finished or a stop is requested; returns the table's variable in `table`.
// Throws Error in sync mode, with optimizer add, and where the job has another variable of the table's name.
TrainTotals train_sparse(Worker& worker, SparseModel& model, const SparseData& data, const SparsePart& part,
                         const SparseTrainOptions& options, std::optional<Variable>* table = nullptr);

struct SparseAloneResult : TrainTotals {
  std::vector<float> table;  // values, after the last step
};

// Trains alone for config.steps steps, on a table in plain memory, with the same arithmetic: as a job of one worker.
SparseAloneResult train_sparse_alone(const JobConfig& config, SparseModel& model, const SparseData& data,
                                     const SparsePart& part, const SparseTrainOptions& options);

// As JobView::digest of a job with this table alone.
std::uint64_t digest(const SparseModel& model, std::span<const float> table);

// How many examples a part has.
std::uint64_t count_examples(const SparseInfo& info, const SparsePart& part);

}  // namespace ps::train
