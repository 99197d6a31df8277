// Hooks: what a training loop of a program's own does besides its gradient. When it ends, what it says, writes and
// guards against.
//
//   ps::run_steps(worker, {ps::stop_at_step(1000), ps::nan_guard(), ps::logging({.seconds = 2})},
//                 [&] { worker.pull(w, values); return gradient_of(values, gradient); },  // returns the loss
//                 [&] { worker.push(w, gradient); });
//
// All is called on the loop's thread, hook by hook in their order. A hook belongs to one loop at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/worker.hpp"

namespace PS_API ps {

class StepLoop;

// A step that is over.
struct StepReport {
  std::uint64_t steps = 0;        // of this loop, this one included
  std::uint64_t global_step = 0;  // as Worker::step() returned it
  double loss = 0.0;
  bool was_pushed = false;
};

// What it throws leaves the loop, and the worker as it was at that moment.
class Hook {
 public:
  virtual ~Hook() = default;

  virtual void begin(StepLoop&) {}        // before the first step
  virtual void before_step(StepLoop&) {}  // before the pull
  // Between the gradient and its push. False: nothing is pushed in this step, which ends all the same.
  virtual bool after_gradient(StepLoop&, double /*loss*/) { return true; }
  virtual void after_step(StepLoop&, const StepReport&) {}
  virtual void after_save(StepLoop&, const std::string& /*folder*/) {}  // a hook has written a checkpoint
  virtual void end(StepLoop&) {}                                        // not where the loop ends by an exception
};

using Hooks = std::vector<std::shared_ptr<Hook>>;

// The hooks of one loop. For loops that run_steps() does not suit:
//
//   while (loop.before_step()) {
//     ...                                          // pull, gradient
//     if (loop.after_gradient(loss)) ...           // push
//     loop.after_step(worker.step());
//   }
//   loop.end();
class StepLoop {
 public:
  StepLoop(Worker& worker, Hooks hooks);  // the worker outlives it

  bool before_step();                // false: a hook has asked to stop, or the job is finished
  bool after_gradient(double loss);  // false: a hook does not want it pushed
  void after_step(std::uint64_t global_step);
  void end();  // once; nothing where no step was begun

  // For hooks.
  Worker& worker() noexcept { return worker_; }
  const StepReport& last() const noexcept { return last_; }
  void stop() noexcept { is_stopped_ = true; }  // behind the step under way
  void saved(const std::string& folder);        // tells the others by after_save()

 private:
  Worker& worker_;
  Hooks hooks_;
  StepReport last_;
  bool has_begun_ = false, has_ended_ = false, is_stopped_ = false, is_pushed_ = false;
  double loss_ = 0.0;
};

// Steps until a hook asks to stop, the job is finished, or a wait of the worker's is interrupted; returns the last one.
// `gradient` pulls, computes and returns the loss; `push` pushes.
PS_API StepReport run_steps(Worker& worker, const Hooks& hooks, const std::function<double()>& gradient,
                            const std::function<void()>& push);

using Notice = std::function<void(const std::string& line)>;  // none: stderr

// How often: at multiples of so many global steps, or after so many seconds. One of the two is above 0.
struct Every {
  std::uint64_t steps = 0;
  double seconds = 0.0;
};

// Stops when the global step has come so far.
PS_API std::shared_ptr<Hook> stop_at_step(std::uint64_t global_step);

// Stops when the mean loss of the last `steps` steps is at most `loss`. Requires: steps > 0 (throws Error).
PS_API std::shared_ptr<Hook> stop_at_loss(double loss, std::size_t steps = 1);

// What becomes of a gradient whose loss is not finite.
enum class OnNan : std::uint32_t {
  kWarn = 1,     // it is pushed; said once
  kStop = 2,     // it is not pushed: Error, that says which worker, step and loss; the job's other workers go on
  kSkip = 3,     // it is not pushed; said at the first and at every doubling of their number
  kRestore = 4,  // nor here; and the job's variables get the values of a checkpoint, see restore()
};

struct NanGuardOptions {
  OnNan on_nan = OnNan::kStop;
  std::string dir{};               // kRestore: of the checkpoints
  std::uint64_t max_restores = 3;  // of one checkpoint, by all workers of the job together; then Error, as kStop
  Notice notice{};
};

// Of several workers that see the same NaN one restores; who has pulled before it was done skips. Throws Error:
// kRestore without `dir`.
PS_API std::shared_ptr<Hook> nan_guard(NanGuardOptions options = {});

// Assigns the newest checkpoint in `dir` that is whole and whose values are finite to the variables that it has, while
// the job goes on; returns its folder. The optimizer's state begins anew, the global step stays. In sync mode step()
// applies it. `notice` gets a line for each checkpoint that is passed over.
// Throws Error: there is none; the job has not one of its variables, or another one of that name.
PS_API std::string restore(Worker& worker, const std::string& dir, const Notice& notice = {});

// Says step and loss: `worker 0: step 100 (global step 300), loss 0.25`.
PS_API std::shared_ptr<Hook> logging(Every every, Notice notice = {});

// Says how fast it goes, this worker's steps and the job's: `worker 0: 812.0 steps/s, 2431.0 of the job`.
PS_API std::shared_ptr<Hook> timing(Every every, Notice notice = {});

struct CheckpointingOptions {
  std::string dir{};
  Every every{.seconds = 600};  // and at the end
  std::size_t keep = 5;         // the newest; above 0
  std::string group{};          // whose users' job it is, as in JobConfig
  Notice notice{};              // of what was written, and what could not be; training goes on
};

// Rank 0 writes checkpoints; on other ranks it does nothing. Not beside a ps that keeps the job in the same folder: its
// begin() throws Error there. The mean loss since the one before is noted in each.
PS_API std::shared_ptr<Hook> checkpointing(CheckpointingOptions options);

struct Scalar {
  const char* name;
  double value;
};

// Gives the caller what to draw: loss (the mean since the last time), steps_per_second, job_steps_per_second,
// staleness_mean and staleness_p99 of this worker's pushes. Once more at the end.
PS_API std::shared_ptr<Hook> summaries(
    Every every, std::function<void(std::uint64_t global_step, std::span<const Scalar> scalars)> write);

}  // namespace ps
