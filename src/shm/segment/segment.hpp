// A mapped POSIX shared-memory object. It is created unnamed, filled, then named; attaching to it reports an outcome;
// it grows in place. Only this file, names and open_file deal with the files of /dev/shm.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "shm/base/open_file.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/names.hpp"
#include "shm/segment/truncation.hpp"

namespace ps_shm::shm {

// The users of a segment: its owner, and possibly a group.
struct Sharing {
  std::optional<std::uint32_t> owner, group;  // unset: the creator's
};

// Throws Error if there is no such group. With an empty name, no group is set.
Sharing shared_with_group(const std::string& name);

// Whose segments a process uses besides those of its own user. There is no exception for root, because the contents of
// a segment determine what the process writes.
struct Trust {
  std::optional<std::uint32_t> group;  // segments that are shared with this group
  bool anybody = false;                // every segment that can be opened: for reading with checks, or for removing
};
inline constexpr Trust kTrustAnybody{.group = std::nullopt, .anybody = true};

class Segment {
 public:
  static constexpr std::size_t kMaxReserved = std::size_t{1} << 46;  // bytes: half of a process's address space

  Segment() noexcept = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // Makes a segment without a name (names.N1): `bytes` of it reserved and zero, the header filled except for the
  // version. Throws Error if /dev/shm cannot hold it.
  static Segment create(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance,
                        std::size_t bytes, std::size_t reserved_bytes, const Sharing& sharing = {});

  // Requests pages of a memory node, and huge pages, and notes in the header what was granted. Only the creator may
  // call this, before the segment has its name. Returns why a request was refused, or an empty string.
  std::string place_memory(std::optional<std::uint32_t> node, bool huge_pages);

  // Gives the segment its name. False: another segment has that name already.
  [[nodiscard]] bool link(const std::string& name);

  // Lets other processes attach: stores the layout version.
  void publish() noexcept;

  // Attaches to a segment in any state. On kReady the segment is mapped. On kBeingCreated, kOtherVersion, kOtherBuild
  // and kDamaged only the descriptor is held (for locks, see names.N2).
  AttachOutcome open(const std::string& name, Access access, const Trust& trust = {});

  // For a segment through whose descriptor its process is known to be alive (locks.L6).
  void raise_descriptor() noexcept { file_.raise_descriptor(); }

  // Makes this part of the mapping read-only. Requires: whole pages within the mapping.
  void protect(std::size_t begin, std::size_t bytes);

  // Makes the first `bytes` exist; never shrinks. Lock-free. Throws Error if /dev/shm is full; nothing has changed
  // then.
  void grow(std::size_t bytes);
  // Makes the file this long. The bytes that this adds read as zero, and have no memory until allocate(). Requires: the
  // segment has no name yet. Throws Error.
  void extend(std::size_t bytes);
  // Makes sure that the bytes from `begin` to `end`, which are part of the file, have memory. Lock-free. Throws Error if
  // /dev/shm is full.
  void allocate(std::size_t begin, std::size_t end);
  // The same for bytes that have no memory yet. False: /dev/shm has not enough left, and as a rule nothing was taken.
  bool try_allocate(std::size_t begin, std::size_t end) noexcept;
  // Gives the memory of the complete pages between `begin` and `end` back; they read as zero. Requires: no process uses
  // them before it has called allocate(). Lock-free.
  void give_back(std::size_t begin, std::size_t end) noexcept;

  bool is_mapped() const noexcept { return file_.address() != nullptr; }
  std::byte* data() const noexcept { return static_cast<std::byte*>(file_.address()); }
  HeaderShm& header() const noexcept { return *reinterpret_cast<HeaderShm*>(data()); }
  std::size_t mapped_bytes() const noexcept { return file_.mapped_bytes(); }  // includes room to grow
  int descriptor() const noexcept { return file_.descriptor(); }
  const std::string& name() const noexcept { return name_; }
  std::size_t file_bytes() const;       // current size of the file
  std::size_t allocated_bytes() const;  // how much memory it takes, in complete pages
  // How much of the mapping the file covers now. The bytes beyond must not be touched.
  std::size_t usable_bytes() const { return std::min(file_bytes(), mapped_bytes()); }
  // Whether the first `bytes` are usable, for offsets that come from shared memory. Costs a load and a compare, unless
  // the file has grown since it was last asked for its size.
  bool covers(std::size_t bytes) const { return bytes <= covered_.hint() || has_grown_to(bytes); }

  // How this segment is shared, for segments that belong with it. Segments made by root go to this segment's owner.
  Sharing sharing() const;

  // Whether a read found a page missing because the file was truncated (truncation.hpp). Only for read-only mappings.
  bool was_cut_off() const noexcept { return watch_.has_missed_pages(); }

  // Whether the header says that the segment is this one. Requires: mapped.
  bool is_of(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance) const noexcept;

  // Whether its name no longer leads to this segment (names.N3).
  bool is_orphaned() const { return !is_named(name_); }
  // Whether `name` leads to this very segment.
  bool is_named(const std::string& name) const;

 private:
  void map(std::size_t bytes, Access access);
  void close() noexcept;
  bool has_grown_to(std::size_t bytes) const;

  OpenFile file_;
  std::string name_;
  std::string hidden_name_;  // of a new segment where files cannot be without a name; else empty
  TruncationWatch watch_;
  mutable AtomicShm<std::size_t> covered_;  // usable_bytes() at the last call of has_grown_to()
};

// Frees the memory of a segment whose name cannot be removed because it belongs to another user. Ignores files that
// are no segments. Requires: no process uses the segment.
void empty_segment(const std::string& name) noexcept;

}  // namespace ps_shm::shm
