// The fibers of an explorer: their code, how far they have come in an execution, and which of them can go on.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "scenes/fiber_options.hpp"
#include "scenes/memory.hpp"

namespace ps_shm::test {

struct Fiber {
  static constexpr std::size_t kStackBytes = 128 << 10;
  static constexpr std::size_t kNone = ~std::size_t{0};

  std::function<void()> body;
  FiberOptions options;
  std::unique_ptr<std::byte[]> stack;
  ucontext_t context = {};
  std::vector<std::byte> apart = {};
  std::uint64_t history = 0, reads = 0, reads_since = 0;
  std::uint64_t before_polls = 0, idle_polls = 0, polled_at = 0;
  bool has_begun = false, has_passed = false, has_ended = false, is_dead = false;
  std::uint32_t deaths = 0;
  bool has_looked = false;       // after a death
  bool is_before_store = false;  // its next access may store
  bool polls_in_vain = false;    // until somebody stores something
  std::size_t sleeps_on = kNone;

  bool is_over() const noexcept { return has_ended || is_dead; }
  // Its lock byte.
  bool is_held() const noexcept { return !is_over() && (has_begun || (options.after == 0 && deaths == 0)); }
  // It polls, and nobody has stored anything since. `stores`: by all fibers so far.
  bool is_idle(std::uint64_t stores) const noexcept {
    return (options.patience != 0 && reads > options.patience && reads_since == stores) ||
           (polls_in_vain && polled_at == stores);
  }
  // Polls between which nobody has stored anything are counted. What it has read since the first poll counts no more.
  void poll(bool is_first, std::uint64_t stores, std::uint64_t most) {
    if (is_first) before_polls = history;
    idle_polls = is_first || polled_at != stores ? 0 : idle_polls + 1;
    polled_at = stores;
    polls_in_vain = idle_polls >= most;
    history = before_polls;
  }
  void die() {
    if (++deaths >= options.lives) return static_cast<void>(is_dead = true);
    begin();
  }
  void reset() {
    begin();
    has_ended = is_dead = has_looked = false;
    deaths = 0;
  }

 private:
  void begin() {
    history = reads = reads_since = before_polls = idle_polls = polled_at = 0;
    has_begun = has_passed = is_before_store = polls_in_vain = false;
    sleeps_on = kNone;
  }
};

class Fibers {
 public:
  void add(std::function<void()> body, const FiberOptions& options) {
    if (fibers_.size() == kMaxThreads) throw std::length_error("too many fibers");
    fibers_.push_back({std::move(body), options, std::make_unique<std::byte[]>(Fiber::kStackBytes)});
  }
  std::size_t size() const noexcept { return fibers_.size(); }
  Fiber& operator[](std::size_t number) { return fibers_[number]; }
  const Fiber& operator[](std::size_t number) const { return fibers_[number]; }

  void limit_deaths(std::uint64_t most) noexcept { most_deaths_ = most; }
  void reset() {
    for (Fiber& fiber : fibers_) fiber.reset();
    deaths_ = 0;
  }
  void die(std::size_t number) {
    fibers_[number].die();
    ++deaths_;
  }

  // Lock bytes.
  bool have(std::uint32_t byte) const noexcept {
    return any([&](const Fiber& fiber) { return fiber.options.byte == byte; });
  }
  bool hold(std::uint32_t byte) const noexcept {
    return any([&](const Fiber& fiber) { return fiber.options.byte == byte && fiber.is_held(); });
  }
  bool have_bytes() const noexcept {
    return any([](const Fiber& fiber) { return fiber.options.byte.has_value(); });
  }

  bool sleep() const noexcept {
    return any([](const Fiber& fiber) { return fiber.sleeps_on != Fiber::kNone && !fiber.is_dead; });
  }
  void wake(std::size_t word) noexcept {
    for (Fiber& fiber : fibers_)
      if (fiber.sleeps_on == word) fiber.sleeps_on = Fiber::kNone;
  }
  // A death wakes no sleeper, but each wait has slices (waiting.W2): sleepers check once more.
  bool wake_after_death() {
    if (deaths_ == 0) return false;
    bool wakes = false;
    for (Fiber& fiber : fibers_)
      if (!fiber.is_over() && fiber.sleeps_on != Fiber::kNone && !std::exchange(fiber.has_looked, true))
        fiber.sleeps_on = Fiber::kNone, wakes = true;
    return wakes;
  }
  // Whether others depend on how that one has ended.
  bool is_followed(std::size_t number) const noexcept {
    return any([&](const Fiber& fiber) {
      return fiber.options.byte || ((fiber.options.after >> number & 1) != 0 && !fiber.has_begun);
    });
  }

  // The numbers of fibers that can take the next step and, beyond their number, of those that can die; the current one
  // first, as that needs no switch. `is_own`: of the current one alone. `before_stores`: they die before stores alone.
  using ChoicesOfFibers = std::array<std::uint32_t, 2 * kMaxThreads>;
  std::size_t find_choices(ChoicesOfFibers& choices, std::size_t current, std::uint64_t stores, bool is_own,
                           bool before_stores) const {
    std::uint32_t over = 0, can_go = 0, polls = 0, deaths = 0;
    for (std::size_t i = 0; i < size(); ++i) over |= fibers_[i].is_over() ? 1U << i : 0;
    for (std::size_t i = 0; i < size(); ++i) {
      const Fiber& fiber = fibers_[i];
      if (fiber.is_over() || (fiber.options.after & ~over) != 0 || (is_own && i != current)) continue;
      if (fiber.options.may_die && deaths_ < most_deaths_ && (fiber.is_before_store || !before_stores))
        deaths |= 1U << (size() + i);
      if (fiber.sleeps_on == Fiber::kNone) (fiber.is_idle(stores) ? polls : can_go) |= 1U << i;
    }
    std::size_t count = 0;
    const std::uint32_t open = (can_go != 0 ? can_go : polls) | deaths;
    if (current < size() && (open >> current & 1) != 0) choices[count++] = static_cast<std::uint32_t>(current);
    for (std::uint32_t i = 0; i < 2 * size(); ++i)
      if (i != current && (open >> i & 1) != 0) choices[count++] = i;
    return count;
  }

 private:
  template <class Predicate>
  bool any(Predicate&& predicate) const noexcept {
    return std::any_of(fibers_.begin(), fibers_.end(), predicate);
  }

  std::vector<Fiber> fibers_;
  std::uint64_t deaths_ = 0, most_deaths_ = ~std::uint64_t{0};
};

}  // namespace ps_shm::test
