// One POSIX shared-memory object, mapped: created unnamed, filled, then named; attached with a named outcome; grown in
// place; unlinked. The only file that knows /dev/shm and Boost.Interprocess (used for the mapping alone: none of its
// locks, none of its managed segments).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "shm/layout.hpp"
#include "shm/names.hpp"
#include "shm/open_file.hpp"
#include "shm/truncation.hpp"

namespace ps::shm {

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
  kNoPermission  // another user's, and not trusted
};

// The users of a segment: its owner, or a group too.
struct Sharing {
  std::optional<std::uint32_t> owner, group;  // none: the creator's
};

// Throws Error where there is no such group. Of an empty name: nobody's.
Sharing shared_with_group(const std::string& name);

// Whose segments a process uses beside those of its own user. Root is no exception: what it adopts would steer what it
// writes.
struct Trust {
  std::optional<std::uint32_t> group;  // those that are shared with this group
  bool anybody = false;                // all that it may open: to look at, checking each value, or to remove
};
inline constexpr Trust kTrustAnybody{.group = std::nullopt, .anybody = true};

// "no such segment", and so on, with what to do; for messages. Empty for kReady.
std::string describe(AttachOutcome outcome, const std::string& name);

class Segment {
 public:
  Segment() noexcept = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  // A new segment without a name (names.N1), `bytes` of it reserved and zero, its header filled but for the version.
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
  // and kDamaged only the descriptor is held (for locks, see names.N2).
  AttachOutcome open(const std::string& name, Access access, const Trust& trust = {});

  // From now on this mapping can only read there. Requires: multiples of a page, inside of the mapping.
  void protect(std::size_t begin, std::size_t bytes);

  // Makes the first `bytes` exist; never shrinks. Lock-free. Throws Error when /dev/shm is full, nothing changed then.
  void grow(std::size_t bytes);

  bool is_mapped() const noexcept { return file_.address() != nullptr; }
  std::byte* data() const noexcept { return static_cast<std::byte*>(file_.address()); }
  HeaderShm& header() const noexcept { return *reinterpret_cast<HeaderShm*>(data()); }
  std::size_t mapped_bytes() const noexcept { return file_.mapped_bytes(); }  // room to grow included
  int descriptor() const noexcept { return file_.descriptor(); }
  const std::string& name() const noexcept { return name_; }
  std::size_t file_bytes() const;  // of the file now
  // How much of the mapping the file covers now: what lies beyond must not be touched.
  std::size_t usable_bytes() const { return std::min(file_bytes(), mapped_bytes()); }

  // How this segment is shared, for others that go with it. Root's go to this one's owner.
  Sharing sharing() const;

  // Whether a read found its page cut off (truncation.hpp). Only of segments that are mapped read-only.
  bool was_cut_off() const noexcept { return watch_.has_missed_pages(); }

  // Whether the header says so. Requires: mapped.
  bool is_of(SegmentKind kind, std::uint32_t number, const std::string& job, std::uint64_t instance) const noexcept;

  // Whether its name does not lead to the segment any more (names.N3).
  bool is_orphaned() const { return !is_named(name_); }
  // Whether `name` leads to this very segment.
  bool is_named(const std::string& name) const;

 private:
  void map(std::size_t bytes, Access access);
  void close() noexcept;

  OpenFile file_;
  std::string name_;
  TruncationWatch watch_;
};

// Frees the memory of a segment whose name another user's rights keep; leaves what is no segment. Requires: nobody uses
// it.
void empty_segment(const std::string& name) noexcept;

}  // namespace ps::shm
