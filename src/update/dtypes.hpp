// The types of elements, in a row each: everything that the rest of the program asks about a type.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "ps_shm/types.hpp"

namespace ps_shm::update {

// Floats of 16 bits, as they are stored. A float32 has all of their values.
struct Float16 {  // IEEE 754-2019's binary16
  std::uint16_t bits;
  operator float() const noexcept {
    const int exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    const float sign = bits >> 15 != 0 ? -1.0F : 1.0F;
    if (exponent == 0x1f)
      return sign * (fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity());
    return sign *
           (exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(fraction + 0x400), exponent - 25));
  }
};
struct BFloat16 {  // the upper half of a float32
  std::uint16_t bits;
  operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

// Floats of 8 bits, as they are stored.
struct Float8E4M3 {  // no infinity; all ones is NaN
  std::uint8_t bits;
  operator float() const noexcept {
    const int exponent = bits >> 3 & 0xf, fraction = bits & 7;
    const float sign = bits >> 7 != 0 ? -1.0F : 1.0F;
    if ((bits & 0x7f) == 0x7f) return sign * std::numeric_limits<float>::quiet_NaN();
    return sign * (exponent == 0 ? std::ldexp(float(fraction), -9) : std::ldexp(float(fraction + 8), exponent - 10));
  }
};
struct Float8E5M2 {  // the upper half of a Float16
  std::uint8_t bits;
  operator float() const noexcept { return Float16{static_cast<std::uint16_t>(bits << 8)}; }
};

// What kind of number an element is. The first ones are floats.
enum class NumberKind { kFloat, kBFloat, kFloat8E4M3, kFloat8E5M2, kSigned, kUnsigned, kBool };
constexpr bool is_float(NumberKind kind) noexcept { return kind < NumberKind::kSigned; }

// A type of elements that are stored as T.
template <class T>
struct Element {
  DType dtype;
  NumberKind kind;
  const char* name;         // as NumPy and PyTorch spell it
  const char* safetensors;  // as files of that format do
  const char* npy;          // as NumPy's files do
  bool has_sum;             // see the functions has_sum and takes_gradients
  bool takes_gradients = false;
};

// clang-format off
inline constexpr std::tuple kElements{
    //                     dtype             kind                   name        safetensors npy  has_sum takes_gradients
    Element<float>        {DType::kFloat32,  NumberKind::kFloat,    "float32",  "F32",  "<f4", true, true},
    Element<double>       {DType::kFloat64,  NumberKind::kFloat,    "float64",  "F64",  "<f8", true},
    Element<BFloat16>     {DType::kBFloat16, NumberKind::kBFloat,   "bfloat16", "BF16", "|V2", false, true},
    Element<std::int64_t> {DType::kInt64,    NumberKind::kSigned,   "int64",    "I64",  "<i8", true},
    Element<Float16>      {DType::kFloat16,  NumberKind::kFloat,    "float16",  "F16",  "<f2", false},
    Element<std::int32_t> {DType::kInt32,    NumberKind::kSigned,   "int32",    "I32",  "<i4", true},
    Element<std::int16_t> {DType::kInt16,    NumberKind::kSigned,   "int16",    "I16",  "<i2", true},
    Element<std::int8_t>  {DType::kInt8,     NumberKind::kSigned,   "int8",     "I8",   "|i1", true},
    Element<std::uint64_t>{DType::kUint64,   NumberKind::kUnsigned, "uint64",   "U64",  "<u8", true},
    Element<std::uint32_t>{DType::kUint32,   NumberKind::kUnsigned, "uint32",   "U32",  "<u4", true},
    Element<std::uint16_t>{DType::kUint16,   NumberKind::kUnsigned, "uint16",   "U16",  "<u2", true},
    Element<std::uint8_t> {DType::kUint8,    NumberKind::kUnsigned, "uint8",    "U8",   "|u1", true},
    Element<std::uint8_t> {DType::kBool,     NumberKind::kBool,     "bool",     "BOOL", "|b1", false},
    Element<Float8E4M3>   {DType::kFloat8E4M3, NumberKind::kFloat8E4M3, "float8_e4m3fn", "F8_E4M3", "|V1", false},
    Element<Float8E5M2>   {DType::kFloat8E5M2, NumberKind::kFloat8E5M2, "float8_e5m2",   "F8_E5M2", "|V1", false},
};
// clang-format on

struct DTypeTraits {
  DType dtype;
  NumberKind kind;
  const char *name, *safetensors, *npy;
  std::uint32_t bytes;
  bool has_sum, takes_gradients;
};

inline constexpr auto kDTypes = std::apply(
    []<class... T>(const Element<T>&... rows) {
      return std::array{DTypeTraits{rows.dtype, rows.kind, rows.name, rows.safetensors, rows.npy, sizeof(T),
                                    rows.has_sum, rows.takes_gradients}...};
    },
    kElements);
static_assert(
    [] {
      for (std::uint32_t i = 0; i < kDTypes.size(); ++i)
        if (static_cast<std::uint32_t>(kDTypes[i].dtype) != i + 1) return false;
      return true;
    }(),
    "rows are found by their type's number, which counts from 1");

// The row of the type; nullptr where there is none, as in a damaged segment.
constexpr const DTypeTraits* find_dtype(DType dtype) noexcept {
  const auto number = static_cast<std::uint32_t>(dtype);
  return number - 1 < kDTypes.size() ? &kDTypes[number - 1] : nullptr;
}
// Whether elements of the type can be added up in place: integers, which wrap around, float32 and float64.
constexpr bool has_sum(DType dtype) noexcept {
  const DTypeTraits* row = find_dtype(dtype);
  return row != nullptr && row->has_sum;
}
// Whether the update rules apply to variables of the type. Gradients and optimizer state are of float32.
constexpr bool takes_gradients(DType dtype) noexcept {
  const DTypeTraits* row = find_dtype(dtype);
  return row != nullptr && row->takes_gradients;
}
// The number of elements in each float that values of the type occupy, where they take gradients; otherwise 1.
constexpr std::uint64_t gradients_per_float(DType dtype) noexcept {
  return takes_gradients(dtype) ? sizeof(float) / find_dtype(dtype)->bytes : 1;
}

// The row of a name: `spelling` is one of the fields name, safetensors, npy.
constexpr const DTypeTraits* find_dtype(std::string_view name,
                                        const char* DTypeTraits::*spelling = &DTypeTraits::name) noexcept {
  for (const DTypeTraits& row : kDTypes)
    if (name == row.*spelling) return &row;
  return nullptr;
}

// Calls body(T()), where elements of the type are stored as T; not at all for an unknown type.
template <class Body>
void with_element(DType dtype, Body&& body) {
  std::apply(
      [&]<class... T>(const Element<T>&... rows) {
        static_cast<void>(((rows.dtype == dtype && (body(T()), true)) || ...));
      },
      kElements);
}

// Calls body(value) for each element, as T stores it. Bytes behind the last complete element are left out.
template <class Body>
void for_elements(DType dtype, std::span<const std::byte> bytes, Body&& body) {
  with_element(dtype, [&]<class T>(T) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      if constexpr (std::is_arithmetic_v<T>)
        body(value);
      else
        body(float(value));
    }
  });
}

// Whether no element is NaN or infinite.
inline bool are_finite(DType dtype, std::span<const std::byte> bytes) {
  bool result = true;
  for_elements(dtype, bytes, [&](auto value) {
    if constexpr (std::is_floating_point_v<decltype(value)>) result = result && std::isfinite(value);
  });
  return result;
}

}  // namespace ps_shm::update
