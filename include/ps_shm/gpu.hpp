/// @file
/// A worker's link to one GPU: it pulls variables into the GPU's memory, and pushes gradients from there. GpuLink moves
/// whole variables; GpuRows moves those rows of one variable that a batch names, and GpuTable rows of a table by key.
/// @code
///   ps_shm::GpuLink link(worker, variables, parameters, gradients, {.device = 0});
///   while (!worker.finished()) {
///     link.start_pull();
///     enqueue_gradient(link.stream());
///     if (link.finish_pull()) enqueue_gradient(link.stream());  // some parameters had changed: compute again
///     link.start_push();
///     link.finish_push();
///     worker.step();
///   }
/// @endcode
/// In a build without CUDA, or on a machine without a GPU, the constructor of a GpuLink throws Error (kDevice) and says
/// why; the rest of the library works. One thread uses a link at a time. Addresses are plain pointers, and streams are
/// cudaStream_t as void*, so that this header does not need CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/table.hpp"
#include "ps_shm/worker.hpp"

namespace PS_SHM_API ps_shm {

/// A transfer dtype: the type of an element on its way between the GPU and the host. Variables, optimizer slots and
/// device memory hold float32 in either case.
enum class Wire {
  kFloat32,  ///< without a conversion
  kBFloat16  ///< rounded to the nearest bfloat16, ties to even: a relative error of at most 2^-8. NaN stays NaN
};

/// As DType has it: float32 or bfloat16.
/// @progress wait-free.
PS_SHM_API const char* to_string(Wire wire) noexcept;

/// Options of a GpuLink.
struct GpuOptions {
  int device = 0;              ///< CUDA's number of the GPU
  Wire wire = Wire::kFloat32;  ///< transfer dtype of gradients: with kBFloat16 the GPU rounds them
  bool stream_waits = false;  ///< whether can_wait() may be true; only for a process that has one link, see there
  /// Log callback: something was refused and costs speed. Unset: stderr.
  std::function<void(const std::string&)> warn{};
};

/// What a link has done so far.
struct GpuTransfers {
  std::string strategy;                ///< how it pulls and pushes, in a few words; diagnostic only
  std::string reasons;                 ///< why, in sentences; diagnostic only
  std::uint32_t threads = 1;           ///< of the worker, which apply what has been pushed
  std::uint64_t registered_bytes = 0;  ///< bytes of host memory registered with CUDA
  std::uint64_t registrations = 0;     ///< calls that registered it, refused ones included
  double registration_seconds = 0.0;   ///< time that they took
  std::uint64_t pulls = 0;             ///< pulls so far
  std::uint64_t redone_chunks = 0;     ///< repeated copies of chunks that changed meanwhile
  /// Chunks that the CPU copied in the end, since they kept changing or lie outside of the registered memory.
  std::uint64_t bounced_chunks = 0;
  std::uint64_t pushes = 0;  ///< pushes so far
};

/// Moves whole variables between the worker and a GPU. One thread uses it at a time.
class GpuLink {
 public:
  /// Makes a link that pulls variables[i] to parameters[i] and pushes gradients[i]. These are device memory of
  /// element_count() floats each, aligned to 256 bytes, that must outlive the link.
  ///
  /// It registers the shards of these variables with CUDA, as a whole. If CUDA refuses, it says so (GpuOptions::warn)
  /// and goes on through host memory. It makes options.device the calling thread's current device, as other functions
  /// of this class do.
  ///
  /// @pre the worker outlives the link; no other variable is pulled or pushed while the GPU works.
  /// @throws Error with kDevice if there is no such GPU; kInvalidState if the worker has a link already or uses another
  /// GPU; kInvalidArgument if the spans differ in length, a dtype is not float32, or the elements of an in-place
  /// variable do not lie side by side (use GpuRows).
  GpuLink(Worker& worker, std::span<const Variable> variables, std::span<float* const> parameters,
          std::span<const float* const> gradients, const GpuOptions& options);
  ~GpuLink();  ///< waits for the GPU
  GpuLink(const GpuLink&) = delete;
  GpuLink& operator=(const GpuLink&) = delete;

  /// The link's stream, a cudaStream_t. Work that the caller enqueues on it runs in order with what the link enqueues.
  void* stream() const noexcept;

  /// Enqueues a pull of all variables. Work that is enqueued on the stream after it sees the parameters. Large models
  /// are copied chunk by chunk under control of the CPU; then the call returns when the parameters are there. Without
  /// registration the CPU copies them itself, and they are on their way when it returns.
  ///
  /// @throws Error with kInvalidState if the previous pull is still in progress, kDevice if the GPU fails.
  /// @progress lock-free, apart from the wait for the GPU.
  void start_pull();

  /// Whether start_pull_when_opened() may be called: GpuOptions::stream_waits is set, and the device can wait for the
  /// CPU and then pull all variables by itself.
  bool can_wait() const noexcept;

  /// Enqueues a pull before which the stream waits until open(), so that the work of a step can be enqueued while the
  /// previous step is still under way. `opened`: a cudaEvent_t to record when the stream stops waiting, or nullptr.
  ///
  /// @pre can_wait(). Until open(), no thread of the process does anything that may wait for the device: it allocates
  /// and releases no device memory and no page-locked memory, registers none, launches no kernel or graph for the first
  /// time, does not synchronise, and does not call finish_pull(). It destroys no GpuRows and no GpuTable; their other
  /// calls are refused, if they are of this worker. It also launches no more than some hundred kernels, since a
  /// launching thread waits while the queue is full. Debuggers and profilers that serialise launches do not work with
  /// it.
  /// @throws Error as start_pull().
  void start_pull_when_opened(void* opened = nullptr);

  /// Lets the stream go on with the pull that start_pull_when_opened() has enqueued. Does not throw.
  void open();

  /// Waits until the pull is done. Returns true if a chunk had changed while it was copied, and has been copied again;
  /// the work that was enqueued after start_pull() must then be enqueued again. Each chunk is one version of that
  /// chunk, and each element of an in-place variable is whole.
  ///
  /// @throws Error with kDevice if the GPU fails.
  /// @progress lock-free, apart from the wait for the GPU.
  [[nodiscard]] bool finish_pull();

  /// Enqueues the transfer of the gradients to host memory, after the work that computes them. Where a GPU's additions
  /// to host memory are atomic for CPUs as well, it adds gradients of some in-place variables by itself instead
  /// (docs/gpu.md).
  ///
  /// @throws Error with kInvalidState if the previous push is still in progress, or as Worker::push(); kDevice if the
  /// GPU fails.
  void start_push();

  /// Pushes the gradients chunk by chunk as they arrive, as Worker::push() does. In mode sync a gradient may replace
  /// what was pushed of the variable before in the same step, as one pushed from Worker::gradient() does. When it
  /// returns, the gradients in device memory may be overwritten.
  ///
  /// @throws Error with kDevice if the GPU fails; some chunks may have been pushed then, as when a worker dies.
  /// Otherwise as Worker::push().
  void finish_push();

  /// What this link has moved so far.
  const GpuTransfers& transfers() const noexcept;

 private:
  friend struct GpuLinkAccess;  // internal: makes links with other function tables (src/device/gpu_link.hpp)
  struct Impl;
  class Pull;
  class Push;
  explicit GpuLink(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Options of a GpuRows or GpuTable.
struct GpuRowsOptions {
  int device = 0;  ///< CUDA's number of the GPU
  /// Log callback: something was refused and costs speed. Unset: stderr.
  std::function<void(const std::string&)> warn{};
};

/// What a GpuRows or GpuTable has done so far.
struct GpuRowTransfers {
  std::string strategy;                ///< how it pulls and pushes, in a few words; diagnostic only
  std::string reasons;                 ///< why, in sentences; diagnostic only
  std::uint32_t threads = 1;           ///< of the worker, which apply what has been pushed
  std::uint64_t registered_bytes = 0;  ///< bytes of host memory registered with CUDA
  std::uint64_t pulls = 0;             ///< pulls so far
  std::uint64_t pulled_rows = 0;       ///< rows that they have copied, repeated ones counted
  std::uint64_t pushes = 0;            ///< pushes so far
  std::uint64_t given_rows = 0;        ///< rows as the caller gave them, repeated ones counted
  std::uint64_t sent_rows = 0;         ///< rows that went to the host after repeated ones were summed
  std::uint64_t bounced_rows = 0;      ///< of a table: rows that the CPU copied, since the GPU could not decide
};

/// Moves rows of one in-place variable, which may be larger than the GPU's memory. A kernel reads the rows that a batch
/// names directly from host memory that is registered with CUDA. Pushed gradients are summed by row on the GPU and sent
/// in portions, which the worker's threads apply as they arrive.
/// @code
///   ps_shm::GpuRows rows(worker, table);
///   rows.pull(ids, embeddings);  // then kernels of the caller's own on rows.stream()
///   rows.push(ids, gradients);
/// @endcode
/// Ids and rows are in device memory of GpuRowsOptions::device. An id is the number of a row, in 32 or 64 bits
/// (PyTorch's int64 can be used as it is; a negative id is out of range). Ids may be in any order and may repeat. A
/// worker may have several GpuRows and a GpuLink besides, all on one device; they share what one of them has
/// registered.
///
/// Between start_pull_when_opened() and open() of the worker's GpuLink, each function throws Error with kInvalidState:
/// it could wait for all work on the device, and so for open().
class GpuRows {
 public:
  /// Registers the shards that contain the variable with CUDA. If CUDA refuses, or the rows are bfloat16, it says so
  /// (GpuRowsOptions::warn) and goes on through host memory. It makes options.device the calling thread's current
  /// device, as other functions of this class do.
  ///
  /// @pre the worker outlives this object, and is not used while one of these functions runs.
  /// @throws Error with kDevice if there is no such GPU, kInvalidArgument if the variable is not in-place or has no
  /// axis, kInvalidState if the worker uses another GPU.
  GpuRows(Worker& worker, const Variable& variable, const GpuRowsOptions& options = {});
  ~GpuRows();  ///< waits for the GPU
  GpuRows(const GpuRows&) = delete;
  GpuRows& operator=(const GpuRows&) = delete;

  /// The stream, a cudaStream_t. Work that the caller enqueues on it runs in order with what this object enqueues.
  void* stream() const noexcept;

  /// Enqueues a copy of row ids[i] to out[i * row_size()] and the elements after it. Each element is whole; two
  /// elements may be from different moments. Work that is enqueued on the stream after it sees the rows. Several pulls
  /// may be in progress at one time. Without registration it returns when the rows are there.
  ///
  /// @throws Error if out.size() does not fit; kDevice if the GPU fails.
  void start_pull(std::span<const std::uint32_t> ids, std::span<float> out);
  /// @overload
  void start_pull(std::span<const std::uint64_t> ids, std::span<float> out);

  /// Waits until the pulls in progress are done. These pulls do not measure staleness.
  ///
  /// @throws Error if an id was out of range: no such row is read, and the contents of `out` of these pulls must not be
  /// used; kDevice if the GPU fails.
  /// @progress blocks on the GPU.
  void finish_pull();

  /// Enqueues the transfer of gradients to host memory: the gradient that begins at gradients[i * row_size()] is for
  /// row ids[i]. Gradients of repeated ids are summed, in an order that depends on this push only. At most 2^31 - 1
  /// ids. Memory for the largest push so far is kept, on the GPU and page-locked on the host; a larger push waits for
  /// the GPU.
  ///
  /// @throws Error with kInvalidState if the previous push is still in progress, kInvalidArgument if a size does not
  /// fit, kDevice if the GPU fails.
  void start_push(std::span<const std::uint32_t> ids, std::span<const float> gradients);
  /// @overload
  void start_push(std::span<const std::uint64_t> ids, std::span<const float> gradients);

  /// Pushes the gradients portion by portion as they arrive, as Worker::push_rows() does. With clip_norm, which limits
  /// the norm over all gradients of a push, it waits until all have arrived. When it returns, ids and gradients may be
  /// overwritten.
  ///
  /// @throws Error if an id was out of range, before anything is applied; kDevice if the GPU fails: some rows may have
  /// been pushed then. Otherwise as Worker::push_rows().
  /// @progress blocks on the GPU.
  void finish_push();

  /// start_pull() and finish_pull() in one call: copies row ids[i] to out[i * row_size()] and the elements after it.
  ///
  /// @throws Error as these.
  /// @progress blocks on the GPU.
  void pull(std::span<const std::uint32_t> ids, std::span<float> out) { start_pull(ids, out), finish_pull(); }
  /// @overload
  void pull(std::span<const std::uint64_t> ids, std::span<float> out) { start_pull(ids, out), finish_pull(); }

  /// start_push() and finish_push() in one call: pushes the gradient that begins at gradients[i * row_size()] to row
  /// ids[i].
  ///
  /// @throws Error as these.
  /// @progress blocks on the GPU.
  void push(std::span<const std::uint32_t> ids, std::span<const float> gradients) {
    start_push(ids, gradients), finish_push();
  }
  /// @overload
  void push(std::span<const std::uint64_t> ids, std::span<const float> gradients) {
    start_push(ids, gradients), finish_push();
  }

  /// What this object has moved so far.
  const GpuRowTransfers& transfers() const noexcept;

 private:
  friend struct GpuRowsAccess;  // internal: makes them with other function tables (src/device/gpu_rows.hpp)
  struct Impl;
  explicit GpuRows(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// Moves rows of a table by key. Kernels find the keys in the table's index and read their rows, both directly from
/// host memory that is registered with CUDA, while other processes push, make and evict rows. Pushed gradients are
/// summed by key on the GPU, and the worker's threads apply them as Table::push() does.
/// @code
///   ps_shm::GpuTable rows(worker, items);
///   rows.pull(keys, embeddings, found);  // then kernels of the caller's own on rows.stream()
///   rows.push(keys, gradients);
/// @endcode
/// Keys, rows, gradients and `found` are in device memory of GpuRowsOptions::device. Keys may be in any order and may
/// repeat (PyTorch's int64 can be used as it is). Only the memory that a table's rows have taken is registered; it is
/// registered anew when there is an eighth or 64 MiB more of it. A table has one GpuTable in a process. Each function
/// throws Error with kInvalidState where those of GpuRows do, before the open() of a GpuLink.
class GpuTable {
 public:
  /// Registers the table with CUDA. If CUDA refuses, if pulls count as uses (TableSpec::touch_on_pull), which a GPU
  /// cannot note, or if rows are bfloat16, it says so (GpuRowsOptions::warn) and goes on through host memory. It makes
  /// options.device the calling thread's current device, as other functions of this class do.
  ///
  /// @pre the worker outlives this object, and is not used while one of these functions runs.
  /// @throws Error with kDevice if there is no such GPU, kInvalidState if the worker uses another GPU.
  GpuTable(Worker& worker, const Table& table, const GpuRowsOptions& options = {});
  ~GpuTable();  ///< waits for the GPU
  GpuTable(const GpuTable&) = delete;
  GpuTable& operator=(const GpuTable&) = delete;

  /// The stream, a cudaStream_t. Work that the caller enqueues on it runs in order with what this object enqueues.
  void* stream() const noexcept;

  /// Enqueues a copy of the row of keys[i] to out[i * row_size()] and the floats after it; a key without a row reads
  /// its initial values. found[i], if given, says whether keys[i] has a row. Each row is the key's throughout; each
  /// element is whole, two elements may be from different moments. Pulls do not count as hits, misses or uses.
  ///
  /// @throws Error with kInvalidState if the previous pull is still in progress, kInvalidArgument if a size does not
  /// fit, kDevice if the GPU fails.
  void start_pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found = {});

  /// Waits until the pull is done. Returns true if the CPU has copied some rows afterwards, because they had moved or
  /// were made since memory was registered; work that was enqueued after start_pull() must then be enqueued again.
  ///
  /// @throws Error with kDevice if the GPU fails. Otherwise as Table::pull().
  /// @progress lock-free, apart from the wait for the GPU.
  [[nodiscard]] bool finish_pull();

  /// Enqueues the transfer of gradients to host memory, as GpuRows::start_push() does: the gradient that begins at
  /// gradients[i * row_size()] is for the row of keys[i]. Gradients of repeated keys are summed.
  ///
  /// @throws Error as GpuRows::start_push().
  void start_push(std::span<const std::uint64_t> keys, std::span<const float> gradients);

  /// Pushes the gradients portion by portion as they arrive, as Table::push() does, and returns what became of the
  /// distinct keys. With clip_norm, which limits the norm over all gradients of a push, it waits until all have
  /// arrived. When it returns, keys and gradients may be overwritten.
  ///
  /// @throws Error with kDevice if the GPU fails: some rows may have been pushed then. Otherwise as Table::push().
  /// @progress blocks on the GPU.
  PushedKeys finish_push();

  /// start_pull() and finish_pull() in one call: copies the row of keys[i] to out[i * row_size()] and the floats after
  /// it, and says in found[i], if given, whether there is one.
  ///
  /// @throws Error as these.
  /// @progress blocks on the GPU.
  void pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found = {}) {
    start_pull(keys, out, found), static_cast<void>(finish_pull());
  }

  /// start_push() and finish_push() in one call: pushes the gradient that begins at gradients[i * row_size()] to the
  /// row of keys[i].
  ///
  /// @throws Error as these.
  /// @progress blocks on the GPU.
  PushedKeys push(std::span<const std::uint64_t> keys, std::span<const float> gradients) {
    start_push(keys, gradients);
    return finish_push();
  }

  /// What this object has moved so far.
  const GpuRowTransfers& transfers() const noexcept;

 private:
  friend struct GpuTableAccess;  // internal: makes them with other function tables (src/device/gpu_table.hpp)
  struct Impl;
  explicit GpuTable(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
