// ModelKernels in a build without CUDA: every call fails.
#include "ps_shm/errors.hpp"
#include "train/gpu/model_kernels.hpp"

namespace ps_shm::train {
namespace {

using device::CudaError;
using device::Stream;

constexpr CudaError kNone = device::kInsufficientDriver;

class NoKernels final : public ModelKernels {
 public:
  CudaError load() override { return kNone; }
  void prepare_products(Stream) override {
    throw Error("cannot multiply on a GPU: this program was built without CUDA; build it on a machine with nvcc",
                ErrorCode::kDevice);
  }
  void release_products(Stream) override {}
  CudaError multiply(bool, bool, int, int, int, const float*, const float*, float, float*, Stream) override {
    return kNone;
  }
  CudaError bias_relu(float*, const float*, int, int, Stream) override { return kNone; }
  CudaError relu_gradient(float*, const float*, int, int, float*, Stream) override { return kNone; }
  CudaError softmax_cross_entropy(float*, const float*, const std::uint8_t*, int, int, float*, float*,
                                  Stream) override {
    return kNone;
  }
  CudaError gather_rows(const float*, const std::uint8_t*, const std::uint32_t*, int, int, float*, std::uint8_t*,
                        Stream) override {
    return kNone;
  }
  CudaError sgd_step(float*, const float*, std::size_t, float, float, float, float, Stream) override { return kNone; }
  CudaError difference(const float*, const float*, float, float*, std::size_t, Stream) override { return kNone; }
  CudaError fill(float*, float, std::size_t, Stream) override { return kNone; }
  CudaError sparse_gradient(const kernels::SparseForm&, const kernels::SparseBatch&, const float*, float*, float*,
                            Stream) override {
    return kNone;
  }
};

}  // namespace

ModelKernels& model_kernels() {
  static NoKernels kernels;
  return kernels;
}

}  // namespace ps_shm::train
