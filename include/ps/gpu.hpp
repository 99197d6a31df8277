// A worker's way to and from one GPU: pulls variables into its memory, pushes gradients from there. GpuLink moves whole
// variables, GpuRows those rows of one variable that a batch names.
//
// Without CUDA in the build, or without a GPU, making a GpuLink throws Error and says why; everything else of the library
// works. One thread uses a link at a time. Addresses are plain pointers, streams are cudaStream_t as void*, so that this
// header needs no CUDA.
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
#include "ps/worker.hpp"

namespace PS_API ps {

// What travels over the bus for an element of a gradient. Slots hold float32 in any case.
enum class Wire {
  kFloat32,
  kBfloat16  // rounded on the GPU to the nearest bfloat16, ties to even: a relative error of at most 2^-8
};

struct GpuOptions {
  int device = 0;
  Wire wire = Wire::kFloat32;
  bool stream_waits = false;  // may can_wait() be true? Only in a process that has one link: see there
  std::function<void(const std::string&)> warn;  // where something is refused and costs speed
};

// What a link has done so far.
struct GpuTransfers {
  std::string strategy;                // in a few words: how it pulls and pushes
  std::uint64_t registered_bytes = 0;  // with CUDA, in `registrations` calls that took so many seconds
  std::uint64_t registrations = 0;
  double registration_seconds = 0.0;
  std::uint64_t pulls = 0, redone_chunks = 0;  // chunks that moved while they were copied and were copied again,
  std::uint64_t bounced_chunks = 0;            // in the end by the CPU
  std::uint64_t pushes = 0;
};

class GpuLink {
 public:
  // For pulling variables[i] to parameters[i] and pushing gradients[i]: device memory of element_count() floats each,
  // aligned to 256 bytes, that outlives the link. Registers the shards of these variables with CUDA, in whole; where that
  // is refused, says so and goes on through host memory. Takes the calling thread's current device to options.device, as
  // all functions here do, and sets that one to yield while threads wait for it.
  // Throws Error: no such GPU, sizes that differ, the worker has a link already.
  // Requires: the worker outlives the link; no other variable is pulled or pushed while the GPU works.
  GpuLink(Worker& worker, std::span<const Variable> variables, std::span<float* const> parameters,
          std::span<const float* const> gradients, const GpuOptions& options);
  ~GpuLink();  // waits for the GPU
  GpuLink(const GpuLink&) = delete;
  GpuLink& operator=(const GpuLink&) = delete;

  // What is enqueued here runs between what the link enqueues.
  void* stream() const noexcept;

  // Enqueues a pull of all variables. What is enqueued on the stream behind it sees the parameters. Large models are
  // copied chunk by chunk under the processor's eyes: then it returns when they are there.
  void start_pull();

  // The same, but the stream waits with it until open(): what leads to a step can be enqueued while the one before is
  // still under way. `opened`: a cudaEvent_t to record when the wait is over, or none.
  // Requires: can_wait(); and from here to open() nothing, on any thread of the process, that may wait for the device:
  // no allocation or release of its or of page-locked memory, no registration, no first launch of a kernel or graph, no
  // synchronisation, no finish_pull(), and not more than some hundred launches, for the launching thread waits where the
  // queue is full. Debuggers and profilers that serialise launches do not get along with it.
  bool can_wait() const noexcept;
  void start_pull_when_opened(void* opened = nullptr);
  void open();

  // Waits until the pull is done. True: some chunk had moved while it was copied, and has been copied again; what was
  // enqueued behind start_pull() must be enqueued again. Each chunk is one version of that chunk (in-place: whole
  // elements). Lock-free, but for the GPU.
  // Throws Error where the GPU fails.
  [[nodiscard]] bool finish_pull();

  // Enqueues the gradients' way to host memory, behind what computes them. Throws Error where the push before has not
  // come to its end.
  void start_push();

  // Pushes them, chunk by chunk as they arrive, as Worker::push does; in sync mode, as from Worker::gradient(), a gradient
  // may replace what was pushed of the variable before in the same step. When it returns the gradients may be overwritten.
  // Throws Error where the GPU fails; some chunks may have been pushed then, as when a worker dies.
  void finish_push();

  // What this link has moved so far.
  const GpuTransfers& transfers() const noexcept;

 private:
  friend struct GpuLinkAccess;  // makes links with other tables (src/device/gpu_link.hpp)
  struct Impl;
  class Pull;
  class Push;
  explicit GpuLink(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

struct GpuRowsOptions {
  int device = 0;
  std::function<void(const std::string&)> warn;  // where something is refused and costs speed
};

// What one of them has done so far.
struct GpuRowTransfers {
  std::string strategy;  // in a few words: how it pulls
  std::uint64_t registered_bytes = 0;
  std::uint64_t pulls = 0, pulled_rows = 0;
  std::uint64_t pushes = 0, given_rows = 0;  // as they were given, repeated ones counted,
  std::uint64_t sent_rows = 0;               // and what was left of them for the bus and the processor
};

// Rows of one in-place variable, which may be larger than the GPU's memory. A kernel reads the rows that a batch names
// where they lie, in host memory that is registered with CUDA. Pushed gradients are summed up by row on the GPU and
// sent in pieces, which the worker's threads apply as they arrive.
//
// Ids and rows are in device memory of GpuRowsOptions::device; an id is a row's number, in 32 or 64 bits (PyTorch's
// int64 as it is: a negative one is out of range). Ids may come in any order and repeat. A worker may have several of
// these, and a GpuLink besides, all on one device; what one of them registers, the others use.
class GpuRows {
 public:
  // Registers the shards that the variable lies in; where that is refused, says so and goes on through host memory.
  // Takes the calling thread's current device to options.device, as all functions here do.
  // Throws Error: no such GPU, the variable is not in place or has no axis, the worker uses another GPU.
  // Requires: the worker outlives this object; it is not used while one of these functions runs.
  GpuRows(Worker& worker, const Variable& variable, const GpuRowsOptions& options = {});
  ~GpuRows();  // waits for the GPU
  GpuRows(const GpuRows&) = delete;
  GpuRows& operator=(const GpuRows&) = delete;

  // What is enqueued here runs between what this object enqueues.
  void* stream() const noexcept;

  // Enqueues a copy of row ids[i] to out[i * row_size() ...]. Elements are whole; two elements may be from different
  // moments. What is enqueued on the stream behind it sees the rows. Several pulls may be under way. Without
  // registration it returns when the rows are there.
  // Throws Error: a size that does not fit, the GPU fails.
  void start_pull(std::span<const std::uint32_t> ids, std::span<float> out);
  void start_pull(std::span<const std::uint64_t> ids, std::span<float> out);

  // Waits until the pulls are done. Throws Error where an id was out of range: such rows are never read, and what is in
  // `out` of those pulls is not to be used; or where the GPU fails. Staleness is not measured by these pulls.
  void finish_pull();

  // Enqueues the gradients' way to host memory: gradients[i * row_size() ...] for row ids[i], those of repeated ids
  // summed up, in an order that only the push decides. At most 2^31 - 1 ids. Memory for the largest push so far is
  // kept, on the GPU and page-locked on the host; a larger one waits for the GPU.
  // Throws Error where the push before has not come to its end, a size that does not fit, the GPU fails.
  void start_push(std::span<const std::uint32_t> ids, std::span<const float> gradients);
  void start_push(std::span<const std::uint64_t> ids, std::span<const float> gradients);

  // Pushes them as Worker::push_rows does, piece by piece as they arrive; with clip_norm, which takes all gradients of
  // a push, when all have. When it returns ids and gradients may be overwritten.
  // Throws Error where an id was out of range, before anything is applied; where the GPU fails: some rows may have been
  // pushed then.
  void finish_push();

  // Both halves at once.
  void pull(std::span<const std::uint32_t> ids, std::span<float> out) { start_pull(ids, out), finish_pull(); }
  void pull(std::span<const std::uint64_t> ids, std::span<float> out) { start_pull(ids, out), finish_pull(); }
  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) {
    start_push(ids, gradients), finish_push();
  }
  void push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
    start_push(ids, gradients), finish_push();
  }

  const GpuRowTransfers& transfers() const noexcept;

 private:
  friend struct GpuRowsAccess;  // with other tables (src/device/gpu_rows.hpp)
  struct Impl;
  class Push;
  explicit GpuRows(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
