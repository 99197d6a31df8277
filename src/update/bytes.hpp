// Elements of any dtype, handled as arrays of floats: the floats that they occupy, zero-padded to a multiple of a float;
// or their values, where the array's dtype is float32 and theirs is bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ps_shm/types.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm::update {

inline bool are_floats(std::span<const std::byte> bytes) noexcept {
  return bytes.size() % sizeof(float) == 0 && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0;
}
inline std::size_t floats_for(std::size_t bytes) noexcept { return (bytes + sizeof(float) - 1) / sizeof(float); }

// Calls fill(floats), and stores in `out`, whose elements are of `dtype`, what it has written to them.
template <class Fill>
void fill_bytes(std::span<std::byte> out, DType dtype, DType array_dtype, Fill&& fill) {
  if (dtype != array_dtype) {
    std::vector<float> values(out.size() / sizeof(BFloat16Bits));
    fill(std::span<float>(values));
    std::vector<std::uint16_t> rounded(values.size());
    round_to_nearest(rounded.data(), values.data(), values.size());
    std::memcpy(out.data(), rounded.data(), out.size());
    return;
  }
  if (are_floats(out)) return fill(std::span<float>(reinterpret_cast<float*>(out.data()), floats_for(out.size())));
  std::vector<float> floats(floats_for(out.size()));
  fill(std::span<float>(floats));
  std::memcpy(out.data(), floats.data(), out.size());
}

// The same for `count` values of a dtype that takes gradients, which lie in `out` as bytes: fill(values) gets float32.
template <class Fill>
void fill_values(std::span<float> out, std::uint64_t count, DType dtype, Fill&& fill) {
  fill_bytes(std::as_writable_bytes(out).first(count * bytes_of(dtype)), dtype, DType::kFloat32, fill);
}

// Bytes of elements as an array of floats: themselves, or a copy where they do not lie as floats do.
class TakenBytes {
 public:
  TakenBytes(std::span<const std::byte> bytes, DType dtype, DType array_dtype) {
    if (dtype != array_dtype) {
      std::vector<std::uint16_t> given(bytes.size() / sizeof(BFloat16Bits));
      std::memcpy(given.data(), bytes.data(), bytes.size());
      room_.resize(given.size());
      widen(room_.data(), given.data(), given.size());
      floats_ = room_;
      return;
    }
    if (are_floats(bytes)) {
      floats_ = {reinterpret_cast<const float*>(bytes.data()), floats_for(bytes.size())};
      return;
    }
    room_.resize(floats_for(bytes.size()));
    std::memcpy(room_.data(), bytes.data(), bytes.size());
    floats_ = room_;
  }
  TakenBytes(TakenBytes&&) noexcept = default;

  std::span<const float> floats() const noexcept { return floats_; }

 private:
  std::vector<float> room_;
  std::span<const float> floats_;
};

}  // namespace ps_shm::update
