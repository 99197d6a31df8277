#include "worker/waits.hpp"

#include <cstdio>

#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"

namespace ps_shm {

using shm::to_ns;

Wait::Wait(const WorkerOptions& options, WaitLimit limit, double notice_seconds)
    : options_(options), deadline_ns_(shm::now_ns() + to_ns(limit)), period_ns_(to_ns(notice_seconds)) {
  notice_ns_ = shm::now_ns() + period_ns_;
}

bool Wait::slice(const std::function<std::string()>& what) {
  if (options_.stop_requested && options_.stop_requested()) throw Interrupted();
  const std::uint64_t now = shm::now_ns();
  if (now >= deadline_ns_) return false;
  if (now >= notice_ns_) {
    notice_ns_ = now + period_ns_;
    log(what());
  }
  return true;
}

void Wait::log(const WorkerOptions& options, const std::string& line) {
  if (options.log)
    options.log(line);
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

WaitMark::WaitMark(shm::WorkerShm& entry, shm::WaitingFor what, std::uint64_t on) noexcept : entry_(entry) {
  entry_.waiting_on.store_relaxed(on);
  entry_.waiting_for.store_release(static_cast<std::uint32_t>(what));  // (waiting.W3) after the number above
}

WaitMark::~WaitMark() {
  entry_.waiting_for.store_release(static_cast<std::uint32_t>(shm::WaitingFor::kNothing));  // (waiting.W3)
}

}  // namespace ps_shm
