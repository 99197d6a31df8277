// Where a worker computes: the interface of the training loop to a processor or a GPU.
//
// The loop (trainer.cpp) calls pull, compute, push, then Worker::step, then begin_next, from one thread; at the end
// finish, whatever happened before. One call per phase; the rest is internal to the engine.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "config/job_settings.hpp"
#include "ps_shm/variable.hpp"
#include "ps_shm/worker.hpp"
#include "train/data/dataset.hpp"
#include "train/loop/trainer.hpp"
#include "train/models/dense/model.hpp"
#include "update/traits.hpp"

namespace ps_shm::train {

class Engine {
 public:
  // Waits between computing a gradient and using it; false: abandon this step.
  using Pause = std::function<bool()>;

  virtual ~Engine() = default;

  // Pulls the parameters of this step.
  virtual void pull() = 0;

  // Computes what is pushed: the gradient of the next batch, or the result of local steps. Calls `pause`, if given,
  // once for each gradient; false: it returned false.
  virtual bool compute(const Pause& pause) = 0;

  // That, between compute and push. None: it is not in this process's memory.
  virtual std::vector<NamedValues> gradients() const { return {}; }

  // Returns when all of it is pushed.
  virtual void push() = 0;

  // Called instead of push(): discards the step's result. Requires: compute() had a pause.
  virtual void skip() = 0;

  // The step is over.
  virtual void begin_next() = 0;

  // The loss of the last batch of the last push; after a compute() with a pause, of the last batch.
  virtual float loss() const = 0;

  // A clock that runs while this worker works: the base of a straggler's factor.
  virtual double work_seconds() const = 0;

  // Nothing is in progress afterwards; adds to the result what only the engine knows.
  virtual void finish(TrainResult& result) = 0;
};

// The arguments of all engines. The variables are those of the model's parameters, in their order; all outlive them.
struct EngineParts {
  Worker& worker;
  std::span<const Variable> variables;
  Model& model;
  const Dataset& data;
  const TrainOptions& options;

  std::size_t batch() const { return options.batch != 0 ? options.batch : default_batch(data); }
  std::uint64_t seed() const { return options.seed.value_or(config::seed_of(worker.config())); }
  std::uint64_t push_every() const { return options.push_every > 1 ? options.push_every : 1; }
  // A rule that sums would add raw gradients.
  bool has_local_steps() const { return push_every() > 1 || update::traits_of(worker.config().optimizer.rule).is_sum; }
};

// Computes on the calling thread, with batches gathered by a separate thread. `parameters`: the destination of
// pulled values.
std::unique_ptr<Engine> make_cpu_engine(const EngineParts& parts, ParameterArrays& parameters);

// Computes on options.gpu. Throws Error if it cannot be used, or has too little memory.
std::unique_ptr<Engine> make_gpu_engine(const EngineParts& parts);

}  // namespace ps_shm::train
