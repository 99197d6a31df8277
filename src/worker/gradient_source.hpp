// Where a push takes a variable's gradient from when it is not all there yet: it comes piece by piece, from a GPU.
#pragma once

#include <cstdint>
#include <span>

namespace ps {

class GradientSource {
 public:
  virtual ~GradientSource() = default;

  // The gradient of chunk (block) `index` of the variable, elements [begin, begin + count) of it: waits until it is there.
  // What it returns is good until the same thread asks again. Several threads may ask at once.
  // Throws Error where it will not come.
  virtual const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) = 0;

  // All of it: waits until it is there. For one thread.
  virtual std::span<const float> whole() = 0;

  // Whether the device adds it to the variable itself: then whole() waits until it has, and its pushes are only to be
  // counted.
  virtual bool is_added_by_device() const noexcept { return false; }
};

}  // namespace ps
