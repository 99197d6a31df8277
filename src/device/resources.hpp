// RAII wrappers of CUDA's resources, which release nothing of a device that was given up, and its errors as exceptions.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "device/cuda_calls.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::device {

// Throws Error that names the attempted action, unless `error` is success. Clears CUDA's own pending error.
inline void check(CudaCalls& cuda, CudaError error, const char* what) {
  if (error == kSuccess) return;
  static_cast<void>(cuda.last_error());
  throw Error(fmt::format("the GPU cannot {}: {}", what, cuda.error_text(error)), ErrorCode::kDevice);
}

// Memory of the current device, or page-locked host memory that the device can access, too.
enum class MemoryKind { kDevice, kPinned };

template <class T, MemoryKind kKind>
class Memory {
 public:
  Memory() = default;
  Memory(CudaCalls& cuda, std::size_t count) : cuda_(&cuda), count_(count) {
    if (count == 0) return;
    void* place = nullptr;
    if constexpr (kKind == MemoryKind::kDevice) {
      check(cuda, cuda.allocate(count * sizeof(T), place), "allocate memory");
      data_ = static_cast<T*>(place);
      device_ = data_;
    } else {
      check(cuda, cuda.allocate_pinned(count * sizeof(T), place), "allocate page-locked memory");
      data_ = static_cast<T*>(place);
      void* there = nullptr;
      if (const CudaError error = cuda.device_address(place, there)) {
        static_cast<void>(cuda.release_pinned(std::exchange(data_, nullptr)));
        check(cuda, error, "reach page-locked memory");
      }
      device_ = static_cast<T*>(there);
    }
  }
  Memory(Memory&& other) noexcept
      : cuda_(other.cuda_),
        data_(std::exchange(other.data_, nullptr)),
        device_(std::exchange(other.device_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(cuda_, other.cuda_);
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Memory() {
    if (data_ == nullptr || cuda_->is_given_up()) return;
    static_cast<void>(kKind == MemoryKind::kDevice ? cuda_->release(data_) : cuda_->release_pinned(data_));
  }

  T* on_device() const noexcept { return device_; }
  std::size_t count() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return count_ * sizeof(T); }
  T* on_host() const noexcept requires(kKind == MemoryKind::kPinned) { return data_; }
  std::span<T> host() const noexcept requires(kKind == MemoryKind::kPinned) { return {data_, count_}; }

 private:
  CudaCalls* cuda_ = nullptr;
  T *data_ = nullptr, *device_ = nullptr;
  std::size_t count_ = 0;
};

template <class T>
using DeviceMemory = Memory<T, MemoryKind::kDevice>;
template <class T>
using PinnedMemory = Memory<T, MemoryKind::kPinned>;

class OwnStream {
 public:
  explicit OwnStream(CudaCalls& cuda) : cuda_(cuda) { check(cuda, cuda.create_stream(stream_), "create a stream"); }
  ~OwnStream() {
    if (!cuda_.is_given_up()) static_cast<void>(cuda_.destroy_stream(stream_));
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  Stream get() const noexcept { return stream_; }

 private:
  CudaCalls& cuda_;
  Stream stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(CudaCalls& cuda, bool keeps_time = false) : cuda_(cuda) {
    check(cuda, cuda.create_event(keeps_time, event_), "create an event");
  }
  ~OwnEvent() {
    if (!cuda_.is_given_up()) static_cast<void>(cuda_.destroy_event(event_));
  }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;

  Event get() const noexcept { return event_; }

 private:
  CudaCalls& cuda_;
  Event event_ = nullptr;
};

}  // namespace ps_shm::device
