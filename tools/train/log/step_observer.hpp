// Observes the steps of a training loop: asked before each step whether it wants to see it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ps_shm::train {

struct NamedValues {
  std::string_view name;
  std::span<const float> values;
};

// A step whose gradients have been computed and not been pushed yet.
struct StepView {
  std::uint64_t step = 0;                    // global steps done before it
  std::uint64_t steps = 0, examples = 0;     // of this worker, before it
  double loss = 0.0;                         // of its batch; of a dense model on a GPU, of the batch before
  bool is_update = false;                    // local SGD: a difference is pushed, not a gradient
  std::vector<NamedValues> gradients = {};   // on a GPU: none; sparse models: only those of the last push
  std::vector<NamedValues> parameters = {};  // for standalone training
};

class StepObserver {
 public:
  virtual ~StepObserver() = default;

  virtual bool wants(std::uint64_t step) = 0;
  virtual void observe(const StepView& view) = 0;
};

}  // namespace ps_shm::train
