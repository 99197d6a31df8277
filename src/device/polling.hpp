// Waits for a device. A wait that lasts long is reported, and goes on; if its caller is asked to stop then, it gives the
// device up.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "device/resources.hpp"
#include "shm/base/atomic.hpp"
#include "shm/base/futex.hpp"
#include "worker/device_port.hpp"

namespace ps_shm::device {

// Watches a worker's waits for its GPU. Several threads may wait at once.
class PS_SHM_HIDDEN GpuWatch {
 public:
  GpuWatch(CudaCalls& cuda, const DevicePort& worker) noexcept : cuda_(cuda), worker_(worker) {}

  CudaCalls& cuda() const noexcept { return cuda_; }

  // What the waits from now on belong to: "the graph of a step". A literal; nullptr: there is nothing to add. Requires:
  // nobody waits.
  void set_context(const char* context) noexcept { context_ = context; }

  // One wait of one thread.
  class Turn {
   public:
    explicit Turn(GpuWatch& watch) noexcept;
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // To be called from time to time. After 10 s, and then every 10 s, writes a line about what() by the worker's log
    // callback, and marks the wait in its table entry. From then on it polls the worker's stop request: if it is asked
    // to stop, it gives the device up (CudaCalls::give_up) and throws Interrupted, as all later waits do.
    void look(const std::function<std::string()>& what);

   private:
    GpuWatch& watch_;
    const std::uint64_t began_ns_;
    bool has_mark_ = false;
  };

  // Before what the GPU uses is released: waits until the stream or event is done, or the device is given up.
  template <class Work>
  void settle(Work work) noexcept;

 private:
  CudaCalls& cuda_;
  const DevicePort worker_;
  const char* context_ = nullptr;
  std::mutex mutex_;  // held by the thread that looks; others go on waiting
  std::uint64_t next_line_ns_ = 0, next_poll_ns_ = 0;
};

// Returns when fact() is true. Polls for some 20 us, the length of most waits for a GPU; then yields the core, and from
// time to time calls status(), of a stream or event, to check whether the device is still working. Throws Error if it
// has failed, or has finished without making the fact true; and as GpuWatch::Turn::look(). `action`: what the GPU cannot
// do in that error; describe(): what the wait is for, in its report.
template <class Describe, class Status, class Fact>
void wait_for_device(GpuWatch& watch, const char* action, Describe&& describe, Status&& status, Fact&& fact) {
  constexpr int kSpins = 400, kYields = 64;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (fact()) return;
    shm::spin_pause();
  }
  GpuWatch::Turn turn(watch);
  for (;;) {
    for (int yield = 0; yield < kYields; ++yield) {
      if (fact()) return;
      shm::give_up_core();
    }
    const CudaError found = status();
    if (found == kNotReady) {
      turn.look(describe);
      continue;
    }
    check(watch.cuda(), found, action);
    if (!fact()) throw Error(fmt::format("the GPU finished its work but did not {}", action), ErrorCode::kDevice);
    return;
  }
}

// Returns when the stream or event is done. Throws Error if the GPU has failed, or as above.
template <class Work>
void wait_until_done(GpuWatch& watch, Work work, const char* action) {
  CudaCalls& cuda = watch.cuda();
  CudaError found = kNotReady;
  wait_for_device(
      watch, action, [&] { return std::string(action); }, [&] { return found; },
      [&] { return (found = cuda.query(work)) != kNotReady; });
  check(cuda, cuda.synchronize(work), action);
}

template <class Work>
void GpuWatch::settle(Work work) noexcept {
  try {
    if (!cuda_.is_given_up()) wait_until_done(*this, work, "finish its work");
  } catch (...) {  // what comes next is the release of what it uses
    static_cast<void>(cuda_.last_error());
  }
}

}  // namespace ps_shm::device
