// Addresses that only the threads of a fake device can use: its own memory, and a second mapping of host memory.
//
// All lie in one range of addresses, each of which is used only once, with inaccessible pages between them.
#pragma once

#include <cstddef>

namespace ps_shm::test {

// Filled with bytes that are NaN as floats, so that an unwritten value is noticed. It ends as close to the next page as
// CUDA's alignment of 256 bytes permits. nullptr: the range is exhausted.
std::byte* make_device_memory(std::size_t bytes);
// A second mapping of the same pages; for private memory, which cannot be mapped twice, its own address.
std::byte* map_for_device(std::byte* host, std::size_t bytes, bool read_only);
void drop_device_memory(std::byte* device, std::size_t bytes);
bool is_device_address(const void* address);

// Host memory that can be mapped a second time.
std::byte* make_shared_memory(std::size_t bytes);
void drop_shared_memory(std::byte* host, std::size_t bytes);

// Lets the calling thread use the device's addresses; on processors without memory keys every thread can.
void unlock_device_memory();

}  // namespace ps_shm::test
