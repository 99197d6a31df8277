// Slices: blocks of tensors that different processes write.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ps_shm/bundle_spec.hpp"

namespace ps_shm {

// Checks that the slices of `plan` have each element of each tensor exactly once, and that there are so many writers as
// the specification says. No writers: there is nothing to check. Throws Error.
void check_plan(const BundleSpec& spec, const WritePlan& plan);

// The same for equal plans, and with all likelihood for no others.
std::uint64_t hash_of(const WritePlan& plan);

std::uint64_t element_count(const Slice& slice) noexcept;

// Calls run(first, count) for each longest run of elements of the slice that are neighbours in the tensor, in row-major
// order: `first` is the first one's number in the tensor.
template <class Run>
void for_each_run(const TensorSpec& tensor, const Slice& slice, Run&& run) {
  const std::size_t axes = tensor.shape.size();
  std::size_t inner = axes;  // from this axis on, the slice has all of the tensor
  std::uint64_t stride = 1;  // elements of the tensor from one index of the axis before to the next
  while (inner != 0 && slice.extent[inner - 1] == tensor.shape[inner - 1]) stride *= tensor.shape[--inner];
  if (inner == 0) return run(std::uint64_t{0}, stride);
  const std::size_t run_axis = inner - 1;
  const std::uint64_t count = slice.extent[run_axis] * stride;
  std::vector<std::uint64_t> index(slice.begin.begin(), slice.begin.begin() + static_cast<std::ptrdiff_t>(inner));
  for (;;) {
    std::uint64_t first = 0;
    for (std::size_t axis = 0; axis < inner; ++axis) first = first * tensor.shape[axis] + index[axis];
    run(first * stride, count);
    std::size_t axis = run_axis;
    for (;;) {  // the next index of the axes before the run's
      if (axis == 0) return;
      --axis;
      if (++index[axis] < slice.begin[axis] + slice.extent[axis]) break;
      index[axis] = slice.begin[axis];
    }
  }
}

}  // namespace ps_shm
