// GpuKernels by the launchers of kernels/ and by cuBLAS.
#include "device/gpu_kernels.hpp"

#include "device/products.hpp"
#include "kernels/kernels.hpp"

namespace ps::device {
namespace {

cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

class RealKernels final : public GpuKernels {
 public:
  CudaError load() override { return kernels::load_all(); }
  CudaError pull_pieces(const kernels::PulledPiece* pieces, std::uint32_t count, std::uint64_t* results,
                        kernels::ChunkFormat format, Stream stream) override {
    return kernels::pull_pieces(pieces, count, results, format, raw(stream));
  }
  CudaError send_pieces(const kernels::SentPiece* pieces, std::uint32_t count, std::uint32_t* arrived, bool as_bfloat16,
                        Stream stream) override {
    return kernels::send_pieces(pieces, count, arrived, as_bfloat16, raw(stream));
  }
  CudaError add_pieces(const kernels::AddedPiece* pieces, std::uint32_t count, float scale, float clip_value, bool wide,
                       Stream stream) override {
    return kernels::add_pieces(pieces, count, scale, clip_value, wide, raw(stream));
  }
  CudaError pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out, std::uint64_t* outside,
                      Stream stream) override {
    return kernels::pull_rows(table, ids, out, outside, raw(stream));
  }
  CudaError sort_rows_room(std::uint64_t most, std::size_t& bytes) override {
    return kernels::sort_rows_room(most, bytes);
  }
  CudaError sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                      std::uint64_t* outside, Stream stream) override {
    return kernels::sort_rows(ids, rows, to, outside, raw(stream));
  }
  CudaError send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients, std::uint32_t elements,
                      std::uint32_t piece_rows, std::uint64_t* ids, float* sums, std::uint32_t* arrived,
                      Stream stream) override {
    return kernels::send_rows(rows, count, gradients, elements, piece_rows, ids, sums, arrived, raw(stream));
  }

  void prepare_products(Stream stream) override { device::prepare_products(stream); }
  void release_products(Stream stream) override { device::release_products(stream); }
  CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                     float beta, float* out, Stream stream) override {
    return device::multiply(a_transposed, b_transposed, m, n, k, a, b, beta, out, stream);
  }
  CudaError bias_relu(float* values, const float* bias, int rows, int columns, Stream stream) override {
    return kernels::bias_relu(values, bias, rows, columns, raw(stream));
  }
  CudaError add_bias(float* values, const float* bias, int rows, int columns, Stream stream) override {
    return kernels::add_bias(values, bias, rows, columns, raw(stream));
  }
  CudaError relu_gradient(float* gradient, const float* activations, std::size_t count, Stream stream) override {
    return kernels::relu_gradient(gradient, activations, count, raw(stream));
  }
  CudaError softmax_cross_entropy(float* logits, const std::uint8_t* labels, int rows, int columns, float* loss,
                                  Stream stream) override {
    return kernels::softmax_cross_entropy(logits, labels, rows, columns, loss, raw(stream));
  }
  CudaError sum_rows(const float* values, int rows, int columns, float* out, Stream stream) override {
    return kernels::sum_rows(values, rows, columns, out, raw(stream));
  }
  CudaError gather_rows(const float* set, const std::uint8_t* set_labels, const std::uint32_t* indices, int rows,
                        int columns, float* out, std::uint8_t* labels, Stream stream) override {
    return kernels::gather_rows(set, set_labels, indices, rows, columns, out, labels, raw(stream));
  }
  CudaError sgd_step(float* parameters, const float* gradient, std::size_t count, float rate, float l2,
                     float weight_decay, float clip_value, Stream stream) override {
    return kernels::sgd_step(parameters, gradient, count, rate, l2, weight_decay, clip_value, raw(stream));
  }
  CudaError difference(const float* a, const float* b, float factor, float* out, std::size_t count,
                       Stream stream) override {
    return kernels::difference(a, b, factor, out, count, raw(stream));
  }
  CudaError fill(float* values, float value, std::size_t count, Stream stream) override {
    return kernels::fill(values, value, count, raw(stream));
  }
};

}  // namespace

GpuKernels& gpu_kernels() {
  static RealKernels kernels;
  return kernels;
}

}  // namespace ps::device
