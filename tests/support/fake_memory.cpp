// The devices and memory of the fake: which memory exists, which may be written, and copies.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "support/device_memory.hpp"
#include "support/fake_cuda.hpp"

namespace ps_shm::test {

using namespace device;

namespace {

// Copies word by word, as a copy engine does, so that no word is torn that others write meanwhile: memcpy may copy
// bytes (rep movsb), and an interrupt would then expose half a word. Returns whether addresses and size are multiples
// of a word.
template <class Word>
bool copy_words(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes) % sizeof(Word) != 0)
    return false;
  for (std::size_t at = 0; at < bytes; at += sizeof(Word)) {
    const Word word = __atomic_load_n(reinterpret_cast<const Word*>(from + at), __ATOMIC_RELAXED);
    __atomic_store_n(reinterpret_cast<Word*>(to + at), word, __ATOMIC_RELAXED);
  }
  return true;
}

}  // namespace

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
  if (const CudaError error = enter("properties", fmt::to_string(device))) return error;
  if (device < 0 || device >= box_.devices) return kInvalidDevice;
  properties = {.name = box_.name,
                .pci_address = fmt::format("0000:{:02x}:00.0", device + 1),
                .major = 9,
                .minor = 0,
                .multiprocessors = 4,
                .memory_bytes = box_.memory_bytes,
                .uuid = {0x0123456789abcdef, 0xfedcba9876543210 + static_cast<std::uint64_t>(device)}};
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
    case Attribute::kUsesHostPageTables:
      value = box_.host_page_tables;
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
  for (const Range& range : ranges_)
    if (range.host == nullptr) free_bytes -= range.bytes;
  return kSuccess;
}

CudaError FakeCuda::host_register(void* address, std::size_t bytes, unsigned flags) {
  if (const CudaError error = enter("host_register", fmt::format("{} {}", bytes, flags))) return error;
  auto* base = static_cast<std::byte*>(address);
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));  // the driver pins whole ones
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(base) % page != 0 || bytes % page != 0) return kInvalidValue;
  const bool is_read_only = (flags & kRegisterReadOnly) != 0;
  if (is_read_only && !box_.read_only_registration) return kNotSupported;
  wait_for_all("host_register");
  const std::lock_guard lock(mutex_);
  for (const Range& range : ranges_)
    if (range.host != nullptr && base < range.host + range.bytes && range.host < base + bytes)
      return pending_ = kAlreadyRegistered;
  std::byte* const device = map_for_device(base, bytes, is_read_only);
  ranges_.push_back({.device = device, .host = base, .bytes = bytes, .is_read_only = is_read_only});
  return kSuccess;
}

CudaError FakeCuda::host_unregister(void* address) {
  if (const CudaError error = enter("host_unregister")) return error;
  wait_for_all("host_unregister");
  const std::lock_guard lock(mutex_);
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->host == address && range->host != nullptr && !range->is_pinned) {
      drop_device_memory(range->device, range->bytes);
      ranges_.erase(range);
      return kSuccess;
    }
  return pending_ = kNotRegistered;
}

CudaError FakeCuda::device_address(void* host, void*& device) {
  if (const CudaError error = enter("device_address")) return error;
  const std::lock_guard lock(mutex_);
  for (const Range& range : ranges_)
    if (range.host != nullptr && host >= range.host && host < range.host + range.bytes) {
      device = range.device + (static_cast<std::byte*>(host) - range.host);
      return kSuccess;
    }
  return pending_ = kInvalidValue;
}

CudaError FakeCuda::allocate(std::size_t bytes, void*& device) {
  if (const CudaError error = enter("allocate", fmt::to_string(bytes))) return error;
  wait_for_all("allocate");
  std::size_t free_bytes = 0, total_bytes = 0;
  static_cast<void>(memory_info(free_bytes, total_bytes));
  if (bytes > free_bytes) return kOutOfMemory;
  std::byte* const made = make_device_memory(bytes);
  if (made == nullptr) return kOutOfMemory;
  device = made;
  const std::lock_guard lock(mutex_);
  ranges_.push_back({.device = made, .bytes = bytes});
  return kSuccess;
}

CudaError FakeCuda::release(void* device) {
  static_cast<void>(enter("release"));
  wait_for_all("release");
  const std::lock_guard lock(mutex_);
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->device == device && range->host == nullptr) {
      drop_device_memory(range->device, range->bytes);
      ranges_.erase(range);
      return kSuccess;
    }
  return kInvalidValue;
}

CudaError FakeCuda::allocate_pinned(std::size_t bytes, void*& host) {
  if (const CudaError error = enter("allocate_pinned", fmt::to_string(bytes))) return error;
  wait_for_all("allocate_pinned");
  std::byte* const made = make_shared_memory(bytes);
  if (made == nullptr) return kOutOfMemory;
  std::memset(made, 0xff, bytes);
  host = made;
  const std::lock_guard lock(mutex_);
  ranges_.push_back({.device = map_for_device(made, bytes, false), .host = made, .bytes = bytes, .is_pinned = true});
  return kSuccess;
}

CudaError FakeCuda::release_pinned(void* host) {
  static_cast<void>(enter("release_pinned"));
  wait_for_all("release_pinned");
  const std::lock_guard lock(mutex_);
  for (auto range = ranges_.begin(); range != ranges_.end(); ++range)
    if (range->host == host && range->is_pinned) {
      drop_device_memory(range->device, range->bytes);
      drop_shared_memory(range->host, range->bytes);
      ranges_.erase(range);
      return kSuccess;
    }
  return kInvalidValue;
}

const FakeCuda::Range* FakeCuda::find(const void* device) const {
  const auto found = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return device >= range.device && device < range.device + range.bytes;
  });
  return found != ranges_.end() ? &*found : nullptr;
}

void FakeCuda::look_up(const void* address, std::size_t bytes, bool writes) {
  if (bytes == 0 || !is_device_address(address)) return;
  const std::lock_guard lock(mutex_);
  const Range* const range = find(address);
  if (range != nullptr && static_cast<const std::byte*>(address) + bytes <= range->device + range->bytes &&
      !(writes && range->is_read_only))
    return;
  faults_.push_back(fmt::format("{} of {} bytes at {}", writes ? "write" : "read", bytes, fmt::ptr(address)));
  throw kIllegalAddress;
}

bool FakeCuda::is_pinned_or_registered(const void* host) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.host != nullptr && host >= range.host && host < range.host + range.bytes;
  });
}

void FakeCuda::move(void* to, const void* from, std::size_t bytes) {
  if (before_copy) before_copy(copies_);
  ++copies_;
  look_up(from, bytes, false);
  look_up(to, bytes, true);
  {
    const std::lock_guard lock(mutex_);
    const Range* const range = find(to);
    if (range == nullptr || range->host != nullptr) to_host_ += bytes;
  }
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  if (!copy_words<std::uint64_t>(target, source, bytes) && !copy_words<std::uint32_t>(target, source, bytes))
    std::memcpy(target, source, bytes);
}

CudaError FakeCuda::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (const CudaError error = enter("copy", fmt::to_string(bytes))) return error;
  if (bytes == 0) return kSuccess;
  // Pageable memory is read before the call returns.
  if (!is_device_address(from) && !is_pinned_or_registered(from)) {
    auto staged = std::make_shared<std::vector<std::byte>>(bytes);
    std::memcpy(staged->data(), from, bytes);
    return enqueue(stream, [=, this] { move(to, staged->data(), bytes); });
  }
  return enqueue(stream, [=, this] { move(to, from, bytes); });
}

CudaError FakeCuda::copy_batch(std::span<void* const> to, std::span<const void* const> from,
                               std::span<const std::size_t> bytes, Stream stream) {
  if (const CudaError error = enter("copy_batch", fmt::to_string(to.size()))) return error;
  if (!box_.copy_batches) return kNotSupported;
  if (to.empty() || to.size() != from.size() || to.size() != bytes.size()) return kInvalidValue;
  std::vector<void*> targets(to.begin(), to.end());
  std::vector<const void*> sources(from.begin(), from.end());
  std::vector<std::size_t> sizes(bytes.begin(), bytes.end());
  return enqueue(stream, [=, this] {
    // the order is not guaranteed
    for (std::size_t i = targets.size(); i-- > 0;) move(targets[i], sources[i], sizes[i]);
  });
}

}  // namespace ps_shm::test
