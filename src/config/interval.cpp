#include "config/interval.hpp"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <limits>

#include "config/spelling.hpp"
#include "config/values.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::config {

Interval read_interval(const std::string& text) {
  const std::string word = folded(text);
  for (const std::string unit : {"steps", "step"})
    if (word.ends_with(unit)) return {.steps = read_whole(text.substr(0, text.size() - unit.size()), 1, kAny)};
  // A number without a unit is ambiguous.
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text.back())))
    throw Error(fmt::format("'{}' is not an interval; write {}", text, kIntervals));
  const double seconds = read_seconds(text);
  if (seconds < 1e-3) throw Error("must be at least 1ms");
  return {.seconds = seconds};
}

std::string to_string(const Interval& interval) {
  if (interval.steps != 0) return fmt::format("{}{}", interval.steps, interval.steps == 1 ? "step" : "steps");
  return interval.seconds > 0 ? fmt::format("{}s", interval.seconds) : std::string();
}

Due::Due(const Interval& every, double seconds, std::uint64_t step) noexcept : every_(every), began_(seconds) {
  move_past(seconds, step);
}

bool Due::is_now(double seconds, std::uint64_t step) const noexcept {
  if (every_.steps != 0) return step >= next_step_;
  return every_.seconds > 0 && seconds >= next_seconds_;
}

void Due::move_past(double seconds, std::uint64_t step) noexcept {
  if (every_.steps != 0) {
    const std::uint64_t left = every_.steps - step % every_.steps;  // to the next multiple
    next_step_ = step > std::numeric_limits<std::uint64_t>::max() - left ? step : step + left;
  } else if (every_.seconds > 0) {
    next_seconds_ = began_ + (std::floor((seconds - began_) / every_.seconds) + 1) * every_.seconds;
  }
}

}  // namespace ps_shm::config
