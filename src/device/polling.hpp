// Waiting for a word in host memory that a device stores to.
#pragma once

#include "device/resources.hpp"
#include "shm/atomic.hpp"
#include "shm/futex.hpp"

namespace ps::device {

// Returns when fact() is true. Looks for some 20 us, which most waits for a GPU last, then lets others have the core and
// asks now and then with status(), of a stream or event, whether the device is still at work. Throws Error where it has
// failed, or has ended without making the fact true. Several threads may wait at once.
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
    if (!fact()) throw Error(fmt::format("the GPU has ended its work and did not {}", what));
    return;
  }
}

}  // namespace ps::device
