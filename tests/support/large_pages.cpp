// A library that the dynamic linker loads first (LD_PRELOAD): a kernel with pages of 64 KiB, as Linux for Grace often
// has, on one with pages of 4 KiB. Like that kernel it refuses to map, protect, advise or place what does not begin at
// a page, does each to whole pages, and gives new mappings whole pages of their own.
//
// Not shown: memory is taken and given back by pages of 4 KiB, and a file's last page ends with the file.
#undef _FILE_OFFSET_BITS  // with it, the name mmap would stand for mmap64

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace {

constexpr std::size_t kPage = 64 << 10, kSmallPage = 4 << 10;

bool is_page(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % kPage == 0; }
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

int refuse() {
  errno = EINVAL;
  return -1;
}

void* map(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

// Whole pages of address space, without access; MAP_FAILED if there are none.
void* reserve(std::size_t bytes) {
  void* const reserved = map(nullptr, bytes + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return reserved;
  auto* const from = static_cast<std::byte*>(reserved);
  auto* const begin = from + (kPage - reinterpret_cast<std::uintptr_t>(from) % kPage) % kPage;
  if (begin != from) syscall(SYS_munmap, from, begin - from);
  syscall(SYS_munmap, begin + bytes, from + kPage - begin);
  return begin;
}

}  // namespace

extern "C" {

void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  const bool is_fixed = (flags & MAP_FIXED) != 0;
  if (bytes == 0 || static_cast<std::size_t>(offset) % kPage != 0 || (is_fixed && !is_page(address))) {
    refuse();
    return MAP_FAILED;
  }
  if (!is_fixed && (address = reserve(whole_pages(bytes))) == MAP_FAILED) return address;
  return map(address, whole_pages(bytes), protection, flags | MAP_FIXED, file, offset);
}
void* mmap64(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  return mmap(address, bytes, protection, flags, file, offset);
}

int munmap(void* address, std::size_t bytes) noexcept {
  return is_page(address) ? static_cast<int>(syscall(SYS_munmap, address, whole_pages(bytes))) : refuse();
}
int mprotect(void* address, std::size_t bytes, int protection) noexcept {
  return is_page(address) ? static_cast<int>(syscall(SYS_mprotect, address, whole_pages(bytes), protection)) : refuse();
}
int madvise(void* address, std::size_t bytes, int advice) noexcept {
  return is_page(address) ? static_cast<int>(syscall(SYS_madvise, address, whole_pages(bytes), advice)) : refuse();
}
long mbind(void* address, unsigned long bytes, int mode, const unsigned long* nodes, unsigned long most,
           unsigned flags) noexcept {
  return is_page(address) ? syscall(SYS_mbind, address, whole_pages(bytes), mode, nodes, most, flags) : refuse();
}

long sysconf(int name) noexcept {
  if (name == _SC_PAGESIZE) return kPage;
  static const auto next = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
  const long value = next(name);
  return name == _SC_PHYS_PAGES || name == _SC_AVPHYS_PAGES ? value / long(kPage / kSmallPage) : value;
}
int getpagesize() noexcept { return kPage; }

}  // extern "C"
