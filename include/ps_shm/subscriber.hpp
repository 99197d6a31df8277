/// @file
/// Reading what a publisher publishes: the newest generation of a bundle of tensors, in place in shared memory, for as
/// long as it is needed. Nothing is copied, nobody waits for a lock, and no reader delays the publisher.
/// @code
///   ps_shm::Subscriber subscriber("policy");
///   const ps_shm::Generation policy = subscriber.read();
///   const std::span<const float> w = policy.values<float>(subscriber.find("w"));
/// @endcode
/// A Subscriber and its Generations are used by one thread at a time. Threads that read independently need a Subscriber
/// each. After a fork() they belong to the parent: in the child their destructors do nothing, and every call that needs
/// the shared memory throws Error with kInvalidState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"

namespace PS_SHM_API ps_shm {

/// Options of a Subscriber.
struct SubscriberOptions {
  std::string group{};                            ///< Unix group that another user's publication is shared with
  WaitLimit wait = Seconds(60);                   ///< how long the constructor waits for the publication to exist
  std::function<bool()> stop_requested{};         ///< polled while a call waits; if true, the call throws Interrupted
  std::function<void(const std::string&)> log{};  ///< log callback: a line a second while the constructor waits
};

/// A leased generation: all of its tensors stay unchanged until this object is destroyed, even if its publisher dies or
/// its Subscriber is destroyed first.
class Generation {
 public:
  Generation(Generation&& other) noexcept
      : impl_(std::exchange(other.impl_, nullptr)), newest_(other.newest_), lease_(other.lease_) {}
  Generation& operator=(Generation&& other) noexcept {
    std::swap(impl_, other.impl_);
    std::swap(newest_, other.newest_);
    std::swap(lease_, other.lease_);
    return *this;
  }
  ~Generation();  ///< releases the lease; wait-free

  std::uint64_t number() const noexcept;  ///< 1, 2, ...

  /// The `step` that the publisher gave it.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::uint64_t step() const;

  /// When it was published, in nanoseconds since 1970.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::uint64_t unix_ns() const;

  /// Whether its publisher says that it contains a part of an unfinished push, so that its tensors need not belong
  /// together. Only a ps that was asked for such generations publishes them (ps_shm --publish-partial).
  ///
  /// @throws Error with kInvalidState in a forked child.
  bool is_partial() const;

  std::uint32_t tensor_count() const noexcept;  ///< number of tensors in the bundle

  /// The specification of a tensor.
  ///
  /// @pre tensor < tensor_count().
  const TensorSpec& spec(std::uint32_t tensor) const noexcept;

  /// The bytes of a tensor, aligned to 128 bytes and mapped read-only; none if it has no elements.
  ///
  /// @pre tensor < tensor_count().
  /// @throws Error with kInvalidState in a forked child.
  std::span<const std::byte> tensor(std::uint32_t tensor) const;

  /// Copies the bytes of a tensor to `out`. In a publication that exceeds the caches, large tensors are copied around
  /// them (non-temporal stores on x86-64), which takes less time than memcpy.
  ///
  /// @pre tensor < tensor_count().
  /// @throws Error if `out` has another size; with kInvalidState in a forked child.
  void copy(std::uint32_t tensor, std::span<std::byte> out) const;

  /// The elements of a tensor. T is the type of C++ that its dtype stands for. A float of 8 or 16 bits has none: there
  /// T is an unsigned integer of its size, for its bits, or a class of its size, such as CUDA's __nv_bfloat16.
  ///
  /// @pre tensor < tensor_count().
  /// @throws Error if T is not the type of the tensor's elements.
  template <class T>
  std::span<const T> values(std::uint32_t tensor) const {
    require_type(tensor, kind_of<T>(), sizeof(T));
    const std::span<const std::byte> bytes = this->tensor(tensor);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  friend class Subscriber;
  struct Impl;
  Generation(Impl* impl, std::uint32_t lease, std::uint64_t newest) noexcept
      : impl_(impl), newest_(newest), lease_(lease) {}
  enum class Kind { kFloat, kSigned, kUnsigned, kBool, kClass };
  template <class T>
  static constexpr Kind kind_of() noexcept {
    if (std::is_class_v<T>) return Kind::kClass;
    if (std::is_same_v<T, bool>) return Kind::kBool;
    if (std::is_floating_point_v<T>) return Kind::kFloat;
    return std::is_signed_v<T> ? Kind::kSigned : Kind::kUnsigned;
  }
  void require_type(std::uint32_t tensor, Kind kind, std::size_t bytes) const;

  Impl* impl_;
  std::uint64_t newest_;
  std::uint32_t lease_;
};

/// A reader of a publication, which holds one of its subscriber entries.
///
/// A Subscriber is used by one thread at a time.
class Subscriber {
 public:
  /// Waits for the publication `name`, and takes one of its subscriber entries.
  ///
  /// @throws Timeout if it was not there in time; Error with kExhausted if all entries are taken, kPermissionDenied if
  /// it is another user's, kDamaged, kIncompatible if another build made it; Interrupted.
  /// @progress blocks until the publication exists.
  explicit Subscriber(const std::string& name, const SubscriberOptions& options = {});
  ~Subscriber();  ///< releases the entry; outstanding Generations keep it until they are destroyed
  Subscriber(Subscriber&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
  Subscriber& operator=(Subscriber&&) = delete;

  /// Returns the newest generation as soon as its number is above `newer_than`. A subscriber holds at most two
  /// generations at one time. It waits up to `timeout`.
  ///
  /// @throws Timeout if there was none in time; PublisherGone if there is no such generation and the publisher has
  /// ended the publication or died (another one may come, and reading may be tried again); Error with kExhausted if two
  /// are held already; Interrupted.
  /// @progress blocks until the publisher publishes.
  Generation read(std::uint64_t newer_than = 0, WaitLimit timeout = Seconds(60));

  /// Returns the newest generation if its number is above `newer_than`, otherwise std::nullopt, without waiting.
  ///
  /// @throws Error with kExhausted if two are held already.
  /// @progress lock-free; it repeats only if a generation has been published meanwhile.
  std::optional<Generation> try_read(std::uint64_t newer_than = 0);

  /// Tells the publisher that this subscriber uses `generation` from now on, for example because it has loaded it
  /// (Publisher::wait_for(), Publisher::readers()). Reading alone says nothing.
  ///
  /// @throws Error with kInvalidArgument if there is no such generation yet, with kInvalidState in a forked child.
  /// @progress wait-free. It makes a system call only if the publisher waits.
  void acknowledge(std::uint64_t generation) const;

  /// The memory in which all tensors lie, mapped read-only: spec().records rows of the same size, a multiple of a page.
  /// A tensor of a generation lies in one row. A row that was never written may have no memory; do not read it.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::span<const std::byte> memory() const;

  /// Makes a row keep its memory (Publisher::trim()) until unpin_all() or the end of this subscriber, for memory that
  /// is registered with a device, such as by cudaHostRegister: a device would go on with memory that the row no longer
  /// has. Call it before the registration, and unpin_all() after all registrations have ended.
  ///
  /// @throws Error with kInvalidArgument if `held` is no generation of this subscriber with a tensor in that row, or
  /// the row is not one of the first 64; with kInvalidState in a forked child.
  /// @progress wait-free.
  void pin(const Generation& held, std::uint32_t row) const;

  /// Lets rows lose their memory again.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  void unpin_all() const;

  /// The number of the newest generation; 0: nothing has been published yet.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  std::uint64_t newest() const;

  /// Whether the publication has a living publisher. Takes one system call.
  ///
  /// @throws Error with kInvalidState in a forked child.
  bool is_published() const;

  /// Whether the publisher has ended the publication. If not, it is alive or has died.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  bool has_ended() const;

  /// The specification of the publication, with the actual number of records.
  const BundleSpec& spec() const noexcept;

  /// The number of this subscriber's entry.
  std::uint32_t rank() const noexcept;

  /// The number of a tensor in the bundle.
  ///
  /// @throws Error (kNotFound) if there is no tensor of that name.
  std::uint32_t find(const std::string& tensor) const;

 private:
  Generation::Impl* impl_;
};

}  // namespace ps_shm
