// Statistics of a variable's values: what inspect_shm says of a variable in few numbers, whatever its type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "keep/half.hpp"
#include "keep/summary.hpp"
#include "ps/job_view.hpp"
#include "ps/types.hpp"

namespace ps::inspect {

// Computed in float64, and of finite values alone, but for the counts. Where there is no finite value the numbers are NaN.
struct ValueStatistics {
  std::uint64_t elements = 0;  // of the variable
  std::uint64_t looked_at = 0;
  double min = 0, max = 0, mean = 0;
  double norm = 0;                        // of all of the variable; estimated where it was sampled
  std::uint64_t nans = 0, infinites = 0;  // of those that were looked at

  bool is_sampled() const noexcept { return looked_at < elements; }
};

// `bytes`: all values of a variable of `elements` elements, or a sample of them. 0: there are no more than these.
ValueStatistics statistics_of(DType dtype, std::span<const std::byte> bytes, std::uint64_t elements = 0);

// The same of a job's variable, of which about `most` elements are looked at. Requires: initialised, most > 0.
ValueStatistics statistics_of(const JobView& view, const VariableInfo& variable, std::uint64_t most);

// Of finite values, in 64 buckets of equal widths.
keep::Histogram histogram_of(DType dtype, std::span<const std::byte> bytes);

namespace statistics_detail {

template <class T, class Body>
void for_elements_as(std::span<const std::byte> bytes, Body&& body) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    body(value);
  }
}

}  // namespace statistics_detail

// Calls body(value) for each element, a number that has all its digits.
template <class Body>
void for_elements(DType dtype, std::span<const std::byte> bytes, Body&& body) {
  using statistics_detail::for_elements_as;
  switch (dtype) {
    case DType::kFloat32:
      return for_elements_as<float>(bytes, body);
    case DType::kFloat64:
      return for_elements_as<double>(bytes, body);
    case DType::kInt64:
      return for_elements_as<std::int64_t>(bytes, body);
    case DType::kInt32:
      return for_elements_as<std::int32_t>(bytes, body);
    case DType::kInt16:
      return for_elements_as<std::int16_t>(bytes, body);
    case DType::kInt8:
      return for_elements_as<std::int8_t>(bytes, body);
    case DType::kUint64:
      return for_elements_as<std::uint64_t>(bytes, body);
    case DType::kUint32:
      return for_elements_as<std::uint32_t>(bytes, body);
    case DType::kUint16:
      return for_elements_as<std::uint16_t>(bytes, body);
    case DType::kUint8:
    case DType::kBool:
      return for_elements_as<std::uint8_t>(bytes, body);
    case DType::kFloat16:
      return for_elements_as<std::uint16_t>(bytes, [&](std::uint16_t bits) { body(keep::from_float16(bits)); });
    case DType::kBFloat16:
      return for_elements_as<std::uint16_t>(bytes, [&](std::uint16_t bits) { body(keep::from_bfloat16(bits)); });
  }
}

}  // namespace ps::inspect
