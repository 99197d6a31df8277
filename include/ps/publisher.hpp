// Publishing: one process gives a bundle of tensors to any number of others, generation by generation. A generation is
// complete when others see it, and stays as it is while anybody has it. Needs no ps.
//
//   ps::Publisher publisher({.name = "policy", .tensors = {{.name = "w", .shape = {512, 512}}}});
//   publisher.publish([&](std::uint32_t, std::span<std::byte> out) { std::memcpy(out.data(), w, out.size()); });
//
// An object is used by one thread at a time. A process that forks keeps it; the child has nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps/bundle_spec.hpp"
#include "ps/export.hpp"

namespace PS_API ps {

// What publish() does where living subscribers have a lease on every record but the newest one. Not with enough_records().
enum class BusyPolicy {
  kReturn,  // nothing, and says so
  kWait,    // waits for one of them to give its lease back, or to die
};

struct PublisherOptions {
  std::string group{};        // whose users may subscribe, or take the publication over; empty: this user alone
  double wait_seconds = 1.0;  // how long to wait for the publisher before this one to end or die
  BusyPolicy busy = BusyPolicy::kReturn;
  double busy_seconds = 60.0;                        // kWait: for how long
  std::function<bool()> stop_requested{};            // looked at in every wait; true ends it with Interrupted
  std::function<void(const std::string&)> notice{};  // a line for people: what it takes over, what it waits for
};

class Publisher {
 public:
  // Makes the publication, or takes one over whose publisher has died or left: its generations go on where they were,
  // and subscribers notice nothing. One of other tensors is replaced where nobody uses it.
  // Throws Error: it has a publisher after wait_seconds, or subscribers and other tensors; /dev/shm is full.
  explicit Publisher(const BundleSpec& spec, const PublisherOptions& options = {});
  // Ends the publication. Subscribers that are there keep what they have, and can read the last generation. The last
  // one out removes it. Where the process dies instead, the publication stays for the next publisher.
  ~Publisher();
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) = delete;

  // Fills a tensor of the next generation, all of it: what it leaves is undefined. It lies in shared memory already.
  using Write = std::function<void(std::uint32_t tensor, std::span<std::byte> out)>;

  // The next generation: `write` is called for each tensor. Returns its number, which is one more than the last one's.
  // Nothing: every record is in use (busy_ranks()). `step` is the publisher's own count, for readers.
  // Wait-free with enough_records(), but for what `write` does; it makes a system call only where a subscriber waits.
  // What `write` throws is thrown on, and nothing was published.
  std::optional<std::uint64_t> publish(const Write& write, std::uint64_t step = 0);

  // The same where only some tensors change: the others are those of the generation before, and are not copied.
  // Throws Error: a tensor that there is not, or is named twice; the first generation does not name all.
  std::optional<std::uint64_t> publish(std::span<const std::uint32_t> changed, const Write& write,
                                       std::uint64_t step = 0);

  // The subscribers that had leases when publish() last returned nothing.
  const std::vector<std::uint32_t>& busy_ranks() const noexcept;

  // The newest generation, by this publisher or one before it; 0: there is none yet.
  std::uint64_t generation() const noexcept;
  std::uint64_t step() const noexcept;  // that it was published with

  // A tensor of the newest generation, also while the next one is being written. Requires: there is one.
  std::span<const std::byte> tensor(std::uint32_t number) const noexcept;

  const BundleSpec& spec() const noexcept;              // with the number of records that it has
  std::uint32_t find(const std::string& tensor) const;  // its position; throws Error where there is none

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps
