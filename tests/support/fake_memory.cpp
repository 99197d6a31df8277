// The fake's devices and memory: what exists, who may write it, and what is behind a device address.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "support/fake_cuda.hpp"

namespace ps::test {

using namespace device;

CudaError FakeCuda::driver_version(int& version) {
  version = 13000;
  return kSuccess;
}

CudaError FakeCuda::device_count(int& count) {
  if (const CudaError error = enter("device_count")) return error;
  if (box_.devices == 0) return kNoDevice;
  count = box_.devices;
  return kSuccess;
}

CudaError FakeCuda::properties(int device, DeviceProperties& properties) {
  if (device < 0 || device >= box_.devices) return kInvalidDevice;
  properties = {.name = "Fake GPU",
                .pci_address = fmt::format("0000:{:02x}:00.0", device + 1),
                .major = 9,
                .minor = 0,
                .multiprocessors = 4,
                .memory_bytes = box_.memory_bytes};
  return kSuccess;
}

CudaError FakeCuda::attribute(Attribute attribute, int device, int& value) {
  if (device < 0 || device >= box_.devices) return kInvalidDevice;
  switch (attribute) {
    case Attribute::kHostNativeAtomics:
    case Attribute::kPartialHostNativeAtomics:
      value = box_.native_atomics;
      return kSuccess;
    case Attribute::kReadOnlyRegistration:
      value = box_.read_only_registration;
      return kSuccess;
    case Attribute::kHostRegisterSupported:
      value = box_.host_register;
      return kSuccess;
    case Attribute::kHostNumaNode:
      return kInvalidValue;
    default:
      value = 0;
      return kSuccess;
  }
}

CudaError FakeCuda::host_atomics(int device, std::span<const AtomicOperation> operations, std::span<unsigned> bits) {
  if (device < 0 || device >= box_.devices || operations.size() != bits.size()) return kInvalidValue;
  std::fill(bits.begin(), bits.end(), box_.native_atomics ? kAtomicScalar32 | kAtomicVector32x4 : 0U);
  return kSuccess;
}

CudaError FakeCuda::can_access_peer(int device, int peer, int& can) {
  if (device == peer) return kInvalidDevice;
  can = 0;
  return kSuccess;
}

CudaError FakeCuda::memory_info(std::size_t& free_bytes, std::size_t& total_bytes) {
  const std::lock_guard lock(mutex_);
  total_bytes = free_bytes = box_.memory_bytes;
  for (const auto& [address, range] : ranges_)
    if (range.is_device) free_bytes -= range.bytes;
  return kSuccess;
}

std::uint64_t FakeCuda::add_range(std::size_t bytes, std::byte* host, Range range) {
  const std::lock_guard lock(mutex_);
  constexpr std::uint64_t kGap = std::uint64_t{1} << 21;
  const std::uint64_t address = next_address_;
  next_address_ += (bytes + kGap) / kGap * kGap + kGap;
  range.bytes = bytes;
  range.host = host;
  ranges_.emplace(address, std::move(range));
  return address;
}

CudaError FakeCuda::host_register(void* address, std::size_t bytes, unsigned flags) {
  if (const CudaError error = enter("host_register", fmt::format("{} {}", bytes, flags))) return error;
  auto* base = static_cast<std::byte*>(address);
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(base) % 4096 != 0 || bytes % 4096 != 0) return kInvalidValue;
  if ((flags & kRegisterReadOnly) != 0 && !box_.read_only_registration) return kNotSupported;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [device, range] : ranges_)
      if (!range.is_device && base < range.host + range.bytes && range.host < base + bytes)
        return pending_ = kAlreadyRegistered;
  }
  Range range;
  range.is_read_only = (flags & kRegisterReadOnly) != 0;
  add_range(bytes, base, std::move(range));
  return kSuccess;
}

CudaError FakeCuda::host_unregister(void* address) {
  if (const CudaError error = enter("host_unregister")) return error;
  const std::lock_guard lock(mutex_);
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->second.host == address && !range->second.is_device && !range->second.is_pinned) {
      ranges_.erase(range);
      return kSuccess;
    }
  return pending_ = kNotRegistered;
}

CudaError FakeCuda::device_address(void* host, void*& device) {
  if (const CudaError error = enter("device_address")) return error;
  const std::lock_guard lock(mutex_);
  for (const auto& [address, range] : ranges_)
    if (!range.is_device && host >= range.host && host < range.host + range.bytes) {
      device =
          reinterpret_cast<void*>(address + static_cast<std::uint64_t>(static_cast<std::byte*>(host) - range.host));
      return kSuccess;
    }
  return pending_ = kInvalidValue;
}

CudaError FakeCuda::allocate(std::size_t bytes, void*& device) {
  if (const CudaError error = enter("allocate", fmt::to_string(bytes))) return error;
  std::size_t free_bytes = 0, total_bytes = 0;
  static_cast<void>(memory_info(free_bytes, total_bytes));
  if (bytes > free_bytes) return kOutOfMemory;
  Range range;
  range.is_device = true;
  range.owned.reset(new std::byte[bytes]);
  std::memset(range.owned.get(), 0xff, bytes);  // floats that are not a number: what is not written shows
  std::byte* host = range.owned.get();
  device = reinterpret_cast<void*>(add_range(bytes, host, std::move(range)));
  return kSuccess;
}

CudaError FakeCuda::release(void* device) {
  static_cast<void>(enter("release"));
  wait_for_all("release");
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(reinterpret_cast<std::uint64_t>(device));
  if (range == ranges_.end() || !range->second.is_device) return kInvalidValue;
  ranges_.erase(range);
  return kSuccess;
}

CudaError FakeCuda::allocate_pinned(std::size_t bytes, void*& host) {
  if (const CudaError error = enter("allocate_pinned", fmt::to_string(bytes))) return error;
  constexpr std::size_t kPage = 4096;
  Range range;
  range.is_pinned = true;
  range.owned.reset(new std::byte[bytes + kPage]);
  const auto address = (reinterpret_cast<std::uintptr_t>(range.owned.get()) + kPage - 1) / kPage * kPage;
  host = reinterpret_cast<void*>(address);
  std::memset(host, 0xff, bytes);
  add_range(bytes, static_cast<std::byte*>(host), std::move(range));
  return kSuccess;
}

CudaError FakeCuda::release_pinned(void* host) {
  static_cast<void>(enter("release_pinned"));
  wait_for_all("release_pinned");
  const std::lock_guard lock(mutex_);
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->second.host == host && range->second.is_pinned) {
      ranges_.erase(range);
      return kSuccess;
    }
  return kInvalidValue;
}

std::byte* FakeCuda::at(const void* device, std::size_t bytes, bool writes) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto address = reinterpret_cast<std::uint64_t>(device);
  auto range = ranges_.upper_bound(address);
  if (range != ranges_.begin()) {
    --range;
    const std::uint64_t offset = address - range->first;
    if (offset + bytes <= range->second.bytes && !(writes && range->second.is_read_only))
      return range->second.host + offset;
  }
  faults_.push_back(fmt::format("{} of {} bytes at {:#x}", writes ? "write" : "read", bytes, address));
  throw kIllegalAddress;
}

bool FakeCuda::is_host_memory(const void* device) const {
  const std::lock_guard lock(mutex_);
  auto range = ranges_.upper_bound(reinterpret_cast<std::uint64_t>(device));
  return range != ranges_.begin() && !(--range)->second.is_device;
}

bool FakeCuda::is_pinned_or_registered(const void* host) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& one) {
    return !one.second.is_device && host >= one.second.host && host < one.second.host + one.second.bytes;
  });
}

std::byte* FakeCuda::resolve(const void* address, std::size_t bytes, bool writes) {
  if (reinterpret_cast<std::uint64_t>(address) < kUserSpace)
    return const_cast<std::byte*>(static_cast<const std::byte*>(address));
  return at(address, bytes, writes);
}

}  // namespace ps::test
