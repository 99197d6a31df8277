// What is written of one step for TensorBoard: scalars, histograms and texts, as TensorFlow's message Summary.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ps::keep {

// How often values lie where: bucket i has counts[i] of them, above limits[i - 1] (the first one: from `least` on) and
// up to limits[i].
struct Histogram {
  double least = 0.0, most = 0.0, count = 0.0, sum = 0.0, squares = 0.0;
  std::vector<double> limits, counts;
};

// In buckets of equal widths. Values that are not finite are left out of all of it.
Histogram histogram_of(std::span<const float> values);

// What is written of one step.
class Summary {
 public:
  void add_scalar(std::string_view tag, double value);
  void add_histogram(std::string_view tag, const Histogram& histogram);  // one without a value is left out
  void add_text(std::string_view tag, std::string_view markdown);

  bool is_empty() const noexcept { return bytes_.empty(); }
  const std::string& bytes() const noexcept { return bytes_; }  // the message

 private:
  std::string bytes_;
};

}  // namespace ps::keep
