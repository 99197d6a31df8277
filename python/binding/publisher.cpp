#include "ps_shm/publisher.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "publication.hpp"
#include "server.hpp"
#include "tensors.hpp"
#include "worker.hpp"
#include "writing.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

struct Publishing : Closable<Publisher> {
  Publishing(Publisher given, bool of_floats, const std::vector<Slice>& own)
      : Closable(fmt::format("the publisher of '{}'", given.spec().name), std::move(given)), rounds(of_floats) {
    for (const Slice& slice : own) {
      slices.push_back(tensors[slice.tensor]);
      slices.back().shape = slice.extent;
    }
  }

  std::vector<TensorSpec> slices;  // of several writers: what this one publishes, with its part of each shape
  const bool rounds;               // float32 arrays for bfloat16 tensors
  WritingState<Publisher::Writing> writing;
};
struct PublisherHandle {
  std::shared_ptr<Publishing> own;
};
using NewGeneration = WritingHandle<Publishing>;

std::shared_ptr<Publishing> publisher(const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
                                      std::uint32_t records, nb::handle dtype, bool populate, const std::string& group,
                                      Limit wait, Limit busy_wait, std::uint32_t writer,
                                      const std::vector<nb::dict>& slices) {
  const bool rounds = rounds_to(dtype);
  const BundleSpec spec{.name = name,
                        .tensors = tensor_specs(tensors, rounds),
                        .subscribers = subscribers,
                        .records = records,
                        .writers = static_cast<std::uint32_t>(slices.size())};
  WritePlan plan;
  const NamedTensors named(spec.tensors);
  for (const nb::dict& one : slices) plan.push_back(slices_of(named, one));
  const std::vector<Slice> own = writer < plan.size() ? plan[writer] : std::vector<Slice>{};
  const Released release;
  return shared_unless_inherited(std::make_unique<Publishing>(
      Publisher(spec, {.group = group,
                       .wait = limit(wait),
                       .populate = populate,
                       .plan = std::move(plan),
                       .writer = writer,
                       .busy = busy_wait.value_or(1) > 0 ? BusyPolicy::kWait : BusyPolicy::kReturn,
                       .busy_wait = limit(busy_wait),
                       .stop_requested = look_for_signals,
                       .log = tell}),
      rounds, own));
}

std::uint64_t publish_slices(Publishing& own, const nb::dict& given, std::uint64_t step, Limit timeout) {
  const std::vector<std::optional<Array>> arrays =
      tensor_arrays(own.slices, given, Use::kRead, "publish", false, own.rounds);
  const Turn turn(own);
  const auto write = [&](std::uint32_t slice, Publisher::SliceOutput& out) {
    const Array& array = *arrays[slice];
    if (array.dtype() == own.slices[slice].dtype)
      out.write(array.bytes());
    else
      out.write_floats(array.as<const float>());
  };
  return own.use().publish_slices(write, step, limit(timeout));
}

std::optional<std::uint64_t> publish(const PublisherHandle& self, const nb::dict& given, std::uint64_t step,
                                     Limit timeout) {
  Publishing& own = *self.own;
  if (own.spec().writers != 0) return publish_slices(own, given, step, timeout);
  const bool is_first = own.look([](const Publisher& one) { return one.generation() == 0; });
  std::vector<std::optional<Array>> arrays =
      tensor_arrays(own.tensors.all(), given, Use::kRead, "publish", !is_first, own.rounds);
  std::vector<TensorPart> parts;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) parts.push_back({i, std::move(*arrays[i]), 0});
  const Turn turn(own);
  own.writing.clear_dropped();
  std::optional<Publisher::Writing> writing = own.use().begin();
  if (!writing) return std::nullopt;
  for (const TensorPart& part : parts) write_part(*writing, own.tensors, part);
  return writing->commit(step);
}

NewGeneration begin(const PublisherHandle& self, std::uint64_t step) {
  NewGeneration made(self.own, step);
  const Turn turn(*self.own);
  Publishing& own = *self.own;
  own.writing.clear_dropped();
  std::optional<Publisher::Writing> writing = own.use().begin();
  if (!writing)
    throw Error(fmt::format("publication '{}': subscribers {} hold every generation that fits", own.spec().name,
                            fmt::join(own.use().busy_ranks(), ", ")),
                ErrorCode::kExhausted);
  made.id = own.writing.begin(std::move(*writing));
  return made;
}

nb::object out(const NewGeneration& self, const std::string& name) {
  const std::uint32_t number = self.own->tensors.find(name);
  const TensorSpec& tensor = self.own->tensors[number];
  std::byte* data = nullptr;
  {
    const Turn turn(*self.own);
    data = self.own->writing.use(self.id).out(number).data();
  }
  const nb::capsule owner(new std::shared_ptr<Publishing>(self.own),
                          [](void* kept) noexcept { delete static_cast<std::shared_ptr<Publishing>*>(kept); });
  return as_dlpack(data, tensor.dtype, tensor.shape, owner, Use::kWrite);
}

void add_publishing(nb::class_<PublisherHandle>& type) {
  type.def(
          "publish", &publish, "tensors"_a, "step"_a = 0, nb::kw_only(), "timeout"_a.none() = 60.0,
          nb::sig(
              "def publish(self, tensors: dict[str, A], step: int = 0, *, timeout: float | None = 60.0) -> int | None"),
          R"(Publishes the next generation and returns its number, which is one more than the last one's.

It returns None, and publishes nothing, if subscribers hold every record (after `busy_wait` seconds). One of several
writers publishes its slices: all of them call this with the same step, and it returns when the generation is published.

Args:
    tensors: for each tensor's name a row-major array of its dtype and shape. Tensors that are left out are shared
        with the generation before, without a copy. The first generation needs all of them. One of several writers
        gives its slice of each tensor of which it has one.
    step: a number of the caller's own for the readers, such as the training step.
    timeout: how many seconds one of several writers waits for the others.

Raises:
    Timeout: the other writers did not write their slices in time; the message says which. If this one has written
        its own, the generation may still be published.
    ValueError: an array has the wrong shape or an unknown name, or is missing in the first generation.
    TypeError: an array has another dtype or cannot be used.
    Error: the publisher is closed, or belongs to the parent of a forked process (INVALID_STATE); /dev/shm is full
        (NO_SPACE), and nothing is published.

Progress: wait-free if there are at least 2 * subscribers + 2 records. With `busy_wait` it may block on subscribers, and
one of several writers blocks on the others.)")
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

Progress: as publish().)");
}

void add_publisher_waits(nb::class_<PublisherHandle>& type) {
  type.def(
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
          [](const PublisherHandle& self, std::uint64_t generation, std::uint32_t readers, Limit timeout) {
            const Turn turn(*self.own);
            return self.own->use().wait_for(generation, readers, limit(timeout));
          },
          "generation"_a, "readers"_a = 0, "timeout"_a.none() = 60.0,
          R"(Waits until subscribers have acknowledged a generation or a newer one (Subscriber.acknowledge()).

It returns the ranks of the live subscribers that have not. Subscribers that die do not count.

Args:
    generation: the number of the generation.
    readers: how many subscribers. 0: each live one.
    timeout: how many seconds to wait.

Raises:
    Timeout: too few had acknowledged it in time; the message names those that had not.
    Error: there is no such generation, or the publication has fewer places for subscribers (INVALID_ARGUMENT); the
        publisher is closed, or belongs to the parent of a forked process (INVALID_STATE).

Progress: blocks on subscribers.)")
      .def(
          "trim",
          [](const PublisherHandle& self) {
            const Turn turn(*self.own);
            self.own->writing.clear_dropped();
            return self.own->use().trim();
          },
          R"(Gives memory back that the newest generation and those that subscribers hold do not need.

It returns the number of bytes. The next generations take memory anew, which makes them slower.

Raises:
    Error: a generation is being written, the publisher is closed, or it belongs to the parent of a forked process
        (INVALID_STATE).

Progress: lock-free.)");
}

void add_publisher_facts(nb::class_<PublisherHandle>& type) {
  type.def_prop_ro(
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
          "names", [](const PublisherHandle& self) { return self.own->check(), names_of(self.own->tensors.all()); },
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

void add_publisher(nb::module_& module) {
  nb::class_<PublisherHandle> type(
      module, "Publisher", "Publishes a set of named tensors. Programs use ps_shm.Publisher, which derives from it.");
  type.def(
      "__init__",
      [](PublisherHandle* self, const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
         std::uint32_t records, nb::object dtype, bool populate, const std::string& group, Limit wait, Limit busy_wait,
         std::uint32_t writer, const std::vector<nb::dict>& slices) {
        new (self) PublisherHandle{
            publisher(name, tensors, subscribers, records, dtype, populate, group, wait, busy_wait, writer, slices)};
      },
      "name"_a, "tensors"_a, nb::kw_only(), "subscribers"_a = 16, "records"_a = 0, "dtype"_a = nb::none(),
      "populate"_a = false, "group"_a = "", "wait"_a.none() = 1.0, "busy_wait"_a.none() = 0.0, "writer"_a = 0,
      "slices"_a = std::vector<nb::dict>(),
      nb::sig("def __init__(self, name: str, tensors: dict[str, typing.Any], *, subscribers: int = 16, records: int = "
              "0, dtype: DType | None = None, populate: bool = False, group: str = '', wait: float | None = 1.0, "
              "busy_wait: float | None = 0.0, writer: int = 0, slices: collections.abc.Sequence[dict[str, typing.Any]] "
              "= ()) -> None"),
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
    wait: how many seconds to wait for the present publisher, or the users of an incompatible publication, to end.
    busy_wait: how many seconds publish() waits if subscribers hold all records. 0: it returns None at once.
    writer: with `slices`, which of the writers this process is.
    slices: if several processes write each generation together, for each of them its slices: for the names of tensors
        slices along their first axes, such as {"w": numpy.s_[0:128, :]}. Together they have each element once, and all
        writers give the same.

Raises:
    Error: after `wait` seconds the publication still has a publisher (or this writer), or has users and other tensors or slices
        (ALREADY_EXISTS); /dev/shm has no room for one generation, or for all with `populate` (NO_SPACE); it is another user's (PERMISSION_DENIED); an argument is
        invalid (INVALID_ARGUMENT).
    TypeError: an array cannot be used.

Progress: blocks on the present publisher, up to `wait` seconds.)");
  add_publishing(type);
  add_publisher_waits(type);
  add_publisher_facts(type);
}

void add_writing(nb::module_& module) {
  nb::class_<NewGeneration> made(module, "NewGeneration",
                                 R"(A generation that is being written. Returned by Publisher.begin().

No subscriber sees it before it is committed, which the end of a `with` block does. It is given up if the block raises,
or if the object is dropped.)");
  add_writing_methods(made, "NewGeneration");
  made.def("out", &out, "name"_a, nb::sig("def out(self, name: str) -> SupportsDLPack"),
           R"(Returns the tensor's memory in this generation as an object with DLPack, to be filled in place.

    torch.from_dlpack(generation.out("w")).copy_(w)

All of it has to be written before the generation is committed, which is not checked, and nothing after that: subscribers
read it then. Drop the array before the publisher is closed: reading it behind that ends the program.

Args:
    name: the name of the tensor.

Raises:
    NotFound: there is no tensor of that name.
    Error: /dev/shm is full (NO_SPACE); the generation has been committed or given up, or the publisher is closed
        (INVALID_STATE).

Progress: wait-free.)")
      .def("commit", &NewGeneration::commit,
           R"(Publishes the generation and returns its number.

Tensors of which nothing was written are shared with the generation before, without a copy.

Raises:
    Error: it is the first generation and a tensor was not written, or some elements of a tensor were written and others
        were not (INVALID_ARGUMENT); it has been committed or given up, or the publisher is closed (INVALID_STATE).

Progress: wait-free.)");
}

}  // namespace

void add_publishers(nb::module_& module) {
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
}

}  // namespace ps_shm::python
