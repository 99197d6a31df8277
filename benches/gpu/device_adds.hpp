// The launcher of device_adds.cu. `stream` is a cudaStream_t; returns cudaError_t's number.
#pragma once

#include <cstdint>

namespace ps_shm::bench {

int launch_device_adds(float* to, std::uint32_t count, std::uint32_t rounds, void* stream) noexcept;

}  // namespace ps_shm::bench
