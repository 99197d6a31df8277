// What GpuRows and GpuTable have in common: a worker, a GPU, a stream, and the rows that they carry between them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "device/polling.hpp"
#include "device/probe.hpp"
#include "device/resources.hpp"
#include "device/shard_memory.hpp"
#include "device/transfer_kernels.hpp"
#include "ps_shm/gpu.hpp"
#include "worker/device_port.hpp"

namespace ps_shm::device {

class PS_SHM_HIDDEN RowCarrier {
 public:
  // `rows`: how many there are; 0: ids are keys, any of 64 bits. `owner`: "variable 'x'".
  RowCarrier(Worker& given_worker, const GpuRowsOptions& given_options, CudaCalls& given_cuda,
             TransferKernels& given_kernels, std::uint64_t given_elements, std::uint64_t given_rows,
             std::string given_owner)
      : handle(given_worker),
        worker(given_worker),
        cuda(given_cuda),
        watch(given_cuda, worker),
        kernels(given_kernels),
        options(given_options),
        elements(given_elements),
        rows(given_rows),
        owner(std::move(given_owner)) {}
  RowCarrier(const RowCarrier&) = delete;
  RowCarrier& operator=(const RowCarrier&) = delete;

  // Pushes the sums of rows, each of which is there once, as the worker does.
  virtual void apply(std::span<const std::uint64_t> ids, std::span<const float> sums) = 0;

  void check(CudaError error, const char* what) { device::check(cuda, error, what); }
  // What a call allocates, releases or registers may wait for all work on the device, and so for open().
  void require_open_gate() const {
    if (!worker.has_closed_gate()) return;
    throw Error(
        fmt::format("rows of {} on a GPU: the pull that the worker's GpuLink has enqueued waits for open(), and "
                    "this call could wait for that pull: call open() first",
                    owner),
        ErrorCode::kInvalidState);
  }
  // At the beginning of each call. Selects the device for the calling thread. Throws Error.
  void begin() {
    require_open_gate();
    check(cuda.set_device(options.device), "be used");
  }
  void require_floats(std::uint64_t ids, std::size_t floats, const char* verb) const {
    if (floats / elements == ids && floats % elements == 0) return;
    throw Error(fmt::format("{} of {} rows of {} on a GPU: a row has {} elements, the span has {} in all", verb, ids,
                            owner, elements, floats));
  }
  // Takes the GPU, maps the job's memory, and makes the stream. Throws Error.
  GpuInfo open() {
    require_open_gate();
    const GpuInfo gpu = require_gpu(cuda, options.device);
    shards = ShardMemory::of_worker(worker.shards(), cuda, worker.job(), options.device);
    begin();
    check(kernels.load(), "load its kernels");
    stream = std::make_unique<OwnStream>(cuda);
    return gpu;
  }
  // Before what the GPU uses is released.
  void settle() noexcept {
    static_cast<void>(cuda.set_device(options.device));
    if (stream) watch.settle(stream->get());
  }
  // Throws Error if a kernel has found an id out of range.
  void require_inside(const shm::AtomicShm<std::uint64_t>& outside, const char* verb) const {
    if (const std::uint64_t id = outside.load_acquire(); id != 0)  // (gpu.G3) after a flag or the stream's end
      throw Error(
          fmt::format("{} of rows of {} on a GPU: id {} is out of range; it has {} rows", verb, owner, id, rows));
  }
  void warn(const std::string& why) const {
    const std::string line = fmt::format("rows of {} go through host memory, slower: {}", owner, why);
    options.warn ? options.warn(line)
                 : static_cast<void>(std::fprintf(stderr, "worker %u: %s\n", worker.rank(), line.c_str()));
  }

  Worker& handle;
  const DevicePort worker;
  CudaCalls& cuda;
  GpuWatch watch;
  TransferKernels& kernels;
  const GpuRowsOptions options;
  const std::uint64_t elements, rows;
  const std::string owner;

  std::shared_ptr<ShardMemory> shards;  // unregistered after the stream below has ended
  GpuRowTransfers totals;
  std::unique_ptr<OwnStream> stream;

 protected:
  ~RowCarrier() = default;
};

template <class Id>
kernels::RowIds row_ids(std::span<const Id> ids) {
  return {
      .values = ids.data(), .is_wide = sizeof(Id) == sizeof(std::uint64_t) ? 1U : 0U, .pad = 0, .count = ids.size()};
}

}  // namespace ps_shm::device
