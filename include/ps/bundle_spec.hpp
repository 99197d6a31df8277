// What a publication is made of: a bundle of named tensors, places for subscribers, and records of generations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps/export.hpp"
#include "ps/types.hpp"

namespace PS_API ps {

// The library looks at no element: a tensor is bytes, with what its readers need to know of them.
struct TensorSpec {
  std::string name;  // 1 to 127 of [A-Za-z0-9_.:/-], unlike the others'
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape{};  // at most 8 axes; no axis: a scalar; every extent at least 1

  std::uint64_t element_count() const noexcept;
  std::uint64_t byte_count() const noexcept;

  bool operator==(const TensorSpec&) const = default;
};

// A publication takes memory_bytes() of /dev/shm from its beginning on: each record has room for every tensor.
struct BundleSpec {
  std::string name;                 // 1 to 64 of [A-Za-z0-9_-], beginning with a letter or digit
  std::vector<TensorSpec> tensors;  // 1 to 16384
  std::uint32_t subscribers = 16;   // at most, at one time; 1 to 256
  // How many generations there is room for, at least 3. With enough_records() publishing never finds all of them in use.
  // 0: as many of these as take 256 MiB, and at least 4.
  std::uint32_t records = 0;

  bool operator==(const BundleSpec&) const = default;
};

// Two for each subscriber, the newest one, and the one that is being written.
PS_API std::uint32_t enough_records(std::uint32_t subscribers) noexcept;

// Throws Error: which of the limits above is not kept.
PS_API void check(const BundleSpec& spec);
PS_API void check_publication_name(const std::string& name);

// The same with the number of records that 0 stands for.
PS_API BundleSpec resolved(BundleSpec spec);

// Bytes of /dev/shm. Requires: the specification is good.
PS_API std::uint64_t memory_bytes(const BundleSpec& spec);

}  // namespace ps
