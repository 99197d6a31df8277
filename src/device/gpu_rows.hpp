// The members of a GpuRows: the table in the kernels' form, and pulls. Pushes are in gpu_rows_push.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/resources.hpp"
#include "device/shard_memory.hpp"
#include "device/strategy.hpp"
#include "device/transfer_kernels.hpp"
#include "ps_shm/gpu.hpp"
#include "worker/device_port.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN GpuRows::Impl {
  Impl(Worker& given_worker, const Variable& given, const GpuRowsOptions& given_options, device::CudaCalls& given_cuda,
       device::TransferKernels& given_kernels);
  ~Impl();

  void check(device::CudaError error, const char* what) { device::check(cuda, error, what); }
  void begin() { check(cuda.set_device(options.device), "be used"); }  // for the calling thread
  void require_floats(std::uint64_t ids, std::size_t floats, const char* verb) const;
  // Throws Error if a kernel has found an id out of range.
  void require_inside(const shm::AtomicShm<std::uint64_t>& outside, const char* verb) const;

  void start_pull(const kernels::RowIds& ids, std::span<float> out);
  void finish_pull();

  Worker& handle;
  const DevicePort worker;
  device::CudaCalls& cuda;
  device::TransferKernels& kernels;
  const GpuRowsOptions options;
  const Variable variable;
  const shm::Rows& rows;
  const update::Settings& settings;

  std::shared_ptr<device::ShardMemory> shards;  // unregistered after the stream below has ended
  bool is_registered = false;
  GpuRowTransfers totals;
  std::unique_ptr<device::OwnStream> stream;

 private:
  void register_shards();
  void make_table();
  void pull_through_host(const kernels::RowIds& ids, std::span<float> out);

  kernels::RowTable table_{};
  device::DeviceMemory<std::uint64_t> regions_;
  device::DeviceMemory<kernels::RowPart> parts_;
  std::unique_ptr<device::OwnEvent> pulled_;
  device::PinnedMemory<shm::AtomicShm<std::uint64_t>>
      outside_;  // {1}: an id out of range in the pulls in progress; 0: none, since 0 is never out of range
  device::PinnedMemory<std::byte> host_ids_;
  device::PinnedMemory<float> host_rows_;
  bool is_pulling_ = false;

 public:
  std::unique_ptr<Push> push;
};

struct PS_SHM_HIDDEN GpuRowsAccess {
  // Uses other tables than the real ones. They must outlive it.
  static std::unique_ptr<GpuRows> make(Worker& worker, const Variable& variable, const GpuRowsOptions& options,
                                       device::CudaCalls& cuda, device::TransferKernels& kernels) {
    return std::unique_ptr<GpuRows>(
        new GpuRows(std::make_unique<GpuRows::Impl>(worker, variable, options, cuda, kernels)));
  }
};

namespace device {

inline std::unique_ptr<GpuRows> make_gpu_rows(Worker& worker, const Variable& variable, const GpuRowsOptions& options,
                                              CudaCalls& cuda, TransferKernels& kernels) {
  return GpuRowsAccess::make(worker, variable, options, cuda, kernels);
}

}  // namespace device
}  // namespace ps_shm
