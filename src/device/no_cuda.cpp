// Both tables in a build without CUDA: every call fails with kInsufficientDriver.
#include "device/cuda_calls.hpp"
#include "device/transfer_kernels.hpp"

namespace ps_shm::device {
namespace {

constexpr CudaError kNone = kInsufficientDriver;

class NoCalls final : public CudaCalls {
 public:
  bool is_built() const override { return false; }
  int built_for() const override { return 0; }
  std::string error_text(CudaError error) override {
    return error == kSuccess ? "cudaSuccess: no error"
                             : "error " + std::to_string(error) + ": this program was built without CUDA";
  }
  CudaError last_error() override { return kSuccess; }

  CudaError driver_version(int&) override { return kNone; }
  CudaError device_count(int&) override { return kNone; }
  CudaError properties(int, DeviceProperties&) override { return kNone; }
  CudaError attribute(Attribute, int, int&) override { return kNone; }
  CudaError host_atomics(int, std::span<const AtomicOperation>, std::span<unsigned>) override { return kNone; }
  CudaError can_access_peer(int, int, int&) override { return kNone; }
  CudaError set_device(int) override { return kNone; }
  CudaError yield_in_waits(int) override { return kNone; }
  CudaError memory_info(std::size_t&, std::size_t&) override { return kNone; }

  CudaError host_register(void*, std::size_t, unsigned) override { return kNone; }
  CudaError host_unregister(void*) override { return kNone; }
  CudaError device_address(void*, void*&) override { return kNone; }
  CudaError allocate(std::size_t, void*&) override { return kNone; }
  CudaError release(void*) override { return kNone; }
  CudaError allocate_pinned(std::size_t, void*&) override { return kNone; }
  CudaError release_pinned(void*) override { return kNone; }

  CudaError create_stream(Stream&) override { return kNone; }
  CudaError destroy_stream(Stream) override { return kNone; }
  CudaError synchronize(Stream) override { return kNone; }
  CudaError query(Stream) override { return kNone; }
  CudaError create_event(bool, Event&) override { return kNone; }
  CudaError destroy_event(Event) override { return kNone; }
  CudaError record(Event, Stream) override { return kNone; }
  CudaError record_in_graph(Event, Stream) override { return kNone; }
  CudaError query(Event) override { return kNone; }
  CudaError synchronize(Event) override { return kNone; }
  CudaError wait(Stream, Event) override { return kNone; }
  CudaError elapsed_ms(Event, Event, float&) override { return kNone; }

  CudaError copy(void*, const void*, std::size_t, Stream) override { return kNone; }
  CudaError copy_batch(std::span<void* const>, std::span<const void* const>, std::span<const std::size_t>,
                       Stream) override {
    return kNone;
  }
  bool can_wait_value() override { return false; }
  CudaError wait_value(Stream, void*, std::uint32_t) override { return kNone; }

  CudaError begin_capture(Stream) override { return kNone; }
  CudaError end_capture(Stream, Graph&, std::size_t&) override { return kNone; }
  CudaError launch(Graph, Stream) override { return kNone; }
  CudaError destroy_graph(Graph) override { return kNone; }
};

class NoKernels final : public TransferKernels {
 public:
  CudaError load() override { return kNone; }
  CudaError pull_pieces(const kernels::PulledPiece*, std::uint32_t, std::uint64_t*, kernels::ChunkFormat,
                        Stream) override {
    return kNone;
  }
  CudaError send_pieces(const kernels::SentPiece*, std::uint32_t, std::uint32_t*, bool, const std::uint32_t*,
                        std::uint32_t, Stream) override {
    return kNone;
  }
  CudaError add_pieces(const kernels::AddedPiece*, std::uint32_t, float, float, bool, Stream) override { return kNone; }
  CudaError pull_rows(const kernels::RowTable&, const kernels::RowIds&, float*, std::uint64_t*, Stream) override {
    return kNone;
  }
  CudaError pull_keys(const kernels::KeyTable&, const kernels::RowIds&, float*, bool*, kernels::KeyPlace*,
                      std::uint64_t*, Stream) override {
    return kNone;
  }
  CudaError put_rows(const kernels::DecidedRows&, float*, bool*, Stream) override { return kNone; }
  CudaError sort_rows_temp_bytes(std::uint64_t, std::size_t&) override { return kNone; }
  CudaError sort_rows(const kernels::RowIds&, std::uint64_t, const kernels::RowSort&, std::uint64_t*, Stream) override {
    return kNone;
  }
  CudaError send_rows(const kernels::RowSort&, std::uint64_t, const float*, std::uint32_t, std::uint32_t,
                      std::uint64_t*, float*, std::uint32_t*, Stream) override {
    return kNone;
  }
};

}  // namespace

CudaCalls& cuda_calls() {
  static NoCalls calls;
  return calls;
}

TransferKernels& transfer_kernels() {
  static NoKernels kernels;
  return kernels;
}

}  // namespace ps_shm::device
