// What a worker trains: named parameters that live elsewhere (in shared memory or a copy of it), and their gradient.
//
// A model holds no parameters, only its own workspace, so one object serves one thread at a time. Invariants:
//  1. Parameter i is entry i of parameters() and of every array of pointers handed in; each pointer is to count()
//  floats.
//  2. A gradient is of the bare loss. Regularisation belongs to the update rule, which reads `regularize`.
//  3. The same parameters and batch give the same bits, in every process on one machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ps_shm/types.hpp"
#include "ps_shm/variable_spec.hpp"
#include "train/data/dataset.hpp"

namespace ps_shm::train {

struct ParameterSpec {
  std::string name;
  std::vector<std::size_t> shape;
  bool regularize = false;  // whether an L2 term applies: to weights, not to biases

  std::size_t count() const;
};

// The variables of a model, as Checkpoint::require() takes them.
std::vector<VariableSpec> variables_of(std::span<const ParameterSpec> parameters, DType dtype = DType::kFloat32);

struct Metrics {
  double loss = 0.0;  // mean over the examples
  double accuracy = 0.0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::span<const ParameterSpec> parameters() const = 0;

  // Fills `out` with the initial values of parameter `index`, which depend on the seed and the parameter's name only:
  // biases are 0, weights truncated normal with deviation 1 / sqrt(rows). Requires: out.size() == count().
  virtual void initialize(std::size_t index, std::uint64_t seed, std::span<float> out) const;

  // Writes (does not add) the gradient of the batch's mean loss, which it returns. Requires: batch.count > 0.
  // Allocates only when the batch is larger than any before it.
  virtual float gradient(std::span<const float* const> parameters, const Batch& batch,
                         std::span<float* const> gradients) = 0;

  // Loss and accuracy over a data set. Requires: data.count > 0, and labels below the model's number of classes.
  virtual Metrics evaluate(std::span<const float* const> parameters, const Dataset& data) = 0;
};

// Makes the dense model of that name (train/models/models.hpp); sets BLAS to one thread. Throws ps_shm::Error for an
// unknown name or invalid sizes.
std::unique_ptr<Model> make_model(std::string_view name, std::size_t features, std::size_t classes);

}  // namespace ps_shm::train
