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

// Bytes as floats: themselves, or a copy where they do not lie as floats do.
class TakenBytes {
 public:
  explicit TakenBytes(std::span<const std::byte> bytes) {
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
