#include "repeating.hpp"

#include <chrono>
#include <utility>

namespace ps::tools {

Repeating::Repeating(Look look, std::chrono::milliseconds pause)
    : look_(std::move(look)), pause_(pause), thread_([this] {
        for (bool is_last = false; !is_last;) {
          {
            std::unique_lock lock(mutex_);
            is_last = changed_.wait_for(lock, pause_, [this] { return is_over_; });
          }
          look_(is_last);
        }
      }) {}

Repeating::~Repeating() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

double steady_seconds() noexcept {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ps::tools
