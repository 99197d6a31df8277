// --init-from: initial values of a model from a file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "cli/options.hpp"
#include "persistence/tensor_reader.hpp"
#include "train/models/dense/model.hpp"

namespace ps_shm::tools {

class WarmStart {
 public:
  // Looks up each variable whose name matches. Requires: training.init_from is given.
  // Throws Error if the file cannot be read, if it lacks variables or has them with another shape or dtype (all named),
  // or if no name matches.
  WarmStart(const TrainingSettings& training, std::span<const train::ParameterSpec> variables);

  std::size_t count() const noexcept { return count_; }  // number of variables that it has values for

  // Reads the values of a variable that matches; leaves the others unchanged.
  void fill(const std::string& name, std::span<float> values) const;

 private:
  bool matches(const std::string& name) const;

  std::string match_;
  persistence::TensorFile file_;
  std::size_t count_ = 0;
};

}  // namespace ps_shm::tools
