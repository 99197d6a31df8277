#include "publish/slices.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <string>
#include <vector>

#include "ps_shm/errors.hpp"

namespace ps_shm {
namespace {

struct OwnedSlice {
  std::size_t writer;
  const Slice* slice;
};

void check_slice(const BundleSpec& spec, std::size_t writer, const Slice& slice) {
  if (slice.tensor >= spec.tensors.size())
    throw Error(fmt::format("publication '{}': writer {} has a slice of tensor {}, and there are {} tensors", spec.name,
                            writer, slice.tensor, spec.tensors.size()));
  const TensorSpec& tensor = spec.tensors[slice.tensor];
  bool fits = slice.begin.size() == tensor.shape.size() && slice.extent.size() == tensor.shape.size();
  for (std::size_t axis = 0; fits && axis < tensor.shape.size(); ++axis)
    fits = slice.extent[axis] != 0 && slice.extent[axis] <= tensor.shape[axis] &&
           slice.begin[axis] <= tensor.shape[axis] - slice.extent[axis];
  if (!fits)
    throw Error(
        fmt::format("publication '{}': the slice of writer {} from ({}) on, of ({}), is no part of tensor '{}', "
                    "which has the shape ({})",
                    spec.name, writer, fmt::join(slice.begin, ", "), fmt::join(slice.extent, ", "), tensor.name,
                    fmt::join(tensor.shape, ", ")));
}

bool overlap(const Slice& one, const Slice& other) {
  for (std::size_t axis = 0; axis < one.begin.size(); ++axis)
    if (one.begin[axis] + one.extent[axis] <= other.begin[axis] ||
        other.begin[axis] + other.extent[axis] <= one.begin[axis])
      return false;
  return true;
}

}  // namespace

std::uint64_t element_count(const Slice& slice) noexcept {
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : slice.extent) elements *= extent;
  return elements;
}

void check_plan(const BundleSpec& spec, const WritePlan& plan) {
  if (plan.size() != spec.writers)
    throw Error(fmt::format("publication '{}' has {} writers, and slices of {}", spec.name, spec.writers, plan.size()));
  if (plan.empty()) return;  // one publisher writes all
  std::vector<std::vector<OwnedSlice>> slices(spec.tensors.size());
  for (std::size_t writer = 0; writer < plan.size(); ++writer)
    for (const Slice& slice : plan[writer]) {
      check_slice(spec, writer, slice);
      slices[slice.tensor].push_back({writer, &slice});
    }
  for (std::size_t number = 0; number < spec.tensors.size(); ++number) {
    const TensorSpec& tensor = spec.tensors[number];
    const std::vector<OwnedSlice>& own = slices[number];
    std::uint64_t elements = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      elements += element_count(*own[i].slice);
      for (std::size_t other = 0; other < i; ++other)
        if (overlap(*own[i].slice, *own[other].slice))
          throw Error(fmt::format("publication '{}': slices of writers {} and {} overlap in tensor '{}'", spec.name,
                                  own[other].writer, own[i].writer, tensor.name));
    }
    if (elements != tensor.element_count())
      throw Error(fmt::format("publication '{}': the slices have {} of the {} elements of tensor '{}'", spec.name,
                              elements, tensor.element_count(), tensor.name));
  }
}

std::uint64_t hash_of(const WritePlan& plan) {
  std::vector<std::uint64_t> words;
  for (const std::vector<Slice>& slices : plan) {
    words.push_back(slices.size());
    for (const Slice& slice : slices) {
      words.push_back(slice.tensor);
      words.insert(words.end(), slice.begin.begin(), slice.begin.end());
      words.insert(words.end(), slice.extent.begin(), slice.extent.end());
    }
  }
  return XXH3_64bits(words.data(), words.size() * sizeof(std::uint64_t));
}

}  // namespace ps_shm
