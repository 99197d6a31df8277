#include "persistence/summary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "persistence/proto.hpp"

namespace ps_shm::persistence {
namespace {

template <class Value>
Histogram make_histogram(std::span<const Value> values) {
  constexpr int kBuckets = 64;  // TensorBoard draws about half as many
  Histogram all;
  Value least = std::numeric_limits<Value>::max(), most = std::numeric_limits<Value>::lowest();
  for (const Value value : values) {
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
  const double width = all.most / kBuckets - all.least / kBuckets;  // the difference may be no double
  for (int i = 1; i < kBuckets; ++i) all.limits.push_back(all.least + i * width);
  all.limits.push_back(all.most);
  std::array<std::uint64_t, kBuckets> counts{};
  const double first = all.least / width;
  for (const Value value : values)
    if (std::isfinite(value))
      ++counts[static_cast<std::size_t>(std::clamp(double(value) / width - first, 0.0, kBuckets - 1.0))];
  all.counts.assign(counts.begin(), counts.end());
  return all;
}

}  // namespace

Histogram histogram_of(std::span<const float> values) { return make_histogram(values); }
Histogram histogram_of(std::span<const double> values) { return make_histogram(values); }

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
