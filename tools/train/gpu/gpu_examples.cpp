// The examples of a sparse model on a GPU. The CPU sends which rows the next examples touch, with their values and labels;
// kernels pull the rows from shared memory and compute losses and gradients, which go back summed by row. Rows and
// gradients are never in this process's own memory.
//
//   stream   copy ids ... | pull rows | losses, gradients |      | sort, sum, send
//   CPU                   | (read the next examples) ...  | loss | apply portions
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device/gpu_rows.hpp"
#include "device/gpu_table.hpp"
#include "device/polling.hpp"
#include "device/resources.hpp"
#include "train/gpu/model_kernels.hpp"
#include "train/loop/gpu_examples.hpp"

namespace ps_shm::train {
namespace {

std::unique_ptr<GpuRows> open_rows(const GpuExamplesParts& parts, const Variable& rows) {
  const GpuRowsOptions options{.device = parts.place.gpu.device, .warn = parts.warn};
  return device::make_gpu_rows(parts.worker, rows, options, *parts.place.cuda, *parts.place.transfers);
}
std::unique_ptr<GpuTable> open_rows(const GpuExamplesParts& parts, const Table& rows) {
  const GpuRowsOptions options{.device = parts.place.gpu.device, .warn = parts.warn};
  return GpuTableAccess::make(parts.worker, rows, options, *parts.place.cuda, *parts.place.transfers);
}

template <class Rows>  // GpuRows, whose ids are 32-bit numbers, or GpuTable, whose ids are keys
class ExamplesOn final : public GpuExamples {
 public:
  template <class Owner>
  ExamplesOn(const GpuExamplesParts& parts, const Owner& owner)
      : parts_(parts),
        cuda_(*parts.place.cuda),
        watch_(cuda_, DevicePort(parts.worker)),
        form_(parts.model.form()),
        combine_(std::min(parts.batch, parts.combine)),
        rows_(open_rows(parts, owner)),
        stream_(static_cast<device::Stream>(rows_->stream())) {
    check(parts.place.kernels->load(), "load the model's kernels");
    collect(combine_);
  }

  double run(PhaseSeconds* phases) override {
    if (phases != nullptr) timer_.begin();
    parts_.guard.begin_step();
    double loss = 0.0;
    for (std::size_t done = 0; done < parts_.batch; done += combine_) {
      const std::size_t after = done + combine_;
      loss += next_examples(after < parts_.batch ? std::min(combine_, parts_.batch - after) : combine_, phases);
    }
    return loss / double(parts_.batch);
  }

  GpuReport report() const override {
    GpuReport made;
    made.device = parts_.place.gpu.properties.name;
    made.rows = rows_->transfers();
    return made;
  }

 private:
  using Id = std::conditional_t<std::is_same_v<Rows, GpuTable>, std::uint64_t, std::uint32_t>;

  void check(device::CudaError error, const char* what) { device::check(cuda_, error, what); }

  // Those that were collected; collects `following` while the GPU computes.
  double next_examples(std::size_t following, PhaseSeconds* phases) {
    upload();
    const std::size_t floats = ids_on_gpu_.size() * form_.width;
    reserve(values_, floats), reserve(gradients_, floats);
    reserve(losses_, static_cast<std::size_t>(batch_.examples));
    rows_->start_pull(ids_on_gpu_, {values_.on_device(), floats});
    if (phases != nullptr) {
      static_cast<void>(finish_pull());
      timer_.end(phases->pull);
    }
    compute();
    collect(following);
    if (finish_pull()) compute();
    device::wait_until_done(watch_, stream_, "compute gradients");
    double loss = 0.0;
    for (const float one : losses_.host().first(static_cast<std::size_t>(batch_.examples))) loss += double(one);
    if (phases != nullptr) timer_.end(phases->gradient);
    if (parts_.guard.takes(loss)) {
      rows_->start_push(ids_on_gpu_, {gradients_.on_device(), floats});
      static_cast<void>(rows_->finish_push());
    }
    if (phases != nullptr) timer_.end(phases->push);
    return loss;
  }

  void collect(std::size_t examples) {
    begins_.assign(1, 0);
    ids_.clear(), x_.clear(), scales_.clear(), targets_.clear();
    for (std::size_t i = 0; i < examples; ++i) {
      const SparseExample example = parts_.examples.next();
      const std::span<const Id> touched = touched_by(example);
      ids_.insert(ids_.end(), touched.begin(), touched.end());
      x_.insert(x_.end(), example.values.begin(), example.values.end());
      x_.resize(ids_.size(), 1.0F);  // of the bias row
      if (parts_.decay.is_on())
        for (const Id id : touched) scales_.push_back(parts_.decay.scale_of(id));
      targets_.push_back(parts_.model.target(example.label));
      begins_.push_back(ids_.size());
    }
  }

  std::span<const Id> touched_by(const SparseExample& example) {
    if constexpr (std::is_same_v<Rows, GpuTable>)
      return parts_.model.touched_keys(example);
    else
      return parts_.model.touched(example);
  }

  // In one copy; the arrays of larger elements come first, so each is aligned. Requires: the stream is idle.
  void upload() {
    const std::size_t bytes =
        bytes_of(begins_) + bytes_of(ids_) + bytes_of(x_) + bytes_of(scales_) + bytes_of(targets_);
    reserve(staging_, bytes), reserve(input_, bytes);
    std::size_t used = 0;
    const auto put = [&]<class T>(const std::vector<T>& values) {
      if (!values.empty()) std::memcpy(staging_.on_host() + used, values.data(), bytes_of(values));
      const auto* const there = reinterpret_cast<const T*>(input_.on_device() + used);
      used += bytes_of(values);
      return there;
    };
    batch_.begins = put(begins_);
    ids_on_gpu_ = {put(ids_), ids_.size()};
    batch_.values = put(x_);
    batch_.scales = scales_.empty() ? nullptr : put(scales_);
    batch_.targets = put(targets_);
    batch_.examples = targets_.size();
    batch_.l2_first = parts_.decay.l2().first;
    batch_.l2_factors = parts_.decay.l2().factors;
    check(cuda_.copy(input_.on_device(), staging_.on_host(), bytes, stream_), "copy a batch");
  }

  void compute() {
    check(parts_.place.kernels->sparse_gradient(form_, batch_, values_.on_device(), gradients_.on_device(),
                                                losses_.on_device(), stream_),
          "compute gradients");
  }

  bool finish_pull() {
    if constexpr (std::is_same_v<Rows, GpuTable>) {
      return rows_->finish_pull();
    } else {
      rows_->finish_pull();
      return false;
    }
  }

  template <class T>
  static std::size_t bytes_of(const std::vector<T>& values) {
    return values.size() * sizeof(T);
  }

  // With some to spare, as examples have different lengths.
  template <class Memory>
  void reserve(Memory& memory, std::size_t count) {
    if (memory.count() < count) memory = Memory(cuda_, count + count / 2);
  }

  const GpuExamplesParts parts_;
  device::CudaCalls& cuda_;
  device::GpuWatch watch_;
  const kernels::SparseForm form_;
  const std::size_t combine_;
  PhaseTimer timer_;
  // The next examples.
  std::vector<std::uint64_t> begins_;
  std::vector<Id> ids_;
  std::vector<float> x_, scales_, targets_;
  // Those on the GPU, or on their way.
  kernels::SparseBatch batch_{};
  std::span<const Id> ids_on_gpu_;
  device::PinnedMemory<std::byte> staging_;
  device::DeviceMemory<std::byte> input_;
  device::DeviceMemory<float> values_, gradients_;
  device::PinnedMemory<float> losses_;
  std::unique_ptr<Rows> rows_;  // waits for the GPU when it ends, before the memory goes
  device::Stream stream_;
};

}  // namespace

std::unique_ptr<GpuExamples> make_gpu_examples(const GpuExamplesParts& parts, const Variable& rows) {
  return std::make_unique<ExamplesOn<GpuRows>>(parts, rows);
}

std::unique_ptr<GpuExamples> make_gpu_examples(const GpuExamplesParts& parts, const Table& rows) {
  return std::make_unique<ExamplesOn<GpuTable>>(parts, rows);
}

}  // namespace ps_shm::train
