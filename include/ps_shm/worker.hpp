/// @file
/// A worker of a job: it joins, shares variables with the other workers, pulls, pushes, steps, and leaves.
/// @code
///   ps_shm::Worker worker({.job = "demo"});
///   const ps_shm::Variable w =
///       worker.variable({.name = "w", .shape = {1000}}, [](std::span<float> values) { initialise(values); });
///   std::vector<float> values(w.element_count()), gradient(w.element_count());
///   while (!worker.finished()) {
///     worker.pull(w, values);
///     compute_gradient(values, gradient);
///     worker.push(w, gradient);
///     worker.step();
///   }
/// @endcode
/// A Worker is used by one thread at a time. After a fork() it belongs to the parent: in the child its destructor,
/// leave() and prefetch_rows() do nothing, rank(), is_chief() and config() can be called, and every other call throws
/// Error with kInvalidState.
///
/// Progress guarantees in this and the other headers: a wait-free call takes a bounded number of steps of its own; a
/// lock-free call may have to repeat its work, but only because other calls have succeeded; a call that blocks says
/// what it waits for. An object that was moved from cannot be used any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/job_config.hpp"
#include "ps_shm/push_group.hpp"
#include "ps_shm/snapshot.hpp"
#include "ps_shm/table.hpp"
#include "ps_shm/types.hpp"
#include "ps_shm/variable.hpp"
#include "ps_shm/worker_options.hpp"

namespace PS_SHM_API ps_shm {

/// Read-only bytes that the workers of a job share. They stay mapped as long as a copy of `memory` exists.
struct SharedBytes {
  std::shared_ptr<const void> memory;  ///< keeps them mapped
  std::span<const std::byte> bytes;    ///< begins at a page boundary
};

/// Loads the shared bytes: it calls `allocate` exactly once, with the number of bytes, and fills the span that it gets.
using SharedLoader = std::function<void(const std::function<std::span<std::byte>(std::size_t bytes)>& allocate)>;

/// A process's membership in a job: the owner of one rank. The workers and the ps of a job may start in any order.
///
/// A Worker is used by one thread at a time; its own threads, if it has any, work only within a call.
///
/// In modes async and ssp each call that pushes, adds or assigns also blocks while a snapshot is being taken, as
/// SnapshotOptions says. What the functions say of their progress does not repeat this.
class Worker {
 public:
  /// Joins the job, for which it waits up to `wait_job`. If the requested rank has an owner, it waits up to 1 s
  /// for that process to end.
  ///
  /// @throws Timeout if the job was not there in time; JobFinished if its last step is done or it was ended;
  /// Interrupted; Error with kRankTaken if a living worker has the rank, kExhausted if all ranks are taken or the job
  /// allows fewer threads, kInvalidArgument if the rank is out of range or the job's name invalid, kIncompatible if
  /// another build or layout version made the segment, kPermissionDenied if it is another user's, kDamaged.
  /// @progress blocks on the job's ps.
  explicit Worker(WorkerOptions options);
  ~Worker();  ///< calls leave()
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) = delete;

  /// The rank that this worker owns.
  std::uint32_t rank() const noexcept;
  /// Whether the rank is 0. No protocol depends on it: it is for what one worker does for all, such as logging.
  bool is_chief() const noexcept { return rank() == 0; }
  /// The settings that the job was created with.
  const JobConfig& config() const noexcept;

  /// Returns the variable of that name. The first worker to declare it creates it as `spec` says; all others must give
  /// the same specification. One worker initialises it. The others wait for that, report it to the log callback, and
  /// take over if the initialiser dies. In a job that begins with a checkpoint, the values come from there instead of
  /// `initialize`.
  ///
  /// @throws Error with kIncompatible if the variable exists with another specification, or the checkpoint is of
  /// another model; kInvalidArgument if the specification is invalid; kExhausted if the job can have no more variables;
  /// kNoSpace if /dev/shm is full; what reading the checkpoint throws; JobFinished; Interrupted; and whatever
  /// `initialize` throws, after which the next worker tries.
  /// @progress declaring is lock-free; blocks on the worker that initialises the variable.
  Variable variable(const VariableSpec& spec, const Initializer& initialize);

  /// Declares several variables together, and returns them in the order of `specs`. `initialize` is as for variable().
  /// With placement greedy the largest is placed first, so that the result depends neither on their order nor on who
  /// declares them. Otherwise they are placed in their order.
  ///
  /// @throws_and_progress as variable().
  std::vector<Variable> variables(std::span<const VariableSpec> specs, const IndexedInitializer& initialize);

  /// Returns the variable of that name as other workers have declared it, and waits until it exists and is initialised.
  /// `wait` limits each of the two waits.
  ///
  /// @throws Error with kNotFound if nobody has declared it in time (the message lists the variables that exist);
  /// Timeout if it was not initialised in as much more time (its initialiser may have died); JobFinished; Interrupted.
  /// @progress blocks on the workers that declare and initialise it.
  Variable variable(const std::string& name, WaitLimit wait = Seconds(10));

  /// Returns the table by key of that name (ps_shm/table.hpp). The first worker to declare it creates it as `spec`
  /// says; all others must give the same specification. With placement partition it is divided over the shards by a
  /// hash of the key. Its rows are in checkpoints (ps_shm/checkpoint.hpp), and not in snapshots.
  ///
  /// @throws Error with kInvalidArgument if the specification is invalid, or the mode is sync; kIncompatible if the
  /// table has another specification; kExhausted if the job can have no more tables; kNoSpace if /dev/shm is full;
  /// kInvalidState if the worker is recorded or replayed, or in a forked child; JobFinished; Interrupted.
  /// @progress lock-free; in a job that restores a checkpoint, waits for the worker that reads the table's rows.
  Table table(const TableSpec& spec);

  /// Copies the current values to `out`, in row-major order. Each chunk is one version of that chunk (see
  /// Layout::kSingleWriter for an exception), and each element of an in-place variable is whole; the copy as a whole is
  /// not point-in-time (see pull_all() and snapshot()). Values of bfloat16 are converted, which is exact.
  ///
  /// @throws Error if out.size() != variable.element_count() or the dtype is neither float32 nor bfloat16.
  /// @progress lock-free; a chunk's copy is repeated only if others have pushed the same chunk several times meanwhile.
  void pull(const Variable& variable, std::span<float> out);

  /// As above, for a variable of any dtype: copies its elements as bytes.
  ///
  /// @throws Error if out.size() is not the size of its elements in bytes.
  /// @progress as above.
  void pull(const Variable& variable, std::span<std::byte> out);

  /// Returns the value of a variable that has one element.
  ///
  /// @throws Error if variable.element_count() != 1.
  /// @progress with layout inplace wait-free, one load; with layout versioned lock-free.
  float pull(const Variable& variable);

  /// Copies the moving averages of the variable's parameters to `out`, as pull() copies its values.
  ///
  /// @throws Error if the job's optimizer keeps no averages (`ema`) or the variable's rule is no optimizer; as pull().
  /// @progress lock-free.
  void pull_average(const Variable& variable, std::span<float> out);

  /// Copies several variables as one consistent state: outs[i] receives all of variables[i], and there was a moment at
  /// which the variables had exactly these values. Each call of push(), add() or assign() by another worker is
  /// contained in it completely, over all its variables and chunks, or not at all; in mode sync the same holds for each
  /// step. An unfinished push of a killed worker, and a push that failed, may be partly visible, as they are in the
  /// variables themselves.
  ///
  /// Returns the global step at that moment. In mode sync exactly the updates of these steps are contained.
  ///
  /// It is meant for variables that are small compared to the pushes: while others change a variable it copies again,
  /// up to some fifty times. If they never pause for as long as a copy takes, it takes a snapshot(), with the cost and
  /// the errors of one. It does so, too, if a worker is stopped in the middle of a push, and then throws.
  ///
  /// The variables must be of float32 (a snapshot() has all dtypes). In-place variables must have one element and no
  /// optimizer state beside it; it then shares a word with the count of its pushes. In other in-place variables an
  /// element changes before its block's count does, so counters cannot prove consistency.
  ///
  /// @throws Error with kInvalidArgument if a variable does not qualify, if there are not as many outs as variables, or
  /// if an out has another size than its variable; kUnavailable if a worker is stopped in the middle of a push; and as
  /// snapshot().
  /// @progress at most some fifty lock-free copies, then blocks as snapshot() does.
  std::uint64_t pull_all(std::span<const Variable> variables, std::span<const std::span<float>> outs);

  /// Copies only the chunks whose versions differ from those in `since`, and stores in `since` the versions that `out`
  /// then holds. Returns the number of chunks copied. An unchanged chunk costs one load.
  ///
  /// `out` must hold what an earlier call with the same `since` left there, or the values of the assign() that returned
  /// `since`. If `since` is empty, every chunk is copied. The variable must be one that pull_all() accepts.
  ///
  /// @throws Error if the variable does not qualify, and as pull().
  /// @progress lock-free.
  std::uint64_t pull_if_changed(const Variable& variable, std::span<float> out, Versions& since);

  /// Pushes a gradient of the variable (with rule add: a delta), in row-major order.
  ///
  /// Modes async and ssp: applies it at once and exactly once. (Hogwild! updates, JobConfig::adds, may lose elements.)
  /// Mode sync: stores it in this worker's gradient segment, from where step() applies it; several pushes of one
  /// variable in a step add up. With reduce atomic it is added to the step's accumulator instead.
  ///
  /// @throws Error with kInvalidArgument if gradient.size() != variable.element_count() or the dtype is neither float32
  /// nor bfloat16; kNoSpace if /dev/shm is full. In mode sync kInvalidState if a step() has thrown after it had
  /// published what was pushed before (another step() ends that step), or if this worker has added to or assigned the
  /// variable in the same step.
  /// @progress async, ssp and reduce atomic: lock-free. sync with ordered reduction: wait-free, except that the first
  /// push of a variable grows the segment.
  void push(const Variable& variable, std::span<const float> gradient);

  /// Returns a buffer for a gradient of the variable: element_count() floats, aligned to 64 bytes, at an address that
  /// stays the same as long as this Worker exists.
  ///
  /// In mode sync with ordered reduction, the buffer of a variable that is in one part lies in this worker's gradient
  /// segment, so that pushing it from there copies nothing. Each push of the variable stores its sum there: write it
  /// only before the first one of a step. A gradient pushed from there replaces what was pushed before in the step.
  ///
  /// @throws Error with kNoSpace if /dev/shm or the memory is full, kInvalidArgument if the dtype is neither float32
  /// nor bfloat16.
  std::span<float> gradient(const Variable& variable);

  /// Pushes the gradient of a variable that has one element, as above: one compare-exchange with layout inplace.
  ///
  /// @throws Error as above, and if variable.element_count() != 1.
  /// @progress as above.
  void push(const Variable& variable, float gradient);

  /// Pushes gradients[i] of variables[i] as one push for snapshots and pull_all(). clip_norm limits the global norm
  /// over the gradients of one call; in mode sync with ordered reduction, over all that this worker pushes in the step.
  ///
  /// @throws Error if there are not as many gradients as variables, and as push() above.
  void push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients);

  /// As above, and begins a pull: pass outs[i] and since[i] to pull_if_changed() after step(). In the modes async and
  /// ssp each chunk is copied to outs[i] as it is pushed, while it is in the cache, and pull_if_changed() copies only
  /// the chunks that other workers have changed since. In mode sync nothing is copied yet, and since[i] is empty. The
  /// variables must be ones that pull_all() accepts.
  ///
  /// @throws Error if a variable does not qualify, if there are not as many outs and versions as variables, if an out
  /// has another size than its variable, and as push() above. Then the outs may have values of pushes not made.
  void push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients,
            std::span<const std::span<float>> outs, std::span<Versions> since);

  /// Makes the pushes until the returned group is destroyed count as one push for snapshots. Groups may nest; the
  /// outermost one counts. In mode sync it does nothing.
  ///
  /// @throws std::bad_alloc.
  /// @progress blocks while a snapshot is being taken.
  [[nodiscard]] PushGroup group_pushes();

  /// Takes a consistent snapshot of all variables while the other workers go on (ps_shm/snapshot.hpp). Pushes that
  /// begin meanwhile wait for the rest of the longest push under way. The first snapshot of a job takes as much
  /// additional memory of /dev/shm as its versioned variables have. Mode sync: no push waits; the snapshot waits until
  /// no step is being applied. The Worker must outlive the Snapshot.
  ///
  /// @throws Timeout if another snapshot of the job was not released within `wait`; Error with kUnavailable if
  /// workers do not finish applying a sync step, or if this process was repeatedly stopped while it took the snapshot;
  /// kNoSpace if /dev/shm is full; kInvalidState within a PushGroup, or while this object has a snapshot; Interrupted.
  /// @progress blocks on another snapshot, and on the pushes (sync: the step) under way.
  Snapshot snapshot(const SnapshotOptions& options = {});

  /// Adds `delta` to the variable's values, bypassing the optimizer: without learning rate, limits or decay, and the
  /// optimizer's state stays as it is. (For ftrl, whose values are a function of its state, the state is solved for.)
  /// It is meant for changes that no gradient describes: elastic averaging, counters, targets that follow.
  ///
  /// Modes async and ssp: applied at once, each element exactly once, whatever other workers push, add or assign; also
  /// if the job uses Hogwild! updates, but then their pushes may lose it, as they lose each other. Each call makes one
  /// version of each chunk: N pushes, adds and assigns are N versions, and staleness counts them alike.
  ///
  /// Mode sync: stored in this worker's gradient segment. step() applies it after the mean of the step's gradients, in
  /// rank order. Several adds in one step add up. A worker that has pushed or assigned the variable in the same step
  /// cannot add to it before step(). A step that goes on without this worker drops the add, as it drops a gradient.
  ///
  /// If this worker is killed half-way, or another one pulls meanwhile, the add is in some chunks and not yet in
  /// others; each chunk is whole.
  ///
  /// @throws Error if delta.size() != variable.element_count(), if the dtype is neither float32 nor, in place, bfloat16
  /// (whose sums are rounded as by push()), and as push().
  /// @progress async, ssp: lock-free. sync: as push().
  void add(const Variable& variable, std::span<const float> delta);
  void add(const Variable& variable, float delta);  ///< @overload

  /// As above, for a variable of any dtype that has a sum, given as the bytes of its elements: float32, float64, and
  /// integers, which wrap around.
  ///
  /// @throws Error as above, with delta.size() in bytes; also for bfloat16, float16 and bool.
  /// @progress as above.
  void add(const Variable& variable, std::span<const std::byte> delta);

  /// For a guest: adds deltas[i], given as the bytes of its elements, to variables[i], bypassing the optimizer, exactly
  /// once for each ticket. If an earlier guest of the job was killed in a call with the same ticket and the same
  /// arguments, this call adds only what is missing. If that call has returned, this one adds nothing. Tickets are
  /// greater than 0 and only grow.
  ///
  /// A guest is a process beside the workers, such as one that exchanges values with another machine. It is not counted
  /// as a worker: nobody waits for it to join or to step, the job neither begins nor ends by it, and views do not show
  /// it. It has the job's last rank, max_workers - 1, so a job has at most one. It makes no steps of its own.
  ///
  /// Mode sync: all deltas are applied in one step of the workers, or in none; where a step closes too early, the next
  /// one gets them. Modes async and ssp: chunk by chunk, as one PushGroup. Versioned chunks record which deltas they
  /// contain. In-place blocks do not, so after a kill the elements of one block are in doubt. They are set to those of
  /// `in_doubt`, which has an array for each variable; without it they are not touched again.
  ///
  /// Returns the number of elements in doubt: 0, except for that block.
  ///
  /// @throws Error with kInvalidState if this is no guest, kInvalidArgument if the ticket is smaller than an earlier
  /// one, and as add() of bytes; JobFinished if the job ends before a step takes the deltas; Interrupted. After one of
  /// these a call with the same ticket finds out what has been added.
  /// @progress lock-free; mode sync: blocks until the workers end a step.
  std::uint64_t add_once(std::uint64_t ticket, std::span<const Variable> variables,
                         std::span<const std::span<const std::byte>> deltas,
                         std::span<const std::span<const std::byte>> in_doubt = {});

  /// For a guest: assigns values[i] to variables[i], as assign(), once for each ticket, as add_once() adds. Nothing is
  /// in doubt: a block in which a guest was killed is assigned again.
  ///
  /// @throws_and_progress as add_once().
  void assign_once(std::uint64_t ticket, std::span<const Variable> variables,
                   std::span<const std::span<const std::byte>> values, Slots slots = Slots::kKeep);

  /// Sets the variable's values to `values` (a variable of one element: to `value`), bypassing the optimizer; `slots`
  /// says what happens to the optimizer's state. It is meant for restores, target networks, and tables.
  ///
  /// The guarantees are those of add(). Of concurrent assigns the last one of each chunk stays, so they may interleave
  /// chunk by chunk. A gradient that was computed before and is pushed afterwards applies to the new values, as any
  /// stale gradient does. Mode sync: step() applies it before the step's gradients, in rank order, so that the highest
  /// rank's values stay.
  ///
  /// Returns the version of each chunk after it (in-place: the number of pushes of each block), for pull_if_changed();
  /// in mode sync an empty Versions.
  ///
  /// @throws_and_progress as add().
  Versions assign(const Variable& variable, std::span<const float> values, Slots slots = Slots::kKeep);
  Versions assign(const Variable& variable, float value, Slots slots = Slots::kKeep);  ///< @overload

  /// As above, for a variable of any dtype, given as the bytes of its elements. The versions of a variable of another
  /// dtype than float32 tell how often its chunks have changed.
  ///
  /// @throws Error if values.size() is not the size of its elements in bytes, and as push().
  /// @progress as add().
  Versions assign(const Variable& variable, std::span<const std::byte> values, Slots slots = Slots::kKeep);

  /// Copies row ids[i] of an in-place variable to out[i * row_size()] and the elements after it. Ids may be in any
  /// order and may repeat. Each element is whole; two elements may be from different moments. Rows are prefetched
  /// before they are copied.
  ///
  /// @throws Error if the variable is versioned or has no axis, an id is out of range, or out.size() does not fit.
  /// @progress wait-free.
  void pull_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<float> out);
  /// @overload
  void pull_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<float> out);

  /// Applies the gradient that begins at gradients[i * row_size()] to row ids[i] of an in-place variable, by its update
  /// rule. The state that lies beside an element changes with it. Other rows stay as they are, their state included
  /// (lazy updates). Gradients of repeated ids are summed first, so that each row changes once. clip_norm limits the
  /// norm of all gradients of the call.
  ///
  /// With atomic updates each element changes exactly once, whatever other workers push. Hogwild! updates
  /// (JobConfig::adds) may lose updates.
  ///
  /// @throws Error as pull_rows(), before anything is applied; also if the job scales rates by staleness and the rule
  /// is not add.
  /// @progress atomic updates: lock-free. Hogwild! updates: wait-free.
  void push_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> gradients);
  /// @overload
  void push_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> gradients);

  /// add() for rows of an in-place variable: the numbers that begin at deltas[i * row_size()] are added to row ids[i].
  /// Other rows stay as they are. Deltas of repeated ids are summed first. Each element is changed exactly once, also
  /// if the job uses Hogwild! updates.
  ///
  /// @throws Error as pull_rows(), before anything is changed.
  /// @progress lock-free.
  void add_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> deltas);
  /// @overload
  void add_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> deltas);

  /// assign() for rows of an in-place variable: the numbers that begin at values[i * row_size()] are for row ids[i].
  /// Other rows stay as they are. Of values for repeated ids the last ones stay. Each element is changed exactly once,
  /// together with its state, as `slots` says, also if the job uses Hogwild! updates.
  ///
  /// @throws Error as pull_rows(), before anything is changed.
  /// @progress lock-free.
  void assign_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> values,
                   Slots slots = Slots::kKeep);
  /// @overload
  void assign_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> values,
                   Slots slots = Slots::kKeep);

  /// Prefetches the memory of rows ids[i] of the variable, for a pull and a push of them soon. Skips ids out of range.
  ///
  /// @progress wait-free.
  void prefetch_rows(const Variable& variable, std::span<const std::uint32_t> ids) const noexcept;
  void prefetch_rows(const Variable& variable, std::span<const std::uint64_t> ids) const noexcept;  ///< @overload

  /// Ends a training step, and returns the global step after it.
  ///
  /// Mode async: adds one to the global step.
  ///
  /// Mode ssp: adds one to the global step, then blocks while this worker is more than `staleness` steps ahead of the
  /// slowest worker that has neither died nor left.
  ///
  /// With an age limit (stale_limit), a step of these modes whose gradient is too old changes nothing, is not counted
  /// in the global step, and is counted as dropped (WorkerInfo::dropped).
  ///
  /// Mode sync: blocks until every worker that has neither died nor left has pushed (with a quorum: until `quorum` of
  /// them have), helps to apply the gradients, and returns when the step is complete. A gradient that comes too late
  /// for its step is dropped and counted (WorkerInfo::dropped).
  ///
  /// A wait for peers notices their deaths, and names those it waits for. After step_timeout a sync step goes
  /// on without the missing workers, and does not wait for them again until they show that they go on. In ssp, and in a
  /// first sync step whose workers have not all joined, the timeout is an error.
  ///
  /// @throws Timeout, see above; Error with kInvalidState in mode ssp within a PushGroup; JobFinished if the job was
  /// ended during a sync step; Interrupted. After a sync step() that has thrown, the next call goes on with the same
  /// step. In ssp the step is counted before the wait, so it is counted even if the wait throws.
  /// @progress async: wait-free. ssp and sync: blocks on other workers.
  std::uint64_t step();

  /// How many steps of this rank have been dropped: their gradient came too late for a sync step, or was too old
  /// (stale_limit). A step() was dropped if it makes this grow.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  std::uint64_t dropped_steps() const;

  /// Returns a block of bytes that all workers of the job read and nobody changes, such as the data they train on. The
  /// first worker to come loads it into shared memory. The others wait for that, report it to the log callback, and
  /// take over if the loader dies. A job has one block, removed with it; a worker with another `content` is refused.
  ///
  /// @throws Error with kNoSpace if /dev/shm is full, kInvalidState if the job's block has another content;
  /// JobFinished; Interrupted; and whatever `load` throws, after which the next worker tries.
  /// @progress blocks on the worker that loads.
  SharedBytes shared_data(const std::string& content, const SharedLoader& load);

  /// Changes VariableSpec::lr_scale and regularize of the variable, at once and for all workers: for pushes that begin
  /// later, or in mode sync from the step of this worker's next gradient on. (Of a step that a quorum decides without
  /// that gradient, some chunks may get old factors and others new ones.)
  ///
  /// @throws Error with kInvalidArgument if one is negative or not finite, or the rule is add or ftrl; kInvalidState in
  /// a recorded worker, or in a forked child.
  /// @progress wait-free.
  void set_factors(const Variable& variable, float lr_scale, float regularize);

  /// The runtime settings in force. This worker applies a change of them from its next step on.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress lock-free.
  LiveSettings live() const;

  /// Waits until as many workers have joined as the job starts with, including those that have died or left since, or
  /// the job's first step is over: for an equal division of a short job's work. The first step of mode sync waits so
  /// anyway. There is no timeout, and a message to the log callback every second.
  ///
  /// @throws JobFinished when the job ends; Interrupted.
  /// @progress blocks on workers that have not joined.
  void wait_for_workers();

  /// The user barrier: waits until every worker that has neither died nor left has called barrier(). The first one also
  /// waits until as many workers have joined as the job starts with.
  ///
  /// A call that threw while it waited has arrived at its barrier, which the others may pass. The next call ends that
  /// barrier.
  ///
  /// @throws Timeout after step_timeout; Error with kInvalidState within a PushGroup; JobFinished if the job
  /// was ended; Interrupted.
  /// @progress blocks on other workers.
  void barrier();

  /// Chooses the worker that does something at the end for all, such as evaluating a table, which is gone with the last
  /// worker: returns false as soon as a worker of a lower rank is alive; otherwise waits until all others have left
  /// or died, and returns true. Guests do not count.
  ///
  /// There is no timeout: a message to the log callback every second names the workers that it waits for, and says
  /// which of them are stopped.
  ///
  /// @throws Error with kInvalidState within a PushGroup, for a guest, or in a forked child; Interrupted.
  /// @progress blocks on workers that have not left.
  bool wait_to_be_last();

  /// The number of global steps done so far.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  std::uint64_t global_step() const;

  /// Whether the job has done its last step, or was ended.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  bool finished() const;

  /// Publishes figures that others can read of this worker (progress lines, the inspector): its current loss, and the
  /// number of examples that this worker has processed since it joined, `examples_done`. The examples are added to
  /// those of the rank's earlier owners, as steps are.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  void report(double loss, std::uint64_t examples_done);

  /// The number of examples reported for this rank before this worker took it: by the rank's earlier owners, or before
  /// the checkpoint that the job began with. A reproducible data order continues there.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::uint64_t examples_before() const;

  /// The staleness of the pushes that this rank has made, those of its earlier owners included.
  ///
  /// @throws Error with kInvalidState in a forked child.
  StalenessSummary staleness() const;

  /// Gives the rank back, so that nobody waits for this worker. It may be called again; no other call may follow.
  void leave() noexcept;

 private:
  friend class DevicePort;  // internal: what a link to a GPU uses of a worker
  struct Impl;
  Impl& owned() const;  // throws Error in a forked child
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
