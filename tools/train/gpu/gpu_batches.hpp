// Brings the examples of a GPU's steps into its memory one step ahead, on a separate stream.
//
// If the training set fits, it is copied once and each step's examples are gathered by their numbers; otherwise
// they are gathered on the host, into page-locked memory, and sent. In both cases the order is that of a BatchStream.
// Used by one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "device/polling.hpp"
#include "device/resources.hpp"
#include "train/data/batch_stream.hpp"
#include "train/gpu/gpu_model.hpp"

namespace ps_shm::train {

class PS_SHM_HIDDEN GpuBatches {
 public:
  // Number of batches in the GPU's memory: one in use, one being transferred.
  static constexpr std::size_t kSlots = 2;

  // `examples`: per step; `skipped`: examples already consumed; `resident_share`: fraction of the memory that is free
  // now which the training set may use.
  // Throws Error as BatchStream does, and where the memory is too small. Requires: the data outlives this object.
  GpuBatches(const Dataset& data, std::size_t examples, std::uint64_t seed, unsigned rank, std::uint64_t skipped,
             double resident_share, device::GpuWatch& watch, ModelKernels& kernels);
  ~GpuBatches();
  GpuBatches(const GpuBatches&) = delete;
  GpuBatches& operator=(const GpuBatches&) = delete;

  // Enqueues the transfer of the next examples into the slot. Requires: work on its previous contents is complete.
  void prepare(std::size_t slot);

  // Work enqueued on `stream` from now on waits until the slot is ready.
  void await(std::size_t slot, device::Stream stream);

  // The location of its examples; always the same.
  GpuBatch in(std::size_t slot) const;

  bool is_resident() const { return set_.on_device() != nullptr; }

 private:
  struct Slot {
    explicit Slot(device::CudaCalls& cuda) : ready(cuda) {}
    device::DeviceMemory<float> images;
    device::DeviceMemory<std::uint8_t> labels;
    device::OwnEvent ready;
  };

  bool try_to_reside(double share);
  void fill_indices_ahead(std::uint64_t seed, unsigned rank, std::uint64_t skipped);
  void gather_ahead(std::uint64_t seed, unsigned rank, std::uint64_t skipped);

  device::GpuWatch& watch_;
  device::CudaCalls& cuda_;
  ModelKernels& kernels_;
  const Dataset& data_;
  const std::size_t examples_;
  device::OwnStream stream_;
  std::array<Slot, kSlots> slots_;
  std::optional<std::size_t> prepared_;  // last

  // Resident: the set, and the numbers of the examples to come.
  device::DeviceMemory<float> set_;
  device::DeviceMemory<std::uint8_t> set_labels_;
  device::PinnedMemory<std::uint32_t> indices_;
  std::optional<ExampleOrder> order_;  // used by the filling thread only
  std::optional<PrefetchRing> filled_;

  // Otherwise: batches in page-locked memory.
  device::PinnedMemory<float> images_;
  device::PinnedMemory<std::uint8_t> labels_;
  std::optional<BatchStream> batches_;
};

}  // namespace ps_shm::train
