// An action that a program repeats in the background: every few milliseconds, and once more at the end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "ps_shm/errors.hpp"

namespace ps_shm::tools {

class Repeating {
 public:
  // Returns whether there was something to do and it was done.
  using Look = std::function<bool(bool is_last)>;
  using Failed = std::function<void(const std::string& what, bool is_last)>;

  // Calls `look` in a thread of its own. An exception ends nothing: its text is passed to `failed` in that thread, but not
  // the same text again before a call has done something; that of the last call in any case. `failed` must not throw.
  Repeating(Look look, Failed failed, std::chrono::milliseconds pause = std::chrono::milliseconds(1));
  ~Repeating();  // as finish()
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

  // Calls `look` the last time and waits for it. Returns false if that threw. A second call returns the same.
  bool finish() noexcept;

  // Whether the last call is due; for a `look` that waits.
  bool is_over() noexcept;

 private:
  void run() noexcept;
  bool call(bool is_last) noexcept;

  const Look look_;
  const Failed failed_;
  const std::chrono::milliseconds pause_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::string told_;         // what `failed` was told, until a call has done something
  bool has_failed_ = false;  // the last call
  std::thread thread_;
};

// For how long a call of a Repeating may wait for what another process holds. A regular one: a second, for the end of the
// program may have to wait for it. The last ones of a program share five seconds, but have a tenth of a second at least.
// Thread-safe.
Seconds longest_wait(bool is_last) noexcept;

double steady_seconds() noexcept;  // monotonic clock, for intervals
double unix_seconds() noexcept;    // since 1970

}  // namespace ps_shm::tools
