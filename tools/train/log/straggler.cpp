#include "train/log/straggler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <utility>

#include "shm/base/clock.hpp"
#include "train/data/random.hpp"

namespace ps_shm::train {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

namespace {

// In the largest unit in which it is a number of a few digits, or else in seconds.
std::string text_of(double seconds) {
  constexpr std::pair<const char*, double> kUnits[] = {{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
  for (const auto& [unit, size] : kUnits) {
    const std::string number = fmt::format("{:.6g}", seconds / size);
    if (seconds >= size && (size == 1.0 || seconds < 1000 * size) && std::stod(number) * size == seconds)
      return number + unit;
  }
  return fmt::format("{}", seconds);
}

}  // namespace

std::string Delay::to_string() const {
  std::string text = factor > 1 ? fmt::format("{}x", factor) : text_of(seconds);
  if (share < 1) text += fmt::format("@{}", share);
  return text;
}

Straggler::Straggler(const Delay& delay, std::uint64_t seed, std::uint32_t rank, std::function<double()> clock)
    : delay_(delay), clock_(std::move(clock)), generator_(mix(mix(seed, hash_name("straggler")), rank)) {}

void Straggler::begin_work() {
  if (delay_.factor > 1) work_began_ = clock_();
}

bool Straggler::slow_down(const std::function<bool()>& stop) {
  if (!is_one()) return true;
  const double wait = wait_after(delay_.factor > 1 ? clock_() - work_began_ : 0.0);
  const std::uint64_t begin = shm::now_ns();
  const bool is_over = wait <= 0 || wait_seconds(wait, stop);
  waited(double(shm::now_ns() - begin) * 1e-9);
  return is_over;
}

double Straggler::wait_after(double work_seconds) {
  const bool is_slow =
      delay_.share >= 1 || double(generator_() >> 11) * 0x1.0p-53 < delay_.share;  // 53 random bits in [0, 1)
  if (is_slow) {
    last_ = delay_.seconds + (delay_.factor - 1) * work_seconds;
    owed_ += last_;
  }
  return std::max(owed_, 0.0);
}

void Straggler::waited(double seconds) {
  owed_ = std::max(owed_ - seconds, -last_);  // after a stop of an hour, delays must not be omitted for an hour
}

bool wait_seconds(double seconds, const std::function<bool()>& stop) {
  // A signal between the check of `stop` and the sleep does not end the sleep, so it is divided into slices.
  constexpr std::uint64_t kSliceNs = 20'000'000;
  const std::uint64_t end = shm::now_ns() + shm::to_ns(seconds);
  for (;;) {
    if (stop && stop()) return false;
    const std::uint64_t now = shm::now_ns();
    if (now >= end) return true;
    shm::sleep_until_ns(std::min(end, now + kSliceNs));
  }
}

}  // namespace ps_shm::train
