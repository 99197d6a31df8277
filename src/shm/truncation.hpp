// Reading segments that somebody may cut off meanwhile: a page beyond a file's end is a SIGBUS. A program that only
// reads, such as the inspector, calls survive_truncation() once; from then on such a page of a segment that is mapped
// read-only becomes a page of zeros, and the segment says that it was cut off. Without the call nothing changes.
//
// The handler does nothing but look into a table of atomics and map a page, so it may interrupt anything. A SIGBUS
// anywhere else ends the process as before.
#pragma once

#include <cstddef>

namespace ps::shm {

void survive_truncation() noexcept;

// One mapping's place in the table, while it lives. Wait-free.
class TruncationWatch {
 public:
  TruncationWatch() noexcept = default;
  TruncationWatch(const void* address, std::size_t bytes) noexcept;  // watches nothing where the table is full
  TruncationWatch(TruncationWatch&& other) noexcept;
  TruncationWatch& operator=(TruncationWatch&& other) noexcept;
  ~TruncationWatch();

  // Whether a page of it was missing when it was read.
  bool has_missed_pages() const noexcept;

 private:
  int place_ = -1;
};

}  // namespace ps::shm
