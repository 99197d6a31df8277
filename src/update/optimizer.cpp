#include "ps/optimizer.hpp"

namespace ps {
namespace {

struct Defaults {
  const char* name;
  float learning_rate, weight_decay;
};

Defaults defaults_of(UpdateRule rule) noexcept {
  switch (rule) {
    case UpdateRule::kAdd:
      return {"add", 0.1F, 0.0F};  // of the local steps whose sum is pushed
    case UpdateRule::kSgd:
      return {"sgd", 0.1F, 0.0F};
    case UpdateRule::kMomentum:
      return {"momentum", 0.01F, 0.0F};
    case UpdateRule::kNesterov:
      return {"nesterov", 0.01F, 0.0F};
    case UpdateRule::kAdagrad:
      return {"adagrad", 0.05F, 0.0F};
    case UpdateRule::kRmsProp:
      return {"rmsprop", 0.001F, 0.0F};
    case UpdateRule::kAdam:
      return {"adam", 0.001F, 0.0F};
    case UpdateRule::kAdamW:
      return {"adamw", 0.001F, 0.01F};
    case UpdateRule::kFtrl:
      return {"ftrl", 0.1F, 0.0F};
    case UpdateRule::kRowwiseAdagrad:
      return {"rowwise_adagrad", 0.05F, 0.0F};
  }
  return {"?", 0.0F, 0.0F};
}

}  // namespace

const char* to_string(UpdateRule rule) noexcept { return defaults_of(rule).name; }
float default_learning_rate(UpdateRule rule) noexcept { return defaults_of(rule).learning_rate; }
float default_weight_decay(UpdateRule rule) noexcept { return defaults_of(rule).weight_decay; }

}  // namespace ps
