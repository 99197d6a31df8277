// --checkpoint-dir: what a run goes on from, and what is said of a new one.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "options.hpp"
#include "ps/checkpoint.hpp"
#include "train/dense/model.hpp"

namespace ps::tools {

// The newest whole checkpoint there; `notice` is told of others. None: the run begins anew. Throws Error: there are some
// and none is whole; --fresh and the folder is not empty.
std::optional<Checkpoint> find_beginning(const CheckpointSettings& settings,
                                         const std::function<void(const std::string&)>& notice);

// Those of a model, as Checkpoint::require() takes them.
std::vector<VariableSpec> variables_of(std::span<const train::ParameterSpec> parameters);

// Throws Error where the run has done all its steps by then.
void require_steps_left(const Checkpoint& checkpoint, const JobConfig& job);

std::string written_line(const std::string& folder, double seconds);
std::string unwritten_line(const std::exception& error);

// The mean of what training has said of its loss since the checkpoint before.
class MeanLoss {
 public:
  void add(double loss) noexcept { sum_ += loss, ++count_; }
  std::optional<double> take() noexcept;  // none: nobody has said any, or one was not finite

 private:
  double sum_ = 0.0;
  std::uint64_t count_ = 0;
};

}  // namespace ps::tools
