// The engine of a worker without a GPU.
#include <optional>
#include <utility>
#include <vector>

#include "train/data/batch_stream.hpp"
#include "train/loop/engine.hpp"
#include "train/loop/local_steps.hpp"

namespace ps_shm::train {
namespace {

std::vector<std::span<float>> gradient_buffers(const EngineParts& parts) {
  std::vector<std::span<float>> buffers;
  for (const Variable& variable : parts.variables) buffers.push_back(parts.worker.gradient(variable));
  return buffers;
}

class CpuEngine final : public Engine {
 public:
  CpuEngine(const EngineParts& parts, ParameterArrays& parameters)
      : parts_(parts),
        parameters_(parameters),
        buffers_(gradient_buffers(parts)),
        pushed_(buffers_.begin(), buffers_.end()),
        gradients_(buffers_),
        batches_(parts.data, parts.batch(), parts.seed(), parts.worker.rank(), {}, parts.worker.examples_before()) {
    if (parts.has_local_steps()) local_.emplace(parts.worker, parts.model, parts.options);
  }

  void pull() override {
    for (std::size_t i = 0; i < parts_.variables.size(); ++i) parts_.worker.pull(parts_.variables[i], parameters_[i]);
  }

  bool compute(const Pause& pause) override {
    if (local_) local_->begin(parameters_);
    for (std::uint64_t k = 0; k < parts_.push_every(); ++k) {
      loss_ = parts_.model.gradient(parameters_.values(), batches_.next(), gradients_.pointers());
      if (pause && !pause()) return false;
      if (local_) local_->step(parameters_, gradients_, parts_.worker.global_step());
    }
    if (local_) local_->end(parameters_, gradients_);
    return true;
  }

  std::vector<NamedValues> gradients() const override { return named(parts_.model.parameters(), pushed_); }

  void push() override { parts_.worker.push(parts_.variables, pushed_); }
  void skip() override {}
  void begin_next() override {}
  float loss() const override { return loss_; }
  double work_seconds() const override { return thread_seconds(); }
  void finish(TrainResult&) override {}

 private:
  EngineParts parts_;
  ParameterArrays& parameters_;
  std::vector<std::span<float>> buffers_;
  std::vector<std::span<const float>> pushed_;
  ParameterArrays gradients_;
  BatchStream batches_;
  std::optional<LocalSteps> local_;
  float loss_ = 0.0F;
};

}  // namespace

std::unique_ptr<Engine> make_cpu_engine(const EngineParts& parts, ParameterArrays& parameters) {
  return std::make_unique<CpuEngine>(parts, parameters);
}

}  // namespace ps_shm::train
