// The values of one step for TensorBoard: scalars, histograms and texts, encoded as TensorFlow's message Summary.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::persistence {

// A histogram: bucket i has counts[i] values above limits[i - 1] (for the first one: from `least` on) and up to
// limits[i].
struct Histogram {
  double least = 0.0, most = 0.0, count = 0.0, sum = 0.0, squares = 0.0;
  std::vector<double> limits, counts;
};

// Uses buckets of equal width. Values that are not finite are ignored.
Histogram histogram_of(std::span<const float> values);
Histogram histogram_of(std::span<const double> values);

// The values of one step.
class Summary {
 public:
  void add_scalar(std::string_view tag, double value);
  void add_histogram(std::string_view tag, const Histogram& histogram);  // ignored if it has no values
  void add_text(std::string_view tag, std::string_view markdown);

  bool is_empty() const noexcept { return bytes_.empty(); }
  const std::string& bytes() const noexcept { return bytes_; }  // the message

 private:
  std::string bytes_;
};

}  // namespace ps_shm::persistence
