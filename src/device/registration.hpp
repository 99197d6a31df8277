// Host memory registered with CUDA (cudaHostRegister), so that kernels and copy engines reach it.
//
// Invariants
//  1. At most kRegionBytes a call, at page boundaries, every region but the last exactly as long: a region's number is
//     the offset's upper bits. (A larger single pin fails with some kernels and drivers.)
//  2. All or nothing: a failure unregisters what this object had registered and clears CUDA's pending error.
//  3. Unregistered, with the addresses that were registered, before the memory is unmapped: the owner's duty.
// Requires: the pages exist; nothing is being captured into a graph by another thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/cuda_calls.hpp"

namespace ps::device {

inline constexpr std::uint32_t kRegionBits = 30;
inline constexpr std::size_t kRegionBytes = std::size_t{1} << kRegionBits;

struct RegistrationTotals {
  std::uint64_t bytes = 0;  // registered, as of the last try_register()
  std::uint64_t calls = 0;  // of cudaHostRegister, refused ones too
  double seconds = 0.0;     // that registering took
};

class Registration {
 public:
  explicit Registration(CudaCalls& cuda) : cuda_(cuda) {}
  ~Registration();
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  // Registers [base, base + bytes), where this object holds nothing yet or began at the same base: then what is new. The
  // last region may be unregistered and registered again for that, so no device work may use it meanwhile.
  // False: refused; nothing is registered any more; `why` says it.
  // Requires: `base` is where a page begins; `read_only` as before. (Other bases are refused.)
  [[nodiscard]] bool try_register(std::byte* base, std::size_t bytes, bool read_only, RegistrationTotals& totals,
                                  std::string& why);
  void unregister() noexcept;

  std::size_t bytes() const noexcept { return bytes_; }  // registered, in whole pages
  // Device addresses where the regions begin.
  const std::vector<std::uint64_t>& regions() const noexcept { return regions_; }
  // The device's address of base + offset, and how many bytes from there on lie together there; nullptr and 0 beyond
  // what is registered.
  void* at(std::size_t offset) const noexcept;
  std::size_t contiguous_at(std::size_t offset) const noexcept;

 private:
  CudaCalls& cuda_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<std::uint64_t> regions_;
};

}  // namespace ps::device
