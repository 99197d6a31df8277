// Intervals: a number of seconds or of global steps. All settings of this kind have this type.
#pragma once

#include <cstdint>
#include <string>

#include "config/setting.hpp"

namespace ps_shm::config {

// One of the two is above 0; both are 0 if the interval is not given.
struct Interval {
  std::uint64_t steps = 0;
  double seconds = 0.0;

  bool is_given() const noexcept { return steps != 0 || seconds > 0; }
  bool operator==(const Interval&) const = default;
};

Interval read_interval(const std::string& text);  // 1000steps, 60s, 5m; throws Error if `text` is not an interval
std::string to_string(const Interval& interval);  // accepted by read_interval(); empty: not given

// Tells when the interval has passed: at multiples of the number of steps, or repeatedly after the number of seconds.
// Missed times are not made up for. An interval that is not given is never due.
class Due {
 public:
  // `seconds`: from any monotonic clock.
  Due(const Interval& every, double seconds, std::uint64_t step) noexcept;

  bool is_now(double seconds, std::uint64_t step) const noexcept;
  // The multiple of the number of steps at which it is due next.
  std::uint64_t next_step() const noexcept { return next_step_; }
  // To be called after the action was done or tried: it is due next after this moment.
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

}  // namespace ps_shm::config
