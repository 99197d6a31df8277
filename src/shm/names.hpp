// The names in /dev/shm: what a job's segments are called, which there are, where they lead, removing them; and how much
// room there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ps::shm {

inline constexpr char kDirectory[] = "/dev/shm";
inline std::string path_of(const std::string& name) { return std::string(kDirectory) + "/" + name; }

// /dev/shm's name of a job's segments, without the directory: "ps.JOB", "ps.JOB.K", "ps.JOB.wR.G", "ps.JOB.data".
std::string control_name(const std::string& job);
std::string shard_name(const std::string& job, std::uint32_t shard);
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation);
std::string gradient_prefix(const std::string& job, std::uint32_t rank);  // of the names of all generations
std::string data_name(const std::string& job);

// "ps_publication.NAME": of no job.
inline constexpr char kBundlePrefix[] = "ps_publication.";
std::string bundle_name(const std::string& publication);

// Whether `name` leads to the segment that is open as `descriptor`.
bool leads_to(const std::string& name, int descriptor) noexcept;

// Removes the name; nothing happens where there is none. False: it is there still, being another user's.
bool unlink_segment(const std::string& name) noexcept;

// "user NAME", or nothing where there is no such segment.
std::string owner_of(const std::string& name);

// Names in /dev/shm that begin with `prefix`, sorted.
std::vector<std::string> list_segments(const std::string& prefix);

// How much /dev/shm could hold if it were empty, in bytes; what a growing segment reserves address space for.
std::size_t shm_capacity_bytes();
std::size_t shm_free_bytes();

// The pauses of a wait for a name to appear in or vanish from /dev/shm: 1 ms at first, then longer, up to a slice
// (futex.hpp). A signal cuts one short. No inotify: closing its descriptor can take the kernel seconds, at the end of a
// killed process too, whose locks it would keep for as long.
class NameWait {
 public:
  void pause() noexcept;

 private:
  int milliseconds_ = 1;
};

}  // namespace ps::shm
