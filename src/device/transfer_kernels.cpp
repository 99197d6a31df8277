// Implements TransferKernels with the launchers of kernels/.
#include "device/transfer_kernels.hpp"

#include "kernels/transfer_launchers.hpp"

namespace ps_shm::device {
namespace {

cudaStream_t cuda_stream(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

class RealKernels final : public TransferKernels {
 public:
  CudaError load() override { return kernels::load_all(); }
  CudaError pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                        kernels::ChunkFormat format, Stream stream) override {
    return kernels::pull_pieces(pieces, count, results, format, cuda_stream(stream));
  }
  CudaError send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived, bool as_bfloat16,
                        const std::uint32_t* gate, std::uint32_t senders, Stream stream) override {
    return kernels::send_pieces(pieces, count, arrived, as_bfloat16, gate, senders, cuda_stream(stream));
  }
  CudaError add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value, bool wide,
                       Stream stream) override {
    return kernels::add_pieces(pieces, count, scale, clip_value, wide, cuda_stream(stream));
  }
  CudaError pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out, std::uint64_t* outside,
                      Stream stream) override {
    return kernels::pull_rows(table, ids, out, outside, cuda_stream(stream));
  }
  CudaError pull_keys(const kernels::KeyTable& table, const kernels::RowIds& keys, float* out, bool* found,
                      kernels::KeyPlace* places, std::uint64_t* undecided, Stream stream) override {
    return kernels::pull_keys(table, keys, out, found, places, undecided, cuda_stream(stream));
  }
  CudaError put_rows(const kernels::DecidedRows& rows, float* out, bool* found, Stream stream) override {
    return kernels::put_rows(rows, out, found, cuda_stream(stream));
  }
  CudaError sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes) override {
    return kernels::sort_rows_temp_bytes(most, bytes);
  }
  CudaError sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                      std::uint64_t* outside, Stream stream) override {
    return kernels::sort_rows(ids, rows, to, outside, cuda_stream(stream));
  }
  CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients, std::uint32_t elements,
                      std::uint32_t piece_rows, std::uint64_t* ids, float* sums, std::uint32_t* arrived,
                      Stream stream) override {
    return kernels::send_rows(rows, count, gradients, elements, piece_rows, ids, sums, arrived, cuda_stream(stream));
  }
};

}  // namespace

TransferKernels& transfer_kernels() {
  static RealKernels kernels;
  return kernels;
}

}  // namespace ps_shm::device
