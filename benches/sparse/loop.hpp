// One process's part of a run: examples in its own order, and the batches that it makes of them, as the trainer does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "hooks/nan_guard.hpp"
#include "train/data/sparse/sparse_data.hpp"
#include "train/data/sparse/sparse_stream.hpp"
#include "train/loop/example_steps.hpp"
#include "train/loop/row_decay.hpp"
#include "train/models/sparse/sparse_model.hpp"

namespace ps_shm::bench {

// What all processes of a run have in common.
struct Task {
  const train::SparseData& data;
  std::function<std::unique_ptr<train::SparseModel>()> make_model;  // one for each process: it is a workspace, too
  std::size_t batch = 100, combine = 1;
  float lr = 0.1F;
  float l2 = 0.0F;
  float back_off = 1.0F;  // of the rate, with each epoch
  std::uint64_t seed = 1;
};

class Loop {
 public:
  // The order in which a process sees the examples differs by its number and by the epoch.
  Loop(const Task& task, int number, std::uint64_t epoch)
      : model_(task.make_model()),
        stream_(task.data, {}, task.seed + epoch, static_cast<unsigned>(number)),
        decay_(train::RowL2{task.l2, task.l2}, task.data, train::SparsePart{}, model_->table().shape[0]),
        steps_(*model_, stream_, decay_, guard_, task.batch, task.combine) {}

  template <class Rows>
  void run_batch(Rows& rows) {
    steps_.run(rows);
  }

 private:
  std::unique_ptr<train::SparseModel> model_;
  train::SparseStream stream_;
  train::RowDecay decay_;
  hooks::NanGuard guard_{{.on_nan = OnNan::kWarn}, nullptr, "bench"};
  train::ExampleSteps steps_;
};

}  // namespace ps_shm::bench
