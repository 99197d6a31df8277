// One block of bytes that all workers of a job read and nobody changes: the data they train on, loaded once.
//
//   data.D1  Only the holder of lock byte kLoaderByte makes the block. The kernel lets go of a dead holder's byte, and
//            the next one begins anew. Nothing of a loader that died is left: its segment had no name yet.
//   data.D2  The segment gets its name when it is complete (names.N1): the finder of the name finds everything. So
//            there is no word to swap, and readers map it read-only.
//   data.D3  A segment of that name that is another job's, whose removal was cut short, is replaced by the holder.
// It is a part of the job, removed with it (job_segments.hpp).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "shm/job_segments.hpp"

namespace ps::shm {

class SharedData {
 public:
  // The job's block; nothing where it has none yet. Throws Error where it is damaged, or something else of that name is
  // in the way. Lock-free.
  static std::optional<SharedData> try_attach(const JobSegments& job);

  // Makes it. `load` is given a function that returns room for so many bytes, which it calls once and fills.
  // Requires: the caller holds kLoaderByte, and there is none yet. Throws Error where /dev/shm has no room, or what
  // `load` throws; nothing is left then.
  using Room = std::function<std::span<std::byte>(std::size_t bytes)>;
  static void make(JobSegments& job, const std::string& key, const std::function<void(const Room&)>& load);

  // Whether it was made for this key.
  bool is_of(const std::string& key) const noexcept;
  std::string key() const;
  std::span<const std::byte> bytes() const noexcept;

 private:
  explicit SharedData(Segment segment) : segment_(std::move(segment)) {}
  const SharedDataShm& record() const noexcept {
    return *reinterpret_cast<const SharedDataShm*>(segment_.data() + kSharedRecordOffset);
  }

  Segment segment_;
};

}  // namespace ps::shm
