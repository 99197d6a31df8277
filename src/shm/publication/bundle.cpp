#include "shm/publication/bundle.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"
#include "shm/publication/publication.hpp"
#include "shm/segment/attach_outcome.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kInstance = 1;  // a publication is a single segment, with no others to be told apart

BundlePlaces places_of(const BundleSpec& spec) noexcept {
  return {static_cast<std::uint32_t>(spec.tensors.size()), spec.subscribers, spec.records, spec.writers};
}

}  // namespace

std::uint64_t row_bytes(const BundleSpec& spec) noexcept {
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : spec.tensors) bytes += BundlePlaces::slot_bytes(tensor.byte_count());
  return std::max<std::uint64_t>(round_up(bytes, kLargestPage), kLargestPage);  // also where no tensor has elements
}

std::uint64_t bundle_bytes(const BundleSpec& spec) noexcept {
  return places_of(spec).slots + spec.records * row_bytes(spec);
}

void Bundle::place_tensors() {
  places_ = places_of(spec_);
  row_bytes_ = row_bytes(spec_);
  std::size_t offset = places_.slots;
  slots_.clear();
  for (const TensorSpec& tensor : spec_.tensors) {
    slots_.push_back({offset, tensor.byte_count()});
    offset += BundlePlaces::slot_bytes(tensor.byte_count());
  }
  names_ = TensorNames(spec_.tensors);
}

Bundle Bundle::create(const BundleSpec& spec, const Sharing& sharing, std::uint64_t plan) {
  const BundlePlaces places = places_of(spec);
  const std::uint64_t row = row_bytes(spec), bytes = bundle_bytes(spec);
  Segment segment = Segment::create(SegmentKind::kBundle, 0, spec.name, kInstance, places.slots + row, bytes, sharing);
  segment.extend(bytes);
  auto& counts = *reinterpret_cast<BundleShm*>(segment.data() + kBundleOffset);
  counts.tensors = static_cast<std::uint32_t>(spec.tensors.size());
  counts.subscribers = spec.subscribers;
  counts.records = spec.records;
  counts.writers = spec.writers;
  counts.row_bytes = row;
  counts.plan = plan;
  auto* tensors = reinterpret_cast<TensorShm*>(segment.data() + places.tensors);
  std::size_t offset = places.slots;
  for (const TensorSpec& tensor : spec.tensors) {
    TensorShm& out = *tensors++;
    out.offset = offset;
    out.bytes = tensor.byte_count();
    out.dtype = static_cast<std::uint32_t>(tensor.dtype);
    out.axes = static_cast<std::uint32_t>(tensor.shape.size());
    for (std::size_t axis = 0; axis < tensor.shape.size(); ++axis) out.extents[axis] = tensor.shape[axis];
    tensor.name.copy(out.name, sizeof out.name - 1);
    offset += BundlePlaces::slot_bytes(out.bytes);
  }
  fault_point(FaultPoint::kBundleMade);
  Bundle bundle(std::move(segment));
  bundle.newest().pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: diagnostic only
  bundle.newest().publishers.store_relaxed(1);
  if (!bundle.locks().try_take(kPublisherByte))
    throw Error("cannot lock a new segment: the file system of /dev/shm must support OFD locks", ErrorCode::kSystem);
  fault_point(FaultPoint::kBundleLocked);
  bundle.segment_.publish();  // before it has a name: no process finds it incomplete
  fault_point(FaultPoint::kBundlePublished);
  return bundle;
}

bool Bundle::link() {
  const bool is_named = segment_.link(bundle_name(spec_.name));
  if (is_named) fault_point(FaultPoint::kBundleNamed);
  return is_named;
}

Bundle::Bundle(Segment segment) : segment_(std::move(segment)) {
  segment_.raise_descriptor();
  spec_ = read_spec();
  place_tensors();
  check_tensors();
  check_newest();
}

BundleSpec Bundle::read_spec() const {
  BundleSpec spec;
  spec.name = text_of(segment_.header().job);
  const std::string& file = segment_.name();
  if (segment_.usable_bytes() < kSubscribersOffset) fail_damaged(file, "it has been truncated");
  const auto& counts = at<BundleShm>(kBundleOffset);
  const std::uint32_t tensors = read_once(counts.tensors);
  spec.subscribers = read_once(counts.subscribers);
  spec.records = read_once(counts.records);
  spec.writers = read_once(counts.writers);
  if (tensors == 0 || tensors > kMaxTensors || spec.subscribers == 0 || spec.subscribers > kMaxSubscribers ||
      spec.records < kMinRecords || spec.records > kMaxRecords || spec.writers > kMaxWriters)
    fail_damaged(file, "its numbers of tensors, subscribers, records and writers are impossible");
  const BundlePlaces places(tensors, spec.subscribers, spec.records, spec.writers);
  if (segment_.usable_bytes() < places.slots) fail_damaged(file, "it has been truncated");
  const auto* found = reinterpret_cast<const TensorShm*>(segment_.data() + places.tensors);
  for (std::uint32_t number = 0; number < tensors; ++number) {
    TensorSpec& tensor = spec.tensors.emplace_back();
    tensor.name = text_of(found[number].name);
    tensor.dtype = static_cast<DType>(read_once(found[number].dtype));
    const std::uint32_t axes = read_once(found[number].axes);
    if (axes > kMaxAxes) fail_damaged(file, fmt::format("tensor {} has {} axes", number, axes));
    tensor.shape.resize(axes);
    for (std::uint32_t axis = 0; axis < axes; ++axis) tensor.shape[axis] = read_once(found[number].extents[axis]);
  }
  try {
    check(spec);
  } catch (const Error& error) {
    fail_damaged(file, error.what());
  }
  return spec;
}

void Bundle::check_tensors() const {
  const auto* found = reinterpret_cast<const TensorShm*>(segment_.data() + places_.tensors);
  for (std::uint32_t number = 0; number < tensors(); ++number)
    if (read_once(found[number].offset) != slots_[number].offset ||
        read_once(found[number].bytes) != slots_[number].bytes)
      fail_damaged(segment_.name(), fmt::format("tensor {} is not at its place", number));
  if (segment_.usable_bytes() < bundle_bytes(spec_) || segment_.header().initial_bytes != places_.slots + row_bytes_ ||
      read_once(at<BundleShm>(kBundleOffset).row_bytes) != row_bytes_)
    fail_damaged(segment_.name(), "its size is not the one it was created with");
}

void Bundle::check_newest() const {
  const std::string why = why_newest_is_damaged(*this);
  if (!why.empty()) fail_damaged(segment_.name(), why);
}

void Bundle::protect_as_subscriber() {
  segment_.protect(0, kWaitersOffset);
  segment_.protect(places_.round, segment_.mapped_bytes() - places_.round);
}

void Bundle::allocate(std::uint32_t tensor, std::uint32_t number) {
  if (tensor_bytes(tensor) == 0) return;
  const auto begin = static_cast<std::size_t>(slot(tensor, number) - segment_.data());
  segment_.allocate(begin, begin + tensor_bytes(tensor));
}

void Bundle::populate() {
  const std::size_t begin = places_.slots, bytes = records() * row_bytes_;
  segment_.allocate(begin, begin + bytes);
#ifdef MADV_POPULATE_WRITE
  madvise(segment_.data() + begin, bytes, MADV_POPULATE_WRITE);  // before Linux 5.14 the first writes map the pages
#endif
}

void Bundle::give_back(std::uint32_t first, std::uint32_t last, std::uint32_t number) noexcept {
  const auto begin = static_cast<std::size_t>(slot(first, number) - segment_.data());
  const std::size_t end = last + 1 < tensors() ? static_cast<std::size_t>(slot(last + 1, number) - segment_.data())
                                               : places_.slots + (number + 1) * row_bytes_;
  segment_.give_back(begin, end);
}

void Bundle::fail_inherited(const char* what) const {
  throw Error(fmt::format("publication '{}': a forked child cannot use its parent's {}", spec_.name, what),
              ErrorCode::kInvalidState);
}

std::uint32_t Bundle::find(const std::string& tensor) const {
  if (const auto number = names_.find(spec_.tensors, tensor)) return *number;
  std::vector<std::string> names;
  for (const TensorSpec& one : spec_.tensors) names.push_back(one.name);
  throw Error(fmt::format("publication '{}' has no tensor '{}'; it has {}", spec_.name, tensor,
                          config::what_there_is(tensor, names)),
              ErrorCode::kNotFound);
}

RemoveOutcome remove_bundle(const std::string& publication, int own, const Trust& trust) {
  const std::string name = bundle_name(publication);
  Segment segment;
  int descriptor = own;
  if (own < 0) {
    const AttachOutcome outcome = segment.open(name, Access::kReadWrite, trust);
    if (outcome == AttachOutcome::kAbsent) return RemoveOutcome::kAbsent;
    if (outcome == AttachOutcome::kNoPermission || segment.descriptor() < 0) throw attach_error(outcome, name);
    descriptor = segment.descriptor();
  }
  const TaskLocks locks(descriptor);
  if (!locks.try_take_all()) return RemoveOutcome::kAlive;  // names.N2: no publisher, subscriber or joiner has any byte
  RemoveOutcome removed = RemoveOutcome::kAbsent;
  if (leads_to(name, descriptor)) {  // names.N2: the name still leads to it
    fault_point(FaultPoint::kBundleLockedAll);
    if (!unlink_segment(name)) {
      locks.release_all();
      throw Error(
          fmt::format("cannot remove /dev/shm/{}: it belongs to {}, and only its owner can", name, owner_of(name)),
          ErrorCode::kPermissionDenied);
    }
    fault_point(FaultPoint::kBundleUnlinked);
    removed = RemoveOutcome::kRemoved;
  }
  locks.release_all();  // the next process to take a byte finds that the name is gone (names.N3)
  return removed;
}

void remove_if_ended(const Bundle& bundle) noexcept {
  if (bundle.newest().ended.load_acquire() == 0) return;  // (publication.P10)
  try {
    remove_bundle(bundle.spec().name, bundle.segment().descriptor());
  } catch (const Error&) {
    // It belongs to another user, and only its owner can remove it.
  }
}

}  // namespace ps_shm::shm
