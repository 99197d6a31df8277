// How often something is done: after so many seconds, or at so many global steps. The one type of all such settings.
#pragma once

#include <cstdint>
#include <string>

#include "config/setting.hpp"

namespace ps::config {

// One of the two is above 0; of an interval that nobody gave, neither.
struct Interval {
  std::uint64_t steps = 0;
  double seconds = 0.0;

  bool is_given() const noexcept { return steps != 0 || seconds > 0; }
  bool operator==(const Interval&) const = default;
};

Interval read_interval(const std::string& text);  // 1000steps, 60s, 5m; throws Error where `text` is none
std::string to_string(const Interval& interval);  // what read_interval() reads back; empty: not given

// When it is due next: at multiples of so many steps, or so many seconds after it began, again and again. What was
// missed meanwhile is not made up for. One that is not given is never due.
class Due {
 public:
  // `seconds`: of any clock that only moves on.
  Due(const Interval& every, double seconds, std::uint64_t step) noexcept;

  bool is_now(double seconds, std::uint64_t step) const noexcept;
  // It was done, or tried: the next time is after this moment.
  void move_past(double seconds, std::uint64_t step) noexcept;

 private:
  Interval every_;
  double began_, next_seconds_ = 0.0;
  std::uint64_t next_step_ = 0;
};

template <class Struct>
Value<Struct> interval(Interval Struct::*member) {
  return {.kind = Kind::kWord,
          .form = "INTERVAL",
          .bounds = "",
          .words = {},
          .read = [=](Struct& in, const std::string& text) { in.*member = read_interval(text); },
          .check = [](const Struct&) {},
          .write = [=](const Struct& in) { return to_string(in.*member); }};
}

}  // namespace ps::config
