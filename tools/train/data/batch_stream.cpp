#include "train/data/batch_stream.hpp"

#include <algorithm>

namespace ps_shm::train {
namespace {

std::vector<BatchStream::Buffers> buffers_of(std::span<const BatchStream::Buffers> given, auto& memory,
                                             std::size_t batch_size, std::size_t features) {
  if (!given.empty()) return {given.begin(), given.end()};
  std::vector<BatchStream::Buffers> buffers;
  memory.resize(BatchStream::kSlots);
  for (auto& slot : memory) {
    slot.images.resize(batch_size * features);
    slot.labels.resize(batch_size);
    buffers.push_back({slot.images.data(), slot.labels.data()});
  }
  return buffers;
}

ExampleOrder order_behind(std::size_t count, std::uint64_t seed, unsigned rank, std::uint64_t skipped) {
  ExampleOrder order(count, seed, rank);
  order.skip(skipped);
  return order;
}

}  // namespace

BatchStream::BatchStream(const Dataset& data, std::size_t batch_size, std::uint64_t seed, unsigned rank,
                         std::span<const Buffers> buffers, std::uint64_t skipped)
    : data_(data),
      batch_size_(checked_batch_size(data, batch_size)),
      order_(order_behind(data.count, seed, rank, skipped)),
      buffers_(buffers_of(buffers, memory_, batch_size, data.features)),
      slots_(kSlots, [this](std::size_t slot) { gather(buffers_[slot]); }) {}

Batch BatchStream::next() {
  const Buffers& to = buffers_[slots_.next()];
  return {batch_size_, {to.images, batch_size_ * data_.features}, {to.labels, batch_size_}};
}

void BatchStream::gather(const Buffers& to) {
  for (std::size_t i = 0; i < batch_size_; ++i) {
    const std::size_t example = order_.next();
    std::copy_n(data_.images.data() + example * data_.features, data_.features, to.images + i * data_.features);
    to.labels[i] = data_.labels[example];
  }
}

}  // namespace ps_shm::train
