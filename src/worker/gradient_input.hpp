// The input of a push for one variable: either a complete gradient, or one that arrives from a GPU chunk by chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/threads.hpp"

namespace ps_shm {

// A gradient that is still being transferred.
class ArrivingGradient {
 public:
  virtual ~ArrivingGradient() = default;

  // Waits for the gradient of chunk (block) `index` of the variable, its elements [begin, begin + count), and returns
  // it. The result is valid until the same thread calls again. Several threads may call at the same time. Throws Error
  // if the transfer has failed.
  virtual const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) = 0;

  // Waits for the complete gradient and returns it. For one thread.
  virtual std::span<const float> whole() = 0;

  // Whether the device itself adds the gradient to the variable. Then whole() waits until it has done so, and the push
  // only has to be counted.
  virtual bool is_added_by_device() const noexcept { return false; }
};

// Either of the two. Cheap to copy. What it was made from must outlive it.
class GradientInput {
 public:
  GradientInput(std::span<const float> whole) noexcept : whole_(whole) {}
  GradientInput(ArrivingGradient& arriving) noexcept : arriving_(&arriving) {}
  // A complete gradient, and memory for the variable's values after the push and for their versions: each versioned
  // chunk is copied while it is in the cache, before its swap. After a push that has thrown, pull
  // again. Requires: a version for each chunk.
  GradientInput(std::span<const float> whole, std::span<float> out, std::vector<std::uint64_t>& versions) noexcept
      : whole_(whole), out_(out.data()), versions_(&versions) {}

  bool is_arriving() const noexcept { return arriving_ != nullptr; }
  bool is_added_by_device() const noexcept { return arriving_ != nullptr && arriving_->is_added_by_device(); }

  // As the functions of ArrivingGradient. Of a complete gradient any range may be requested.
  const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) const {
    return arriving_ == nullptr ? whole_.data() + begin : arriving_->piece(index, begin, count, thread);
  }
  std::span<const float> whole() const { return arriving_ == nullptr ? whole_ : arriving_->whole(); }

  bool is_copied_back() const noexcept { return out_ != nullptr; }
  float* out() const noexcept { return out_; }
  std::vector<std::uint64_t>& versions() const noexcept { return *versions_; }

  // Divides its chunks among the threads, by `grain`. The chunks of an arriving gradient are started one by one in the
  // order of their arrival: a thread that waited for a later chunk would wait for most of the push.
  template <class Body>
  void split(Threads& threads, std::uint64_t pieces, std::uint64_t grain, Body&& body) const {
    if (arriving_ == nullptr)
      threads.split(pieces, grain, body);
    else
      threads.split_in_order(pieces, 1, body);
  }

 private:
  std::span<const float> whole_;
  ArrivingGradient* arriving_ = nullptr;
  float* out_ = nullptr;
  std::vector<std::uint64_t>* versions_ = nullptr;
};

}  // namespace ps_shm
