// --init-from: a model's first values out of a file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "keep/tensor_reader.hpp"
#include "options.hpp"
#include "train/dense/model.hpp"
#include "train/train_log.hpp"

namespace ps::tools {

class WarmStart {
 public:
  // Looks for each variable whose name is to match. Requires: training.init_from is given.
  // Throws Error: the file cannot be read; all variables that it has not, or has with another shape or without floats;
  // no name matches.
  WarmStart(const TrainingSettings& training, std::span<const train::ParameterSpec> variables);

  std::size_t count() const noexcept { return count_; }  // of variables that it has values for

  // Reads the values of a variable that matches; else leaves them.
  void fill(const std::string& name, std::span<float> values) const;

 private:
  bool matches(const std::string& name) const;

  std::string match_;
  keep::TensorFile file_;
  std::size_t count_ = 0;
};

// Lets training begin with the file's values, and says so when it does; nothing where no file is given.
void begin_with_file(const WorkerSettings& settings, const std::string& who,
                     std::span<const train::ParameterSpec> variables, train::TrainHooks& hooks);

}  // namespace ps::tools
