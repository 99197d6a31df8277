// The pushes of a GpuLink: gradients leave the GPU in chunks, in the order in which this worker applies them, into
// memory that is registered with CUDA, while the worker's threads apply those that have arrived.
//
//   destination       in sync mode with ordered reduction this worker's gradient segment, where the others read them:
//                     the copy is the push. Otherwise, and for bfloat16, a buffer of the worker's own.
//   staged            one kernel copies chunk after chunk and sets a flag after each. Its plain stores need no atomics,
//                     which a GPU on PCIe does not have for host memory.
//   native            if the GPU has such atomics, it adds to in-place variables of additive rules itself.
//   through host      without registration the copy engine copies everything, through the driver's own buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/gpu_link.hpp"
#include "worker/gradient_input.hpp"

namespace ps_shm {

class PS_SHM_HIDDEN GpuLink::Push {
 public:
  explicit Push(GpuLink::Impl& link);
  ~Push();

  // Lists the chunks and registers the destination; if that is refused, the strategy becomes "through host". Requires:
  // the link's strategy is known; no push is in progress.
  void plan();

  void start();
  void finish();

  // For a push that a graph makes. It can if all that it does is sending; then its arguments stay the same until the
  // next plan().
  bool is_only_sent() const noexcept;
  void enqueue_recorded();          // the sending; behind a cancelled gate it stores nothing that others read
  void start_recorded();            // once the graph has been launched, instead of start()
  void forget_arrivals() noexcept;  // of what was sent for nothing
  bool is_under_way() const noexcept { return is_under_way_; }

 private:
  class Source;
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* staging) const noexcept;
  };

  bool is_native(const VariableState& state) const noexcept;
  bool lands_in_segment() const noexcept;
  void prefer_gpu_node(void* place, std::size_t bytes) const noexcept;
  void make_staging();
  bool register_landing(std::string& why);
  void list_variable(std::size_t i);
  void begin();
  void send(std::size_t pieces, const std::uint32_t* gate);
  void start_native();

  // The range of a variable's entries in `added_`.
  struct Native {
    VariableState* state;
    std::size_t first;
    std::uint32_t count;
  };

  GpuLink::Impl& link_;
  device::OwnEvent all_sent_;
  std::vector<std::unique_ptr<Source>> sources_;  // one per variable
  std::vector<GradientInput> inputs_;             // the same, as passed to the worker
  std::unique_ptr<std::byte, Unmap> staging_;     // of all variables; null if the destination is the segment
  device::Registration staging_registration_, segment_registration_;

  // Variables that the GPU can add itself come last, so that pushes with and without them have the same front.
  std::vector<kernels::SentPiece> sent_;
  std::size_t sent_without_native_ = 0;
  std::vector<kernels::AddedPiece> added_;
  std::vector<Native> native_;
  device::DeviceMemory<kernels::SentPiece> sent_on_device_;
  device::DeviceMemory<kernels::AddedPiece> added_on_device_;
  device::PinnedMemory<shm::AtomicShm<std::uint32_t>> arrived_;  // one for each sent piece
  bool adds_natively_ = false;                                   // in the push in progress
  bool is_under_way_ = false;
};

}  // namespace ps_shm
