// Numbers in text, parsed like std::from_chars in any locale, with an optional leading '+'.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace ps_shm::train {

enum class NumberFault { kNone, kNoNumber, kNotFinite, kTooLarge };

// "is not a number", and so on.
inline const char* describe(NumberFault fault) noexcept {
  switch (fault) {
    case NumberFault::kNoNumber:
      return "is not a number";
    case NumberFault::kNotFinite:
      return "is not finite";
    case NumberFault::kTooLarge:
      return "is too large for a 32-bit float";
    case NumberFault::kNone:
      break;
  }
  return "";
}

// Whether a number that has no place in a float is too small for it, not too large. Requires: it is not 0.
inline bool is_underflow(std::string_view text) noexcept {
  const std::size_t mark = text.find_first_of("eE");
  const std::string_view mantissa = text.substr(0, mark);
  std::int64_t exponent = 0;
  if (mark != text.npos) {
    const bool has_plus = text.substr(mark + 1).starts_with('+');
    const auto [stop, error] = std::from_chars(text.data() + mark + 1 + has_plus, text.data() + text.size(), exponent);
    if (error == std::errc::result_out_of_range) return text[mark + 1] == '-';
  }
  // The power of ten of its first digit that is not 0.
  const auto point = static_cast<std::int64_t>(std::min(mantissa.find('.'), mantissa.size()));
  const auto digit = static_cast<std::int64_t>(mantissa.find_first_of("123456789"));
  return exponent + (digit < point ? point - digit - 1 : point - digit) < 0;
}

// Reads all of `text` as a float. Values that underflow are 0.
inline NumberFault parse_float(std::string_view text, float& out) {
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') {  // most values of binary features
    out = static_cast<float>(text[0] - '0');
    return NumberFault::kNone;
  }
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return NumberFault::kNoNumber;
  }
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, out);
  if (error == std::errc::invalid_argument || stop != end) return NumberFault::kNoNumber;
  if (error == std::errc::result_out_of_range) {  // from_chars does not report the direction
    if (!is_underflow(text)) return NumberFault::kTooLarge;
    double wide = 0.0;  // for values that a float holds with fewer digits
    out = std::from_chars(text.data(), end, wide).ec == std::errc{} ? static_cast<float>(wide) : 0.0F;
    return NumberFault::kNone;
  }
  return std::isfinite(out) ? NumberFault::kNone : NumberFault::kNotFinite;
}

}  // namespace ps_shm::train
