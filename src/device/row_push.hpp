// The pushes of a GpuRows or GpuTable. The rows are sorted on the GPU; one kernel sums the gradients of each row and stores the
// sums to page-locked memory, chunk by chunk, with a flag after each; the worker's threads apply what has arrived. It
// needs no atomics on host memory, so it works the same on every bus.
#pragma once

#include "device/row_carrier.hpp"

namespace ps_shm::device {

class PS_SHM_HIDDEN RowPush {
 public:
  explicit RowPush(RowCarrier& owner);

  void start(const kernels::RowIds& ids, std::span<const float> gradients);
  void finish();

 private:
  // What the sort of up to `most` rows uses on the device.
  struct SortMemory {
    SortMemory() = default;
    SortMemory(RowCarrier& owner, std::uint64_t most, std::uint32_t* distinct);

    DeviceMemory<std::uint64_t> given, sorted;
    DeviceMemory<std::uint32_t> given_places, places, begins;
    DeviceMemory<std::byte> temp_storage;
    kernels::RowSort form{};  // points into these
  };

  void load_sort();
  void reserve(std::uint64_t rows);
  std::uint64_t pieces() const noexcept { return (count_ + piece_rows_ - 1) / piece_rows_; }
  bool is_sent();
  void wait_until_sent();
  void apply_arriving();

  RowCarrier& owner_;
  const std::uint32_t elements_, piece_rows_;
  OwnEvent sent_;

  DeviceMemory<std::uint32_t> distinct_;  // {1}: the number of distinct rows
  SortMemory sort_;
  // The received data.
  PinnedMemory<std::uint64_t> ids_;
  PinnedMemory<float> sums_;
  PinnedMemory<shm::AtomicShm<std::uint32_t>> arrived_;  // for each chunk: 1 + its rows; 0: not arrived yet
  PinnedMemory<shm::AtomicShm<std::uint64_t>> outside_;  // {1}, as for a pull

  std::uint64_t count_ = 0;  // ids of the push in progress
  bool is_under_way_ = false;
};

}  // namespace ps_shm::device
