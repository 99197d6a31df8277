#include "config/values.hpp"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include "config/spelling.hpp"

namespace ps_shm {

int number_of(std::string_view name, const char* (*name_of)(int number) noexcept) {
  const std::string wanted = config::folded(std::string(name));
  std::vector<std::string> names;
  for (const auto& [number, one] : config::numbered_names(name_of)) {
    if (config::folded(one) == wanted) return number;
    names.push_back(one);
  }
  throw Error(
      fmt::format("unknown name '{}'; expected {}{}", name, fmt::join(names, "|"), config::did_you_mean(wanted, names)));
}

namespace config {
namespace {

constexpr const char* kTimes = "100us, 5ms, 2s, 5m, 1h";
constexpr const char* kSizes = "64KiB, 64K, 4MiB, 1GiB";

template <class Number>
std::errc read_all(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return end == text.data() + text.size() ? error : std::errc::invalid_argument;
}

// The number before one of the units, ignoring case. A unit precedes the units that are its suffixes.
template <std::size_t Count>
double read_with_unit(const std::string& given, const std::pair<std::string_view, double> (&units)[Count],
                      const std::string& examples) {
  double factor = 1.0, value = 0.0;
  std::string text = given;
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [unit, worth] : units) {
    if (!text.ends_with(unit)) continue;
    text.resize(text.size() - unit.size());
    factor = worth;
    break;
  }
  if (read_all(text, value) != std::errc{} || !std::isfinite(value))
    throw Error(fmt::format("'{}' is not a {}", given, examples));
  if (value < 0) throw Error("must be at least 0");
  if (!std::isfinite(value * factor)) throw Error(fmt::format("'{}' is not a {}", given, examples));
  return value * factor;
}

}  // namespace

std::string describe_forms() {
  return fmt::format(
      "N is an integer, X a number. TIME is in seconds, or has a unit: {}. SIZE is in bytes, or has a unit: {}. "
      "INTERVAL is a time with its unit, or global steps: {}.",
      kTimes, kSizes, kIntervals);
}

std::uint64_t parse_whole(const std::string& text, std::uint64_t least) {
  std::uint64_t value = 0;
  const bool is_negative =
      text.size() > 1 && text[0] == '-' && read_all(text.substr(1), value) != std::errc::invalid_argument;
  if (is_negative) throw Error(fmt::format("must be at least {}", least));
  const std::errc error = read_all(text, value);
  if (error == std::errc::result_out_of_range) throw Error(fmt::format("'{}' is too large", text));
  if (error != std::errc{}) throw Error(fmt::format("'{}' is not an integer", text));
  return value;
}

std::uint64_t read_whole(const std::string& text, std::uint64_t least, std::uint64_t most) {
  const std::uint64_t value = parse_whole(text, least);
  check_whole(value, least, most);
  return value;
}

double read_real(const std::string& text) {
  double value = 0;
  const std::errc error = read_all(text, value);
  if (error == std::errc::result_out_of_range) throw Error(fmt::format("'{}' is out of range", text));
  if (error != std::errc{} || !std::isfinite(value)) throw Error(fmt::format("'{}' is not a number", text));
  return value;
}

// The nearest float, so that the written value is read back. A value that is too small for a float becomes 0.
float read_float(const std::string& text) {
  float value = 0;
  const std::errc error = read_all(text, value);
  if (error == std::errc::result_out_of_range) value = static_cast<float>(read_real(text));
  if (error == std::errc::result_out_of_range && !std::isfinite(value))
    throw Error(fmt::format("'{}' is out of range", text));
  if (error == std::errc::invalid_argument || !std::isfinite(value))
    throw Error(fmt::format("'{}' is not a number", text));
  return value;
}

double read_seconds(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ms", 1e-3}, {"us", 1e-6},  {"ns", 1e-9}, {"s", 1.0},
                                                            {"m", 60.0},  {"min", 60.0}, {"h", 3600.0}};
  return read_with_unit(text, kUnits, fmt::format("time; write {} or plain seconds", kTimes));
}

WaitLimit read_wait_limit(const std::string& text) {
  if (folded(text) == "none") return std::nullopt;
  if (!text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0)
    throw Error(fmt::format("'{}' is not a time; write {}, plain seconds, or none", text, kTimes));
  return Seconds(read_seconds(text));
}

std::uint64_t read_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30},
                                                            {"tib", 0x1p40}, {"b", 1.0},      {"k", 0x1p10},
                                                            {"m", 0x1p20},   {"g", 0x1p30},   {"t", 0x1p40}};
  const double bytes = read_with_unit(text, kUnits, fmt::format("size; write {} or plain bytes", kSizes));
  if (bytes >= 0x1p63) throw Error(fmt::format("'{}' is too large", text));
  return static_cast<std::uint64_t>(bytes);
}

std::vector<std::pair<int, std::string>> numbered_names(const char* (*name_of)(int number) noexcept) {
  constexpr std::string_view kNoName = "unknown";
  std::vector<std::pair<int, std::string>> all;
  for (int number = name_of(0) == kNoName ? 1 : 0; name_of(number) != kNoName; ++number)
    all.emplace_back(number, name_of(number));
  return all;
}

std::string describe(std::uint64_t least, std::uint64_t most) {
  if (most == kAny) return least == 0 ? std::string() : fmt::format("at least {}", least);
  return fmt::format("{} to {}", least, most);
}

void check_whole(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value < least) throw Error(fmt::format("must be at least {}", least));
  if (value > most) throw Error(fmt::format("must be at most {}", most));
}

const char* describe(Range range) noexcept {
  switch (range) {
    case Range::kAmount:
      return "at least 0";
    case Range::kShare:
      return "at least 0 and less than 1";
    case Range::kPositive:
      return "greater than 0";
  }
  return "";
}

void check_real(double value, Range range) {
  const bool is_least = range == Range::kPositive ? value > 0 : value >= 0;
  const bool good = std::isfinite(value) && is_least && (range != Range::kShare || value < 1);
  if (!good) throw Error(fmt::format("must be {}", describe(range)));
}

void for_each_text(const std::string& texts, const std::function<void(const std::string&)>& use) {
  std::size_t begin = 0;
  for (std::size_t comma; (comma = texts.find(',', begin)) != std::string::npos; begin = comma + 1)
    use(texts.substr(begin, comma - begin));
  use(texts.substr(begin));
}

}  // namespace config
}  // namespace ps_shm
