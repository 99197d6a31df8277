// A 64-bit hash (FNV-1a) over names and values of variables, as JobView::digest of a job with these variables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ps_shm::train {

class Digest {
 public:
  // Requires: in the order of their names.
  void add(const std::string& name, std::span<const float> values) {
    add(name.data(), name.size());
    add(values.data(), values.size_bytes());
  }
  std::uint64_t value() const noexcept { return hash_; }

 private:
  void add(const void* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i)
      hash_ = (hash_ ^ static_cast<const unsigned char*>(bytes)[i]) * 1099511628211ULL;
  }

  std::uint64_t hash_ = 14695981039346656037ULL;
};

}  // namespace ps_shm::train
