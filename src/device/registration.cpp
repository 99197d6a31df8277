#include "device/registration.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace ps_shm::device {
namespace {

// The driver pins whole pages of the machine's size, which may differ from the layout's: Grace often has 64 KiB.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// One line about a refused call. Clears CUDA's pending error, which a later, unrelated call would report otherwise.
std::string refusal(CudaCalls& cuda, const char* call, std::size_t bytes, std::size_t offset, CudaError error) {
  std::string text = fmt::format("{} of {} bytes at offset {}: {}", call, bytes, offset, cuda.error_text(error));
  cuda.last_error();
  return text;
}

}  // namespace

std::string announcement_of(std::uint64_t bytes) {
  if (bytes <= std::uint64_t{8} << 30) return {};
  return fmt::format(
      "registering {} GiB of shared memory with CUDA: about 0.1 s a GiB, the workers of a machine one after "
      "the other",
      bytes >> 30);
}

Registration::~Registration() { unregister(); }

bool Registration::try_register(std::byte* base, std::size_t bytes, bool read_only, RegistrationTotals& totals,
                                std::string& why) {
  const std::size_t page = page_bytes(), had_bytes = bytes_;
  const auto give_up = [&] {
    unregister();
    totals.bytes -= std::min<std::uint64_t>(totals.bytes, had_bytes);
    return false;
  };
  if (reinterpret_cast<std::uintptr_t>(base) % page != 0 || (base_ != nullptr && base != base_) ||
      bytes > SIZE_MAX - page) {
    why = fmt::format("cannot register {} bytes at {}: not where a page or the memory registered before begins", bytes,
                      fmt::ptr(base));
    return give_up();
  }
  bytes = (bytes + page - 1) / page * page;
  if (bytes <= bytes_) return true;

  const Stopwatch stopwatch(totals.seconds);
  regions_.reserve((bytes + kRegionBytes - 1) >> kRegionBits);  // nothing below may throw with a region registered
  base_ = base;
  if (const std::size_t partial = bytes_ % kRegionBytes; partial != 0) {
    bytes_ -= partial;
    regions_.pop_back();
    if (const CudaError error = cuda_.host_unregister(base_ + bytes_); error != kSuccess) {
      why = refusal(cuda_, "cudaHostUnregister", partial, bytes_, error);
      return give_up();
    }
  }
  unsigned flags = kRegisterPortable | kRegisterMapped | (read_only ? kRegisterReadOnly : 0U);
  while (bytes_ < bytes) {
    const std::size_t length = std::min(kRegionBytes, bytes - bytes_);
    ++totals.calls;
    if (const CudaError error = cuda_.host_register(base_ + bytes_, length, flags); error != kSuccess) {
      if ((flags & kRegisterReadOnly) != 0 && error != kOutOfMemory) {  // some drivers report the ability and lack it
        totals.read_only_refusal = refusal(cuda_, "cudaHostRegister for reading only", length, bytes_, error);
        flags &= ~kRegisterReadOnly;
        continue;
      }
      why = refusal(cuda_, "cudaHostRegister", length, bytes_, error);
      // A driver that pins with FOLL_LONGTERM moves pages out of that zone, and fails so where the others are full.
      if (error == kInvalidValue)
        why +=
            "; the memory may lie in a zone Movable, as what is plugged into a virtual machine does (inspect_shm "
            "doctor shows the zones)";
      return give_up();
    }
    void* device = nullptr;
    const std::size_t offset = bytes_;
    const CudaError error = cuda_.device_address(base_ + offset, device);
    bytes_ += length;  // from here on unregister() undoes it
    regions_.push_back(reinterpret_cast<std::uint64_t>(device));
    if (error != kSuccess) {
      why = refusal(cuda_, "cudaHostGetDevicePointer", length, offset, error);
      return give_up();
    }
  }
  totals.bytes += bytes_ - had_bytes;
  return true;
}

void Registration::unregister() noexcept {
  for (std::size_t region = regions_.size(); region-- > 0 && !cuda_.is_given_up();)
    if (cuda_.host_unregister(base_ + (region << kRegionBits)) != kSuccess) cuda_.last_error();
  regions_.clear();
  bytes_ = 0;
  base_ = nullptr;
}

void* Registration::at(std::size_t offset) const noexcept {
  if (offset >= bytes_) return nullptr;
  return reinterpret_cast<void*>(regions_[offset >> kRegionBits] + (offset & (kRegionBytes - 1)));
}

std::size_t Registration::contiguous_at(std::size_t offset) const noexcept {
  if (offset >= bytes_) return 0;
  std::size_t region = offset >> kRegionBits;
  while (region + 1 < regions_.size() && regions_[region + 1] == regions_[region] + kRegionBytes) ++region;
  return std::min(bytes_, (region + 1) << kRegionBits) - offset;
}

}  // namespace ps_shm::device
