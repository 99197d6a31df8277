// The members of a GpuLink that its pull and its push share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/polling.hpp"
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
  // Whether the copy engine pulls the part, if it pulls any.
  static bool is_for_copy_engine(const VariablePart& part);
  bool is_sharing() const noexcept { return shared_shards.use_count() > 1; }
  void plan();
  void try_stream_wait();
  void begin();
  void close_gate() noexcept;
  void open_gate(std::uint32_t how) noexcept;
  void wait_at_gate() {  // the stream
    check(cuda.wait_value(stream->get(), gate.on_device(), kernels::kGateOpen), "wait for a word");
  }
  const std::uint32_t* gate_on_device() const noexcept { return reinterpret_cast<std::uint32_t*>(gate.on_device()); }

  const DevicePort worker;
  device::CudaCalls& cuda;
  device::GpuWatch watch;
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
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> gate;  // {1}: kGateClosed and so on (kernels/transfers.hpp)
  bool may_wait_on_stream = false;
  std::uint64_t plans = 0;  // how often plan() has run: what was recorded before the last one is void
  std::unique_ptr<Pull> pull;
  std::unique_ptr<Push> push;
};

struct PS_SHM_HIDDEN GpuLinkAccess {
  // A link that uses other tables than the real ones. The tables must outlive it.
  static std::unique_ptr<GpuLink> make(Worker& worker, std::span<const Variable> variables,
                                       std::span<float* const> parameters, std::span<const float* const> gradients,
                                       const GpuOptions& options, device::CudaCalls& cuda,
                                       device::TransferKernels& kernels);

  // A step as one graph: the wait at the gate, the pull, the caller's kernels and the sending of the gradients. The CPU
  // does its part when the graph is launched.

  // Whether the link's pull and push are work on the stream alone, the same for each step.
  static bool can_record(const GpuLink& link) noexcept;
  // What was recorded at another number must not be launched any more.
  static std::uint64_t recording_number(const GpuLink& link) noexcept;
  // Enqueues a step, while the stream is recorded into a graph; with a gate if can_wait(). `opened` is called behind it.
  static void record_step(GpuLink& link, const std::function<void()>& opened,
                          const std::function<void()>& enqueue_compute);
  // can_wait() is false from here on: no graph can be recorded with a gate.
  static void refuse_waits(GpuLink& link) noexcept;
  // Replaces start_pull(), before the graph is launched.
  static void start_recorded(GpuLink& link);
  // Replaces start_pull_when_opened(), before the graph, which was recorded with a gate, is launched.
  static void start_recorded_when_opened(GpuLink& link);
  // Replaces start_push(), once the pull is finished.
  static void start_recorded_push(GpuLink& link);
  // Instead: what the graph has sent is not used. Waits for the graph.
  static void discard_recorded_push(GpuLink& link);
  // The waits for the link's GPU.
  static device::GpuWatch& watch(GpuLink& link) noexcept;
  // Like open(), but what waits stores nothing to memory that other workers read. Requires: no push is in progress.
  static void cancel(GpuLink& link) noexcept;
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
