// Something that a program does again and again beside its work: a look every few milliseconds, and a last one at the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace ps::tools {

class Repeating {
 public:
  using Look = std::function<void(bool is_last)>;

  // `look` is called in a thread of its own, and throws nothing.
  explicit Repeating(Look look, std::chrono::milliseconds pause = std::chrono::milliseconds(1));
  ~Repeating();  // after the last look
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

 private:
  const Look look_;
  const std::chrono::milliseconds pause_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

double steady_seconds() noexcept;  // a clock for intervals

}  // namespace ps::tools
