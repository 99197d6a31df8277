#include "common/repeating.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace ps_shm::tools {

Repeating::Repeating(Look look, Failed failed, std::chrono::milliseconds pause)
    : look_(std::move(look)), failed_(std::move(failed)), pause_(pause), thread_([this] { run(); }) {}

void Repeating::run() noexcept {
  for (bool is_last = false; !is_last;) {
    {
      std::unique_lock lock(mutex_);
      is_last = changed_.wait_for(lock, pause_, [this] { return is_over_; });
    }
    has_failed_ = !call(is_last);
  }
}

// False: it threw.
bool Repeating::call(bool is_last) noexcept {
  std::string what = "unknown exception";
  try {
    if (look_(is_last)) told_.clear();
    return true;
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  if (is_last || what != told_) failed_(what, is_last);
  told_ = what;
  return false;
}

bool Repeating::finish() noexcept {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  return !has_failed_;
}

bool Repeating::is_over() noexcept {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

Repeating::~Repeating() { static_cast<void>(finish()); }

Seconds longest_wait(bool is_last) noexcept {
  if (!is_last) return Seconds(1);
  static const double until = steady_seconds() + 5.0;  // a service manager kills after some tens of seconds
  return Seconds(std::max(0.1, until - steady_seconds()));
}

double unix_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double steady_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ps_shm::tools
