// A worker of a job: joins, shares variables, pulls, pushes, steps, leaves.
//
// One Worker object is one rank, used by one thread at a time (its own threads, if it has any, work within a call).
// Any start order: the constructor waits for the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/job_config.hpp"
#include "ps/snapshot.hpp"
#include "ps/types.hpp"
#include "ps/variable.hpp"

namespace PS_API ps {

struct WorkerOptions {
  std::string job;
  std::string group{};                               // whose users' job it may be; empty: only this process's user's
  std::optional<std::uint32_t> rank{};               // none: a free one, of those that nobody has had yet first
  std::uint32_t threads = 1;                         // that pull and push large variables; at most the job's `threads`
  double wait_job_seconds = 60.0;                    // how long the constructor waits for the job to exist
  std::function<bool()> stop_requested{};            // looked at in every wait; true ends it with Interrupted
  std::function<void(const std::string&)> notice{};  // one line a second on what a wait waits for; none: stderr
  // Told of what step() was made of, behind each: `wait` for others, `apply` their gradients. CLOCK_MONOTONIC.
  std::function<void(const char* part, std::uint64_t begin_ns, std::uint64_t end_ns)> on_part{};
  // docs/record-replay.md. Modes async and ssp, versioned variables, one thread, no GPU (throws Error).
  std::string record{};        // a folder: in what order this worker pulls and pushes is written there
  std::string replay{};        // a folder with a job's records: this worker goes by the rank's next one
  std::string replay_board{};  // of a replay: a file that launch_shm gives to the job's workers
};

// What the workers of a job share; stays mapped as long as `memory` is kept.
struct SharedBytes {
  std::shared_ptr<const void> memory;
  std::span<const std::byte> bytes;  // begins on a page
};

// Loads it: calls the function that it is given once, for room of so many bytes, and fills that.
using SharedLoader = std::function<void(const std::function<std::span<std::byte>(std::size_t bytes)>& room)>;

class Worker;

// What a worker pushes while it lives is one push for snapshots: in one with all of it, or not at all. Snapshots wait for
// it, so it is to be given back soon, before step(). Sync mode has no need of it: a step's pushes belong together.
class PushGroup {
 public:
  ~PushGroup();
  PushGroup(PushGroup&& other) noexcept;
  PushGroup& operator=(PushGroup&&) = delete;

 private:
  friend class Worker;
  struct Impl;
  explicit PushGroup(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

class Worker {
 public:
  // Waits for the job up to wait_job_seconds. Throws Timeout (no such job in time), Error (rank taken, table full, segment
  // of another build), JobFinished (the job's last step is done), Interrupted.
  explicit Worker(WorkerOptions options);
  ~Worker();  // leaves
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) = delete;

  std::uint32_t rank() const noexcept;
  bool is_chief() const noexcept { return rank() == 0; }
  const JobConfig& config() const noexcept;

  // The variable of that name: created by whoever comes first; others must give the same specification (throws Error).
  // One worker initialises it; the others wait for that, saying so, and take over if the initialiser dies.
  Variable variable(const VariableSpec& spec, const Initializer& initialize);

  // The same for several at once, in the order of `specs`. Under placement greedy the largest is placed first, so that
  // the result depends neither on their order nor on who declares; otherwise they are placed in their order.
  std::vector<Variable> variables(std::span<const VariableSpec> specs, const IndexedInitializer& initialize);

  // The variable of that name as others have created it; waits until it is there and initialised.
  // Throws Error when nobody creates it within `wait_seconds` (the message lists the variables there are), or nobody
  // initialises it within as many more: its initialiser may have died.
  Variable variable(const std::string& name, double wait_seconds = 10.0);

  // Copies the current values to `out`. Each chunk is one version of that chunk (in-place: whole elements).
  // Lock-free: a copy is repeated only when others have pushed the same chunk several times meanwhile.
  // Requires: out.size() == variable.element_count() (throws Error).
  void pull(const Variable& variable, std::span<float> out);

  // The same as bytes, of a variable of any dtype. Requires: out.size() is that of its elements (throws Error).
  void pull(const Variable& variable, std::span<std::byte> out);

  // The value of a variable of one element. Layout inplace: wait-free, one load; versioned: lock-free.
  // Requires: variable.element_count() == 1 (throws Error), as push(variable, gradient) does.
  float pull(const Variable& variable);

  // The same for the moving average of the parameters. Requires: the job's optimizer has `ema`, and the variable's rule
  // is an optimizer (throws Error).
  void pull_average(const Variable& variable, std::span<float> out);

  // Copies several variables as one state: outs[i] is all of variables[i], and there was a moment at which the variables
  // were these. Each call of push(), add() or assign() by others is in it or not, over all of its variables and chunks;
  // in sync mode each step. Of a push that a killed worker did not finish, and one that failed, a part may be in it, as a
  // part is in the variables. Returns the global step at that moment; in sync mode exactly these steps are in it.
  // For what is small beside the pushes: while others change a variable it copies again, up to some fifty times. Where they
  // never pause for as long as a copy takes it takes a snapshot(), with what that costs, and its errors; also where a
  // worker is stopped in the middle of a push (throws Error).
  // Of float32 (a snapshot() has all). In place only variables of one element, which lie in one word with the count of
  // their pushes. Others throw Error: an
  // element changes before its block's count does, so no look at counts tells that nothing is half done.
  // Requires: as many outs as variables, each of its variable's size (throws Error).
  std::uint64_t pull_all(std::span<const Variable> variables, std::span<const std::span<float>> outs);

  // Copies the chunks whose versions are not those of `since`, and notes there the versions that `out` has then. Returns
  // how many were copied. Chunks that nobody has changed cost one load. `out` is what an earlier call, or assign(), has
  // made of the same `since`; an empty one stands for nothing. Otherwise as pull().
  // Of float32; in place only variables of one element (throws Error otherwise, for the reason that pull_all() gives).
  std::uint64_t pull_if_changed(const Variable& variable, std::span<float> out, Versions& since);

  // async, ssp: applies the gradient (rule add: the delta) at once, exactly once. Lock-free.
  // sync: puts it into this worker's gradient segment; step() applies it. Wait-free, but that the first push of a
  // variable grows the segment. With reduce atomic: adds it to the step's accumulator. Lock-free.
  // Requires: gradient.size() == variable.element_count() (throws Error). Throws Error when /dev/shm is full, and in sync
  // mode where a step() has thrown after it had published what was pushed before: another step() ends that step.
  void push(const Variable& variable, std::span<const float> gradient);

  // Room for a gradient of the variable: element_count() floats, aligned to 64 bytes, that stay where they are as long as
  // this Worker. In sync mode it lies in this worker's gradient segment, so that pushing it from there copies nothing; it
  // is not to be written between that push and a step() that returns. A gradient pushed from there replaces what was pushed
  // of the variable before in the same step. Throws Error when /dev/shm is full.
  std::span<float> gradient(const Variable& variable);

  // The same for a variable of one element. Layout inplace: one compare-exchange.
  void push(const Variable& variable, float gradient);

  // The same for several variables. clip_norm limits their gradients' global norm: over the gradients of one call; in
  // sync mode with ordered reduction over all that this worker pushes in the step.
  // Requires: as many gradients as variables, each of its variable's size (throws Error).
  void push(std::span<const Variable> variables, std::span<const std::span<const float>> gradients);

  // Lets the pushes until the group is given back count as one for snapshots. Groups may nest.
  [[nodiscard]] PushGroup group_pushes();

  // One consistent state of all variables, while the others go on (ps/snapshot.hpp). Pushes that meet it wait for the
  // rest of the longest push under way. The first one of a job takes as much again of /dev/shm as its versioned variables
  // have. sync: waits until no step is being applied. The worker outlives it.
  // Throws Error: the job has another snapshot that is not given back, /dev/shm is full, within a PushGroup.
  Snapshot snapshot(const SnapshotOptions& options = {});

  // value += delta, whatever the variable's update rule: without rate, limits or decay, and the optimizer's state stays as
  // it is. (Of ftrl, whose values are a function of its state, that is solved for.) For what no gradient describes: elastic
  // averaging, counters, targets that follow.
  // async, ssp: at once, each element exactly once, whoever else pushes, adds or assigns; lock-free. Exact also where the
  // job's `adds` are racy; but pushes that are racy may lose it, as they lose each other.
  // One chunk is one version: N pushes, adds and assigns are N versions, and staleness counts them alike.
  // sync: kept in this worker's gradient segment; step() applies it, behind the mean of the step's gradients, in rank
  // order. What is added several times in one step adds up. A worker that has pushed or assigned the variable in the same
  // step cannot add to it before step() (throws Error). A step that goes on without this worker drops it, as it drops a
  // gradient.
  // Killed half-way, or pulled meanwhile: in some chunks and not yet in others, each whole.
  // Requires: delta.size() == variable.element_count() (throws Error). Throws Error as push() does.
  void add(const Variable& variable, std::span<const float> delta);
  void add(const Variable& variable, float delta);

  // The same for a variable of any dtype with a sum, given as bytes of its elements: integers, which wrap around, and
  // float64. Throws Error for bfloat16, float16 and bool, too.
  void add(const Variable& variable, std::span<const std::byte> delta);

  // values = the given ones, whatever the rule; `slots` says what becomes of the optimizer's state. For restores, targets
  // that are copied, tables. Guarantees and errors are those of add(); of several that assign one chunk the last one stays.
  // A gradient that was computed before and is pushed afterwards applies to the new values, as any stale one does.
  // sync: step() applies it in front of the step's gradients, in rank order, so that the highest rank's values stay.
  // Returns the version of each chunk (in place: the pushes of each block) behind it, for pull_if_changed(); in sync mode
  // none.
  Versions assign(const Variable& variable, std::span<const float> values, Slots slots = Slots::kKeep);
  Versions assign(const Variable& variable, float value, Slots slots = Slots::kKeep);

  // The same for a variable of any dtype, given as bytes of its elements. The versions of one that is not of float32 tell
  // how often its chunks have changed.
  Versions assign(const Variable& variable, std::span<const std::byte> values, Slots slots = Slots::kKeep);

  // Rows of an in-place variable: copies row ids[i] to out[i * row_size() ...]. Ids may come in any order and repeat.
  // Elements are whole; two elements may be from different moments. Wait-free. It asks for the rows ahead of copying them.
  // Throws Error: the variable is versioned or has no axis, an id is out of range, a size that does not fit.
  void pull_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<float> out);
  void pull_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<float> out);

  // Applies gradients[i * row_size() ...] to row ids[i], by the variable's update rule; state that lies beside an element
  // changes with it. Rows that no id names stay as they are, their state included (lazy updates). The gradients of
  // repeated ids are summed up first, so that each row changes once.
  // Exact: each element changes exactly once, whoever else pushes; lock-free. Racy (JobConfig::adds): the published
  // Hogwild!, which loses updates; wait-free. clip_norm limits the norm of all gradients of the call.
  // Throws Error as pull_rows does, before anything is applied; and where the job scales rates by staleness.
  void push_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> gradients);
  void push_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> gradients);

  // add() and assign() for rows: numbers[i * row_size() ...] are for row ids[i], and rows that no id names stay as they
  // are. What is added to repeated ids is summed up first; of values for repeated ids the last ones stay. Each element is
  // changed exactly once, with its state, lock-free; also where the job's `adds` are racy. Throws Error as pull_rows does,
  // before anything is changed.
  void add_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> deltas);
  void add_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> deltas);
  void assign_rows(const Variable& variable, std::span<const std::uint32_t> ids, std::span<const float> values,
                   Slots slots = Slots::kKeep);
  void assign_rows(const Variable& variable, std::span<const std::uint64_t> ids, std::span<const float> values,
                   Slots slots = Slots::kKeep);

  // Asks for the memory of these rows, for a pull and push of them soon. Ids out of range are skipped. Wait-free.
  void prefetch_rows(const Variable& variable, std::span<const std::uint32_t> ids) const noexcept;
  void prefetch_rows(const Variable& variable, std::span<const std::uint64_t> ids) const noexcept;

  // Ends a training step and returns the global step after it.
  // async: adds one to the global step; wait-free.
  // ssp: the same, then waits while this worker is more than `staleness` steps ahead of the slowest that has neither
  // died nor left.
  // sync: waits until every worker that has neither died nor left has pushed (or `quorum` of them), helps to apply,
  // returns when the step is complete. A gradient that comes too late for its step is dropped and counted.
  // Waits for peers: notices their death, names those it waits for. After step_timeout_seconds a sync step goes on
  // without them, and does not wait for them again until they show that they go on; ssp, and a first step whose workers
  // have not all joined, throw Error. After a step() that has thrown, another one goes on with the same step.
  std::uint64_t step();

  // A block of bytes that the job's workers read and nobody changes, such as the data they train on: loaded once into
  // shared memory by whoever comes first; the others wait for that, saying so, and take over if the loader dies. A job
  // has one such block, removed with it; `key` says what it is.
  // Throws Error when /dev/shm is full, and where the job has a block of another key; what the loader throws, after
  // which the next worker tries.
  SharedBytes shared(const std::string& key, const SharedLoader& load);

  // The settings that hold at the moment. Lock-free.
  LiveSettings live() const noexcept;

  // Waits until as many workers as the job starts with have joined, those that have died or left since included.
  // Never needed: sync mode's first step waits anyway, and async mode has no need to. For equal shares of a short job.
  // No deadline: a worker that never comes is waited for, with a line a second, until stop_requested or the job's end.
  void wait_for_workers();

  // Waits until every worker that has neither died nor left has come here. Same waits as a sync step().
  void barrier();

  // Global steps done so far; and whether the job's last one is. Wait-free.
  std::uint64_t global_step() const noexcept;
  bool finished() const noexcept;

  // What others may read of this worker (progress lines, the inspector): examples are added to those of its rank's
  // earlier holders, as steps are. Wait-free.
  void report(double loss, std::uint64_t examples_done) noexcept;

  // Examples that were reported of this rank before this worker took it: by its earlier holders, or before the checkpoint
  // that the job began with. Where a reproducible data order goes on.
  std::uint64_t examples_before() const noexcept;

  StalenessSummary staleness() const;

  // Gives the rank back; the other workers no longer wait for this one. Idempotent; the object is of no use afterwards.
  void leave() noexcept;

 private:
  friend class DevicePort;  // what links to a GPU may ask of it
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
