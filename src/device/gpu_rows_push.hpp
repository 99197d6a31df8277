// A GpuRows' pushes: the rows are sorted on the GPU, one kernel sums up the gradients of each and stores the sums to
// page-locked memory, piece by piece, a flag behind each; the worker's threads apply what has arrived. No atomics on
// host memory, so it is the same on every bus.
#pragma once

#include "device/gpu_rows.hpp"

namespace ps {

class PS_HIDDEN GpuRows::Push {
 public:
  explicit Push(GpuRows::Impl& owner);

  void start(const kernels::RowIds& ids, std::span<const float> gradients);
  void finish();

 private:
  void reserve(std::uint64_t rows);
  std::uint64_t pieces() const noexcept { return (count_ + piece_rows_ - 1) / piece_rows_; }
  bool is_sent();
  void wait_until_sent();
  void apply_arriving();

  GpuRows::Impl& owner_;
  const std::uint32_t elements_, piece_rows_;
  device::OwnEvent sent_;

  kernels::RowSort sort_{};  // places in the following
  device::DeviceMemory<std::uint64_t> given_, sorted_;
  device::DeviceMemory<std::uint32_t> given_places_, places_, begins_, distinct_;
  device::DeviceMemory<std::byte> room_;
  // What arrives.
  device::PinnedMemory<std::uint64_t> ids_;
  device::PinnedMemory<float> sums_;
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> arrived_;  // of each piece: 1 + its rows; 0: not yet
  device::PinnedMemory<shm::AtomicShm<std::uint64_t>> outside_;  // {1}, as a pull's

  std::uint64_t count_ = 0;  // ids of the push under way
  bool is_under_way_ = false;
};

}  // namespace ps
