// Protocol buffer messages, encoded by hand: each function appends a field.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::persistence {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

template <class Number>
inline std::string_view raw_bytes(const Number& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

enum Wire : std::uint32_t { kVarint = 0, kWide = 1, kLength = 2, kNarrow = 5 };

inline void add_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
inline void add_key(std::string& out, std::uint32_t field, Wire wire) { add_varint(out, field << 3 | wire); }
inline void add_whole(std::string& out, std::uint32_t field, std::uint64_t value) {
  add_key(out, field, kVarint);
  add_varint(out, value);
}
inline void add_double(std::string& out, std::uint32_t field, double value) {
  add_key(out, field, kWide);
  out += raw_bytes(value);
}
inline void add_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  add_key(out, field, kLength);
  add_varint(out, bytes.size());
  out += bytes;
}
inline void add_doubles(std::string& out, std::uint32_t field, const std::vector<double>& values) {
  add_bytes(out, field, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

}  // namespace ps_shm::persistence
