#include "train/straggler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>

#include "train/data/random.hpp"

namespace ps::train {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

std::string Delay::to_string() const {
  std::string text = factor > 1 ? fmt::format("{}x", factor) : fmt::format("{}", seconds);
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
  const Clock::time_point begin = Clock::now();
  const bool is_over = wait <= 0 || wait_seconds(wait, stop);
  waited(std::chrono::duration<double>(Clock::now() - begin).count());
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
  owed_ = std::max(owed_ - seconds, -last_);  // who was stopped for an hour does not go without delays for an hour
}

bool wait_seconds(double seconds, const std::function<bool()>& stop) {
  // A signal that comes between the look at `stop` and the sleep does not end the sleep, so that is cut into slices.
  constexpr auto kSlice = std::chrono::milliseconds(20);
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(seconds, 1e9)));
  for (;;) {
    if (stop && stop()) return false;
    const Clock::duration left = end - Clock::now();
    if (left <= Clock::duration::zero()) return true;
    std::this_thread::sleep_for(std::min<Clock::duration>(left, kSlice));
  }
}

}  // namespace ps::train
