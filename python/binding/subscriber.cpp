#include "ps_shm/subscriber.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "arrays.hpp"
#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "publication.hpp"
#include "server.hpp"
#include "tensors.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

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
  const NamedTensors& tensors() const noexcept { return of_->tensors; }

 private:
  SharedSubscribing of_;
};
using SharedLease = std::shared_ptr<Lease>;

struct GenerationHandle {
  SharedLease lease;

  const Generation& operator*() const { return lease->generation; }
  const Generation* operator->() const { return &lease->generation; }
  const NamedTensors& tensors() const { return lease->tensors(); }
};

std::shared_ptr<Subscribing> subscriber(const std::string& name, const std::string& group, Limit wait) {
  const Released release;
  return shared_unless_inherited(std::make_unique<Subscribing>(
      Subscriber(name, {.group = group, .wait = limit(wait), .stop_requested = look_for_signals, .log = tell})));
}

SharedLease read(const SubscriberHandle& self, std::uint64_t newer_than, Limit timeout) {
  const SubscriberTurn turn(*self.own);
  return std::make_shared<Lease>(self.own, self.own->use().read(newer_than, limit(timeout)));
}

SharedLease try_read(const SubscriberHandle& self, std::uint64_t newer_than) {
  const SubscriberTurn turn(*self.own);
  std::optional<Generation> found = self.own->use().try_read(newer_than);
  return found ? std::make_shared<Lease>(self.own, std::move(*found)) : nullptr;
}

nb::object generation(SharedLease lease) { return lease ? nb::cast(GenerationHandle{std::move(lease)}) : nb::none(); }

std::vector<std::string> names_in(const GenerationHandle& self) { return names_of(self.tensors().all()); }

bool has(const GenerationHandle& self, const std::string& name) { return self.tensors().contains(name); }

// Calls make(data, dtype, shape, owner) with the memory of the tensor, which `owner` keeps leased.
template <class Make>
nb::object shared_tensor(const GenerationHandle& self, const std::string& name, Make&& make) {
  const std::uint32_t number = self.tensors().find(name);
  const TensorSpec& spec = self.tensors()[number];
  const nb::capsule owner(new SharedLease(self.lease),
                          [](void* kept) noexcept { delete static_cast<SharedLease*>(kept); });
  return make(self->tensor(number).data(), spec.dtype, spec.shape, owner);
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
  const std::vector<std::optional<Array>> arrays =
      tensor_arrays(self.tensors().all(), outs, Use::kWrite, "copy_to", true, false);
  const Released release;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) self->copy(i, arrays[i]->bytes());
}
void add_generation_tensors(nb::class_<GenerationHandle>& type) {
  type.def("__getitem__", &tensor, "name"_a,
           nb::sig("def __getitem__(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           R"(Returns a tensor in shared memory, as a read-only NumPy array without a copy.

The array keeps the generation leased. Writing to its memory all the same, as torch.from_dlpack(array).add_(1) does
because PyTorch does not know of read-only memory, ends the process with SIGSEGV: use torch.from_numpy(array.copy()) or
copy_to(). NumPy has neither bfloat16 nor float8: torch(), dlpack() and ps_shm.torch.tensors() give such tensors without
a copy, and copy_to() copies them into tensors of PyTorch.

Raises:
    NotFound: there is no tensor of that name.
    TypeError: the tensor is of bfloat16 or float8, which NumPy does not have.)")
      .def("dlpack", &dlpack, "name"_a, nb::sig("def dlpack(self, name: str) -> SupportsDLPack"),
           R"(Returns a tensor in shared memory as an object with DLPack, without a copy, of any dtype.

    w = torch.from_dlpack(generation.dlpack("w"))

The object, and what is made of it, keeps the generation leased. The memory is read-only, which PyTorch does not know:
writing to such a tensor ends the process with SIGSEGV.

Raises:
    NotFound: there is no tensor of that name.)")
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
    NotFound: there is no tensor of that name.)");
}

void add_generation_mapping(nb::class_<GenerationHandle>& type) {
  type.def("__len__", [](const GenerationHandle& self) { return self->tensor_count(); })
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
      .def("copy_to", &copy_to, "outs"_a, nb::sig("def copy_to(self, outs: dict[str, A]) -> None"),
           R"(Copies tensors into arrays.

Args:
    outs: for each name of a tensor to copy, a writable row-major array of its dtype and shape.

Raises:
    ValueError: there is no tensor of that name, or an array has the wrong shape.
    TypeError: an array has another dtype, is read-only, or cannot be used.)");
}

void add_generation(nb::module_& module) {
  nb::class_<GenerationHandle> type(
      module, "Generation",
      R"(A generation of a publication: tensors that were published together. Returned by Subscriber.read().

It is a mapping from the tensors' names. Its methods that return tensors as arrays raise
TypeError for a tensor of a type that NumPy does not have.

    generation = subscriber.read()
    w = generation["w"]                         # in shared memory, read-only
    generation.copy_to({"w": array})

The tensors stay unchanged as long as this object or an array from it exists, even if the publisher dies. A subscriber
holds at most two generations at one time, so drop those that are no longer needed. A forked child must not access a
generation of its parent.)");
  type.def_prop_ro(
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
          "The names of the tensors, in their order.");
  add_generation_tensors(type);
  add_generation_mapping(type);
}

void add_reading(nb::class_<SubscriberHandle>& type) {
  type.def(
          "read",
          [](const SubscriberHandle& self, std::uint64_t newer_than, Limit timeout) {
            return generation(read(self, newer_than, timeout));
          },
          "newer_than"_a = 0, nb::kw_only(), "timeout"_a.none() = 60.0,
          nb::sig("def read(self, newer_than: int = 0, *, timeout: float | None = 60.0) -> Generation"),
          R"(Returns the newest generation as soon as its number is above `newer_than`.

A subscriber holds at most two generations at one time. Ctrl-C raises KeyboardInterrupt at once.

Args:
    newer_than: the number of a generation, such as the one read last. 0: any generation.
    timeout: how many seconds to wait.

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

Progress: wait-free.)");
}

void add_subscriber_memory(nb::class_<SubscriberHandle>& type) {
  type.def_prop_ro(
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

Progress: wait-free.)");
}

void add_subscriber_facts(nb::class_<SubscriberHandle>& type) {
  type.def_prop_ro(
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
          "names", [](const SubscriberHandle& self) { return self.own->check(), names_of(self.own->tensors.all()); },
          "The names of the tensors, in their order.")
      .def_prop_ro(
          "tensors",
          [](const SubscriberHandle& self) {
            self.own->check();
            nb::dict all;
            for (const TensorSpec& one : self.own->tensors.all()) {
              nb::list extents;
              for (const std::uint64_t extent : one.shape) extents.append(extent);
              all[one.name.c_str()] = nb::make_tuple(to_string(one.dtype), nb::tuple(extents));
            }
            return all;
          },
          nb::sig("def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]"),
          "For the name of each tensor its dtype and shape, as Publisher takes them; before the first generation, too.")
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

void add_subscriber(nb::module_& module) {
  nb::class_<SubscriberHandle> type(
      module, "Subscriber",
      "Reads the generations of a publication. Programs use ps_shm.Subscriber, which derives from it.");
  type.def(
      "__init__",
      [](SubscriberHandle* self, const std::string& name, const std::string& group, Limit wait) {
        new (self) SubscriberHandle{subscriber(name, group, wait)};
      },
      "name"_a, nb::kw_only(), "group"_a = "", "wait"_a.none() = 60.0,
      R"(Waits for the publication to exist, and takes one of its subscriber entries.

Args:
    name: the name of the publication.
    group: the Unix group that another user's publication is shared with. Empty: only this user's publications are
        accepted.
    wait: how many seconds to wait for the publication to exist.

Raises:
    Timeout: the publication did not appear in time.
    Error: all entries are taken (EXHAUSTED), the publication is another user's (PERMISSION_DENIED), or another build
        made it (INCOMPATIBLE).

Progress: blocks until the publication exists.)");
  add_reading(type);
  add_subscriber_memory(type);
  add_subscriber_facts(type);
}

}  // namespace

void add_subscribers(nb::module_& module) {
  add_generation(module);
  add_subscriber(module);
}

}  // namespace ps_shm::python
