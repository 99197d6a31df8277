// A publication's segment, mapped and checked: its contents, and creating, attaching and removing it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/bundle_spec.hpp"
#include "shm/publication/tensor_names.hpp"
#include "shm/segment/bundle_layout.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/liveness.hpp"
#include "shm/segment/segment.hpp"

namespace ps_shm::shm {

// The bytes of one row of slots, and of the segment. Requires: the specification has a number of records.
std::uint64_t row_bytes(const BundleSpec& spec) noexcept;
std::uint64_t bundle_bytes(const BundleSpec& spec) noexcept;

class Bundle {
 public:
  // Makes a complete segment that has no name yet, and takes the publisher's byte. `plan`: a hash of the slices of its
  // writers, if there are several. Throws Error if /dev/shm is full. Requires: the specification is resolved.
  static Bundle create(const BundleSpec& spec, const Sharing& sharing, std::uint64_t plan = 0);

  // Gives the segment its name (names.N1). False: another segment has that name already.
  [[nodiscard]] bool link();

  // Attaches to an open segment and checks all of it. What the publisher writes may change at any moment, so it is
  // read as a reader without a lease does (publication.P11). Throws Error if the segment is damaged. Requires: mapped.
  explicit Bundle(Segment segment);

  // Leaves this mapping able to write only what subscribers write.
  void protect_as_subscriber();

  const Segment& segment() const noexcept { return segment_; }
  TaskLocks locks() const noexcept { return TaskLocks(segment_.descriptor()); }
  bool is_inherited() const noexcept { return segment_.descriptor() < 0; }  // in a forked child (locks.L2)
  // Throws Error in a forked child. `what` names the object that it cannot use.
  void refuse_inherited(const char* what) const {
    if (is_inherited()) [[unlikely]]
      fail_inherited(what);
  }
  bool is_orphaned() const { return segment_.is_orphaned(); }  // (names.N3)

  // Read from the segment once, so that it stays as it was checked.
  const BundleSpec& spec() const noexcept { return spec_; }
  std::uint32_t tensors() const noexcept { return static_cast<std::uint32_t>(spec_.tensors.size()); }
  std::uint32_t records() const noexcept { return spec_.records; }
  std::uint32_t subscribers() const noexcept { return spec_.subscribers; }
  std::uint32_t writers() const noexcept { return spec_.writers; }
  std::uint64_t plan() const noexcept { return read_once(at<BundleShm>(kBundleOffset).plan); }

  NewestShm& newest() const noexcept { return at<NewestShm>(kNewestOffset); }
  WaitersShm& waiters() const noexcept { return at<WaitersShm>(kWaitersOffset); }
  SubscriberShm& subscriber(std::uint32_t rank) const noexcept {
    return (&at<SubscriberShm>(kSubscribersOffset))[rank];
  }
  // Requires: there are several writers.
  RoundShm& round() const noexcept { return at<RoundShm>(places_.round); }
  WriterShm& writer(std::uint32_t number) const noexcept {
    return (&at<WriterShm>(places_.round + sizeof(RoundShm)))[number];
  }
  RecordShm& record(std::uint32_t number) const noexcept {
    return at<RecordShm>(places_.records + number * places_.record_stride);
  }
  // The slot of each tensor in a record.
  AtomicShm<std::uint16_t>* slots(std::uint32_t record) const noexcept {
    return &at<AtomicShm<std::uint16_t>>(places_.records + record * places_.record_stride + sizeof(RecordShm));
  }
  std::byte* slot(std::uint32_t tensor, std::uint32_t number) const noexcept {
    return segment_.data() + slots_[tensor].offset + number * row_bytes_;
  }
  std::size_t tensor_bytes(std::uint32_t tensor) const noexcept { return slots_[tensor].bytes; }
  std::size_t generation_bytes() const noexcept { return row_bytes_; }  // of all tensors, in complete pages
  std::span<std::byte> rows() const noexcept {                          // all of them
    return {segment_.data() + places_.slots, records() * row_bytes_};
  }

  // Makes sure that a slot has memory. Throws Error if /dev/shm is full.
  void allocate(std::uint32_t tensor, std::uint32_t number);
  // Makes sure that all slots have memory, mapped for this process. Throws Error if /dev/shm is full.
  void populate();
  // Gives the memory of complete pages back that belong only to slots `number` of the tensors `first` to `last`.
  // Requires: no record in use names these slots.
  void give_back(std::uint32_t first, std::uint32_t last, std::uint32_t number) noexcept;

  // Throws Error if there is no such tensor.
  std::uint32_t find(const std::string& tensor) const;

 private:
  struct Slots {
    std::size_t offset, bytes;  // of slot 0
  };

  template <class T>
  T& at(std::size_t offset) const noexcept {
    return *reinterpret_cast<T*>(segment_.data() + offset);
  }
  [[noreturn]] void fail_inherited(const char* what) const;
  void place_tensors();
  BundleSpec read_spec() const;
  void check_tensors() const;
  void check_newest() const;

  Segment segment_;
  BundleSpec spec_;
  BundlePlaces places_{0, 0, 0, 0};
  std::vector<Slots> slots_;
  TensorNames names_;
  std::size_t row_bytes_ = 0;
};

// Removes a publication in any state if no process holds a byte of it (names.N2). `own`: a descriptor of it through
// which the caller may hold bytes, or -1. Throws Error if the name belongs to another user.
RemoveOutcome remove_bundle(const std::string& publication, int own = -1, const Trust& trust = {});

// Removes the publication if its publisher has ended it and no process is left. For callers that have given a byte
// back (names.N9). What cannot be removed is left to the next publisher of the name.
void remove_if_ended(const Bundle& bundle) noexcept;

}  // namespace ps_shm::shm
