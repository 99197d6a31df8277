// The members of a GpuLink that its pull and its push share.
#pragma once

#include <memory>
#include <set>
#include <span>
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

struct PS_SHM_HIDDEN GpuLink::Impl {
  Impl(Worker& given_worker, std::span<const Variable> given, std::span<float* const> given_parameters,
       std::span<const float* const> given_gradients, const GpuOptions& given_options, device::CudaCalls& given_cuda,
       device::TransferKernels& given_kernels);
  ~Impl();

  void check(device::CudaError error, const char* what) { device::check(cuda, error, what); }
  void warn(const std::string& line) const;
  bool is_sharing() const noexcept { return shared_shards.use_count() > 1; }
  void plan();
  void try_stream_wait();
  void begin();
  void open_gate() noexcept;

  const DevicePort worker;
  device::CudaCalls& cuda;
  device::TransferKernels& kernels;
  const GpuOptions options;
  std::vector<Variable> variables;
  std::vector<VariableState*> states;
  std::vector<float*> parameters;
  std::vector<const float*> gradients;

  device::GpuInfo gpu;
  device::Strategy strategy;
  GpuTransfers totals;
  device::RegistrationTotals registered;
  std::shared_ptr<device::ShardMemory> shared_shards;  // unregistered after the streams below have ended
  device::ShardMemory& shards;
  std::unique_ptr<device::OwnStream> stream;
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> gate;  // {1}: the number of the last step that may begin
  std::uint32_t last_gated = 0;
  bool may_wait_on_stream = false;
  std::unique_ptr<Pull> pull;
  std::unique_ptr<Push> push;
};

struct PS_SHM_HIDDEN GpuLinkAccess {
  // A link that uses other tables than the real ones. The tables must outlive it.
  static std::unique_ptr<GpuLink> make(Worker& worker, std::span<const Variable> variables,
                                       std::span<float* const> parameters, std::span<const float* const> gradients,
                                       const GpuOptions& options, device::CudaCalls& cuda,
                                       device::TransferKernels& kernels);
};

namespace device {

inline std::unique_ptr<GpuLink> make_gpu_link(Worker& worker, std::span<const Variable> variables,
                                              std::span<float* const> parameters,
                                              std::span<const float* const> gradients, const GpuOptions& options,
                                              CudaCalls& cuda, TransferKernels& kernels) {
  return GpuLinkAccess::make(worker, variables, parameters, gradients, options, cuda, kernels);
}

}  // namespace device
}  // namespace ps_shm
