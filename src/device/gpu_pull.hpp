// A GpuLink's pulls. Protocol: versioned_slot.hpp, with the GPU as the reader of slot.R1 to slot.R3.
//
//   kernel        one kernel reads words, copies chunks and looks at their stamps again, three times where a chunk moves.
//                 In-place variables always go this way: its loads of up to 16 bytes are single accesses by definition,
//                 so elements are whole; of the copy engine nobody says so.
//   copy engine   the processor reads the words of a window of chunks, the engine copies them, and when the stream has
//                 finished that window, so that the engine has read its last byte, the processor looks at the stamps.
//                 Windows are short: a pusher that goes round its spares reuses a buffer.
//   through host  the processor pulls, the engine copies what it has pulled.
// A chunk that keeps moving is pulled by the processor in the end, which is lock-free.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "device/gpu_link.hpp"

namespace ps {

class PS_HIDDEN GpuLink::Pull {
 public:
  explicit Pull(GpuLink::Impl& link) : link_(link), copy_stream_(link.cuda) {}

  ~Pull();

  // Lists the pieces by the link's strategy and registrations. Requires: no pull is under way.
  void plan();

  // Whether a pull is one kernel and nothing else, so that a stream can wait with it.
  bool is_all_on_stream() const noexcept { return chunks_.empty() && through_host_.empty(); }

  void start();
  bool finish();

  // Whether the processor had to pull a chunk: because it kept moving, or lies in memory that came later.
  bool has_bounced() const noexcept { return has_bounced_; }
  void forget_bounces() noexcept { has_bounced_ = false; }

 private:
  // A chunk or block, and where it goes.
  struct Piece {
    VariableState* state = nullptr;
    VariablePart* part = nullptr;
    std::uint64_t piece = 0, index = 0;
    float* out = nullptr;
    bool is_rest = false;  // of a block that goes on in another region: the first one's count stands for it
  };
  // What the copy engine has on its way.
  struct Window {
    std::vector<Piece> pieces;
    std::vector<std::uint64_t> words;
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<std::size_t> bytes;
    std::unique_ptr<device::OwnEvent> copied;
  };
  static constexpr std::size_t kWindowBytes = std::size_t{2} << 20;  // a few are under way at a time
  static constexpr std::size_t kWindows = 2;

  void list_versioned(VariableState& state, VariablePart& part, float* out);
  void list_inplace(VariableState& state, VariablePart& part, float* out);
  void upload_list();
  void copy_chunks();
  std::vector<Piece> copy_once(const std::vector<Piece>& pieces);
  void send_window(Window& window);
  void check_window(Window& window, std::vector<Piece>& moved);
  void pull_through_host();
  void bounce(const Piece& piece);
  std::uint64_t version_of(const Piece& piece, std::uint64_t result) const noexcept;

  GpuLink::Impl& link_;
  device::OwnStream copy_stream_;
  std::unique_ptr<device::OwnEvent> before_;  // what was enqueued before the copies

  std::vector<Piece> listed_;  // by the kernel, in the order of:
  std::vector<kernels::PulledPiece> list_;
  device::DeviceMemory<kernels::PulledPiece> list_on_device_;
  device::DeviceMemory<std::uint64_t> regions_on_device_;
  std::vector<std::uint64_t> regions_;
  device::PinnedMemory<shm::AtomicShm<std::uint64_t>> results_;

  std::vector<Piece> chunks_;  // by the copy engine
  std::vector<Window> windows_;

  std::vector<std::size_t> through_host_;  // variables
  std::vector<std::vector<float>> host_rooms_;
  device::PinnedMemory<float> bounce_room_;
  bool is_under_way_ = false, has_bounced_ = false;
};

}  // namespace ps
