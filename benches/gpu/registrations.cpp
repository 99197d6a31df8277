// How long it takes to register shared memory with CUDA, by what has been done to its pages before.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "on_gpu.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::size_t kPage = 4096;

// A file of /dev/shm without a name. Its pages need not exist yet, so that huge ones can be asked for.
class TmpfsFile {
 public:
  TmpfsFile(std::size_t bytes, bool reserves) : bytes_(bytes) {
    const int file = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) throw std::runtime_error("cannot make a file in /dev/shm");
    const bool has_space = reserves ? posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0
                                    : ftruncate(file, static_cast<off_t>(bytes)) == 0;
    data_ = has_space ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (data_ == MAP_FAILED) throw std::runtime_error("no space in /dev/shm");
  }
  ~TmpfsFile() { munmap(data_, bytes_); }
  TmpfsFile(const TmpfsFile&) = delete;
  TmpfsFile& operator=(const TmpfsFile&) = delete;

  void* data() const noexcept { return data_; }
  // False: the system knows no such advice for this memory.
  bool advise_huge() const noexcept { return madvise(data_, bytes_, MADV_HUGEPAGE) == 0; }
  void touch() const noexcept {
    for (std::size_t at = 0; at < bytes_; at += kPage) static_cast<volatile char*>(data_)[at] = 1;
  }

 private:
  std::size_t bytes_;
  void* data_;
};

// How much of this process's shared memory is mapped by huge pages.
std::uint64_t huge_kib() {
  std::ifstream maps("/proc/self/smaps_rollup");
  for (std::string line; std::getline(maps, line);)
    if (line.starts_with("ShmemPmdMapped:"))
      return std::strtoull(line.c_str() + std::strlen("ShmemPmdMapped:"), nullptr, 10);
  return 0;
}

struct Kind {
  const char* name;
  bool reserves, touches, wants_huge, is_read_only;
};
constexpr Kind kKinds[] = {{"reserved", true, false, false, false},
                           {"touched", true, true, false, false},
                           {"touched_read_only", true, true, false, true},
                           {"huge_advised_and_touched", false, true, true, false}};

Json measure(const Kind& kind, std::size_t bytes, int rounds) {
  std::vector<double> registering, unregistering, touching;
  std::uint64_t huge = 0;
  for (int round = 0; round < rounds; ++round) {
    const TmpfsFile file(bytes, kind.reserves);
    if (kind.wants_huge && !file.advise_huge()) return {{"error", "madvise(MADV_HUGEPAGE) is refused for /dev/shm"}};
    const std::uint64_t huge_before = huge_kib();
    if (kind.touches) touching.push_back(seconds_of([&] { file.touch(); }));
    huge = huge_kib() - huge_before;
    const unsigned flags =
        device::kRegisterPortable | device::kRegisterMapped | (kind.is_read_only ? device::kRegisterReadOnly : 0U);
    device::CudaError error = device::kSuccess;
    registering.push_back(seconds_of([&] { error = cuda().host_register(file.data(), bytes, flags); }));
    if (error != device::kSuccess) {
      static_cast<void>(cuda().last_error());
      // Most GPUs cannot register memory for reading only where the CPU is an x86.
      return {{kind.is_read_only && error == device::kNotSupported ? "refused" : "error", cuda().error_text(error)}};
    }
    unregistering.push_back(seconds_of([&] { error = cuda().host_unregister(file.data()); }));
    check(error, "unregister memory");
  }
  const double gib = double(bytes) / double(1 << 30);
  Json found = {{"bytes", bytes},
                {"register_s_per_GiB", times_of(registering).median / gib},
                {"unregister_s_per_GiB", times_of(unregistering).median / gib}};
  if (kind.touches) found["touch_s_per_GiB"] = times_of(touching).median / gib;
  if (kind.wants_huge) found["huge_page_bytes"] = huge << 10;
  return found;
}

}  // namespace

Json registrations(const SectionOptions& options) {
  const std::size_t bytes = std::size_t{1} << (options.quick ? 26 : 30);
  struct statvfs tmpfs = {};
  if (statvfs("/dev/shm", &tmpfs) != 0 || tmpfs.f_bavail * tmpfs.f_frsize < 2 * bytes)
    return {{"skipped", "/dev/shm has less than " + std::to_string(2 * bytes >> 20) + " MiB free"}};
  begin_gpu();
  const device::DeviceMemory<float> first(cuda(), 1);  // CUDA has begun before anything is timed
  Json found;
  for (const Kind& kind : kKinds) {
    found[kind.name] = measure(kind, bytes, options.quick ? 2 : 3);
    options.so_far(found);
  }
  return found;
}

}  // namespace ps_shm::bench
