// A publication's segment, mapped and checked: what is in it, how it is created, attached and removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ps/bundle_spec.hpp"
#include "shm/bundle_layout.hpp"
#include "shm/job_segments.hpp"
#include "shm/liveness.hpp"
#include "shm/segment.hpp"

namespace ps::shm {

// The segment's bytes. Requires: a specification with a number of records.
std::uint64_t bundle_bytes(const BundleSpec& spec) noexcept;

class Bundle {
 public:
  // A new one that has no name yet, with the publisher's byte taken; complete. Throws Error: /dev/shm has no room.
  // Requires: the specification is resolved.
  static Bundle create(const BundleSpec& spec, const Sharing& sharing);

  // Gives it its name (names.N1). False: another one has that name already.
  [[nodiscard]] bool link();

  // An open segment, all of which is checked: what is the publisher's need not be what it was a moment ago, and is looked
  // at as who has no lease does (publication.P11). Throws Error: it is damaged. Requires: mapped.
  explicit Bundle(Segment segment);

  // From now on this mapping can write only what subscribers write.
  void protect_as_subscriber();

  const Segment& segment() const noexcept { return segment_; }
  TaskLocks locks() const noexcept { return TaskLocks(segment_.descriptor()); }
  bool is_inherited() const noexcept { return segment_.descriptor() < 0; }  // this is a forked child (locks.L2)
  bool is_orphaned() const { return segment_.is_orphaned(); }               // (names.N3)

  // Read from the segment once, so that what was checked stays as it was.
  const BundleSpec& spec() const noexcept { return spec_; }
  std::uint32_t tensors() const noexcept { return static_cast<std::uint32_t>(spec_.tensors.size()); }
  std::uint32_t records() const noexcept { return spec_.records; }
  std::uint32_t subscribers() const noexcept { return spec_.subscribers; }

  NewestShm& newest() const noexcept { return at<NewestShm>(kNewestOffset); }
  WaitersShm& waiters() const noexcept { return at<WaitersShm>(kWaitersOffset); }
  SubscriberShm& subscriber(std::uint32_t rank) const noexcept {
    return (&at<SubscriberShm>(kSubscribersOffset))[rank];
  }
  RecordShm& record(std::uint32_t number) const noexcept {
    return at<RecordShm>(places_.records + number * places_.record_stride);
  }
  // The slot of each tensor in a record.
  AtomicShm<std::uint16_t>* slots(std::uint32_t record) const noexcept {
    return &at<AtomicShm<std::uint16_t>>(places_.records + record * places_.record_stride + sizeof(RecordShm));
  }
  std::byte* slot(std::uint32_t tensor, std::uint32_t number) const noexcept {
    return segment_.data() + slots_[tensor].offset + number * slots_[tensor].stride;
  }
  std::size_t tensor_bytes(std::uint32_t tensor) const noexcept { return slots_[tensor].bytes; }
  // Throws Error: there is no such tensor.
  std::uint32_t find(const std::string& tensor) const;

 private:
  struct Slots {
    std::size_t offset, stride, bytes;
  };

  template <class T>
  T& at(std::size_t offset) const noexcept {
    return *reinterpret_cast<T*>(segment_.data() + offset);
  }
  void place_tensors();
  BundleSpec read_spec() const;
  void check_tensors() const;
  void check_newest() const;

  Segment segment_;
  BundleSpec spec_;
  BundlePlaces places_{0, 0, 0};
  std::vector<Slots> slots_;
};

// Removes a publication that nobody holds a byte of, in whatever state it is (names.N2). `own`: a descriptor of it through
// which the caller may hold bytes, or -1. Throws Error where the name is another user's.
RemoveOutcome remove_bundle(const std::string& publication, int own = -1, const Trust& trust = {});

// Removes it if its publisher has ended it and nobody is left: for callers that have given a byte back (names.N9). What
// cannot be removed stays for the next publisher of the name.
void remove_if_ended(const Bundle& bundle) noexcept;

}  // namespace ps::shm
