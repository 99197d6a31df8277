// How values of each type are written as text, read and bounded: the building blocks of the tables of settings.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/setting.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::config {

inline constexpr auto kAny = std::numeric_limits<std::uint64_t>::max();

inline constexpr const char* kIntervals = "60s, 5m or 1000steps";  // examples

// Describes the forms N, X, TIME, SIZE and INTERVAL for users.
std::string describe_forms();

// These throw Error if `text` is not such a value, or is out of range.
std::uint64_t parse_whole(const std::string& text, std::uint64_t least);  // `least` is for the message only
std::uint64_t read_whole(const std::string& text, std::uint64_t least, std::uint64_t most);
double read_real(const std::string& text);
float read_float(const std::string& text);
double read_seconds(const std::string& text);       // 5ms, 100us, 2s or plain seconds
WaitLimit read_wait_limit(const std::string& text);  // the same, or none
std::uint64_t read_bytes(const std::string& text);  // 4MiB, 64KiB, 1GiB or plain bytes

void check_whole(std::uint64_t value, std::uint64_t least, std::uint64_t most);

enum class Range { kAmount, kShare, kPositive };  // at least 0; also less than 1; greater than 0
void check_real(double value, Range range);
const char* describe(Range range) noexcept;
std::string describe(std::uint64_t least, std::uint64_t most);

// The numbers for which `name_of` does not return "unknown", and their names: consecutive ones, from 0 or 1 on.
std::vector<std::pair<int, std::string>> numbered_names(const char* (*name_of)(int number) noexcept);

// Calls `use` for each of the comma-separated texts; once with an empty text if there is none.
void for_each_text(const std::string& texts, const std::function<void(const std::string&)>& use);

template <class Struct, class Whole>
Value<Struct> whole(Whole Struct::*member, std::uint64_t least, std::uint64_t most) {
  return {.kind = Kind::kNumber,
          .form = "N",
          .bounds = describe(least, most),
          .words = {},
          .read =
              [=](Struct& in, const std::string& text) {
                // A value that the member cannot hold is out of bounds, too, which check() reports.
                const std::uint64_t value = parse_whole(text, least);
                in.*member = static_cast<Whole>(std::min<std::uint64_t>(value, std::numeric_limits<Whole>::max()));
              },
          .check = [=](const Struct& in) { check_whole(in.*member, least, most); },
          .write = [=](const Struct& in) { return fmt::to_string(in.*member); }};
}

// 0, or nullopt, means not given; it cannot be given explicitly.
template <class Struct, class Whole>
Value<Struct> whole_or_none(Whole Struct::*member, std::uint64_t least, std::uint64_t most) {
  const auto given = [=](const Struct& in) -> std::optional<std::uint64_t> {
    if constexpr (std::is_integral_v<Whole>)
      return in.*member == 0 ? std::nullopt : std::optional<std::uint64_t>(in.*member);
    else
      return in.*member;
  };
  return {.kind = Kind::kNumber,
          .form = "N",
          .bounds = describe(least, most),
          .words = {},
          .read =
              [=](Struct& in, const std::string& text) {
                const std::uint64_t value = read_whole(text, least, most);
                if constexpr (std::is_integral_v<Whole>)
                  in.*member = static_cast<Whole>(value);
                else
                  in.*member = static_cast<typename Whole::value_type>(value);
              },
          .check =
              [=](const Struct& in) {
                if (const auto value = given(in)) check_whole(*value, least, most);
              },
          .write =
              [=](const Struct& in) {
                const auto value = given(in);
                return value ? fmt::to_string(*value) : std::string();
              }};
}

template <class Struct, class Real>
Value<Struct> real(Real Struct::*member, Range range) {
  constexpr bool kIsPlain = std::is_floating_point_v<Real>;
  return {.kind = Kind::kNumber,
          .form = "X",
          .bounds = describe(range),
          .words = {},
          .read =
              [=](Struct& in, const std::string& text) {
                if constexpr (std::is_same_v<Real, double> || std::is_same_v<Real, std::optional<double>>)
                  in.*member = read_real(text);
                else
                  in.*member = read_float(text);
              },
          .check =
              [=](const Struct& in) {
                if constexpr (kIsPlain)
                  check_real(in.*member, range);
                else if (in.*member)
                  check_real(*(in.*member), range);
              },
          .write =
              [=](const Struct& in) {
                if constexpr (kIsPlain)
                  return fmt::to_string(in.*member);
                else
                  return in.*member ? fmt::to_string(*(in.*member)) : std::string();
              }};
}

template <class Struct, class Real>
Value<Struct> amount(Real Struct::*member) {
  return real(member, Range::kAmount);
}
template <class Struct, class Real>
Value<Struct> share(Real Struct::*member) {
  return real(member, Range::kShare);
}

// `Time`: double, or Seconds.
template <class Struct, class Time>
Value<Struct> seconds(Time Struct::*member) {
  const auto given = [=](const Struct& in) {
    if constexpr (std::is_same_v<Time, double>)
      return in.*member;
    else
      return (in.*member).count();
  };
  return {.kind = Kind::kNumber,
          .form = "TIME",
          .bounds = describe(Range::kAmount),
          .words = {},
          .read = [=](Struct& in, const std::string& text) { in.*member = Time(read_seconds(text)); },
          .check = [=](const Struct& in) { check_real(given(in), Range::kAmount); },
          .write = [=](const Struct& in) { return fmt::to_string(given(in)); }};
}

// A time, or the word `none`.
template <class Struct>
Value<Struct> wait_limit(WaitLimit Struct::*member, Range range) {
  return {.kind = Kind::kNumber,
          .form = "TIME|none",
          .bounds = describe(range),
          .words = {},
          .read =
              [=](Struct& in, const std::string& text) {
                in.*member = read_wait_limit(text);
              },
          .check =
              [=](const Struct& in) {
                if (in.*member) check_real((in.*member)->count(), range);
              },
          .write = [=](const Struct& in) {
            return in.*member ? fmt::to_string((in.*member)->count()) : std::string("none");
          }};
}

// 0 means not given; it cannot be given explicitly.
template <class Struct>
Value<Struct> bytes_or_none(std::uint64_t Struct::*member) {
  Value<Struct> value = whole_or_none(member, 1, kAny);
  value.form = "SIZE";
  value.bounds = "";
  value.read = [=](Struct& in, const std::string& text) {
    in.*member = read_bytes(text);
    if (in.*member == 0) throw Error("must be greater than 0");
  };
  return value;
}

template <class Struct>
Value<Struct> flag(bool Struct::*member) {
  return {.kind = Kind::kFlag,
          .form = "",
          .bounds = "",
          .words = {"true", "false"},
          .read = [=](Struct& in, const std::string& text) { in.*member = text == "true"; },
          .check = [](const Struct&) {},
          .write = [=](const Struct& in) { return std::string(in.*member ? "true" : ""); }};
}

template <class Struct>
Value<Struct> text(std::string Struct::*member, const char* form) {
  return {.kind = Kind::kWord,
          .form = form,
          .bounds = "",
          .words = {},
          .read = [=](Struct& in, const std::string& text) { in.*member = text; },
          .check = [](const Struct&) {},
          .write = [=](const Struct& in) { return in.*member; }};
}

template <class Enum>
using Choices = std::vector<std::pair<Enum, std::string>>;

// All values of an enumeration, with their names.
template <class Enum>
Choices<Enum> all_values() {
  const auto name_of = [](int number) noexcept { return to_string(Enum(number)); };
  Choices<Enum> all;
  for (const auto& [number, name] : numbered_names(name_of)) all.emplace_back(Enum(number), name);
  return all;
}

// One of several words. A value without a word is written as an empty text: it is not given, or damaged.
template <class Struct, class Enum>
Value<Struct> choice(Enum Struct::*member, Choices<Enum> choices, bool may_be_none = false) {
  std::vector<std::string> words;
  for (const auto& one : choices) words.push_back(one.second);
  const auto word_of = [=](const Struct& in) {
    for (const auto& [value, word] : choices)
      if (value == in.*member) return word;
    return std::string();
  };
  return {.kind = Kind::kWord,
          .form = fmt::format("{}", fmt::join(words, "|")),
          .bounds = "",
          .words = words,
          .read =
              [=](Struct& in, const std::string& text) {
                for (const auto& [value, word] : choices)
                  if (word == text) in.*member = value;
              },
          .check =
              [=](const Struct& in) {
                if (!may_be_none && word_of(in).empty())
                  throw Error(fmt::format("unknown value; expected {}", fmt::join(words, "|")));
              },
          .write = word_of};
}

// One of all values of the enumeration.
template <class Struct, class Enum>
Value<Struct> choice(Enum Struct::*member) {
  return choice(member, all_values<Enum>());
}

}  // namespace ps_shm::config
