// The pulls of a GpuLink. Protocol: versioned_slot.hpp, with the GPU as the reader of slot.R1 to slot.R3.
//
//   kernel        one kernel reads words, copies chunks and checks their stamps, three times if a chunk keeps changing.
//                 In-place variables always use it: its loads of up to 16 bytes are single accesses by definition, so
//                 elements are untorn; the copy engine has no such guarantee.
//   copy engine   the CPU reads the words of a window of chunks and the engine copies the chunks. When the stream has
//                 finished the window, the engine has read its last byte, and the CPU checks the stamps.
//                 Windows are short, because a pusher reuses a buffer once it has gone round its free buffers.
//                 Variables with smaller chunks are pulled by the kernel, beside it.
//   through host  the worker pulls each variable into page-locked memory, and the engine copies it from there while the
//                 worker pulls the next one.
// A chunk that keeps changing is finally pulled by the CPU, which is lock-free.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "device/gpu_link.hpp"

namespace ps_shm {

class PS_SHM_HIDDEN GpuLink::Pull {
 public:
  explicit Pull(GpuLink::Impl& link) : link_(link), copy_stream_(link.cuda) {}

  ~Pull();

  // Lists the chunks and blocks by the link's strategy and registrations. Requires: no pull is in progress.
  void plan();

  // Whether a pull consists of a single kernel, so that a stream can wait for it.
  bool is_all_on_stream() const noexcept { return chunks_.empty() && !is_through_host(); }

  // start() = begin(), what the CPU has to copy, and enqueue().
  void start();
  void begin();    // the CPU's part of a pull that consists of a kernel; throws if one is in progress
  void enqueue();  // the kernel; also into a graph
  bool finish();

  // Whether the CPU had to pull a chunk, because it kept changing or lies in memory that was added later.
  bool has_bounced() const noexcept { return has_bounced_; }
  void forget_bounces() noexcept { has_bounced_ = false; }

 private:
  // A chunk or block, and its destination.
  struct Piece {
    VariableState* state = nullptr;
    VariablePart* part = nullptr;
    std::uint64_t piece = 0, index = 0;
    float* out = nullptr;
    bool is_rest = false;  // continues a block in another region; only the first part's count is used
  };
  // The copies in progress on the copy engine.
  struct Window {
    std::vector<Piece> pieces;
    std::vector<std::uint64_t> words;
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<std::size_t> bytes;
    std::unique_ptr<device::OwnEvent> copied;
  };
  static constexpr std::size_t kWindowBytes = std::size_t{2} << 20;  // a few are in progress at a time
  static constexpr std::size_t kWindows = 4;

  void list_versioned(VariableState& state, VariablePart& part, float* out);
  void list_inplace(VariableState& state, VariablePart& part, float* out);
  void upload_list();
  void copy_chunks();
  std::vector<Piece> copy_once(const std::vector<Piece>& pieces);
  void send_window(Window& window);
  void check_window(Window& window, std::vector<Piece>& moved);
  bool is_through_host() const noexcept { return link_.strategy.pull == device::PullPath::kThroughHost; }
  void pull_through_host();
  void bounce(const Piece& piece);
  std::uint64_t version_of(const Piece& piece, std::uint64_t result) const noexcept;

  GpuLink::Impl& link_;
  device::OwnStream copy_stream_;
  std::unique_ptr<device::OwnEvent> before_;  // work that was enqueued before the copies

  std::vector<Piece> listed_;  // by the kernel, in the order of:
  std::vector<kernels::PulledPiece> list_;
  device::DeviceMemory<kernels::PulledPiece> list_on_device_;
  device::DeviceMemory<std::uint64_t> regions_on_device_;
  std::vector<std::uint64_t> regions_;
  device::PinnedMemory<shm::AtomicShm<std::uint64_t>> results_;

  std::vector<Piece> chunks_;  // by the copy engine
  std::vector<Window> windows_;

  device::PinnedMemory<float> host_values_;  // through the host: of all variables, one after the other
  std::unique_ptr<device::OwnEvent> sent_;   // when all of them are copied

  device::PinnedMemory<float> bounce_buffer_;
  bool is_under_way_ = false, is_starting_ = false, has_bounced_ = false;
};

}  // namespace ps_shm
