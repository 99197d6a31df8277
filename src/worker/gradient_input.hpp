// What a push takes of one variable: a gradient that is all there, or one that comes piece by piece, from a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "worker/threads.hpp"

namespace ps {

// A gradient under way.
class ArrivingGradient {
 public:
  virtual ~ArrivingGradient() = default;

  // The gradient of chunk (block) `index` of the variable, elements [begin, begin + count) of it: waits until it is there.
  // What it returns is good until the same thread asks again. Several threads may ask at once.
  // Throws Error where it will not come.
  virtual const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) = 0;

  // All of it: waits until it is there. For one thread.
  virtual std::span<const float> whole() = 0;

  // Whether the device adds it to the variable itself: then whole() waits until it has, and its pushes are only to be
  // counted.
  virtual bool is_added_by_device() const noexcept { return false; }
};

// Either of the two. Cheap to copy; what it was made of outlives it.
class GradientInput {
 public:
  GradientInput(std::span<const float> whole) noexcept : whole_(whole) {}
  GradientInput(ArrivingGradient& arriving) noexcept : arriving_(&arriving) {}

  bool is_arriving() const noexcept { return arriving_ != nullptr; }
  bool is_added_by_device() const noexcept { return arriving_ != nullptr && arriving_->is_added_by_device(); }

  // As ArrivingGradient has them. Pieces of a gradient that is all there may be any.
  const float* piece(std::uint64_t index, std::uint64_t begin, std::uint64_t count, std::uint32_t thread) const {
    return arriving_ == nullptr ? whole_.data() + begin : arriving_->piece(index, begin, count, thread);
  }
  std::span<const float> whole() const { return arriving_ == nullptr ? whole_ : arriving_->whole(); }

  // Shares out its pieces, by `grain`. Those of an arriving one are begun one by one in the order in which they come: a
  // thread that waited for a later piece would wait for most of the push.
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
};

}  // namespace ps
