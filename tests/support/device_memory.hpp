// Addresses that only a fake device's threads can use: its own memory, and host memory once more.
//
// All lie in one range of addresses, of which none is used twice, with pages between them that nobody can use.
#pragma once

#include <cstddef>

namespace ps_shm::test {

// Filled with what as floats is not a number, so that what is not written shows. Its end is as near to the next page as
// CUDA's alignment, of 256 bytes, lets it be. nullptr: there is no more room.
std::byte* make_device_memory(std::size_t bytes);
// The same pages once more; of private memory, which cannot be mapped twice, just its own address.
std::byte* map_for_device(std::byte* host, std::size_t bytes, bool read_only);
void drop_device_memory(std::byte* device, std::size_t bytes);
bool is_device_address(const void* address);

// Host memory that can be mapped once more.
std::byte* make_shared_memory(std::size_t bytes);
void drop_shared_memory(std::byte* host, std::size_t bytes);

// Lets the calling thread use the device's addresses; on processors without memory keys every thread can.
void unlock_device_memory();

}  // namespace ps_shm::test
