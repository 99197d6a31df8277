// ModelKernels implemented by the launchers of kernels/ and by cuBLAS.
#include "train/gpu/model_kernels.hpp"

#include "kernels/model_launchers.hpp"
#include "kernels/transfer_launchers.hpp"
#include "train/gpu/products.hpp"

namespace ps_shm::train {
namespace {

using device::CudaError;
using device::Stream;

cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

class RealKernels final : public ModelKernels {
 public:
  CudaError load() override { return kernels::load_all(); }
  void prepare_products(Stream stream) override { train::prepare_products(stream); }
  void release_products(Stream stream) override { train::release_products(stream); }
  CudaError multiply(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, const float* b,
                     float beta, float* out, Stream stream) override {
    return train::multiply(a_transposed, b_transposed, m, n, k, a, b, beta, out, stream);
  }
  CudaError bias_relu(float* values, const float* bias, int rows, int columns, Stream stream) override {
    return kernels::bias_relu(values, bias, rows, columns, raw(stream));
  }
  CudaError relu_gradient(float* gradient, const float* activations, int rows, int columns, float* bias_gradient,
                          Stream stream) override {
    return kernels::relu_gradient(gradient, activations, rows, columns, bias_gradient, raw(stream));
  }
  CudaError softmax_cross_entropy(float* logits, const float* bias, const std::uint8_t* labels, int rows, int columns,
                                  float* loss, float* bias_gradient, Stream stream) override {
    return kernels::softmax_cross_entropy(logits, bias, labels, rows, columns, loss, bias_gradient, raw(stream));
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
  CudaError sparse_gradient(const kernels::SparseForm& form, const kernels::SparseBatch& batch, const float* rows,
                            float* gradients, float* losses, Stream stream) override {
    return kernels::sparse_gradient(form, batch, rows, gradients, losses, raw(stream));
  }
};

}  // namespace

ModelKernels& model_kernels() {
  static RealKernels kernels;
  return kernels;
}

}  // namespace ps_shm::train
