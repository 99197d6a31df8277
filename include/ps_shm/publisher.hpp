/// @file
/// Publishing: one process provides a bundle of tensors to any number of others, generation by generation. A generation
/// is complete when others see it, and stays unchanged while anybody reads it. No ps is needed.
/// @code
///   ps_shm::Publisher publisher({.name = "policy", .tensors = {{.name = "w", .shape = {512, 512}}}});
///   publisher.publish([&](std::uint32_t, std::span<std::byte> out) { std::memcpy(out.data(), w, out.size()); });
/// @endcode
/// A Publisher is used by one thread at a time. After a fork() it belongs to the parent: in the child its destructor
/// does nothing, and every call that needs the shared memory throws Error with kInvalidState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/export.hpp"
#include "ps_shm/generation_writing.hpp"

namespace PS_SHM_API ps_shm {

/// What publish() does if living subscribers have a lease on every record but the newest one. This cannot happen with
/// enough_records().
enum class BusyPolicy {
  kReturn,  ///< publishes nothing, and returns std::nullopt
  kWait,    ///< waits for a subscriber to release its lease, or to die
};

/// The name of `busy`: return or wait.
/// @progress wait-free.
PS_SHM_API const char* to_string(BusyPolicy busy) noexcept;

/// Options of a Publisher.
struct PublisherOptions {
  std::string group{};  ///< Unix group whose users may subscribe or take the publication over; empty: only this user
  /// How long the constructor waits for the present publisher, or the users of an incompatible publication, to end or
  /// die.
  WaitLimit wait = Seconds(1);
  /// Gives all records their memory in the constructor, mapped for this process. Otherwise each takes its memory when
  /// it is first written, which makes that generation several times as slow as the next one in the same record.
  bool populate = false;
  WritePlan plan{};          ///< with BundleSpec::writers: the slices of each writer, the same for all of them
  std::uint32_t writer = 0;  ///< with BundleSpec::writers: which writer this process is
  BusyPolicy busy = BusyPolicy::kReturn;   ///< what publish() does if all records are in use
  WaitLimit busy_wait = Seconds(60);       ///< BusyPolicy::kWait: how long; then publish() returns std::nullopt
  std::function<bool()> stop_requested{};  ///< polled while a call waits; if true, the call throws Interrupted
  /// Log callback: a line when a publication is taken over, and once a second while a call waits.
  std::function<void(const std::string&)> log{};
};

/// The one process that writes a publication; or, with BundleSpec::writers, one of several that write each generation
/// together: publish_slices(). Such a publication has a leader, which is any of its writers. If the leader dies or
/// leaves, another one takes its place.
///
/// A Publisher is used by one thread at a time.
class Publisher {
  struct Impl;

 public:
  /// Creates the publication, or takes over one whose publisher has died or left: its generations continue where they
  /// were, and subscribers notice nothing. A publication of that name with other tensors, `subscribers`, `records`,
  /// `writers` or slices is replaced if nobody uses it. With several writers, the first of them creates the
  /// publication, and a writer takes the place of a dead one of the same number.
  ///
  /// @throws Error with kAlreadyExists if, after `wait`, it still has a publisher (or this writer), or differs in
  /// these and has users; kInvalidArgument if `spec` or the plan is invalid; kNoSpace if /dev/shm has no room for one
  /// generation (for all records with `populate`); kPermissionDenied if it is another user's; Interrupted.
  /// @progress blocks on the present publisher, up to `wait`.
  explicit Publisher(const BundleSpec& spec, const PublisherOptions& options = {});

  /// Ends the publication. Existing subscribers keep what they have, and can still read the last generation. The last
  /// one to go removes the publication. If the process dies instead, the publication stays for the next publisher. With
  /// several writers, it leaves the others, which can publish again when this one has a successor.
  ~Publisher();
  Publisher(Publisher&&) noexcept;
  Publisher& operator=(Publisher&&) = delete;

  /// Fills one tensor of the next generation, directly in shared memory. It must write all of `out`, whose initial
  /// content is undefined.
  using Write = std::function<void(std::uint32_t tensor, std::span<std::byte> out)>;

  /// Publishes the next generation; `write` is called for each tensor. Returns the generation's number, which is one
  /// more than the last one's, or std::nullopt if every record is in use (busy_ranks()). `step` is a number of the
  /// caller's own for the readers.
  ///
  /// @throws Error with kInvalidState if a generation is being written (begin()), with kNoSpace if /dev/shm is full;
  /// Interrupted with BusyPolicy::kWait; and whatever `write` throws. Nothing is published then.
  /// @progress wait-free with enough_records(), apart from `write`. It makes system calls only if a subscriber waits,
  /// or where a record is used for the first time (PublisherOptions::populate). With BusyPolicy::kWait it may block on
  /// subscribers.
  std::optional<std::uint64_t> publish(const Write& write, std::uint64_t step = 0);

  /// Publishes a generation in which only the tensors in `changed` are new; `write` is called for these. The others are
  /// shared with the generation before, without a copy. `step` and the result are as above.
  ///
  /// @throws Error with kInvalidArgument if there is no such tensor, if one is named twice, or if the first generation
  /// does not name all of them; and as publish().
  std::optional<std::uint64_t> publish(std::span<const std::uint32_t> changed, const Write& write,
                                       std::uint64_t step = 0);

  /// Where a writer of several puts the elements of one of its slices.
  class SliceOutput {
   public:
    /// Copies the elements of the slice, all of them, in row-major order.
    ///
    /// @throws Error if they are more or fewer bytes.
    /// @progress wait-free.
    void write(std::span<const std::byte> bytes);

    /// The same of `values`, which are rounded to the tensor's dtype as by Writing::write_floats().
    ///
    /// @throws Error if they are more or fewer, or if the tensor has another dtype than float32 and bfloat16.
    /// @progress wait-free.
    void write_floats(std::span<const float> values);

   private:
    friend class RoundWriter;
    SliceOutput(const TensorSpec& tensor, const Slice& slice, std::byte* out, std::size_t generation_bytes)
        : tensor_(tensor), slice_(slice), out_(out), generation_bytes_(generation_bytes) {}

    const TensorSpec& tensor_;
    const Slice& slice_;
    std::byte* out_;  // of the tensor
    std::size_t generation_bytes_;
    bool is_written_ = false;
  };

  /// Writes one slice of this writer; `slice` is its number in the plan of this writer.
  using WriteSlice = std::function<void(std::uint32_t slice, SliceOutput& out)>;

  /// Publishes the next generation together with the other writers, each of which calls this with the same `step`.
  /// `write` is called for each slice of this writer; and again for all of them if another writer dies before it has
  /// written its own and has a successor in time. Returns the generation's number, on all writers, when it is
  /// published. A generation never has slices of different steps.
  ///
  /// @throws Timeout, which says who was missing, if the generation was not published within `timeout`: if this
  /// writer has written its slices by then, it still may be published later; Interrupted; Error with kInvalidState if
  /// the publication has one publisher; if `write` leaves out a slice; with kNoSpace, on the leader, if /dev/shm is
  /// full; and whatever `write` throws. The others wait for another attempt then.
  /// @progress blocks on the other writers, and on subscribers if they have leases on every record.
  std::uint64_t publish_slices(const WriteSlice& write, std::uint64_t step, WaitLimit timeout = Seconds(60));

  /// A generation that is written tensor by tensor, in any order, for producers that never have all tensors at once.
  /// Readers see nothing of it before commit(). Without commit() it is given up, as when the Publisher is destroyed
  /// first.
  /// @code
  ///   if (std::optional<ps_shm::Publisher::Writing> writing = publisher.begin()) {
  ///     for (std::uint32_t tensor = 0; tensor < tensors; ++tensor) writing->write(tensor, gather(tensor));
  ///     writing->commit(step);
  ///   }
  /// @endcode
  class Writing : public GenerationWriting {
   public:
    Writing(Writing&&) noexcept = default;

    /// Publishes the generation, and returns its number. Tensors of which nothing was written are shared with the
    /// generation before, without a copy. Nothing can be written afterwards. `step` and `is_partial` are for the
    /// readers (Generation::step(), Generation::is_partial()).
    ///
    /// @throws Error if it is the first generation and a tensor was not written, or if some elements of a tensor were
    /// written and others were not: the message names the tensor and the number of elements that are missing. Nothing
    /// is published then, and commit() may be called again.
    /// @progress wait-free. It makes a system call only if a subscriber waits.
    std::uint64_t commit(std::uint64_t step = 0, bool is_partial = false);

   private:
    friend class Publisher;
    explicit Writing(Impl& impl) noexcept;
  };

  /// Begins the next generation; std::nullopt if every record is in use (busy_ranks()).
  ///
  /// @throws Error with kInvalidState if another generation is being written; Interrupted with BusyPolicy::kWait.
  /// @progress as publish().
  std::optional<Writing> begin();

  /// A live subscriber.
  struct Reader {
    std::uint32_t rank;                      ///< Subscriber::rank()
    std::uint32_t pid;                       ///< in its own PID namespace
    std::uint64_t acknowledged;              ///< the generation that it uses (Subscriber::acknowledge()); 0: unknown
    std::vector<std::uint64_t> generations;  ///< that it holds now
  };

  /// The live subscribers. A subscriber that has just been killed may still be among them.
  ///
  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free; one system call for each entry of a subscriber.
  std::vector<Reader> readers() const;

  /// Waits until `readers` live subscribers (0: each live subscriber) have acknowledged `generation` or a newer one
  /// (Subscriber::acknowledge()), up to `timeout`. Returns the ranks of live subscribers that have not. Those that die
  /// do not count.
  ///
  /// @throws Timeout, which names those that have not acknowledged it, if there were not enough in time; Interrupted;
  /// Error with kInvalidArgument if there is no such generation, or fewer entries than `readers`; with kInvalidState in
  /// a forked child.
  /// @progress blocks on subscribers.
  std::vector<std::uint32_t> wait_for(std::uint64_t generation, std::uint32_t readers = 0,
                                      WaitLimit timeout = Seconds(60)) const;

  /// Gives memory back that the newest generation and those that subscribers hold do not need. The next generations
  /// take it anew, which makes them slower (PublisherOptions::populate). Returns the number of bytes. With several
  /// writers, only the leader gives memory back, and only if no writer can still be writing in an attempt that was
  /// given up.
  ///
  /// @throws Error with kInvalidState if a generation is being written, or in a forked child.
  /// @progress lock-free.
  std::uint64_t trim();

  /// The subscribers that had leases when publish() or begin() last returned std::nullopt.
  const std::vector<std::uint32_t>& busy_ranks() const noexcept;

  /// The number of the newest generation, by this publisher or an earlier one; 0: there is none yet.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::uint64_t generation() const;

  /// The `step` that the newest generation was published with; 0: there is none yet.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::uint64_t step() const;

  /// A tensor of the newest generation, also while the next one is being written.
  ///
  /// @pre there is a generation, and a tensor of that number.
  /// @throws Error with kInvalidState in a forked child.
  std::span<const std::byte> tensor(std::uint32_t number) const;

  /// The memory in which all tensors lie: spec().records rows of the same size, a multiple of a page. A tensor of a
  /// generation lies in one row. trim() gives memory of rows back also if this process has registered it with a device:
  /// end the registration before.
  ///
  /// @throws Error with kInvalidState in a forked child.
  std::span<const std::byte> memory() const;

  /// The specification, with the actual number of records.
  const BundleSpec& spec() const noexcept;

  /// The number of a tensor in the bundle.
  ///
  /// @throws Error (kNotFound) if there is no tensor of that name.
  std::uint32_t find(const std::string& tensor) const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace ps_shm
