// Host memory that is registered with CUDA (cudaHostRegister), so that kernels and copy engines can access it.
//
// Invariants
//  1. Each call registers at most kRegionBytes, at page boundaries, and every region but the last has exactly that
//     size: a region's number is the upper bits of the offset. (A larger single pin fails with some kernels and
//     drivers.)
//  2. All or nothing: a failure unregisters what this object had registered and clears CUDA's pending error.
//  3. The owner must unregister the memory, with the registered addresses, before it unmaps it.
// Requires: the pages exist; no other thread is capturing a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/cuda_calls.hpp"

namespace ps_shm::device {

inline constexpr std::uint32_t kRegionBits = 30;
inline constexpr std::size_t kRegionBytes = std::size_t{1} << kRegionBits;

struct RegistrationTotals {
  std::uint64_t bytes = 0;        // registered, as of the last try_register()
  std::uint64_t calls = 0;        // of cudaHostRegister, including refused ones
  double seconds = 0.0;           // time spent on registering
  std::string read_only_refusal;  // why memory was registered for writing, too; empty: `read_only` was not refused
};

// What to say before so many bytes are registered; empty: it takes no time worth a line.
std::string announcement_of(std::uint64_t bytes);

class Registration {
 public:
  explicit Registration(CudaCalls& cuda) : cuda_(cuda) {}
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Registers [base, base + bytes) if this object holds nothing yet, or extends a registration of the same base. The
  // last region may be unregistered and registered again for that, so no device work may use it meanwhile. Returns
  // false if it was refused: then nothing is registered any more, and `why` holds the reason. If only `read_only` is
  // refused, the memory is registered for writing, too. Requires: `base` is at a page boundary; the memory may be
  // written; `read_only` as before. (Other bases are refused.)
  [[nodiscard]] bool try_register(std::byte* base, std::size_t bytes, bool read_only, RegistrationTotals& totals,
                                  std::string& why);
  void unregister() noexcept;

  std::size_t bytes() const noexcept { return bytes_; }  // registered, a multiple of the page size
  // The device addresses of the regions.
  const std::vector<std::uint64_t>& regions() const noexcept { return regions_; }
  // The device address of base + offset, and the number of contiguous bytes from there on; nullptr and 0 beyond the
  // registered range.
  void* at(std::size_t offset) const noexcept;
  std::size_t contiguous_at(std::size_t offset) const noexcept;

 private:
  CudaCalls& cuda_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> regions_;
};

}  // namespace ps_shm::device
