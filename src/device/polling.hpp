// Waits for a word in host memory that a device stores.
#pragma once

#include "device/resources.hpp"
#include "shm/base/atomic.hpp"
#include "shm/base/futex.hpp"

namespace ps_shm::device {

// Returns when fact() is true. Polls for some 20 us, the length of most waits for a GPU; then yields the core, and from
// time to time calls status(), of a stream or event, to check whether the device is still working. Throws Error if it
// has failed, or has finished without making the fact true. Several threads may wait at once.
template <class Status, class Fact>
void wait_for_device(CudaCalls& cuda, const char* what, Status&& status, Fact&& fact) {
  constexpr int kSpins = 400, kYields = 64;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (fact()) return;
    shm::spin_pause();
  }
  for (;;) {
    for (int yield = 0; yield < kYields; ++yield) {
      if (fact()) return;
      shm::give_up_core();
    }
    const CudaError found = status();
    if (found == kNotReady) continue;
    check(cuda, found, what);
    if (!fact()) throw Error(fmt::format("the GPU finished its work but did not {}", what), ErrorCode::kDevice);
    return;
  }
}

}  // namespace ps_shm::device
