// What bounds the cases, measured by as many processes at once as the case has.
#pragma once

#include <cstdint>

namespace ps_shm::bench {

// Rounds per second, summed over the processes, of adding a gradient to private memory, `arrays` such streams with one
// gradient; each by the fastest of the ways to do it on this machine.
struct TriadRates {
  double apart = 0;     // a = b + s * c: from buffer to buffer
  double in_place = 0;  // a = a + s * c: less memory
};
TriadRates triad_rates(std::uint64_t floats, int processes, std::size_t arrays = 1);

// Rounds per second, summed, of memcpy of that many floats from pages of /dev/shm to private memory.
double memcpy_rate(std::uint64_t floats, int processes);

// Both at once: `readers` processes copy, `writers` others do the triad.
struct MixedRates {
  double reads = 0, writes = 0;
};
MixedRates mixed_rates(std::uint64_t floats, int readers, int writers);

}  // namespace ps_shm::bench
