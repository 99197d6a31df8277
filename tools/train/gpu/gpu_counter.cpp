#include <memory>
#include <string>

#include "device/gpu_link.hpp"
#include "device/resources.hpp"
#include "train/gpu/model_kernels.hpp"
#include "train/loop/count_model.hpp"

namespace ps_shm::train {
namespace {

// Ones in a GPU's memory, which are pushed from there.
class GpuOnes final : public GpuCounter {
 public:
  GpuOnes(Worker& worker, const Variable& variable, const CountOptions& options)
      : cuda_(*options.gpu->cuda), name_(options.gpu->gpu.properties.name) {
    device::check(cuda_, cuda_.set_device(options.gpu->gpu.device), "be used");
    const std::size_t count = variable.element_count();
    ones_ = {cuda_, count};
    pulled_ = {cuda_, count};
    float* const to = pulled_.on_device();
    const float* const from = ones_.on_device();
    GpuOptions link_options;
    link_options.device = options.gpu->gpu.device;
    link_options.wire = options.gpu->wire;
    link_options.warn = options.warn;
    link_ = device::make_gpu_link(worker, {&variable, 1}, {&to, 1}, {&from, 1}, link_options, cuda_,
                                  *options.gpu->transfers);
    device::check(
        cuda_, options.gpu->kernels->fill(ones_.on_device(), 1.0F, count, static_cast<device::Stream>(link_->stream())),
        "fill memory");
  }

  void push() override {
    link_->start_push();
    link_->finish_push();
  }

  GpuReport report() const override {
    GpuReport made;
    made.device = name_;
    made.transfers = link_->transfers();
    return made;
  }

 private:
  device::CudaCalls& cuda_;
  std::string name_;
  device::DeviceMemory<float> ones_, pulled_;
  std::unique_ptr<GpuLink> link_;
};

}  // namespace

std::unique_ptr<GpuCounter> make_gpu_counter(Worker& worker, const Variable& variable, const CountOptions& options) {
  return std::make_unique<GpuOnes>(worker, variable, options);
}

}  // namespace ps_shm::train
