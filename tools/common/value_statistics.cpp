#include "common/value_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "update/dtypes.hpp"

namespace ps_shm::inspect {

ValueStatistics statistics_of(DType dtype, std::span<const std::byte> bytes, std::uint64_t elements) {
  ValueStatistics found;
  double min = std::numeric_limits<double>::infinity(), max = -min, sum = 0, squares = 0;
  std::uint64_t finite = 0;
  update::for_elements(dtype, bytes, [&](auto element) {
    const auto value = double(element);
    if (!std::isfinite(value)) {
      std::isnan(value) ? ++found.nans : ++found.infinites;
      return;
    }
    ++finite;
    min = std::min(min, value), max = std::max(max, value);
    sum += value, squares += value * value;
  });
  found.looked_at = finite + found.nans + found.infinites;
  found.elements = std::max(elements, found.looked_at);
  if (finite == 0) {
    found.min = found.max = found.mean = found.norm = std::numeric_limits<double>::quiet_NaN();
    return found;
  }
  found.min = min, found.max = max, found.mean = sum / double(finite);
  found.norm = std::sqrt(squares * (double(found.elements) / double(found.looked_at)));
  return found;
}

ValueStatistics statistics_of(const JobView& view, const VariableInfo& variable, std::uint64_t most) {
  return statistics_of(variable.dtype, view.sample(variable.name, most), variable.element_count);
}

persistence::Histogram histogram_of(DType dtype, std::span<const std::byte> bytes) {
  std::vector<float> values;
  values.reserve(bytes.size() / bytes_of(dtype));
  update::for_elements(dtype, bytes, [&](auto element) { values.push_back(static_cast<float>(element)); });
  return persistence::histogram_of(values);
}

}  // namespace ps_shm::inspect
