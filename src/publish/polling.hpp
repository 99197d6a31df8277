// A wait for something that is not announced: a name in /dev/shm, a lock byte, a lease that is given back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/segment/names.hpp"

namespace ps_shm {

class Polling {
 public:
  using StopRequested = std::function<bool()>;
  using LogCallback = std::function<void(const std::string&)>;

  Polling(const StopRequested& stop_requested, const LogCallback& log, WaitLimit limit)
      : stop_requested_(stop_requested), log_(log), until_ns_(shm::now_ns() + shm::to_ns(limit)) {}

  bool is_over() const { return shm::now_ns() >= until_ns_; }

  // Polls the caller's stop request, and reports once a second what it waits for. Throws Interrupted.
  void check(const std::function<std::string()>& what) {
    constexpr std::uint64_t kSecondNs = 1'000'000'000;
    if (stop_requested_ && stop_requested_()) throw Interrupted();
    if (const std::uint64_t now = shm::now_ns(); log_ && now >= notice_ns_) {
      notice_ns_ = now + kSecondNs;
      log_(what());
    }
  }
  void sleep() { names_.pause(); }
  void pause(const std::function<std::string()>& what) {
    check(what);
    sleep();
  }

 private:
  const StopRequested& stop_requested_;
  const LogCallback& log_;
  std::uint64_t until_ns_, notice_ns_ = shm::now_ns() + 1'000'000'000;
  shm::NameWait names_;
};

}  // namespace ps_shm
