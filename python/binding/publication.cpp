#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <tuple>
#include <utility>

#include "arrays.hpp"
#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "server.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

// An object that one thread may close while another one reads from it. Reading takes no turn, because a call that waits
// may hold the turn for long.
template <class Made>
class Closable : public Guarded {
 public:
  Closable(std::string what, Made&& made) : Guarded(std::move(what)), made_(std::move(made)), spec_(made_->spec()) {}

  // Requires: this thread has the turn.
  Made& use() { return *made_; }
  const BundleSpec& spec() const noexcept { return spec_; }

  // Throws Error as check().
  template <class Read>
  auto look(Read&& read) const {
    check();
    const std::shared_lock lock(closing_);  // with the global interpreter lock held, for which close() does not wait
    check();
    return read(*made_);
  }
  // Requires: this thread has the turn.
  void close() {
    const std::unique_lock lock(closing_);
    is_closed = true;
    made_.reset();
  }

 private:
  std::optional<Made> made_;
  const BundleSpec spec_;
  mutable std::shared_mutex closing_;
};

struct Publishing : Closable<Publisher> {
  Publishing(Publisher given, bool of_floats)
      : Closable(fmt::format("the publisher of '{}'", given.spec().name), std::move(given)), rounds(of_floats) {}

  // Requires: this thread has the turn.
  void clear_dropped() {
    if (writing && dropped == writing_id) writing.reset();
  }

  const bool rounds;  // float32 arrays for bfloat16 tensors
  std::optional<Publisher::Writing> writing;
  std::uint64_t writing_id = 0;
  std::atomic<std::uint64_t> dropped{0};
};
struct PublisherHandle {
  std::shared_ptr<Publishing> own;
};

// A generation that is being written. Any thread may drop it, so what it has of the publisher is given up by the next
// call that begins one.
struct WritingHandle {
  WritingHandle(std::shared_ptr<Publishing> of, std::uint64_t of_step) : own(std::move(of)), step(of_step) {}
  WritingHandle(WritingHandle&&) = default;
  WritingHandle& operator=(WritingHandle&&) = delete;
  ~WritingHandle() {
    if (own) own->dropped = id;
  }

  std::shared_ptr<Publishing> own;
  std::uint64_t step, id = 0;
  std::optional<std::uint64_t> number;
};

// A subscriber and the generations that it has leased. Any thread may drop a generation, also while another one waits
// in read(); the lease is then released at the end of that call.
struct Subscribing : Closable<Subscriber> {
  explicit Subscribing(Subscriber given)
      : Closable(fmt::format("the subscriber of '{}'", given.spec().name), std::move(given)) {}

  void drop(Generation generation) {
    {
      const std::lock_guard lock(dropped_mutex);
      dropped.push_back(std::move(generation));
    }
    try_run([this] { clear_dropped(); });
  }
  // Requires: this thread has the turn.
  void clear_dropped() {
    const std::lock_guard lock(dropped_mutex);
    dropped.clear();
  }

  std::mutex dropped_mutex;
  std::vector<Generation> dropped;
};
using SharedSubscribing = std::shared_ptr<Subscribing>;

struct SubscriberHandle {
  SharedSubscribing own;
};

class SubscriberTurn {
 public:
  explicit SubscriberTurn(Subscribing& own) : own_(own), turn_(own) { own_.clear_dropped(); }
  ~SubscriberTurn() { own_.clear_dropped(); }

 private:
  Subscribing& own_;
  const Turn turn_;
};

// Kept alive by a generation's object and by the arrays that refer to its memory.
class Lease {
 public:
  Lease(SharedSubscribing of, Generation generation) : generation(std::move(generation)), of_(std::move(of)) {}
  ~Lease() {
    if (of_->is_inherited())
      static_cast<void>(new Generation(std::move(generation)));  // only the parent may release it
    else
      of_->drop(std::move(generation));
  }

  Generation generation;

 private:
  SharedSubscribing of_;
};
using SharedLease = std::shared_ptr<Lease>;

struct GenerationHandle {
  SharedLease lease;

  const Generation& operator*() const { return lease->generation; }
  const Generation* operator->() const { return &lease->generation; }
};

std::vector<std::string> names_of(const BundleSpec& spec) {
  std::vector<std::string> names;
  for (const TensorSpec& one : spec.tensors) names.push_back(one.name);
  return names;
}

// Whether the array is rounded to the tensor's dtype.
bool is_rounded(const Array& array, const TensorSpec& tensor, bool rounds) {
  return rounds && tensor.dtype == DType::kBFloat16 && array.dtype() == DType::kFloat32;
}

// The arrays for the tensors, in the order of the specification. With `some`, tensors without an array are unset.
std::vector<std::optional<Array>> arrays_for(const BundleSpec& spec, const nb::dict& given, Use use, const char* verb,
                                             bool some, bool rounds = false) {
  std::vector<std::optional<Array>> all;
  std::size_t found = 0;
  for (const TensorSpec& one : spec.tensors) {
    all.emplace_back();
    const nb::object name = nb::cast(one.name);
    if (!given.contains(name)) {
      if (some) continue;
      throw nb::value_error(fmt::format("{}: tensor '{}' is not among the arrays", verb, one.name).c_str());
    }
    const std::string about = fmt::format("{}: the array for tensor '{}'", verb, one.name);
    all.back().emplace(given[name], use, about);
    all.back()->require(is_rounded(*all.back(), one, rounds) ? DType::kFloat32 : one.dtype, one.shape, about);
    ++found;
  }
  if (found != given.size())
    throw nb::value_error(fmt::format("{}: {} of the arrays name no tensor; those that there are: {}", verb,
                                      given.size() - found, fmt::join(names_of(spec), ", "))
                              .c_str());
  return all;
}

std::shared_ptr<Publishing> publisher(const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
                                      std::uint32_t records, const std::string& dtype, bool populate,
                                      const std::string& group, double wait, double busy_wait) {
  const bool rounds = !dtype.empty();
  if (rounds && dtype_of(dtype) != DType::kBFloat16)
    throw nb::value_error(
        fmt::format("dtype '{}': float32 tensors can be published as 'bfloat16' only", dtype).c_str());
  BundleSpec spec{.name = name, .tensors = {}, .subscribers = subscribers, .records = records};
  for (const auto& [key, array] : tensors) {
    const auto tensor = nb::cast<std::string>(key);
    std::pair<std::string, Shape> kind;
    if (nb::try_cast(array, kind)) {
      spec.tensors.push_back({.name = tensor, .dtype = dtype_of(kind.first), .shape = kind.second});
    } else {
      const Array like(array, Use::kRead, fmt::format("tensor '{}'", tensor));
      spec.tensors.push_back({.name = tensor, .dtype = like.dtype(), .shape = like.shape()});
    }
    if (rounds && spec.tensors.back().dtype == DType::kFloat32) spec.tensors.back().dtype = DType::kBFloat16;
  }
  const Released release;
  return shared_unless_inherited(
      std::make_unique<Publishing>(Publisher(spec, {.group = group,
                                                    .wait_seconds = wait,
                                                    .populate = populate,
                                                    .busy = busy_wait > 0 ? BusyPolicy::kWait : BusyPolicy::kReturn,
                                                    .busy_seconds = busy_wait,
                                                    .stop_requested = look_for_signals,
                                                    .log = tell}),
                                   rounds));
}

// Writes the elements of `array` from element `begin` of the tensor on.
void write_array(Publisher::Writing& writing, std::uint32_t number, const TensorSpec& tensor, const Array& array,
                 std::uint64_t begin) {
  const std::span<const std::byte> bytes = array.bytes();
  if (array.dtype() == tensor.dtype)
    writing.write(number, bytes, begin * bytes_of(tensor.dtype));
  else
    writing.write_floats(number, {reinterpret_cast<const float*>(bytes.data()), array.size()}, begin);
}

std::optional<std::uint64_t> publish(const PublisherHandle& self, const nb::dict& given, std::uint64_t step) {
  const bool is_first = self.own->look([](const Publisher& one) { return one.generation() == 0; });
  const std::vector<std::optional<Array>> arrays =
      arrays_for(self.own->spec(), given, Use::kRead, "publish", !is_first, self.own->rounds);
  const Turn turn(*self.own);
  self.own->clear_dropped();
  std::optional<Publisher::Writing> writing = self.own->use().begin();
  if (!writing) return std::nullopt;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) write_array(*writing, i, self.own->spec().tensors[i], *arrays[i], 0);
  return writing->commit(step);
}

WritingHandle begin(const PublisherHandle& self, std::uint64_t step) {
  WritingHandle made(self.own, step);
  const Turn turn(*self.own);
  Publishing& own = *self.own;
  own.clear_dropped();
  std::optional<Publisher::Writing> writing = own.use().begin();
  if (!writing)
    throw Error(fmt::format("publication '{}': subscribers {} hold every generation that fits", own.spec().name,
                            fmt::join(own.use().busy_ranks(), ", ")),
                ErrorCode::kExhausted);
  own.writing.emplace(std::move(*writing));
  made.id = ++own.writing_id;
  return made;
}

// Requires: this thread has the turn.
Publisher::Writing& writing_of(const WritingHandle& self) {
  if (!self.own->writing || self.own->writing_id != self.id)
    throw Error("the generation has been committed or given up", ErrorCode::kInvalidState);
  return *self.own->writing;
}

// Raises KeyError.
std::vector<TensorSpec>::const_iterator find_tensor(const BundleSpec& spec, const std::string& name) {
  const auto found =
      std::find_if(spec.tensors.begin(), spec.tensors.end(), [&](const TensorSpec& one) { return one.name == name; });
  if (found == spec.tensors.end()) throw nb::key_error(name.c_str());
  return found;
}

nb::object out(const WritingHandle& self, const std::string& name) {
  const BundleSpec& spec = self.own->spec();
  const auto found = find_tensor(spec, name);
  std::byte* data = nullptr;
  {
    const Turn turn(*self.own);
    data = writing_of(self).out(static_cast<std::uint32_t>(found - spec.tensors.begin())).data();
  }
  const nb::capsule owner(new std::shared_ptr<Publishing>(self.own),
                          [](void* kept) noexcept { delete static_cast<std::shared_ptr<Publishing>*>(kept); });
  return as_dlpack(data, found->dtype, found->shape, owner, Use::kWrite);
}

// The address of the memory in which all tensors lie, the bytes of a row, and the number of rows.
std::tuple<std::uintptr_t, std::size_t, std::uint32_t> rows_of(std::span<const std::byte> memory,
                                                               const BundleSpec& spec) {
  return {reinterpret_cast<std::uintptr_t>(memory.data()), memory.size() / spec.records, spec.records};
}

void write(const WritingHandle& self, const std::string& name, const nb::object& given, std::uint64_t begin) {
  const BundleSpec& spec = self.own->spec();
  const auto found = find_tensor(spec, name);
  const std::string about = fmt::format("write: the array for tensor '{}'", name);
  const Array array(given, Use::kRead, about);
  const DType dtype = is_rounded(array, *found, self.own->rounds) ? DType::kFloat32 : found->dtype;
  if (begin == 0 && array.size() == found->element_count())
    array.require(dtype, found->shape, about);
  else
    array.require_type(dtype, about);
  if (begin > found->element_count() || array.size() > found->element_count() - begin)
    throw nb::value_error(fmt::format("{} has {} elements: from element {} on they do not fit into {}", about,
                                      array.size(), begin, found->element_count())
                              .c_str());
  const Turn turn(*self.own);
  write_array(writing_of(self), static_cast<std::uint32_t>(found - spec.tensors.begin()), *found, array, begin);
}

std::uint64_t commit(WritingHandle& self) {
  const Turn turn(*self.own);
  self.number = writing_of(self).commit(self.step);
  self.own->writing.reset();
  return *self.number;
}

void give_up(const WritingHandle& self) {
  const Turn turn(*self.own);
  if (self.own->writing_id == self.id) self.own->writing.reset();
}

std::shared_ptr<Subscribing> subscriber(const std::string& name, const std::string& group, double wait) {
  const Released release;
  return shared_unless_inherited(std::make_unique<Subscribing>(
      Subscriber(name, {.group = group, .wait_seconds = wait, .stop_requested = look_for_signals, .log = tell})));
}

SharedLease read(const SubscriberHandle& self, std::uint64_t newer_than, double timeout) {
  const SubscriberTurn turn(*self.own);
  return std::make_shared<Lease>(self.own, self.own->use().read(newer_than, timeout));
}

SharedLease try_read(const SubscriberHandle& self, std::uint64_t newer_than) {
  const SubscriberTurn turn(*self.own);
  std::optional<Generation> found = self.own->use().try_read(newer_than);
  return found ? std::make_shared<Lease>(self.own, std::move(*found)) : nullptr;
}

nb::object generation(SharedLease lease) { return lease ? nb::cast(GenerationHandle{std::move(lease)}) : nb::none(); }

std::vector<std::string> names_in(const GenerationHandle& self) {
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < self->tensor_count(); ++i) names.push_back(self->spec(i).name);
  return names;
}

bool has(const GenerationHandle& self, const std::string& name) {
  const std::vector<std::string> names = names_in(self);
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Calls make(data, dtype, shape, owner) with the memory of the tensor, which `owner` keeps leased.
template <class Make>
nb::object shared_tensor(const GenerationHandle& self, const std::string& name, Make&& make) {
  for (std::uint32_t i = 0; i < self->tensor_count(); ++i) {
    const TensorSpec& spec = self->spec(i);
    if (spec.name != name) continue;
    const nb::capsule owner(new SharedLease(self.lease),
                            [](void* kept) noexcept { delete static_cast<SharedLease*>(kept); });
    return make(self->tensor(i).data(), spec.dtype, spec.shape, owner);
  }
  throw nb::key_error(name.c_str());
}

nb::object tensor(const GenerationHandle& self, const std::string& name) {
  return shared_tensor(self, name, [](const void* data, DType dtype, const Shape& shape, nb::handle owner) {
    return as_array(data, dtype, shape, owner, Use::kRead);
  });
}

nb::object dlpack(const GenerationHandle& self, const std::string& name) {
  return shared_tensor(self, name, [](const void* data, DType dtype, const Shape& shape, nb::handle owner) {
    return as_dlpack(data, dtype, shape, owner, Use::kRead);
  });
}

// Copies tensors of the generation into arrays. Raises ValueError for names that are not those of tensors.
void copy_to(const GenerationHandle& self, const nb::dict& outs) {
  BundleSpec spec;
  for (std::uint32_t i = 0; i < self->tensor_count(); ++i) spec.tensors.push_back(self->spec(i));
  const std::vector<std::optional<Array>> arrays = arrays_for(spec, outs, Use::kWrite, "copy_to", true);
  const Released release;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) self->copy(i, arrays[i]->bytes());
}

void add_publisher(nb::module_& module) {
  nb::class_<PublisherHandle>(module, "Publisher",
                              "Publishes a set of named tensors. Programs use ps_shm.Publisher, which derives from it.")
      .def(
          "__init__",
          [](PublisherHandle* self, const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
             std::uint32_t records, const std::string& dtype, bool populate, const std::string& group, double wait,
             double busy_wait) {
            new (self) PublisherHandle{
                publisher(name, tensors, subscribers, records, dtype, populate, group, wait, busy_wait)};
          },
          "name"_a, "tensors"_a, nb::kw_only(), "subscribers"_a = 16, "records"_a = 0, "dtype"_a = "",
          "populate"_a = false, "group"_a = "", "wait"_a = 1.0, "busy_wait"_a = 0.0,
          nb::sig(
              "def __init__(self, name: str, tensors: dict[str, typing.Any], *, subscribers: int = 16, records: int = "
              "0, dtype: str = '', populate: bool = False, group: str = '', wait: float = 1.0, busy_wait: float = 0.0) "
              "-> None"),
          R"(Creates the publication, or takes over one whose publisher has died or left.

Generations of a publication that is taken over are numbered on. One of that name with other tensors is replaced if
nobody uses it.

Args:
    name: the name of the publication: 1 to 64 characters of [A-Za-z0-9_-], the first one a letter or digit.
    tensors: for each tensor's name an array, of which only shape and dtype are used, or a pair of these, such as
        ("bfloat16", (512, 512)).
    subscribers: the largest number of subscribers at one time, 1 to 256.
    records: the number of generations that the publication can hold at one time, at least 2. With 2 * subscribers + 2,
        publish() always finds a free record. 0: as many as fit into 256 MiB, at least 4 and at most that number.
    dtype: "bfloat16": float32 tensors are published in this type. publish() and write() take float32 arrays for them,
        and round to nearest, ties to even. Empty: every tensor is published in its own type.
    populate: give all records their memory at once. Otherwise each takes its memory when it is first written, which
        makes that generation several times as slow as the next one in the same record.
    group: the Unix group whose users may subscribe, or take the publication over. Empty: only this user.
    wait: how long to wait for the present publisher, or the users of an incompatible publication, to end, in seconds.
    busy_wait: how long publish() waits if subscribers hold all records, in seconds. 0: it returns None at once.

Raises:
    Error: after `wait` seconds the publication still has a publisher, or has other tensors and subscribers
        (ALREADY_EXISTS); /dev/shm has no room for one generation, or for all with `populate` (NO_SPACE); it is another user's (PERMISSION_DENIED); an argument is
        invalid (INVALID_ARGUMENT).
    TypeError: an array cannot be used.

Progress: blocks on the present publisher, up to `wait` seconds.)")
      .def("publish", &publish, "tensors"_a, "step"_a = 0,
           nb::sig("def publish(self, tensors: dict[str, typing.Any], step: int = 0) -> int | None"),
           R"(Publishes the next generation and returns its number, which is one more than the last one's.

It returns None, and publishes nothing, if subscribers hold every record (after `busy_wait` seconds).

Args:
    tensors: for each tensor's name a row-major array of its dtype and shape. Tensors that are left out are shared
        with the generation before, without a copy. The first generation needs all of them.
    step: a number of the caller's own for the readers, such as the training step.

Raises:
    ValueError: an array has the wrong shape or an unknown name, or is missing in the first generation.
    TypeError: an array has another dtype or cannot be used.
    Error: the publisher is closed, or belongs to the parent of a forked process (INVALID_STATE); /dev/shm is full
        (NO_SPACE), and nothing is published.

Progress: wait-free if there are at least 2 * subscribers + 2 records. With `busy_wait` it may block on subscribers.)")
      .def("begin", &begin, "step"_a = 0,
           R"(Begins the next generation, whose tensors are written one after the other.

    with publisher.begin(step) as generation:
        for name, tensor in gathered_tensors():
            generation.write(name, tensor)

At the end of the block it is published as a whole. If the block raises, nothing is published.

Args:
    step: a number of the caller's own for the readers, such as the training step.

Raises:
    Error: subscribers hold every record, after `busy_wait` seconds (EXHAUSTED); another generation is being written,
        the publisher is closed, or it belongs to the parent of a forked process (INVALID_STATE).

Progress: as publish().)")
      .def(
          "readers",
          [](const PublisherHandle& self) {
            return self.own->look([](const Publisher& one) { return one.readers(); });
          },
          R"(The live subscribers, with the generation that each has acknowledged and those that it holds.

A subscriber that has just been killed may still be among them.

Raises:
    Error: the publisher is closed, or belongs to the parent of a forked process (INVALID_STATE).

Progress: wait-free; one system call for each entry of a subscriber.)")
      .def(
          "wait_for",
          [](const PublisherHandle& self, std::uint64_t generation, std::uint32_t readers, double timeout) {
            const Turn turn(*self.own);
            return self.own->use().wait_for(generation, readers, timeout);
          },
          "generation"_a, "readers"_a = 0, "timeout"_a = 60.0,
          R"(Waits until subscribers have acknowledged a generation or a newer one (Subscriber.acknowledge()).

It returns the ranks of the live subscribers that have not. Subscribers that die do not count.

Args:
    generation: the number of the generation.
    readers: how many subscribers. 0: each live one.
    timeout: how long to wait, in seconds. 0: it does not wait.

Raises:
    Timeout: too few had acknowledged it in time; the message names those that had not.
    Error: there is no such generation, or the publication has fewer places for subscribers (INVALID_ARGUMENT); the
        publisher is closed, or belongs to the parent of a forked process (INVALID_STATE).

Progress: blocks on subscribers.)")
      .def(
          "trim",
          [](const PublisherHandle& self) {
            const Turn turn(*self.own);
            self.own->clear_dropped();
            return self.own->use().trim();
          },
          R"(Gives memory back that the newest generation and those that subscribers hold do not need.

It returns the number of bytes. The next generations take memory anew, which makes them slower.

Raises:
    Error: a generation is being written, the publisher is closed, or it belongs to the parent of a forked process
        (INVALID_STATE).

Progress: lock-free.)")
      .def_prop_ro(
          "memory",
          [](const PublisherHandle& self) {
            return self.own->look([](const Publisher& one) { return rows_of(one.memory(), one.spec()); });
          },
          "The address of the memory in which all tensors lie, the bytes of one of its rows, and the number of rows, "
          "to "
          "register it with a device. trim() gives memory back that is registered: end the registration before.")
      .def_prop_ro(
          "generation",
          [](const PublisherHandle& self) {
            return self.own->look([](const Publisher& one) { return one.generation(); });
          },
          "The number of the newest generation, by this publisher or an earlier one; 0 if there is none yet.")
      .def_prop_ro(
          "step",
          [](const PublisherHandle& self) { return self.own->look([](const Publisher& one) { return one.step(); }); },
          "The `step` that the newest generation was published with; 0 if there is none yet.")
      .def_prop_ro(
          "names", [](const PublisherHandle& self) { return self.own->check(), names_of(self.own->spec()); },
          "The names of the tensors, in their order.")
      .def("__repr__", [](const PublisherHandle& self) { return fmt::format("<{}>", self.own->what()); })
      .def(
          "close",
          [](const PublisherHandle& self) {
            if (self.own->is_inherited() || self.own->is_closed) return;
            const Turn turn(*self.own);
            self.own->close();
          },
          "Ends the publication. Existing subscribers keep what they have and can still read the last generation; the "
          "last one to go removes the publication. Calling it again does nothing, and neither does a call in a forked "
          "child.");
}

void add_writing(nb::module_& module) {
  nb::class_<WritingHandle>(module, "NewGeneration",
                            R"(A generation that is being written. Returned by Publisher.begin().

No subscriber sees it before it is committed, which the end of a `with` block does. It is given up if the block raises,
or if the object is dropped.)")
      .def("write", &write, "name"_a, "tensor"_a, "begin"_a = 0,
           nb::sig("def write(self, name: str, tensor: typing.Any, begin: int = 0) -> None"),
           R"(Copies an array into a tensor of the generation.

Args:
    name: the name of the tensor.
    tensor: a row-major array of its dtype (or of float32, see `dtype` of the publisher): of its shape, or some of its
        elements in row-major order.
    begin: where they begin, as an index into the flattened tensor. A tensor that is written in parts has to be
        written completely.

Raises:
    KeyError: there is no tensor of that name.
    ValueError: the array has another shape, or does not fit.
    TypeError: the array has another dtype or cannot be used.
    Error: the generation has been committed or given up, or the publisher is closed (INVALID_STATE).

Progress: wait-free.)")
      .def("out", &out, "name"_a, nb::sig("def out(self, name: str) -> typing.Any"),
           R"(Returns the tensor's memory in this generation as an object with DLPack, to be filled in place.

    torch.from_dlpack(generation.out("w")).copy_(w)

All of it has to be written before the generation is committed, and nothing after that: subscribers read it then.

Args:
    name: the name of the tensor.

Raises:
    KeyError: there is no tensor of that name.
    Error: /dev/shm is full (NO_SPACE); the generation has been committed or given up, or the publisher is closed
        (INVALID_STATE).

Progress: wait-free.)")
      .def("commit", &commit,
           R"(Publishes the generation and returns its number.

Tensors of which nothing was written are shared with the generation before, without a copy.

Raises:
    Error: it is the first generation and a tensor was not written (INVALID_ARGUMENT); it has been committed or given
        up, or the publisher is closed (INVALID_STATE).

Progress: wait-free.)")
      .def_prop_ro(
          "number", [](const WritingHandle& self) { return self.number; }, nb::sig("def number(self) -> int | None"),
          "The generation's number once it is committed, until then None.")
      .def(
          "__enter__", [](WritingHandle& self) -> WritingHandle& { return self; }, nb::rv_policy::reference,
          nb::sig("def __enter__(self) -> NewGeneration"))
      .def(
          "__exit__",
          [](WritingHandle& self, nb::handle kind, nb::handle, nb::handle) {
            if (!kind.is_none()) return give_up(self);
            if (self.number) return;
            try {
              commit(self);
            } catch (...) {  // the block is over: nobody can complete it
              give_up(self);
              throw;
            }
          },
          "kind"_a.none(), "error"_a.none(), "trace"_a.none(),
          nb::sig(
              "def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: typing.Any) "
              "-> None"));
}

void add_generation(nb::module_& module) {
  nb::class_<GenerationHandle>(
      module, "Generation",
      R"(A generation of a publication: tensors that were published together. Returned by Subscriber.read().

It is a mapping from the tensors' names. Its methods that return tensors as arrays raise
TypeError for a tensor of a type that NumPy does not have.

    generation = subscriber.read()
    w = generation["w"]                         # in shared memory, read-only
    generation.copy_to({"w": array})

The tensors stay unchanged as long as this object or an array from it exists, even if the publisher dies. A subscriber
holds at most two generations at one time, so drop those that are no longer needed. A forked child must not access a
generation of its parent.)")
      .def_prop_ro(
          "number", [](const GenerationHandle& self) { return self->number(); },
          "The number of the generation: 1, 2, ...")
      .def_prop_ro(
          "step", [](const GenerationHandle& self) { return self->step(); }, "The `step` that the publisher gave it.")
      .def_prop_ro(
          "partial", [](const GenerationHandle& self) { return self->is_partial(); },
          "Whether its publisher says that it has a part of an unfinished push (ps_shm --publish-partial).")
      .def_prop_ro(
          "unix_ns", [](const GenerationHandle& self) { return self->unix_ns(); },
          "When it was published, in nanoseconds since 1970 (Unix time).")
      .def_prop_ro(
          "names", [](const GenerationHandle& self) { return names_in(self); },
          "The names of the tensors, in their order.")
      .def("__getitem__", &tensor, "name"_a,
           nb::sig("def __getitem__(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           R"(Returns a tensor in shared memory, as a read-only NumPy array without a copy.

The array keeps the generation leased. Writing to its memory all the same, as torch.from_dlpack(array).add_(1) does
because PyTorch does not know of read-only memory, ends the process with SIGSEGV: use torch.from_numpy(array.copy()) or
copy_to(). (NumPy has no bfloat16: use copy_to() with a tensor of torch.bfloat16.)

Raises:
    KeyError: there is no tensor of that name.
    TypeError: the tensor is of bfloat16.)")
      .def("dlpack", &dlpack, "name"_a, nb::sig("def dlpack(self, name: str) -> typing.Any"),
           R"(Returns a tensor in shared memory as an object with DLPack, without a copy, of any dtype.

    w = torch.from_dlpack(generation.dlpack("w"))

The object, and what is made of it, keeps the generation leased. The memory is read-only, which PyTorch does not know:
writing to such a tensor ends the process with SIGSEGV.

Raises:
    KeyError: there is no tensor of that name.)")
      .def(
          "torch",
          [](const GenerationHandle& self, const std::string& name) {
            return nb::module_::import_("torch").attr("from_dlpack")(dlpack(self, name));
          },
          "name"_a, nb::sig("def torch(self, name: str) -> typing.Any"),
          R"(Returns a tensor in shared memory as a torch.Tensor, without a copy; ps_shm.torch.tensors() returns all.

The tensor keeps the generation leased. The memory is read-only, which PyTorch does not know: writing to the tensor ends
the process with SIGSEGV.

Raises:
    KeyError: there is no tensor of that name.)")
      .def("__len__", [](const GenerationHandle& self) { return self->tensor_count(); })
      .def(
          "__iter__", [](const GenerationHandle& self) { return nb::iter(nb::cast(names_in(self))); },
          nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
      .def("__contains__", &has, "name"_a)
      .def(
          "keys", [](const GenerationHandle& self) { return names_in(self); }, "Returns the names of the tensors.")
      .def(
          "values",
          [](const GenerationHandle& self) {
            nb::list all;
            for (const std::string& name : names_in(self)) all.append(tensor(self, name));
            return all;
          },
          nb::sig("def values(self) -> list[numpy.typing.NDArray[typing.Any]]"),
          "Returns the tensors, as generation[name] does.")
      .def(
          "items",
          [](const GenerationHandle& self) {
            nb::list all;
            for (const std::string& name : names_in(self)) all.append(nb::make_tuple(name, tensor(self, name)));
            return all;
          },
          nb::sig("def items(self) -> list[tuple[str, numpy.typing.NDArray[typing.Any]]]"),
          "Returns pairs of names and tensors.")
      .def(
          "get",
          [](const GenerationHandle& self, const std::string& name, nb::object otherwise) {
            return has(self, name) ? tensor(self, name) : otherwise;
          },
          "name"_a, "default"_a = nb::none(),
          nb::sig("def get(self, name: str, default: typing.Any = None) -> typing.Any"),
          "Returns the tensor of that name, or `default` if there is none.")
      .def("__repr__",
           [](const GenerationHandle& self) {
             return fmt::format("<generation {} of {} tensors, step {}>", self->number(), self->tensor_count(),
                                self->step());
           })
      .def("copy_to", &copy_to, "outs"_a, nb::sig("def copy_to(self, outs: dict[str, typing.Any]) -> None"),
           R"(Copies tensors into arrays.

Args:
    outs: for each name of a tensor to copy, a writable row-major array of its dtype and shape.

Raises:
    ValueError: there is no tensor of that name, or an array has the wrong shape.
    TypeError: an array has another dtype, is read-only, or cannot be used.)");
}

void add_subscriber(nb::module_& module) {
  nb::class_<SubscriberHandle>(
      module, "Subscriber",
      "Reads the generations of a publication. Programs use ps_shm.Subscriber, which derives from it.")
      .def(
          "__init__",
          [](SubscriberHandle* self, const std::string& name, const std::string& group, double wait) {
            new (self) SubscriberHandle{subscriber(name, group, wait)};
          },
          "name"_a, nb::kw_only(), "group"_a = "", "wait"_a = 60.0,
          R"(Waits for the publication to exist, and takes one of its subscriber entries.

Args:
    name: the name of the publication.
    group: the Unix group that another user's publication is shared with. Empty: only this user's publications are
        accepted.
    wait: how long to wait, in seconds.

Raises:
    Timeout: the publication did not appear in time.
    Error: all entries are taken (EXHAUSTED), the publication is another user's (PERMISSION_DENIED), or another build
        made it (INCOMPATIBLE).

Progress: blocks until the publication exists.)")
      .def(
          "read",
          [](const SubscriberHandle& self, std::uint64_t newer_than, double timeout) {
            return generation(read(self, newer_than, timeout));
          },
          "newer_than"_a = 0, nb::kw_only(), "timeout"_a = 60.0,
          nb::sig("def read(self, newer_than: int = 0, *, timeout: float = 60.0) -> Generation"),
          R"(Returns the newest generation as soon as its number is above `newer_than`.

A subscriber holds at most two generations at one time. Ctrl-C raises KeyboardInterrupt at once.

Args:
    newer_than: the number of a generation, such as the one read last. 0: any generation.
    timeout: how long to wait, in seconds. 0 or less: it does not wait.

Raises:
    Timeout: there was no such generation in time.
    PublisherGone: there is no such generation and no live publisher. Another publisher may come, and reading may be
        tried again.
    Error: two generations are held already (EXHAUSTED).

Progress: blocks until the publisher publishes.)")
      .def(
          "try_read",
          [](const SubscriberHandle& self, std::uint64_t newer_than) { return generation(try_read(self, newer_than)); },
          "newer_than"_a = 0, nb::sig("def try_read(self, newer_than: int = 0) -> Generation | None"),
          R"(Returns the newest generation if its number is above `newer_than`, otherwise None, without waiting.

Raises:
    Error: two generations are held already (EXHAUSTED).

Progress: lock-free; it repeats only if a generation has been published meanwhile.)")
      .def(
          "acknowledge",
          [](const SubscriberHandle& self, std::uint64_t generation) {
            self.own->look([&](const Subscriber& one) { one.acknowledge(generation); });
          },
          "generation"_a,
          R"(Tells the publisher that this subscriber uses a generation from now on (Publisher.wait_for()).

Reading alone says nothing. ps_shm.torch.Subscriber and the engines' adapters do this by themselves.

Args:
    generation: the number of the generation.

Raises:
    Error: there is no such generation yet (INVALID_ARGUMENT); the subscriber is closed, or belongs to the parent of a
        forked process (INVALID_STATE).

Progress: wait-free.)")
      .def_prop_ro(
          "memory",
          [](const SubscriberHandle& self) {
            return self.own->look([](const Subscriber& one) { return rows_of(one.memory(), one.spec()); });
          },
          "The address of the memory in which all tensors lie, mapped read-only, the bytes of one of its rows, and the "
          "number of rows. A tensor lies in one row; see pin().")
      .def(
          "pin",
          [](const SubscriberHandle& self, const GenerationHandle& generation, std::uint32_t row) {
            self.own->look([&](const Subscriber& one) { one.pin(*generation, row); });
          },
          "generation"_a, "row"_a,
          R"(Makes a row keep its memory until unpin_all(), for memory that is registered with a device.

Call it before the registration. ps_shm.torch.Subscriber does this for models on a GPU.

Args:
    generation: a generation of this subscriber with a tensor in that row.
    row: the number of the row.

Raises:
    Error: the generation has no tensor there, or the row is not one of the first 64 (INVALID_ARGUMENT); the subscriber
        is closed, or belongs to the parent of a forked process (INVALID_STATE).

Progress: wait-free.)")
      .def(
          "unpin_all",
          [](const SubscriberHandle& self) { self.own->look([](const Subscriber& one) { one.unpin_all(); }); },
          R"(Lets rows lose their memory again. Call it after all registrations have ended.

Raises:
    Error: the subscriber is closed, or belongs to the parent of a forked process (INVALID_STATE).

Progress: wait-free.)")
      .def_prop_ro(
          "rank",
          [](const SubscriberHandle& self) { return self.own->look([](const Subscriber& one) { return one.rank(); }); },
          "The number of its entry in the publication.")
      .def_prop_ro(
          "newest",
          [](const SubscriberHandle& self) {
            return self.own->look([](const Subscriber& one) { return one.newest(); });
          },
          "The number of the newest generation; 0 if there is none yet. Wait-free.")
      .def_prop_ro(
          "published",
          [](const SubscriberHandle& self) {
            return self.own->look([](const Subscriber& one) { return one.is_published(); });
          },
          "Whether the publication has a live publisher. Takes one system call.")
      .def_prop_ro(
          "names", [](const SubscriberHandle& self) { return self.own->check(), names_of(self.own->spec()); },
          "The names of the tensors, in their order.")
      .def("__repr__", [](const SubscriberHandle& self) { return fmt::format("<{}>", self.own->what()); })
      .def(
          "close",
          [](const SubscriberHandle& self) {
            if (self.own->is_inherited() || self.own->is_closed) return;
            const SubscriberTurn turn(*self.own);
            self.own->close();
          },
          "Releases the subscriber entry. Generations that are held stay valid, and keep the entry until they are "
          "dropped. Calling it again does nothing, and neither does a call in a forked child.");
}

}  // namespace

void add_publication(nb::module_& module) {
  nb::class_<Publisher::Reader>(module, "Reader", "A live subscriber of a publisher. Returned by Publisher.readers().")
      .def_ro("rank", &Publisher::Reader::rank, "The number of its entry, as Subscriber.rank.")
      .def_ro("pid", &Publisher::Reader::pid, "Its process, in its own PID namespace.")
      .def_ro("acknowledged", &Publisher::Reader::acknowledged,
              "The generation that it uses, as it has said by Subscriber.acknowledge(); 0 if it has not.")
      .def_ro("generations", &Publisher::Reader::generations, "The generations that it holds.")
      .def("__repr__", [](const Publisher::Reader& self) {
        return fmt::format("<Reader {}: process {}, acknowledged {}, holds {}>", self.rank, self.pid, self.acknowledged,
                           self.generations.empty() ? "none" : fmt::format("{}", fmt::join(self.generations, ", ")));
      });
  add_publisher(module);
  add_writing(module);
  add_generation(module);
  add_subscriber(module);
}

}  // namespace ps_shm::python
