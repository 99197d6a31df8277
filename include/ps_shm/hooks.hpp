/// @file
/// Hooks do what a program's own training loop needs besides computing gradients: they end it, log, write checkpoints,
/// and guard against NaN.
/// @code
///   ps_shm::run_steps(worker, {ps_shm::stop_at_step(1000), ps_shm::nan_guard(), ps_shm::logging({.seconds = 2})},
///                 [&] { worker.pull(w, values); return gradient_of(values, gradient); },  // returns the loss
///                 [&] { worker.push(w, gradient); });
/// @endcode
/// All hooks are called on the loop's thread, one after the other in their order. A hook object belongs to one loop at
/// a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/worker.hpp"

namespace PS_SHM_API ps_shm {

class StepLoop;

/// A step that is over.
struct StepReport {
  std::uint64_t steps = 0;        ///< number of steps of this loop, this one included
  std::uint64_t global_step = 0;  ///< as Worker::step() returned it
  double loss = 0.0;              ///< as it was given to StepLoop::after_gradient()
  bool was_pushed = false;        ///< whether all hooks let the gradient be pushed
};

/// The base class of hooks.
/// @code
///   class PrintLoss final : public ps_shm::Hook {
///     void after_step(ps_shm::StepLoop& loop, const ps_shm::StepReport& report) override {
///       std::printf("%g\n", report.loss);
///       if (report.loss < 0.01) loop.stop();
///     }
///   };
/// @endcode
/// @throws whatever the hook throws. Exceptions propagate to the caller of the loop; the worker stays as it is at that
/// moment.
class Hook {
 public:
  virtual ~Hook() = default;

  virtual void begin(StepLoop&) {}        ///< before the first step
  virtual void before_step(StepLoop&) {}  ///< before the pull of each step
  /// Between computing the gradient and pushing it. False: nothing is pushed in this step, which ends all the same.
  virtual bool after_gradient(StepLoop&, double /*loss*/) { return true; }
  virtual void after_step(StepLoop&, const StepReport&) {}              ///< after the end of each step
  virtual void after_save(StepLoop&, const std::string& /*folder*/) {}  ///< after a hook has written a checkpoint
  virtual void end(StepLoop&) {}  ///< after the last step; not called if the loop ends by an exception
};

/// The hooks of a loop, in the order in which they are called.
using Hooks = std::vector<std::shared_ptr<Hook>>;

/// Calls the hooks of a loop, for loops that run_steps() does not suit:
/// @code
///   while (loop.before_step()) {
///     ...                                          // pull, gradient
///     if (loop.after_gradient(loss)) ...           // push
///     loop.after_step(worker.step());
///   }
///   loop.end();
/// @endcode
/// @throws whatever a hook throws.
class StepLoop {
 public:
  /// A loop of this worker, which must outlive it, that calls `hooks` in their order.
  ///
  /// @throws Error (kInvalidArgument) if a hook is null.
  StepLoop(Worker& worker, Hooks hooks);

  /// Begins a step; the first call also calls Hook::begin(). False: a hook has asked to stop, or the job is finished.
  bool before_step();

  /// Asks all hooks whether the gradient with this loss is to be pushed. False: at least one of them says no.
  bool after_gradient(double loss);

  /// Ends the step; `global_step` is what Worker::step() has returned.
  void after_step(std::uint64_t global_step);

  /// Calls Hook::end(), once; does nothing if no step was begun.
  void end();

  // The rest is for hooks.

  Worker& worker() noexcept { return worker_; }              ///< the worker whose steps these are
  const StepReport& last() const noexcept { return last_; }  ///< the last step
  void stop() noexcept { is_stopped_ = true; }               ///< ends the loop after the step under way
  void saved(const std::string& folder);                     ///< calls Hook::after_save(folder) of all hooks

 private:
  Worker& worker_;
  Hooks hooks_;
  StepReport last_;
  bool has_begun_ = false, has_ended_ = false, is_stopped_ = false, is_pushed_ = false;
  double loss_ = 0.0;
};

/// Runs steps until a hook asks to stop, the job is finished, or a wait of the worker is interrupted. Returns the last
/// step. `gradient` pulls, computes the gradient, and returns the loss; `push` pushes the gradient. It does not call
/// Worker::report(), which shows the loss to inspect_shm and to the job's ps.
///
/// @throws whatever StepLoop, the hooks and the two functions throw, except JobFinished and Interrupted, which end the
/// loop.
PS_SHM_API StepReport run_steps(Worker& worker, const Hooks& hooks, const std::function<double()>& gradient,
                                const std::function<void()>& push);

using LogCallback = std::function<void(const std::string& line)>;  ///< log callback; unset: stderr

/// An interval: multiples of a number of global steps, or a number of seconds. One of the two must be above 0, or
/// making the hook throws Error (kInvalidArgument); if both are, `steps` counts.
struct Every {
  std::uint64_t steps = 0;  ///< number of global steps; 0: `seconds` counts
  double seconds = 0.0;     ///< number of seconds
};

/// Stops the loop when the global step is at least `global_step`.
///
/// @throws std::bad_alloc.
PS_SHM_API std::shared_ptr<Hook> stop_at_step(std::uint64_t global_step);

/// Stops the loop when the mean loss of the last `steps` steps is at most `loss`.
///
/// @throws Error if `steps` is 0.
PS_SHM_API std::shared_ptr<Hook> stop_at_loss(double loss, std::size_t steps = 1);

/// What happens to a gradient whose loss is not finite.
enum class OnNan : std::uint32_t {
  kWarn = 1,  ///< it is pushed; a message at the first one
  kStop = 2,  ///< it is not pushed: Error (kNotFinite) names worker, step and loss; the job's other workers go on
  kSkip = 3,  ///< it is not pushed; a message at the first one, and whenever their number has doubled
  /// It is not pushed, and the job's variables and tables get the values of a checkpoint, see restore(). Where that
  /// fails: as kStop.
  kRestore = 4,
};

/// As settings have it: warn, stop, skip or restore.
/// @progress wait-free.
PS_SHM_API const char* to_string(OnNan on_nan) noexcept;

/// Options of nan_guard().
struct NanGuardOptions {
  OnNan on_nan = OnNan::kStop;  ///< what happens to such a gradient
  std::string dir{};            ///< kRestore: folder of the checkpoints
  /// How often the same checkpoint is restored at most, by all workers of the job together; then Error, as kStop.
  std::uint64_t max_restores = 3;
  LogCallback log{};  ///< log callback: what was pushed, skipped or restored
};

/// Checks each loss before its gradient is pushed. If several workers meet the same NaN, one of them restores; those
/// that pulled before it was done skip their gradients.
///
/// @throws Error if `on_nan` is kRestore and `dir` is empty. The hook throws Error (kNotFinite) as OnNan says.
PS_SHM_API std::shared_ptr<Hook> nan_guard(NanGuardOptions options = {});

/// Assigns the values of the newest checkpoint in `dir` that is intact and finite to the job's variables and tables by
/// key that it contains, while the job goes on; returns the checkpoint's folder. The optimizer's state is reset, and
/// the global step stays. Keys without a row in the checkpoint lose theirs. In mode sync, step() applies the values.
/// `log` gets a line for each checkpoint that is passed over.
///
/// @throws Error with kNotFound if there is no such checkpoint or the job lacks one of its variables or tables,
/// kIncompatible if the job has another one of that name; and as Worker::assign() and Table::assign().
PS_SHM_API std::string restore(Worker& worker, const std::string& dir, const LogCallback& log = {});

/// Logs step and loss: `worker 0: step 100 (global step 300), loss 0.25`. `every`: how often. `log`: the log callback.
///
/// @throws Error if `every` is empty.
PS_SHM_API std::shared_ptr<Hook> logging(Every every, LogCallback log = {});

/// Logs the speed, in steps of this worker and of the job: `worker 0: 812.0 steps/s, 2431.0 of the job`. `every`: how
/// often. `log`: the log callback.
///
/// @throws Error if `every` is empty.
PS_SHM_API std::shared_ptr<Hook> timing(Every every, LogCallback log = {});

/// Options of checkpointing().
struct CheckpointingOptions {
  std::string dir{};            ///< folder of the checkpoints, which is created
  Every every{.seconds = 600};  ///< a checkpoint is written at this interval, and at the end
  /// Number of checkpoints to keep, the newest ones; above 0. The one that the job began with is kept, too.
  std::size_t keep = 5;
  std::string group{};  ///< Unix group whose users' job it may be, as JobConfig::group
  LogCallback log{};    ///< what was written, and what could not be; training goes on in either case
};

/// Writes checkpoints of the job from rank 0; on other ranks it does nothing. The mean loss since the checkpoint before
/// is noted in each. It cannot be used beside a ps that writes the job's checkpoints to the same folder.
///
/// @throws Error if `dir` is empty or `keep` is 0. Its begin() throws Error with kAlreadyExists if another process
/// writes checkpoints to `dir`.
PS_SHM_API std::shared_ptr<Hook> checkpointing(CheckpointingOptions options);

/// A figure with its name.
struct Scalar {
  const char* name;  ///< a constant of the library
  double value;      ///< the figure
};

/// Calls `write` with figures to plot: loss (the mean since the last call), steps_per_second, job_steps_per_second, and
/// staleness_mean and staleness_p99 of this worker's pushes, once there are any. It is called as often as `every` says,
/// and once more at the end.
///
/// @throws Error if `every` is empty.
PS_SHM_API std::shared_ptr<Hook> summaries(
    Every every, std::function<void(std::uint64_t global_step, std::span<const Scalar> scalars)> write);

}  // namespace ps_shm
