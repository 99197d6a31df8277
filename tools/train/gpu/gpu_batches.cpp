#include "train/gpu/gpu_batches.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "ps_shm/errors.hpp"

namespace ps_shm::train {
namespace {

// Number of steps whose examples are drawn ahead: shuffling 60000 examples takes some ten steps of a small model.
constexpr std::size_t kIndexSlots = 64;
constexpr std::size_t kMaxIndexRing = std::size_t{1} << 20;  // in numbers, for very large steps

std::size_t index_slots(std::size_t examples) {
  return std::clamp<std::size_t>(kMaxIndexRing / examples, 2, kIndexSlots);
}

}  // namespace

GpuBatches::GpuBatches(const Dataset& data, std::size_t examples, std::uint64_t seed, unsigned rank,
                       std::uint64_t skipped, double resident_share, device::GpuWatch& watch, ModelKernels& kernels)
    : watch_(watch),
      cuda_(watch.cuda()),
      kernels_(kernels),
      data_(data),
      examples_(checked_batch_size(data, examples)),
      stream_(cuda_),
      slots_{Slot(cuda_), Slot(cuda_)} {
  for (Slot& slot : slots_) {
    slot.images = {cuda_, examples_ * data.features};
    slot.labels = {cuda_, examples_};
  }
  if (try_to_reside(resident_share))
    fill_indices_ahead(seed, rank, skipped);
  else
    gather_ahead(seed, rank, skipped);
}

GpuBatches::~GpuBatches() { watch_.settle(stream_.get()); }

bool GpuBatches::try_to_reside(double share) {
  std::size_t free_bytes = 0, total_bytes = 0;
  device::check(cuda_, cuda_.memory_info(free_bytes, total_bytes), "report its free memory");
  const std::size_t bytes = data_.count * (data_.features * sizeof(float) + 1);
  if (double(bytes) > share * double(free_bytes) || data_.count > std::numeric_limits<std::uint32_t>::max())
    return false;
  try {
    set_ = {cuda_, data_.count * data_.features};
    set_labels_ = {cuda_, data_.count};
  } catch (const Error&) {  // another process allocated the memory first
    set_ = {};
    set_labels_ = {};
    return false;
  }
  return true;
}

void GpuBatches::fill_indices_ahead(std::uint64_t seed, unsigned rank, std::uint64_t skipped) {
  const std::size_t slots = index_slots(examples_);
  indices_ = {cuda_, slots * examples_};
  const device::Stream stream = stream_.get();
  device::check(cuda_, cuda_.copy(set_.on_device(), data_.images.data(), set_.bytes(), stream),
                "copy the training set");
  device::check(cuda_, cuda_.copy(set_labels_.on_device(), data_.labels.data(), set_labels_.bytes(), stream),
                "copy the training set");
  order_.emplace(data_.count, seed, rank).skip(skipped);
  filled_.emplace(slots, [this](std::size_t slot) {
    for (std::uint32_t& index : indices_.host().subspan(slot * examples_, examples_))
      index = static_cast<std::uint32_t>(order_->next());
  });
}

void GpuBatches::gather_ahead(std::uint64_t seed, unsigned rank, std::uint64_t skipped) {
  images_ = {cuda_, BatchStream::kSlots * examples_ * data_.features};
  labels_ = {cuda_, BatchStream::kSlots * examples_};
  std::vector<BatchStream::Buffers> buffers;
  for (std::size_t i = 0; i < BatchStream::kSlots; ++i)
    buffers.push_back({images_.on_host() + i * examples_ * data_.features, labels_.on_host() + i * examples_});
  batches_.emplace(data_, examples_, seed, rank, buffers, skipped);
}

void GpuBatches::prepare(std::size_t slot) {
  const device::Stream stream = stream_.get();
  // The host buffer is released by requesting the next batch; the GPU has long read it.
  if (prepared_) device::wait_until_done(watch_, slots_[*prepared_].ready.get(), "read a batch");
  prepared_ = slot;
  Slot& to = slots_[slot];
  if (filled_) {
    const std::uint32_t* indices = indices_.on_device() + filled_->next() * examples_;
    device::check(
        cuda_,
        kernels_.gather_rows(set_.on_device(), set_labels_.on_device(), indices, static_cast<int>(examples_),
                             static_cast<int>(data_.features), to.images.on_device(), to.labels.on_device(), stream),
        "gather a batch");
  } else {
    const Batch batch = batches_->next();
    device::check(cuda_, cuda_.copy(to.images.on_device(), batch.images.data(), to.images.bytes(), stream),
                  "copy a batch");
    device::check(cuda_, cuda_.copy(to.labels.on_device(), batch.labels.data(), to.labels.bytes(), stream),
                  "copy a batch");
  }
  device::check(cuda_, cuda_.record(to.ready.get(), stream), "record an event");
}

void GpuBatches::await(std::size_t slot, device::Stream stream) {
  device::check(cuda_, cuda_.wait(stream, slots_[slot].ready.get()), "wait for an event");
}

GpuBatch GpuBatches::in(std::size_t slot) const {
  return {slots_[slot].images.on_device(), slots_[slot].labels.on_device(), examples_};
}

}  // namespace ps_shm::train
