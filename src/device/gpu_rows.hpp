// The members of a GpuRows: the table in the kernels' form, and pulls. Pushes are in row_push.hpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/row_carrier.hpp"
#include "device/row_push.hpp"
#include "device/strategy.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN GpuRows::Impl final : device::RowCarrier {
  Impl(Worker& given_worker, const Variable& given, const GpuRowsOptions& given_options, device::CudaCalls& given_cuda,
       device::TransferKernels& given_kernels);
  ~Impl();

  void start_pull(const kernels::RowIds& ids, std::span<float> out);
  void finish_pull();
  void apply(std::span<const std::uint64_t> ids, std::span<const float> sums) override {
    handle.push_rows(variable, ids, sums);
  }

  const Variable variable;
  const shm::Rows& table;
  const update::Settings& settings;
  bool is_registered = false;

 private:
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
  std::unique_ptr<device::RowPush> push;
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
