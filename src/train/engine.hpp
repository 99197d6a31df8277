// Where a worker computes: what the training loop asks of a processor or of a GPU.
//
// The loop (trainer.cpp) calls pull, compute, push, then Worker::step, then begin_next, from one thread; at the end
// finish, whatever has happened before. One call per phase: what lies within is the engine's own.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "ps/variable.hpp"
#include "ps/worker.hpp"
#include "train/data/dataset.hpp"
#include "train/dense/model.hpp"
#include "train/trainer.hpp"
#include "update/traits.hpp"

namespace ps::train {

class Engine {
 public:
  // Waits between a gradient and what is done with it; false: no more of this step.
  using Pause = std::function<bool()>;

  virtual ~Engine() = default;

  // The parameters of this step.
  virtual void pull() = 0;

  // What is to be pushed: the gradient of the next batch, or where so many local steps lead to. Calls `pause`, if there
  // is one, once for each gradient; false: it has said so.
  virtual bool compute(const Pause& pause) = 0;

  // That, between compute and push. None: it is not in this process's memory.
  virtual std::vector<NamedValues> gradients() const { return {}; }

  // Returns when all of it is pushed.
  virtual void push() = 0;

  // In the place of push(): nothing of it is. Requires: compute() had a pause.
  virtual void skip() = 0;

  // The step is over.
  virtual void begin_next() = 0;

  // The loss of the last batch of the last push; behind a compute() with a pause, of the last batch.
  virtual float loss() const = 0;

  // A clock that runs while this worker works: what a straggler's factor multiplies.
  virtual double work_seconds() const = 0;

  // Nothing is under way afterwards; adds to the result what only the engine knows.
  virtual void finish(TrainResult& result) = 0;
};

// What engines are made of. The variables are those of the model's parameters, in their order; all of it outlives them.
struct EngineParts {
  Worker& worker;
  std::span<const Variable> variables;
  Model& model;
  const Dataset& data;
  const TrainOptions& options;

  std::size_t batch() const { return options.batch != 0 ? options.batch : default_batch(data); }
  std::uint64_t seed() const { return options.seed.value_or(worker.config().seed); }
  std::uint64_t push_every() const { return options.push_every > 1 ? options.push_every : 1; }
  // A rule that sums would add bare gradients.
  bool has_local_steps() const { return push_every() > 1 || update::traits_of(worker.config().optimizer.rule).is_sum; }
};

// Computes on the calling thread, which the stream of batches serves from a thread of its own. `parameters`: where the
// pulled values go.
std::unique_ptr<Engine> make_cpu_engine(const EngineParts& parts, ParameterArrays& parameters);

// Computes on options.gpu. Throws Error where that cannot be used, or has too little memory.
std::unique_ptr<Engine> make_gpu_engine(const EngineParts& parts);

}  // namespace ps::train
