#include "ps/schedule.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "ps/errors.hpp"

namespace ps {
namespace {

bool read_number(const std::string& text, float& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

}  // namespace

Schedule Schedule::parse(const std::string& text) {
  if (text == "constant") return {};
  const auto first = text.find(':'), second = text.find(':', first + 1);
  Schedule schedule;
  schedule.kind = Kind::kExponential;
  if (text.substr(0, first) != "exp" || first == std::string::npos || second == std::string::npos ||
      !read_number(text.substr(first + 1, second - first - 1), schedule.decay) ||
      !read_number(text.substr(second + 1), schedule.decay_steps) || schedule.decay <= 0 || schedule.decay_steps <= 0)
    throw Error(
        fmt::format("'{}' is no learning-rate schedule: use constant, or exp:DECAY:STEPS as in exp:0.99:600", text));
  return schedule;
}

std::string Schedule::to_string() const {
  return kind == Kind::kConstant ? "constant" : fmt::format("exp:{}:{}", decay, decay_steps);
}

float Schedule::factor(std::uint64_t step) const noexcept {
  if (kind == Kind::kConstant) return 1.0F;
  return static_cast<float>(std::pow(double(decay), double(step) / double(decay_steps)));
}

}  // namespace ps
