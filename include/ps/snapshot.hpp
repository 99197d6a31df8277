// One consistent state of all of a job's variables, taken while training goes on.
//
// A push is in a snapshot or it is not, over all variables and shards. What a worker has pushed before, in the order of
// its program, is in it, and nothing of what it pushes afterwards: Worker::push(variables, gradients) and a PushGroup
// count as one push. Nothing is copied when the snapshot is taken: pushes leave the state behind that it shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/export.hpp"

namespace PS_API ps {

struct SnapshotOptions {
  // How long pushes wait at most for one that does not end, because its worker is stopped. 0: ten times the longest that
  // was measured lately, and 0.1 s at least. sync, where nobody waits: how long for a step that is being applied; 0:
  // wait_seconds.
  double patience_seconds = 0.0;
  // How long to wait for another snapshot of the job to be given back.
  double wait_seconds = 60.0;
  // In-place variables are copied while no push is under way, the smallest first, up to so many bytes.
  std::uint64_t pause_bytes = 256 << 10;
};

// What Worker, Server and JobView return from snapshot(): a job has one at a time. While it lives, pushes cost a little
// more: the first one on each chunk leaves the chunk's old buffer to the snapshot.
class Snapshot {
 public:
  ~Snapshot();  // gives it back
  Snapshot(Snapshot&&) noexcept;
  Snapshot& operator=(Snapshot&&) = delete;

  // Its number in the job, from 1 on.
  std::uint64_t epoch() const noexcept;

  // Global steps done when it was taken. sync: exactly those whose updates are in it; async, ssp: up to the steps under
  // way at that moment.
  std::uint64_t global_step() const noexcept;

  // Ranks of workers that were stopped, for longer than the patience, within a push that may be in it in part. sync: all
  // ranks, where all workers died while a step was being applied.
  const std::vector<std::uint32_t>& split() const noexcept;

  // Variables that are in it: all that were initialised when it was asked for.
  std::vector<std::string> variables() const;

  // Whether the variable's elements may be of different moments since the snapshot was taken: in-place variables beyond
  // SnapshotOptions::pause_bytes, and those that devices or racy adds change. Throws Error: no such variable.
  bool is_fuzzy(const std::string& name) const;

  // How many updates each of its chunks has had, on average, when the snapshot was taken. In place: how many pushes of all
  // of it each block has had by now. Throws Error: no such variable.
  std::uint64_t updates(const std::string& name) const;

  // Copies its parameters (array 0) or slot array - 1, in the order of JobView's VariableInfo::slots. Lock-free.
  // Requires: out.size() is its element count, or of a slot of rows that of its rows, array at most its slots (throws
  // Error, as where there is no such variable).
  void copy(const std::string& name, std::span<float> out, std::uint64_t array = 0) const;

  // The same as bytes, of a variable of any dtype.
  void copy(const std::string& name, std::span<std::byte> out, std::uint64_t array = 0) const;

  // Bytes [begin, begin + out.size()) of the same, for who writes it piece by piece. In-place variables that are copied
  // while they change, and those partitioned by hash, are copied as a whole when their byte 0 is asked for.
  // Requires: begin is a multiple of 4 (throws Error).
  void read(const std::string& name, std::uint64_t begin, std::span<std::byte> out, std::uint64_t array = 0) const;

 private:
  friend class JobView;
  friend class Server;
  friend class Worker;
  struct Impl;
  explicit Snapshot(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
