// Elements of any dtype, handled as the floats that they occupy: a variable's bytes, zero-padded to a multiple of a
// float.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace ps_shm::update {

inline bool are_floats(std::span<const std::byte> bytes) noexcept {
  return bytes.size() % sizeof(float) == 0 && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0;
}
inline std::size_t floats_for(std::size_t bytes) noexcept { return (bytes + sizeof(float) - 1) / sizeof(float); }

// Calls fill(floats), and stores in `out` what it has written to them.
template <class Fill>
void fill_bytes(std::span<std::byte> out, Fill&& fill) {
  if (are_floats(out)) return fill(std::span<float>(reinterpret_cast<float*>(out.data()), floats_for(out.size())));
  std::vector<float> room(floats_for(out.size()));
  fill(std::span<float>(room));
  std::memcpy(out.data(), room.data(), out.size());
}

// Calls take(floats) with the bytes as floats.
template <class Take>
void take_bytes(std::span<const std::byte> in, Take&& take) {
  if (are_floats(in))
    return take(std::span<const float>(reinterpret_cast<const float*>(in.data()), floats_for(in.size())));
  std::vector<float> room(floats_for(in.size()));
  std::memcpy(room.data(), in.data(), in.size());
  take(std::span<const float>(room));
}

}  // namespace ps_shm::update
