/// @file
/// A consistent snapshot of all of a job's variables, taken while training goes on.
/// @code
///   const ps_shm::Snapshot snapshot = worker.snapshot();
///   std::vector<float> weights(20000);
///   snapshot.copy("weights", weights);  // the values at the snapshot point, whatever is pushed since
/// @endcode
/// A push is contained in a snapshot or it is not, over all variables and shards. A snapshot contains a prefix of each
/// worker's pushes, in program order. Worker::push(variables, gradients) and a PushGroup count as one push. No
/// versioned variable is copied when the snapshot is taken: later pushes preserve the old buffers that it shows
/// (copy-on-write). In-place variables of up to SnapshotOptions::pause_bytes in all are copied then.
///
/// A Snapshot is used by one thread at a time. After a fork() it belongs to the parent: in the child its destructor
/// does nothing, and every call that needs the shared memory throws Error with kInvalidState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

/// How long a snapshot waits, and for what.
struct SnapshotOptions {
  /// How long pushes wait at most for a push that does not end because its worker is stopped. Up to 20 times as long if
  /// that worker is not stopped but has no core to run on. std::nullopt: ten times the longest push measured lately,
  /// and at least 0.1 s. The time that copying in-place variables may take is added, and if a worker is in its first
  /// push, an estimate of a push of all variables.
  ///
  /// Mode sync, where no push waits: how long to wait for a step that is being applied; std::nullopt: `wait`.
  std::optional<Seconds> patience{};
  /// How long to wait for another snapshot of the job to be released; then the call throws Timeout.
  WaitLimit wait = Seconds(60);
  /// In-place variables are copied while pushes pause, the smallest first, up to this many bytes in all. Larger ones
  /// are not point-in-time (is_point_in_time()).
  std::uint64_t pause_bytes = 256 << 10;
  /// Mode sync: take the state before this global step, which is still to come, and wait for it. The snapshot is exact
  /// however late this process notices that the step has come. Meanwhile no other snapshot can be taken. Variables that
  /// are declared while it waits are missing. There is no deadline but stop_requested. The call throws Error with
  /// kInvalidState if the job is past that step or all its processes have died, and with kInvalidArgument in another
  /// mode; JobFinished if the job ends before. 0: take the present state.
  std::uint64_t at_step = 0;
  /// Polled while waiting for `at_step`; if true, the call throws Interrupted.
  std::function<bool()> stop_requested{};
};

/// A snapshot, as Worker, Server and JobView return it. A job has one at a time; the destructor releases it. While it
/// exists pushes cost a little more: the first push of each chunk leaves the chunk's old buffer to the snapshot.
class Snapshot {
 public:
  ~Snapshot();  ///< releases the snapshot
  Snapshot(Snapshot&&) noexcept;
  Snapshot& operator=(Snapshot&&) = delete;

  /// The snapshot's number in its job, from 1 on.
  std::uint64_t epoch() const noexcept;

  /// The number of global steps done at the snapshot point. Mode sync: the snapshot contains exactly the updates of
  /// these steps. Modes async and ssp: exact up to the steps that were under way.
  std::uint64_t global_step() const noexcept;

  /// The partially included ranks: the workers that were stopped within a push for longer than the patience. A part of
  /// that push may be in the snapshot. Mode sync: all ranks, if all workers died while a step was being applied.
  const std::vector<std::uint32_t>& partial_ranks() const noexcept;

  /// The names of the variables in the snapshot: those that were initialised when it was asked for.
  ///
  /// @throws std::bad_alloc.
  std::vector<std::string> variables() const;

  /// Whether all elements of the variable `name` are from the snapshot point. Otherwise they may be from different
  /// moments since then: this is so for in-place variables beyond SnapshotOptions::pause_bytes, and for all in-place
  /// variables of a job with Hogwild! updates (JobConfig::adds). Additions that a GPU makes by itself are not waited
  /// for, and not reported here.
  ///
  /// @throws Error (kNotFound) if the snapshot has no such variable.
  bool is_point_in_time(const std::string& name) const;

  /// The number of steps by its rule that the optimizer's state of a chunk of the variable `name` contains at the
  /// snapshot point, on average: adds and assigns do not count, and Slots::kReset sets it to 0. In place under a
  /// rule that counts an element's steps (adam, adamw): the average over the elements, as they are by now. In place
  /// under another rule, none of which uses it: the average number of changes of a block in this job.
  ///
  /// @throws Error (kNotFound) if the snapshot has no such variable.
  std::uint64_t updates(const std::string& name) const;

  /// Copies the values of the variable `name`, or its optimizer slot of that name (VariableInfo::slots), to `out`.
  /// Values of bfloat16 are converted, which is exact.
  ///
  /// @throws Error with kNotFound, which lists those that there are, if the snapshot has no such variable or slot;
  /// kInvalidArgument if the dtype is neither float32 nor bfloat16, or if out.size() is not the element count (for a
  /// slot of rows: the number of rows).
  /// @progress lock-free.
  void copy(const std::string& name, std::span<float> out, const std::string& slot = {}) const;

  /// As above, for a variable of any dtype, as bytes.
  ///
  /// @throws Error as above, except for the dtype; out.size() is the size in bytes.
  /// @progress lock-free.
  void copy(const std::string& name, std::span<std::byte> out, const std::string& slot = {}) const;

  /// Copies bytes [begin, begin + out.size()) of what copy() gives for `name` and `slot`, for streaming writers.
  /// In-place variables that are not point-in-time, and those partitioned by hash, are copied as a whole when byte 0 is
  /// read; later reads are of that copy.
  ///
  /// @throws Error as copy(), and if `begin` is not a multiple of 4 or the range does not lie within the variable.
  /// @progress lock-free.
  void read(const std::string& name, std::uint64_t begin, std::span<std::byte> out, const std::string& slot = {}) const;

 private:
  friend class JobView;
  friend class Server;
  friend class Worker;
  struct Impl;
  explicit Snapshot(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
