#include "ps_shm/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <string_view>

#include "ps_shm/errors.hpp"

namespace ps_shm {
namespace {

// Parses a schedule from left to right.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text), rest_(text) {}

  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  // Parses the next number. `accepts` checks whether it is as `wanted` describes.
  template <class Accepts>
  float number(const char* name, const char* wanted, Accepts accepts) {
    float value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    const auto length = static_cast<std::size_t>(end - rest_.data());
    const bool is_whole = length == rest_.size() || rest_[length] == ':' || rest_[length] == '+';
    if (error != std::errc{} || !is_whole || !std::isfinite(value) || !accepts(value))
      refuse(fmt::format("{} must be {}, not '{}'", name, wanted, rest_.substr(0, rest_.find_first_of(":+"))));
    rest_.remove_prefix(length);
    return value;
  }

  void expect(std::string_view mark, const char* what) {
    if (!take(mark)) refuse(fmt::format("'{}{}' is missing", mark, what));
  }

  void expect_end() const {
    if (!rest_.empty()) refuse(fmt::format("unexpected '{}'", rest_));
  }

  std::string_view rest() const { return rest_; }

  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error(fmt::format("learning-rate schedule '{}': {}", text_, reason));
  }

 private:
  const std::string& text_;
  std::string_view rest_;
};

bool is_positive(float value) { return value > 0; }
bool is_share(float value) { return value >= 0 && value <= 1; }
// Above 2^24 a float cannot represent every integer.
bool is_count(float value) { return value >= 1 && value <= 16777216.0F && value == std::floor(value); }

}  // namespace

Schedule Schedule::parse(const std::string& text) {
  Reader reader(text);
  Schedule schedule;
  if (reader.take("warmup:")) {
    schedule.warmup_steps = reader.number("STEPS of warmup", "an integer from 1 to 16777216", is_count);
    reader.expect("+", "SCHEDULE");
  }
  if (reader.take("constant")) {
    schedule.kind = Kind::kConstant;
  } else if (reader.take("cosine:")) {
    schedule.kind = Kind::kCosine;
    schedule.decay_steps = reader.number("STEPS of cosine", "above 0", is_positive);
    schedule.decay = reader.take(":") ? reader.number("FLOOR of cosine", "from 0 to 1", is_share) : 0.0F;
  } else if (reader.take("exp:")) {
    schedule.kind = Kind::kExponential;
    schedule.decay = reader.number("DECAY of exp", "above 0", is_positive);
    reader.expect(":", "STEPS");
    schedule.decay_steps = reader.number("STEPS of exp", "above 0", is_positive);
  } else if (reader.take("step:")) {
    schedule.kind = Kind::kStep;
    schedule.decay = reader.number("DECAY of step", "above 0", is_positive);
    reader.expect(":", "STEPS");
    schedule.decay_steps = reader.number("STEPS of step", "above 0", is_positive);
  } else {
    reader.refuse(
        "use constant, exp:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS[:FLOOR], each also after warmup:STEPS+");
  }
  reader.expect_end();
  return schedule;
}

std::string Schedule::to_string() const {
  std::string text;
  if (warmup_steps > 0) text = fmt::format("warmup:{}+", warmup_steps);
  text += ps_shm::to_string(kind);
  switch (kind) {
    case Kind::kConstant:
      return text;
    case Kind::kExponential:
    case Kind::kStep:
      return text + fmt::format(":{}:{}", decay, decay_steps);
    case Kind::kCosine:
      break;
  }
  return text + (decay == 0 ? fmt::format(":{}", decay_steps) : fmt::format(":{}:{}", decay_steps, decay));
}

const char* to_string(Schedule::Kind kind) noexcept {
  switch (kind) {
    case Schedule::Kind::kConstant:
      return "constant";
    case Schedule::Kind::kExponential:
      return "exp";
    case Schedule::Kind::kStep:
      return "step";
    case Schedule::Kind::kCosine:
      return "cosine";
  }
  return "unknown";
}

float Schedule::factor(std::uint64_t step) const noexcept {
  double t = double(step);
  if (t < double(warmup_steps)) return static_cast<float>((t + 1) / double(warmup_steps));
  t -= double(warmup_steps);
  const double share = t / double(decay_steps);
  switch (kind) {
    case Kind::kConstant:
      return 1.0F;
    case Kind::kExponential:
      return static_cast<float>(std::pow(double(decay), share));
    case Kind::kStep:
      return static_cast<float>(std::pow(double(decay), std::floor(share)));
    case Kind::kCosine:
      break;
  }
  const double wave = (1 + std::cos(std::numbers::pi * std::min(share, 1.0))) / 2;
  return static_cast<float>(double(decay) + (1 - double(decay)) * wave);
}

}  // namespace ps_shm
