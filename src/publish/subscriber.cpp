#include "ps_shm/subscriber.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <bit>

#include "publish/copy.hpp"
#include "publish/polling.hpp"
#include "shm/base/clock.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/publication/bundle.hpp"
#include "shm/publication/publication.hpp"
#include "update/dtypes.hpp"

namespace ps_shm {
namespace {

struct Place {
  shm::Bundle bundle;
  std::uint32_t rank;
};

// Takes a free place: its byte is then held. Returns nothing if there is none.
std::optional<std::uint32_t> take_rank(const shm::Bundle& bundle) {
  for (std::uint32_t rank = 0; rank < bundle.subscribers(); ++rank)
    if (bundle.locks().try_take(shm::kSubscriberByte + rank)) return rank;
  return std::nullopt;
}

Place join(const std::string& publication, const SubscriberOptions& options) {
  check_publication_name(publication);
  const std::string name = shm::bundle_name(publication);
  const shm::Trust trust{.group = shm::shared_with_group(options.group).group};
  Polling polling(options.stop_requested, options.log, options.wait);
  for (;;) {
    shm::Segment found;
    const shm::AttachOutcome outcome = found.open(name, shm::Access::kReadWrite, trust);
    if (outcome == shm::AttachOutcome::kReady) {
      Place place{shm::Bundle(std::move(found)), 0};
      const std::optional<std::uint32_t> rank = take_rank(place.bundle);
      if (rank && !place.bundle.is_orphaned()) {
        place.rank = *rank;
        return place;
      }
      // In this order: a remover unlinks the name before it releases the bytes.
      if (!rank && !place.bundle.locks().is_being_removed() && !place.bundle.is_orphaned())
        throw Error(fmt::format("publication '{}' has {} places for subscribers, and all are taken; start its "
                                "publisher with more `subscribers`",
                                publication, place.bundle.subscribers()),
                    ErrorCode::kExhausted);
    } else if (outcome != shm::AttachOutcome::kAbsent) {
      throw shm::attach_error(outcome, name);
    }
    if (polling.is_over())
      throw Timeout(
          fmt::format("waited {} s for publication '{}'; start its publisher, or list all with "
                      "inspect_shm publications",
                      options.wait->count(), publication));
    polling.pause([&] { return fmt::format("waiting for publication {}", publication); });
  }
}

}  // namespace

// State shared by a subscriber and its generations. The last of them gives the place back.
struct PS_SHM_HIDDEN Generation::Impl {
  Impl(Place place, const SubscriberOptions& given)
      : bundle(std::move(place.bundle)),
        rank(place.rank),
        stop_requested(given.stop_requested),
        entry(bundle.subscriber(rank)),
        newest(bundle.newest()) {
    shm::fault_point(shm::FaultPoint::kSubscriberTaken);
    for (auto& lease : entry.leases) lease.store_release(0);  // (publication.P12) the predecessor's: it is dead
    shm::fault_point(shm::FaultPoint::kSubscriberCleared);
    entry.acknowledged.store_relaxed(0);                            // (publication.P15) the same
    entry.pinned.store_relaxed(0);                                  // (publication.P16) the same
    entry.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed, as the next: diagnostic only
    entry.joined_ns.store_relaxed(shm::now_ns());
    shm::fault_point(shm::FaultPoint::kSubscriberNoted);
    bundle.protect_as_subscriber();
  }

  ~Impl() {
    if (bundle.is_inherited()) return;
    entry.acknowledged.store_relaxed(0);
    entry.pinned.store_relaxed(0);
    entry.pid.store_relaxed(0);
    shm::fault_point(shm::FaultPoint::kSubscriberLeft);
    bundle.locks().release(shm::kSubscriberByte + rank);
    shm::fault_point(shm::FaultPoint::kSubscriberReleased);
    shm::remove_if_ended(bundle);
  }

  // Leases the newest generation above `newer_than`; returns its word, or 0 if there is none. Throws Error if both
  // leases are in use.
  std::uint64_t try_take(std::uint64_t newer_than, std::uint32_t& lease) {
    bundle.refuse_inherited("subscriber");
    lease = static_cast<std::uint32_t>(std::countr_one(in_use));
    if (lease == shm::kLeases)
      throw Error(fmt::format("publication '{}': a subscriber has at most {} generations at a time; release one first",
                              bundle.spec().name, shm::kLeases),
                  ErrorCode::kExhausted);
    const std::uint64_t word = shm::try_lease(newest, entry.leases[lease], newer_than);
    if (word == 0) return 0;
    shm::fault_point(shm::FaultPoint::kLeaseHeld);
    in_use |= 1U << lease;
    ++users;
    return word;
  }

  void give_back(std::uint32_t lease) noexcept {
    in_use &= ~(1U << lease);
    if (!bundle.is_inherited()) {
      shm::give_back(entry.leases[lease]);
      shm::fault_point(shm::FaultPoint::kLeaseReleased);
    }
    let_go();
  }

  void let_go() noexcept {
    if (--users == 0) delete this;
  }

  shm::Bundle bundle;
  std::uint32_t rank;
  std::function<bool()> stop_requested;
  shm::SubscriberShm& entry;
  shm::NewestShm& newest;
  std::uint32_t in_use = 0;  // leases, as bits
  std::uint32_t users = 1;   // generations and the subscriber
};

Generation::~Generation() {
  if (impl_ != nullptr) impl_->give_back(lease_);
}
std::uint64_t Generation::number() const noexcept { return shm::generation_of(newest_); }
std::uint64_t Generation::step() const {
  impl_->bundle.refuse_inherited("generation");
  return impl_->bundle.record(shm::record_of(newest_)).step.load_relaxed();
}
std::uint64_t Generation::unix_ns() const {
  impl_->bundle.refuse_inherited("generation");
  return impl_->bundle.record(shm::record_of(newest_)).unix_ns.load_relaxed();
}
bool Generation::is_partial() const {
  impl_->bundle.refuse_inherited("generation");
  return impl_->bundle.record(shm::record_of(newest_)).partial.load_relaxed() != 0;
}
std::uint32_t Generation::tensor_count() const noexcept { return impl_->bundle.tensors(); }
const TensorSpec& Generation::spec(std::uint32_t tensor) const noexcept { return impl_->bundle.spec().tensors[tensor]; }
std::span<const std::byte> Generation::tensor(std::uint32_t tensor) const {
  const shm::Bundle& bundle = impl_->bundle;
  bundle.refuse_inherited("generation");
  const std::uint32_t slot =
      bundle.slots(shm::record_of(newest_))[tensor].load_relaxed();  // relaxed: after publication.P5
  return {bundle.slot(tensor, slot), bundle.tensor_bytes(tensor)};
}
void Generation::copy(std::uint32_t tensor, std::span<std::byte> out) const {
  const std::span<const std::byte> bytes = this->tensor(tensor);
  if (out.size() != bytes.size())
    throw Error(fmt::format("tensor '{}' has {} bytes, not {}", spec(tensor).name, bytes.size(), out.size()));
  copy_tensor(out.data(), bytes.data(), bytes.size(), impl_->bundle.generation_bytes());
}
void Generation::require_type(std::uint32_t tensor, Kind kind, std::size_t bytes) const {
  const update::DTypeTraits& row = *update::find_dtype(spec(tensor).dtype);
  Kind wanted = Kind::kUnsigned;
  if (row.kind == update::NumberKind::kBool) wanted = Kind::kBool;
  if (row.kind == update::NumberKind::kSigned) wanted = Kind::kSigned;
  const bool is_short = is_float(row.kind) && row.bytes < sizeof(float);  // C++ has no such float
  if (is_float(row.kind) && !is_short) wanted = Kind::kFloat;
  if (bytes != row.bytes || (kind != wanted && !(is_short && kind == Kind::kClass)))
    throw Error(fmt::format("the elements of tensor '{}' are {}: values<T>() needs T of that type", spec(tensor).name,
                            row.name));
}

Subscriber::Subscriber(const std::string& name, const SubscriberOptions& options)
    : impl_(new Generation::Impl(join(name, options), options)) {}
Subscriber::~Subscriber() {
  if (impl_ != nullptr) impl_->let_go();
}

std::optional<Generation> Subscriber::try_read(std::uint64_t newer_than) {
  std::uint32_t lease;
  const std::uint64_t word = impl_->try_take(newer_than, lease);
  if (word == 0) return std::nullopt;
  return Generation(impl_, lease, word);
}

Generation Subscriber::read(std::uint64_t newer_than, WaitLimit timeout) {
  const shm::Bundle& bundle = impl_->bundle;
  const std::uint64_t until_ns = shm::now_ns() + shm::to_ns(timeout);
  std::uint32_t lease;
  std::uint64_t word = 0;
  const auto is_there = [&] { return (word = impl_->try_take(newer_than, lease)) != 0; };
  const auto look_out = [&] {
    if (impl_->stop_requested && impl_->stop_requested()) throw Interrupted();
    if (shm::has_no_more(bundle, newer_than))
      throw PublisherGone(fmt::format("publication '{}' has no generation above {}, and its publisher has {}",
                                      bundle.spec().name, newer_than, has_ended() ? "ended it" : "died"));
    if (shm::now_ns() >= until_ns)
      throw Timeout(fmt::format("publication '{}' had no generation above {} within {} s", bundle.spec().name,
                                newer_than, timeout->count()));
  };
  shm::wait_for_fact(bundle.waiters().futex, is_there, look_out,
                     !timeout || *timeout > Seconds(0) ? shm::Patience{} : shm::Patience{.spins = 0, .yields = 0});
  return {impl_, lease, word};
}

void Subscriber::acknowledge(std::uint64_t generation) const {
  if (const std::uint64_t last = newest(); generation > last)
    throw Error(fmt::format("publication '{}' has no generation {} to acknowledge: its newest one is {}",
                            impl_->bundle.spec().name, generation, last));
  impl_->entry.acknowledged.store_release(generation);  // (publication.P15) pairs with Publisher::wait_for
  shm::fault_point(shm::FaultPoint::kAcknowledged);
  shm::futex_announce(impl_->bundle.waiters().acknowledgement);
}

std::span<const std::byte> Subscriber::memory() const {
  impl_->bundle.refuse_inherited("subscriber");
  return impl_->bundle.rows();
}

void Subscriber::pin(const Generation& held, std::uint32_t row) const {
  const shm::Bundle& bundle = impl_->bundle;
  bundle.refuse_inherited("subscriber");
  const auto lies_there = [&](std::uint32_t tensor) {  // one without elements may seem to lie at the end of its row
    return bundle.tensor_bytes(tensor) != 0 &&
           static_cast<std::size_t>(held.tensor(tensor).data() - bundle.rows().data()) / bundle.generation_bytes() ==
               row;
  };
  std::uint32_t tensor = 0;
  while (tensor < bundle.tensors() && !(held.impl_ == impl_ && lies_there(tensor))) ++tensor;
  if (row >= shm::kPinnableRows || tensor == bundle.tensors())
    throw Error(
        fmt::format("publication '{}': row {} cannot be pinned: it must be one of the first {}, and hold a "
                    "tensor of a generation that this subscriber holds",
                    bundle.spec().name, row, shm::kPinnableRows));
  impl_->entry.pinned.store_release(impl_->entry.pinned.load_relaxed() | std::uint64_t{1} << row);  // (publication.P16)
  shm::fault_point(shm::FaultPoint::kPinned);
}

void Subscriber::unpin_all() const {
  impl_->bundle.refuse_inherited("subscriber");
  impl_->entry.pinned.store_release(0);  // (publication.P16)
  shm::fault_point(shm::FaultPoint::kUnpinned);
}

std::uint64_t Subscriber::newest() const {
  impl_->bundle.refuse_inherited("subscriber");
  return shm::generation_of(impl_->newest.newest.load_acquire());  // (publication.P4)
}
bool Subscriber::is_published() const {
  impl_->bundle.refuse_inherited("subscriber");
  return impl_->bundle.locks().is_any_task_held_by_other();  // the publisher, or any of several writers
}
bool Subscriber::has_ended() const {
  impl_->bundle.refuse_inherited("subscriber");
  return impl_->newest.ended.load_acquire() != 0;  // (publication.P10)
}
const BundleSpec& Subscriber::spec() const noexcept { return impl_->bundle.spec(); }
std::uint32_t Subscriber::rank() const noexcept { return impl_->rank; }
std::uint32_t Subscriber::find(const std::string& tensor) const { return impl_->bundle.find(tensor); }

}  // namespace ps_shm
