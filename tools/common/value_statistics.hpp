// Statistics of a variable's values, of any type, as inspect_shm prints them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "persistence/summary.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/types.hpp"

namespace ps_shm::inspect {

// An element as its dtype has it: integers of 64 bits are not rounded.
using Element = std::variant<double, std::int64_t, std::uint64_t>;

// Computed from finite values only, except for the counts. If there is no finite value, the numbers are NaN.
struct ValueStatistics {
  std::uint64_t elements = 0;  // of the variable
  std::uint64_t sampled = 0;
  Element min = 0.0, max = 0.0;
  double mean = 0;
  double norm = 0;                        // of the whole variable; estimated if it was sampled
  std::uint64_t nans = 0, infinites = 0;  // among the elements that were read

  bool is_sampled() const noexcept { return sampled < elements; }
};

inline double as_double(const Element& element) {
  return std::visit([](auto value) { return double(value); }, element);
}

// `bytes`: all values of a variable with `elements` elements, or a sample of them. 0: these are all.
ValueStatistics statistics_of(DType dtype, std::span<const std::byte> bytes, std::uint64_t elements = 0);

// The same for a variable of a job, of which about `most` elements are read. Requires: initialised, most > 0.
ValueStatistics statistics_of(const JobView& view, const VariableInfo& variable, std::uint64_t most);

// Of the finite values, in 64 buckets of equal width.
persistence::Histogram histogram_of(DType dtype, std::span<const std::byte> bytes);

}  // namespace ps_shm::inspect
