// Names in /dev/shm: how a job's segments are named, which names exist, what they lead to, and removing them; also the
// capacity of /dev/shm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ps_shm::shm {

inline constexpr char kDirectory[] = "/dev/shm";
inline std::string path_of(const std::string& name) { return std::string(kDirectory) + "/" + name; }

// The names of a job's segments in /dev/shm: "ps_shm.JOB", "ps_shm.JOB.K", "ps_shm.JOB.wR.G", "ps_shm.JOB.tN.P",
// "ps_shm.JOB.data" and "ps_shm.JOB.bridge".
inline constexpr char kJobPrefix[] = "ps_shm.";
std::string control_name(const std::string& job);
std::string shard_name(const std::string& job, std::uint32_t shard);
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation);
std::string gradient_prefix(const std::string& job, std::uint32_t rank);  // common to all generations
std::string table_name(const std::string& job, std::uint32_t table, std::uint32_t part);
std::string data_name(const std::string& job);
std::string bridge_name(const std::string& job);

// The job that a segment's name contains; empty if it is not the name of a job's segment.
std::string job_of(const std::string& segment);

// "ps_shm_publication.NAME", which belongs to no job.
inline constexpr char kBundlePrefix[] = "ps_shm_publication.";
std::string bundle_name(const std::string& publication);

// Whether `name` leads to the segment that is open as `descriptor`.
bool leads_to(const std::string& name, int descriptor) noexcept;

// Removes the name, if it exists. False: it still exists, because it belongs to another user.
bool unlink_segment(const std::string& name) noexcept;

// "user NAME", or an empty string if there is no such segment.
std::string owner_of(const std::string& name);

// Names in /dev/shm that begin with `prefix`, sorted.
std::vector<std::string> list_segments(const std::string& prefix);

// The capacity of /dev/shm in bytes, used or free. A growing segment reserves that much address space.
std::size_t shm_capacity_bytes();
std::size_t shm_free_bytes();

// The pauses of a wait for a name to appear in /dev/shm or to vanish from it: 1 ms at first, then longer, up to a
// slice (futex.hpp). A signal ends a pause early. inotify is not used: closing its descriptor can take the kernel
// seconds, also at the end of a killed process, whose locks would be kept for as long.
class NameWait {
 public:
  void pause() noexcept;

 private:
  int milliseconds_ = 1;
};

}  // namespace ps_shm::shm
