// Reading what a publisher publishes: the newest generation of a bundle of tensors, where it lies, for as long as it is
// wanted. No copy is made, nobody waits on a lock, and no reader holds the publisher up.
//
//   ps::Subscriber subscriber("policy");
//   const ps::Generation policy = subscriber.read();
//   const std::span<const float> w = policy.values<float>(0);
//
// A subscriber and its generations are used by one thread at a time; threads that read on their own have a subscriber each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps/bundle_spec.hpp"
#include "ps/errors.hpp"
#include "ps/export.hpp"

namespace PS_API ps {

struct SubscriberOptions {
  std::string group{};                               // that shares another user's publication
  double wait_seconds = 60.0;                        // how long to wait for the publication to be there
  std::function<bool()> stop_requested{};            // looked at in every wait; true ends it with Interrupted
  std::function<void(const std::string&)> notice{};  // a line for people: what it waits for
};

// A generation, leased: all of its tensors stay as they are until the object goes. Also when its publisher dies, and
// when its Subscriber has gone.
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
  ~Generation();  // wait-free

  std::uint64_t number() const noexcept;   // 1, 2, ...
  std::uint64_t step() const noexcept;     // that the publisher gave it
  std::uint64_t unix_ns() const noexcept;  // when it was published

  std::uint32_t tensor_count() const noexcept;
  const TensorSpec& spec(std::uint32_t tensor) const noexcept;
  // Aligned to 128 bytes; mapped read-only. Requires, as spec(): there is a tensor of that number.
  std::span<const std::byte> tensor(std::uint32_t tensor) const noexcept;
  // The same as elements. Throws Error where the tensor's elements have another size than T.
  template <class T>
  std::span<const T> values(std::uint32_t tensor) const {
    if (bytes_of(spec(tensor).dtype) != sizeof(T)) fail_size(tensor, sizeof(T));
    const std::span<const std::byte> bytes = this->tensor(tensor);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  friend class Subscriber;
  struct Impl;
  Generation(Impl* impl, std::uint32_t lease, std::uint64_t newest) noexcept
      : impl_(impl), newest_(newest), lease_(lease) {}
  [[noreturn]] void fail_size(std::uint32_t tensor, std::size_t bytes) const;

  Impl* impl_;
  std::uint64_t newest_;
  std::uint32_t lease_;
};

class Subscriber {
 public:
  // Waits for the publication, and takes one of its places for subscribers.
  // Throws Timeout: it is not there. Throws Error: every place is taken; it is another user's, damaged or of another build.
  explicit Subscriber(const std::string& name, const SubscriberOptions& options = {});
  ~Subscriber();  // gives the place back; that of its generations which are still there goes on until they go
  Subscriber(Subscriber&& other) noexcept : impl_(std::exchange(other.impl_, nullptr)) {}
  Subscriber& operator=(Subscriber&&) = delete;

  // The newest generation, as soon as its number is above `newer_than`. A subscriber has two at most at one time.
  // Throws Timeout; PublisherGone: there is no such generation, and the publisher has ended or died (another one may
  // come, and reading may be tried again); Error: two are held already; Interrupted.
  Generation read(std::uint64_t newer_than = 0, double timeout_seconds = 60.0);

  // The same without waiting: nothing where there is no newer one. Lock-free: repeated only when a generation has come.
  std::optional<Generation> try_read(std::uint64_t newer_than = 0);

  std::uint64_t newest() const noexcept;  // its number now; 0: nothing was published yet. Wait-free
  bool is_published() const;              // whether a publisher is there; one system call
  bool has_ended() const noexcept;        // whether it said so; else it has died, or is there. Wait-free

  const BundleSpec& spec() const noexcept;
  std::uint32_t rank() const noexcept;                  // its place
  std::uint32_t find(const std::string& tensor) const;  // its position; throws Error where there is none

 private:
  Generation::Impl* impl_;
};

}  // namespace ps
