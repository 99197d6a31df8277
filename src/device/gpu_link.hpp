// Inside a GpuLink: what its two halves share.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/gpu_kernels.hpp"
#include "device/resources.hpp"
#include "device/shard_memory.hpp"
#include "device/strategy.hpp"
#include "ps/gpu.hpp"
#include "worker/impl.hpp"

namespace ps {

struct GpuLink::Impl {
  Impl(Worker::Impl& given_worker, std::span<const Variable> given, std::span<float* const> given_parameters,
       std::span<const float* const> given_gradients, const GpuOptions& given_options, device::CudaCalls& given_cuda,
       device::GpuKernels& given_kernels);
  ~Impl();

  void check(device::CudaError error, const char* what) { device::check(cuda, error, what); }
  void warn(const std::string& line) const;
  bool is_sharing() const noexcept { return shared_shards.use_count() > 1; }
  void plan();
  void begin();
  void open_gate() noexcept;

  Worker::Impl& worker;
  device::CudaCalls& cuda;
  device::GpuKernels& kernels;
  const GpuOptions options;
  std::vector<Variable> variables;
  std::vector<Variable::State*> states;
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
  std::unique_ptr<Pull> pull;
  std::unique_ptr<Push> push;
};

struct GpuLinkAccess {
  // A link with other tables than the real ones. The tables outlive it.
  static std::unique_ptr<GpuLink> make(Worker& worker, std::span<const Variable> variables,
                                       std::span<float* const> parameters, std::span<const float* const> gradients,
                                       const GpuOptions& options, device::CudaCalls& cuda, device::GpuKernels& kernels);
};

namespace device {

inline std::unique_ptr<GpuLink> make_gpu_link(Worker& worker, std::span<const Variable> variables,
                                              std::span<float* const> parameters,
                                              std::span<const float* const> gradients, const GpuOptions& options,
                                              CudaCalls& cuda, GpuKernels& kernels) {
  return GpuLinkAccess::make(worker, variables, parameters, gradients, options, cuda, kernels);
}

}  // namespace device
}  // namespace ps
