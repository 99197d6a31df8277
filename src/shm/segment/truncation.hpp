// Reading segments that another process may truncate. Reading a page beyond the end of a file raises SIGBUS. A program
// that only reads, such as the inspector, calls survive_truncation() once. From then on such a page of a read-only
// mapping becomes a page of zeros, and the segment reports that it was truncated. Without the call nothing changes.
//
// The signal handler only reads a table of atomics and maps a page, so it may interrupt anything. A SIGBUS anywhere
// else ends the process as before.
#pragma once

#include <cstddef>

namespace ps_shm::shm {

void survive_truncation() noexcept;

// The table entry of one mapping, for the lifetime of the object. Wait-free.
class TruncationWatch {
 public:
  TruncationWatch() noexcept = default;
  TruncationWatch(const void* address, std::size_t bytes) noexcept;  // watches nothing if the table is full
  TruncationWatch(TruncationWatch&& other) noexcept;
  TruncationWatch& operator=(TruncationWatch&& other) noexcept;
  ~TruncationWatch();

  // Whether a page of the mapping was missing when it was read.
  bool has_missed_pages() const noexcept;

 private:
  int place_ = -1;
};

}  // namespace ps_shm::shm
