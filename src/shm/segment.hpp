// One POSIX shared-memory object, mapped: created unnamed, filled, then named; attached with a named outcome; grown in
// place; unlinked. The only file that knows /dev/shm and Boost.Interprocess (used for the mapping alone: none of its
// locks, none of its managed segments).
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <boost/interprocess/mapped_region.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shm/layout.hpp"
#include "shm/truncation.hpp"

namespace ps::shm {

enum class Access { kReadOnly, kReadWrite };

// What attaching found. Only the first three are worth trying again.
enum class AttachOutcome {
  kAbsent,
  kBeingCreated,
  kShardMissing,  // of a job: one of its ps tasks has not come yet, or the job is being removed
  kReady,
  kOtherVersion,
  kOtherBuild,
  kDamaged,
  kExposed,      // every user may write to it, so nothing in it can be believed
  kNoPermission  // another user's, who does not share it with a group that we are in
};

// Who may use a segment: its owner, or a group too.
struct Sharing {
  std::optional<std::uint32_t> owner, group;  // none: the creator's
};

// Throws Error where there is no such group.
Sharing shared_with_group(const std::string& name);

// "no such segment", and so on, with what to do; for messages. Empty for kReady.
std::string describe(AttachOutcome outcome, const std::string& name);

class Segment {
 public:
  Segment() noexcept = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // A new segment without a name (N1), `bytes` of it reserved and zero, its header filled but for the version.
  // Throws Error when /dev/shm can't hold it.
  static Segment create(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance,
                        std::size_t bytes, std::size_t reserved_bytes, const Sharing& sharing = {});

  // Asks for pages of a memory node and for huge ones; says in the header what was granted. Only by the creator, before
  // the name. Returns why something was refused, or nothing.
  std::string place_memory(std::optional<std::uint32_t> node, bool huge_pages);

  // Gives the segment its name. False: another one has that name already.
  [[nodiscard]] bool link(const std::string& name);

  // Lets others attach: stores the layout version.
  void publish() noexcept;

  // Attaches to a segment of any state. On kReady the segment is mapped; on kBeingCreated, kOtherVersion, kOtherBuild
  // and kDamaged only the descriptor is held (for locks, see N2).
  AttachOutcome open(const std::string& name, Access access);

  // Makes the first `bytes` exist; never shrinks. Lock-free. Throws Error when /dev/shm is full, nothing changed then.
  void grow(std::size_t bytes);

  bool is_mapped() const noexcept { return region_.get_address() != nullptr; }
  std::byte* data() const noexcept { return static_cast<std::byte*>(region_.get_address()); }
  HeaderShm& header() const noexcept { return *reinterpret_cast<HeaderShm*>(data()); }
  std::size_t mapped_bytes() const noexcept { return region_.get_size(); }  // room to grow included
  int descriptor() const noexcept { return descriptor_; }
  const std::string& name() const noexcept { return name_; }
  std::size_t file_bytes() const;  // of the file now
  // How much of the mapping the file covers now: what lies beyond must not be touched.
  std::size_t usable_bytes() const { return std::min(file_bytes(), region_.get_size()); }

  // How this segment is shared, for others that go with it. Root's go to this one's owner.
  Sharing sharing() const;

  // Whether a read found its page cut off (truncation.hpp). Only of segments that are mapped read-only.
  bool was_cut_off() const noexcept { return watch_.has_missed_pages(); }

  // Whether the header says so. Requires: mapped.
  bool is_of(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance) const noexcept;

  // Whether no name leads to the segment any more (N3).
  bool is_orphaned() const;
  // Whether `name` leads to this very segment.
  bool is_named(const std::string& name) const;

 private:
  void map(std::size_t bytes, Access access);
  void close() noexcept;

  int descriptor_ = -1;
  std::string name_;
  boost::interprocess::mapped_region region_;
  pid_t mapped_by_ = 0;
  TruncationWatch watch_;
};

// /dev/shm's name of a job's segments, without the directory: "ps.JOB", "ps.JOB.K", "ps.JOB.wR.G", "ps.JOB.data".
std::string control_name(const std::string& job);
std::string shard_name(const std::string& job, std::uint32_t shard);
std::string gradient_name(const std::string& job, std::uint32_t rank, std::uint64_t generation);
std::string gradient_prefix(const std::string& job, std::uint32_t rank);  // of the names of all generations
std::string data_name(const std::string& job);

// Whether `name` leads to the segment that is open as `descriptor`.
bool leads_to(const std::string& name, int descriptor) noexcept;

// Removes the name; nothing happens where there is none. False: it is there still, being another user's.
bool unlink_segment(const std::string& name) noexcept;

// Frees the memory of a segment whose name another user's rights keep. Requires: nobody uses it.
void empty_segment(const std::string& name) noexcept;

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
