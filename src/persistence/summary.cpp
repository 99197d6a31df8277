#include "persistence/summary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "persistence/proto.hpp"

namespace ps_shm::persistence {

Histogram histogram_of(std::span<const float> values) {
  constexpr int kBuckets = 64;  // TensorBoard draws about half as many
  Histogram all;
  float least = std::numeric_limits<float>::max(), most = std::numeric_limits<float>::lowest();
  for (const float value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value), most = std::max(most, value);
    ++all.count, all.sum += double(value), all.squares += double(value) * double(value);
  }
  if (all.count == 0) return all;
  if (least == most) {  // a bucket without a width is not drawn
    all.least = double(least) - 0.5, all.most = double(least) + 0.5;
    all.limits = {all.most}, all.counts = {all.count};
    return all;
  }
  all.least = double(least), all.most = double(most);
  const double width = (all.most - all.least) / kBuckets;
  for (int i = 1; i < kBuckets; ++i) all.limits.push_back(all.least + i * width);
  all.limits.push_back(all.most);
  std::array<std::uint64_t, kBuckets> counts{};
  const double per_width = 1 / width;
  for (const float value : values)
    if (std::isfinite(value))
      ++counts[static_cast<std::size_t>(std::min((double(value) - all.least) * per_width, kBuckets - 1.0))];
  all.counts.assign(counts.begin(), counts.end());
  return all;
}

void Summary::add_scalar(std::string_view tag, double value) {
  std::string one;
  add_bytes(one, 1, tag);
  add_key(one, 2, kNarrow);
  one += raw_bytes(static_cast<float>(value));
  add_bytes(bytes_, 1, one);
}

void Summary::add_histogram(std::string_view tag, const Histogram& histogram) {
  if (histogram.count == 0) return;
  std::string proto, one;
  add_double(proto, 1, histogram.least);
  add_double(proto, 2, histogram.most);
  add_double(proto, 3, histogram.count);
  add_double(proto, 4, histogram.sum);
  add_double(proto, 5, histogram.squares);
  add_doubles(proto, 6, histogram.limits);
  add_doubles(proto, 7, histogram.counts);
  add_bytes(one, 1, tag);
  add_bytes(one, 5, proto);
  add_bytes(bytes_, 1, one);
}

// A tensor of one string, for the plugin "text".
void Summary::add_text(std::string_view tag, std::string_view markdown) {
  constexpr std::uint64_t kString = 7;
  std::string dimension, shape, tensor, plugin, metadata, one;
  add_whole(dimension, 1, 1);
  add_bytes(shape, 2, dimension);
  add_whole(tensor, 1, kString);
  add_bytes(tensor, 2, shape);
  add_bytes(tensor, 8, markdown);
  add_bytes(plugin, 1, "text");
  add_bytes(metadata, 1, plugin);
  add_bytes(one, 1, tag);
  add_bytes(one, 8, tensor);
  add_bytes(one, 9, metadata);
  add_bytes(bytes_, 1, one);
}

}  // namespace ps_shm::persistence
