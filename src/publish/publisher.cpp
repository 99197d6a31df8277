#include "ps_shm/publisher.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ps_shm/errors.hpp"
#include "publish/generation_target.hpp"
#include "publish/polling.hpp"
#include "publish/round_writer.hpp"
#include "publish/slices.hpp"
#include "shm/base/clock.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/base/futex.hpp"
#include "shm/publication/bundle.hpp"
#include "shm/publication/publication.hpp"

namespace ps_shm {

const char* to_string(BusyPolicy busy) noexcept {
  switch (busy) {
    case BusyPolicy::kReturn:
      return "return";
    case BusyPolicy::kWait:
      return "wait";
  }
  return "unknown";
}

namespace {

// "subscriber 1 (process 12)" and so on, for each live process; diagnostic only. Searches all processes.
std::string who_uses(const std::string& publication) {
  shm::Segment segment;
  segment.open(shm::bundle_name(publication), shm::Access::kReadOnly, shm::kTrustAnybody);
  std::vector<std::string> living;
  for (const shm::LockHolder& holder : shm::lock_holders(segment.descriptor()))
    living.push_back(holder.first >= shm::kSubscriberByte
                         ? fmt::format("subscriber {} (process {})", holder.first - shm::kSubscriberByte, holder.pid)
                     : holder.first >= shm::kWriterByte
                         ? fmt::format("writer {} (process {})", holder.first - shm::kWriterByte, holder.pid)
                         : fmt::format("its publisher (process {})", holder.pid));
  return living.empty() ? "a process that /proc does not show" : fmt::format("{}", fmt::join(living, " and "));
}

std::string describe(const TensorSpec& tensor) {
  return fmt::format("'{}' ({} {})", tensor.name, to_string(tensor.dtype),
                     tensor.shape.empty() ? "scalar" : fmt::format("{}", fmt::join(tensor.shape, "x")));
}

// How a publication differs from the requested one; empty if it does not.
std::string difference(const BundleSpec& found, const BundleSpec& wanted) {
  if (found.subscribers != wanted.subscribers)
    return fmt::format("{} places for subscribers, not {}", found.subscribers, wanted.subscribers);
  if (found.records != wanted.records) return fmt::format("{} records, not {}", found.records, wanted.records);
  if (found.writers != wanted.writers) return fmt::format("{} writers, not {}", found.writers, wanted.writers);
  if (found.tensors.size() != wanted.tensors.size())
    return fmt::format("{} tensors, not {}", found.tensors.size(), wanted.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i)
    if (found.tensors[i] != wanted.tensors[i])
      return fmt::format("tensor {}, not {}", describe(found.tensors[i]), describe(wanted.tensors[i]));
  return {};
}

// Requires: the publisher's byte is held.
void take_over(const shm::Bundle& bundle, const PublisherOptions& options) {
  shm::fault_point(shm::FaultPoint::kPublisherTaken);
  shm::NewestShm& state = bundle.newest();
  state.pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: diagnostic only
  state.publishers.bump_relaxed(1);
  shm::fault_point(shm::FaultPoint::kPublisherNoted);
  state.ended.store_release(0);  // (publication.P10) it continues
  if (options.log)
    options.log(fmt::format("publication {}: this publisher takes it over at generation {}", bundle.spec().name,
                            shm::generation_of(state.newest.load_relaxed())));
}

// Requires: the writer's byte is held. What its predecessor has done stays (round.R7).
void take_writer(const shm::Bundle& bundle, std::uint32_t writer) {
  shm::fault_point(shm::FaultPoint::kWriterTaken);
  bundle.writer(writer).pid.store_relaxed(static_cast<std::uint32_t>(getpid()));  // relaxed: diagnostic only
  shm::fault_point(shm::FaultPoint::kWriterNoted);
  bundle.newest().ended.store_release(0);  // (publication.P10) it continues
}

struct Opened {
  shm::Bundle bundle;
  bool leads;  // whether the publisher's byte is held
};

// Opens or creates the publication as this publisher wants it, with its byte held: the publisher's, or the writer's.
Opened open_bundle(const BundleSpec& wanted, const PublisherOptions& options) {
  const BundleSpec spec = resolved(wanted);
  const bool is_shared = spec.writers != 0;
  check_plan(spec, options.plan);
  if (is_shared && options.writer >= spec.writers)
    throw Error(fmt::format("publication '{}' has no writer {}: writers are 0 to {}", spec.name, options.writer,
                            spec.writers - 1));
  const std::uint64_t plan = is_shared ? hash_of(options.plan) : 0;
  const std::uint32_t byte = is_shared ? shm::kWriterByte + options.writer : shm::kPublisherByte;
  const shm::Sharing sharing = shm::shared_with_group(options.group);
  const shm::Trust trust{.group = sharing.group};
  const std::string name = shm::bundle_name(spec.name);
  Polling polling(options.stop_requested, options.log, options.wait);
  const auto pause = [&](const std::string& why) {
    if (polling.is_over())
      throw Error(
          fmt::format("{}; it is in use by {}: choose another name, or end that first", why, who_uses(spec.name)),
          ErrorCode::kAlreadyExists);
    polling.pause([&] { return fmt::format("publication {}: waiting for {}", spec.name, who_uses(spec.name)); });
  };
  for (;;) {
    shm::Segment found;
    const shm::AttachOutcome outcome = found.open(name, shm::Access::kReadWrite, trust);
    if (outcome == shm::AttachOutcome::kAbsent) {
      shm::Bundle made = shm::Bundle::create(spec, sharing, plan);
      if (is_shared) {
        if (!made.locks().try_take(byte)) throw Error("cannot lock a new segment", ErrorCode::kSystem);
        take_writer(made, options.writer);
      }
      if (made.link()) return {std::move(made), true};
      continue;  // another publisher was faster
    }
    if (outcome == shm::AttachOutcome::kNoPermission || found.descriptor() < 0) throw shm::attach_error(outcome, name);
    if (!shm::TaskLocks(found.descriptor()).try_take(byte)) {
      pause(is_shared ? fmt::format("publication '{}' has a writer {}", spec.name, options.writer)
                      : fmt::format("publication '{}' has a publisher", spec.name));
      continue;
    }
    if (!found.is_named(name)) continue;  // (names.N3)
    std::string why;
    try {
      if (outcome != shm::AttachOutcome::kReady) throw shm::attach_error(outcome, name);
      shm::Bundle bundle(std::move(found));
      why = difference(bundle.spec(), spec);
      if (why.empty() && bundle.plan() != plan) why = "other slices of its writers";
      if (why.empty()) {
        is_shared ? take_writer(bundle, options.writer) : take_over(bundle, options);
        return {std::move(bundle), !is_shared};
      }
      why = fmt::format("publication '{}' has {}", spec.name, why);
    } catch (const Error& error) {
      why = error.what();
    }
    found = {};  // this also releases the byte
    if (shm::remove_bundle(spec.name, -1, trust) == shm::RemoveOutcome::kAlive) pause(why);
  }
}

}  // namespace

struct PS_SHM_HIDDEN Publisher::Impl final : GenerationWriting::Target {
  Impl(const BundleSpec& spec, const PublisherOptions& given) : Impl(given, open_bundle(spec, given)) {}
  Impl(const PublisherOptions& given, Opened opened)
      : Target(opened.bundle.spec().tensors),
        options(given),
        bundle(std::move(opened.bundle)),
        writer(bundle),
        changed(bundle.tensors()) {
    if (bundle.writers() != 0) round.emplace(bundle, writer, options, opened.leads);
    if (options.populate) opened.leads ? writer.populate() : bundle.populate();
  }

  bool find_record() {
    if (writer.find_record()) return true;
    if (options.busy == BusyPolicy::kReturn) return false;
    Polling polling(options.stop_requested, options.log, options.busy_wait);
    while (!polling.is_over()) {
      polling.pause([&] {
        return fmt::format("publication {}: waiting for a lease to be released by subscribers {}", bundle.spec().name,
                           fmt::join(writer.busy_ranks(), ", "));
      });
      if (writer.find_record()) return true;
    }
    return false;
  }

  void require_own() const override { bundle.refuse_inherited("publisher"); }
  std::byte* place(std::uint32_t tensor) override { return writer.place(tensor); }
  std::size_t generation_bytes() const override { return bundle.generation_bytes(); }

  void require_idle() const {
    require_own();
    if (writing != nullptr)
      throw Error(fmt::format("publication '{}': a generation is being written; commit it or give it up first",
                              bundle.spec().name),
                  ErrorCode::kInvalidState);
    if (round)
      throw Error(fmt::format("publication '{}' has {} writers, which can only publish their slices",
                              bundle.spec().name, bundle.writers()),
                  ErrorCode::kInvalidState);
  }

  void require_tensor(std::uint32_t tensor) const override {
    if (tensor >= bundle.tensors())
      throw Error(fmt::format("publication '{}' has no tensor {}: tensors are 0 to {}", bundle.spec().name, tensor,
                              bundle.tensors() - 1));
  }

  // Requires: `changed` is set.
  std::optional<std::uint64_t> publish(const Write& write, std::uint64_t step) {
    if (!find_record()) return std::nullopt;
    return writer.publish(changed, step, [&](std::uint32_t tensor, std::byte* out) {
      write(tensor, {out, bundle.tensor_bytes(tensor)});
    });
  }

  std::uint64_t newest() const {
    bundle.refuse_inherited("publisher");
    return bundle.newest().newest.load_acquire();  // (publication.P4) with several writers, the leader stores it
  }

  PublisherOptions options;
  shm::Bundle bundle;
  shm::GenerationWriter writer;
  std::vector<bool> changed;
  std::optional<RoundWriter> round;  // with several writers
};

Publisher::Publisher(const BundleSpec& spec, const PublisherOptions& options)
    : impl_(std::make_unique<Impl>(spec, options)) {}
Publisher::Publisher(Publisher&&) noexcept = default;

Publisher::~Publisher() {
  if (impl_) impl_->end_writing();
  if (!impl_ || impl_->bundle.is_inherited()) return;
  const shm::Bundle& bundle = impl_->bundle;
  bundle.newest().ended.store_release(1);  // (publication.P10) before the byte; pairs with remove_if_ended
  shm::fault_point(shm::FaultPoint::kPublisherEnded);
  shm::futex_announce(bundle.waiters().futex);
  if (impl_->round) {
    bundle.writer(impl_->options.writer).pid.store_relaxed(0);
    bundle.locks().release(shm::kWriterByte + impl_->options.writer);
    shm::fault_point(shm::FaultPoint::kWriterReleased);
  }
  if (!impl_->round || impl_->round->leads()) bundle.locks().release(shm::kPublisherByte);
  shm::fault_point(shm::FaultPoint::kPublisherReleased);
  shm::remove_if_ended(bundle);  // while there are subscribers nothing is removed; the last of them removes it
}

std::optional<std::uint64_t> Publisher::publish(const Write& write, std::uint64_t step) {
  impl_->require_idle();
  std::fill(impl_->changed.begin(), impl_->changed.end(), true);
  return impl_->publish(write, step);
}

std::optional<std::uint64_t> Publisher::publish(std::span<const std::uint32_t> changed, const Write& write,
                                                std::uint64_t step) {
  impl_->require_idle();
  const BundleSpec& spec = impl_->bundle.spec();
  std::fill(impl_->changed.begin(), impl_->changed.end(), false);
  for (const std::uint32_t tensor : changed) {
    impl_->require_tensor(tensor);
    if (impl_->changed[tensor])
      throw Error(fmt::format("publication '{}': tensor {} is given twice", spec.name, tensor));
    impl_->changed[tensor] = true;
  }
  if (generation() == 0 && changed.size() != spec.tensors.size())
    throw Error(fmt::format("publication '{}': the first generation must contain all {} tensors, not {}", spec.name,
                            spec.tensors.size(), changed.size()));
  return impl_->publish(write, step);
}

std::uint64_t Publisher::publish_slices(const WriteSlice& write, std::uint64_t step, WaitLimit timeout) {
  impl_->bundle.refuse_inherited("publisher");
  if (!impl_->round)
    throw Error(fmt::format("publication '{}' has one publisher, not several writers", impl_->bundle.spec().name),
                ErrorCode::kInvalidState);
  return impl_->round->publish(write, step, timeout);
}

std::optional<Publisher::Writing> Publisher::begin() {
  impl_->require_idle();
  if (!impl_->find_record()) return std::nullopt;
  impl_->writer.begin();
  impl_->written.clear();
  return Writing(*impl_);
}

Publisher::Writing::Writing(Impl& impl) noexcept : GenerationWriting(impl) {}

std::uint64_t Publisher::Writing::commit(std::uint64_t step, bool is_partial) {
  auto& impl = static_cast<Impl&>(own());
  if (!impl.writer.is_complete())
    throw Error(fmt::format("publication '{}': the first generation must contain all {} tensors",
                            impl.bundle.spec().name, impl.bundle.tensors()));
  impl.written.require_whole(fmt::format("publication '{}'", impl.bundle.spec().name));
  const std::uint64_t generation = impl.writer.commit(step, is_partial);
  let_go();
  return generation;
}

std::vector<Publisher::Reader> Publisher::readers() const {
  const shm::Bundle& bundle = impl_->bundle;
  bundle.refuse_inherited("publisher");
  std::vector<Reader> readers;
  for (std::uint32_t rank = 0; rank < bundle.subscribers(); ++rank) {
    if (!bundle.locks().is_held_by_other(shm::kSubscriberByte + rank)) continue;
    const shm::SubscriberShm& entry = bundle.subscriber(rank);
    readers.push_back({.rank = rank,
                       .pid = entry.pid.load_relaxed(),
                       .acknowledged = entry.acknowledged.load_acquire(),  // (publication.P15)
                       .generations = shm::leased_by(bundle, rank)});
  }
  return readers;
}

std::vector<std::uint32_t> Publisher::wait_for(std::uint64_t generation, std::uint32_t readers,
                                               WaitLimit timeout) const {
  const shm::Bundle& bundle = impl_->bundle;
  const std::string& name = bundle.spec().name;
  if (generation > this->generation())
    throw Error(fmt::format("publication '{}' has no generation {} to wait for: its newest one is {}", name, generation,
                            this->generation()));
  if (readers > bundle.subscribers())
    throw Error(fmt::format("publication '{}' has {} places for subscribers, fewer than {}", name, bundle.subscribers(),
                            readers));
  const std::uint64_t until_ns = shm::now_ns() + shm::to_ns(timeout);
  std::vector<std::uint32_t> missing;
  std::uint32_t acknowledged = 0;
  const auto are_enough = [&] {
    missing.clear();
    acknowledged = 0;
    for (std::uint32_t rank = 0; rank < bundle.subscribers(); ++rank) {
      const bool has = bundle.subscriber(rank).acknowledged.load_acquire() >= generation;  // (publication.P15)
      if (!bundle.locks().is_held_by_other(shm::kSubscriberByte + rank)) continue;
      has ? void(++acknowledged) : missing.push_back(rank);
    }
    return readers == 0 ? missing.empty() : acknowledged >= readers;
  };
  const auto check_time = [&] {
    if (impl_->options.stop_requested && impl_->options.stop_requested()) throw Interrupted();
    if (shm::now_ns() >= until_ns)
      throw Timeout(fmt::format("publication '{}': {} of {} subscribers have acknowledged generation {} within {} s{}",
                                name, acknowledged, readers == 0 ? acknowledged + missing.size() : readers, generation,
                                timeout->count(),
                                missing.empty() ? "; no other is alive"
                                                : fmt::format("; not yet: subscribers {}", fmt::join(missing, ", "))));
  };
  shm::wait_for_fact(bundle.waiters().acknowledgement, are_enough, check_time, {.spins = 1, .yields = 0});
  return missing;
}

std::uint64_t Publisher::trim() {
  if (impl_->round) {
    impl_->bundle.refuse_inherited("publisher");
    if (!impl_->round->leads() || !impl_->round->is_quiet()) return 0;
  } else {
    impl_->require_idle();
  }
  return impl_->writer.trim();
}

const std::vector<std::uint32_t>& Publisher::busy_ranks() const noexcept { return impl_->writer.busy_ranks(); }
std::uint64_t Publisher::generation() const { return shm::generation_of(impl_->newest()); }
std::uint64_t Publisher::step() const {
  const std::uint64_t newest = impl_->newest();
  return newest == 0 ? 0 : impl_->bundle.record(shm::record_of(newest)).step.load_relaxed();
}
std::span<const std::byte> Publisher::tensor(std::uint32_t number) const {
  const shm::Bundle& bundle = impl_->bundle;
  const std::uint32_t slot = bundle.slots(shm::record_of(impl_->newest()))[number].load_relaxed();
  return {bundle.slot(number, slot), bundle.tensor_bytes(number)};
}
std::span<const std::byte> Publisher::memory() const {
  impl_->bundle.refuse_inherited("publisher");
  return impl_->bundle.rows();
}
const BundleSpec& Publisher::spec() const noexcept { return impl_->bundle.spec(); }
std::uint32_t Publisher::find(const std::string& tensor) const { return impl_->bundle.find(tensor); }

}  // namespace ps_shm
