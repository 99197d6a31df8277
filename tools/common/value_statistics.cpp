#include "common/value_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "update/dtypes.hpp"

namespace ps_shm::inspect {
namespace {

// The smallest and the largest of some numbers.
template <class Number>
struct Bounds {
  Number min = std::numeric_limits<Number>::max(), max = std::numeric_limits<Number>::lowest();
  void add(Number value) { min = std::min(min, value), max = std::max(max, value); }
};

// Of elements of any dtype, without rounding.
class Extremes {
 public:
  template <class T>
  void add(T element) {
    if constexpr (!std::is_integral_v<T>)
      floats_.add(double(element));
    else if constexpr (std::is_signed_v<T>)
      integers_.add(element);
    else
      naturals_.add(element);
  }
  // Requires: something was added.
  std::pair<Element, Element> get() const {
    if (integers_.min <= integers_.max) return {integers_.min, integers_.max};
    if (naturals_.min <= naturals_.max) return {naturals_.min, naturals_.max};
    return {floats_.min, floats_.max};
  }

 private:
  Bounds<double> floats_;
  Bounds<std::int64_t> integers_;
  Bounds<std::uint64_t> naturals_;
};

}  // namespace

ValueStatistics statistics_of(DType dtype, std::span<const std::byte> bytes, std::uint64_t elements) {
  ValueStatistics found;
  Extremes extremes;
  long double sum = 0, squares = 0;  // of large float64, no double holds the squares
  std::uint64_t finite = 0;
  update::for_elements(dtype, bytes, [&](auto element) {
    const auto value = double(element);
    if (!std::isfinite(value)) {
      std::isnan(value) ? ++found.nans : ++found.infinites;
      return;
    }
    ++finite;
    extremes.add(element);
    sum += value, squares += static_cast<long double>(value) * value;
  });
  found.sampled = finite + found.nans + found.infinites;
  found.elements = std::max(elements, found.sampled);
  if (finite == 0) {
    found.min = found.max = found.mean = found.norm = std::numeric_limits<double>::quiet_NaN();
    return found;
  }
  std::tie(found.min, found.max) = extremes.get();
  found.mean = double(sum / finite);
  found.norm = double(std::sqrt(squares * found.elements / found.sampled));
  return found;
}

ValueStatistics statistics_of(const JobView& view, const VariableInfo& variable, std::uint64_t most) {
  return statistics_of(variable.dtype, view.sample(variable.name, most), variable.element_count);
}

persistence::Histogram histogram_of(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values;
  values.reserve(bytes.size() / bytes_of(dtype));
  update::for_elements(dtype, bytes, [&](auto element) { values.push_back(double(element)); });
  return persistence::histogram_of(values);
}

}  // namespace ps_shm::inspect
