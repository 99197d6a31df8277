// Which parts of a generation's tensors have been written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ps_shm/bundle_spec.hpp"

namespace ps_shm {

class WrittenParts {
 public:
  // Requires: the tensors outlive this object.
  explicit WrittenParts(const std::vector<TensorSpec>& tensors) : tensors_(tensors), is_whole_(tensors.size()) {}

  // Begins another generation, of which nothing is written.
  void clear();
  // Adds bytes [begin, begin + bytes) of a tensor, which may have been written before. Requires: they are within it.
  void add(std::uint32_t tensor, std::size_t begin, std::size_t bytes);
  void add_all(std::uint32_t tensor);

  bool has_any_of(std::uint32_t tensor) const { return is_whole_[tensor] || parts_.contains(tensor); }
  // Throws Error if only a part of some tensor is written. `what` begins the message.
  void require_whole(const std::string& what) const;

 private:
  // From the first byte of each to its end. They do not touch.
  using Parts = std::map<std::size_t, std::size_t>;

  const std::vector<TensorSpec>& tensors_;
  std::vector<bool> is_whole_;
  std::map<std::uint32_t, Parts> parts_;  // of each tensor of which some is written, but not all
};

}  // namespace ps_shm
