// A process beside the workers of a job, as Python has it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "worker.hpp"

namespace ps_shm::python {

struct GuestHandle {
  SharedRank rank;
  std::shared_ptr<std::optional<std::chrono::steady_clock::time_point>>
      until;  // of the call in progress: when it gives up
};

}  // namespace ps_shm::python
