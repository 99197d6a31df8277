// The shared data: one block of bytes that all workers of a job read and no process changes, such as training data that
// is loaded once. It is a part of the job and is removed with it (job_segments.hpp).
//
//   data.D1  Only the holder of lock byte kLoaderByte makes the block. If the holder dies, the kernel frees the byte,
//            and the next holder starts from scratch. A dead loader leaves nothing behind, since its segment had no
//            name yet.
//   data.D2  The segment gets its name when it is complete (names.N1). A process that finds the name finds everything,
//            so there is no word to swap, and readers map the segment read-only.
//   data.D3  The holder replaces a segment of that name that belongs to another job, left by an interrupted removal.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "shm/segment/job_segments.hpp"

namespace ps_shm::shm {

class SharedData {
 public:
  // The job's block, or nothing if there is none yet. Throws Error if it is damaged, or if something else has its
  // name. Lock-free.
  static std::optional<SharedData> try_attach(const JobSegments& job);

  // Makes the block. `load` is given a function that returns memory for a number of bytes. `load` calls it once and
  // fills that memory. Requires: the caller holds kLoaderByte, and there is no block yet. Throws Error if /dev/shm is
  // full, and what `load` throws; nothing is left behind then.
  using Allocate = std::function<std::span<std::byte>(std::size_t bytes)>;
  static void make(JobSegments& job, const std::string& content, const std::function<void(const Allocate&)>& load);

  // Whether the block was made for this content.
  bool is_of(const std::string& content) const noexcept;
  std::string content() const;
  std::span<const std::byte> bytes() const noexcept;

 private:
  explicit SharedData(Segment segment) : segment_(std::move(segment)) {}
  const SharedDataShm& record() const noexcept {
    return *reinterpret_cast<const SharedDataShm*>(segment_.data() + kSharedRecordOffset);
  }

  Segment segment_;
};

}  // namespace ps_shm::shm
