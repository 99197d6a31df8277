// The members of a GpuTable: the memory of a table by key that is registered, and pulls. Pushes are in row_push.hpp.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "device/registration.hpp"
#include "device/row_carrier.hpp"
#include "device/row_push.hpp"
#include "device/strategy.hpp"
#include "worker/table_state.hpp"

namespace ps_shm {

struct PS_SHM_HIDDEN GpuTable::Impl final : device::RowCarrier {
  Impl(Worker& given_worker, const Table& given, const GpuRowsOptions& given_options, device::CudaCalls& given_cuda,
       device::TransferKernels& given_kernels);
  ~Impl();

  void start_pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found);
  bool finish_pull();
  void apply(std::span<const std::uint64_t> keys, std::span<const float> sums) override;

  PushedKeys pushed;  // by the push in progress

 private:
  struct Part {
    std::unique_ptr<device::Registration> buckets, rows;
    kernels::KeyPart known{};  // as the kernels have it
  };

  bool has_grown(std::size_t number) const;
  bool follow_growth();
  bool try_register(std::size_t number, std::string& why);
  void upload();
  // How it pulls, in `totals` and for the inspector. No bytes: not by kernels; `why_not` as for reasons_for_rows().
  void note_use(std::uint64_t registered_bytes, const std::string& why_not = {});
  void go_through_host(const std::string& why);
  void pull_through_host(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found);
  void decide(std::span<const std::size_t> which);
  // Releases the old memory first, so that both need not fit at the same time.
  template <class Memory>
  void reserve(Memory& memory, std::size_t count) {
    if (memory.count() >= count) return;
    const std::size_t most = std::max(count, memory.count() + memory.count() / 2);
    memory = {};
    memory = Memory(cuda, most);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    check(cuda.copy(to, from, bytes, stream->get()), "copy rows");
  }
  void wait_for_copies() { device::wait_until_done(watch, stream->get(), "copy rows"); }

  Table table_;
  TableState& state_;
  device::GpuInfo gpu_;
  device::Strategy strategy_;
  bool is_registered_ = false;
  std::vector<Part> parts_;
  kernels::KeyTable on_device_{};
  device::DeviceMemory<std::uint64_t> regions_;
  device::DeviceMemory<kernels::KeyPart> known_;
  device::DeviceMemory<kernels::KeyPlace> places_;
  std::unique_ptr<device::OwnEvent> pulled_;
  device::PinnedMemory<shm::AtomicShm<std::uint64_t>> undecided_;  // {1}: 1 if there are any in the pull in progress
  device::PinnedMemory<kernels::KeyPlace> places_here_;            // what the CPU decides of a pull, and the next three
  device::PinnedMemory<std::uint64_t> keys_here_;
  device::PinnedMemory<std::byte> decided_here_;
  device::DeviceMemory<std::byte> decided_;

  struct Pull {
    std::span<const std::uint64_t> keys;
    std::span<float> out;
    std::span<bool> found;
  };
  Pull pull_;
  bool is_pulling_ = false;

 public:
  std::unique_ptr<device::RowPush> push;
};

struct PS_SHM_HIDDEN GpuTableAccess {
  // Uses other tables than the real ones. They must outlive it.
  static std::unique_ptr<GpuTable> make(Worker& worker, const Table& table, const GpuRowsOptions& options,
                                        device::CudaCalls& cuda, device::TransferKernels& kernels) {
    return std::unique_ptr<GpuTable>(
        new GpuTable(std::make_unique<GpuTable::Impl>(worker, table, options, cuda, kernels)));
  }
};

}  // namespace ps_shm
