#include "support/device_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <mutex>

namespace ps_shm::test {

namespace {

constexpr std::size_t kAddressSpace = std::size_t{1} << 42, kAlignment = 256;
const std::size_t kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));

std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

class Addresses {
 public:
  // Pages, followed by one that stays inaccessible.
  std::byte* take(std::size_t pages_bytes) {
    const std::lock_guard lock(mutex_);
    if (base_ == nullptr || pages_bytes + kPage > kAddressSpace - used_) return nullptr;
    std::byte* const taken = base_ + used_;
    used_ += pages_bytes + kPage;
    return taken;
  }
  bool has(const void* address) const { return address >= base_ && address < base_ + kAddressSpace; }
  void open(std::byte* pages, std::size_t bytes, int protection) const {
    if (key_ < 0 || pkey_mprotect(pages, bytes, protection, key_) != 0)
      static_cast<void>(mprotect(pages, bytes, protection));
  }
  static void close(std::byte* pages, std::size_t bytes) {
    mmap(pages, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  void unlock() const {
    if (key_ >= 0) pkey_set(key_, 0);
  }

 private:
  static std::byte* reserve() {
    void* const made = mmap(nullptr, kAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return made == MAP_FAILED ? nullptr : static_cast<std::byte*>(made);
  }

  std::mutex mutex_;
  std::byte* const base_ = reserve();
  std::size_t used_ = kPage;
  const int key_ = pkey_alloc(0, PKEY_DISABLE_ACCESS);  // other threads start without access as well
};

Addresses& addresses() {
  static Addresses all;
  return all;
}

}  // namespace

std::byte* make_device_memory(std::size_t bytes) {
  const std::size_t whole = rounded_up(bytes, kAlignment), pages = rounded_up(whole, kPage);
  std::byte* const begin = addresses().take(pages);
  if (begin == nullptr) return nullptr;
  if (mprotect(begin, pages, PROT_READ | PROT_WRITE) != 0) return nullptr;
  std::memset(begin, 0xff, pages);
  addresses().open(begin, pages, PROT_READ | PROT_WRITE);
  return begin + (pages - whole);
}

std::byte* map_for_device(std::byte* host, std::size_t bytes, bool read_only) {
  const std::size_t pages = rounded_up(bytes, kPage);
  std::byte* const begin = addresses().take(pages);
  if (begin == nullptr || mremap(host, 0, pages, MREMAP_MAYMOVE | MREMAP_FIXED, begin) == MAP_FAILED) return host;
  addresses().open(begin, pages, read_only ? PROT_READ : PROT_READ | PROT_WRITE);
  return begin;
}

void drop_device_memory(std::byte* device, std::size_t bytes) {
  if (!is_device_address(device)) return;
  const auto past_page = reinterpret_cast<std::uintptr_t>(device) % kPage;
  Addresses::close(device - past_page, rounded_up(past_page + bytes, kPage));
}

bool is_device_address(const void* address) { return addresses().has(address); }

std::byte* make_shared_memory(std::size_t bytes) {
  void* const made = mmap(nullptr, rounded_up(bytes, kPage), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return made == MAP_FAILED ? nullptr : static_cast<std::byte*>(made);
}

void drop_shared_memory(std::byte* host, std::size_t bytes) { munmap(host, rounded_up(bytes, kPage)); }

void unlock_device_memory() { addresses().unlock(); }

}  // namespace ps_shm::test
