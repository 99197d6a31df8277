// Numbers in text, parsed like std::from_chars in any locale, with an optional leading '+'.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
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
    const double wide = std::strtod(std::string(text).c_str(), nullptr);
    if (!(std::abs(wide) < 1.0)) return NumberFault::kTooLarge;
    out = static_cast<float>(wide);
    return NumberFault::kNone;
  }
  return std::isfinite(out) ? NumberFault::kNone : NumberFault::kNotFinite;
}

}  // namespace ps_shm::train
