#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "arrays.hpp"
#include "calls.hpp"
#include "ps/errors.hpp"
#include "ps/publisher.hpp"
#include "ps/subscriber.hpp"
#include "server.hpp"
#include "worker.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

// What one thread may close while another one looks at it: a look takes no turn, which a wait may have for long.
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
    const std::shared_lock lock(closing_);  // with the interpreter's lock, which close() does not wait for
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
  explicit Publishing(Publisher given)
      : Closable(fmt::format("the publisher of '{}'", given.spec().name), std::move(given)) {}
};
struct PublisherHandle {
  std::shared_ptr<Publishing> own;
};

// A subscriber and what it has leased. A generation may be dropped by any thread, also while another one waits in read():
// then it is given back at the end of that call.
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

// Kept by a generation's object and by the arrays that lie in it.
class Lease {
 public:
  Lease(SharedSubscribing of, Generation generation) : generation(std::move(generation)), of_(std::move(of)) {}
  ~Lease() {
    if (of_->is_inherited())
      static_cast<void>(new Generation(std::move(generation)));  // it is the parent's to give back
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

// The arrays for all tensors, by name, in their order; those that `some` allows to be left out are.
std::vector<std::optional<Array>> arrays_for(const BundleSpec& spec, const nb::dict& given, Use use, const char* verb,
                                             bool some) {
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
    all.back()->require(one.dtype, one.shape, about);
    ++found;
  }
  if (found != given.size())
    throw nb::value_error(fmt::format("{}: {} of the arrays name no tensor; those that there are: {}", verb,
                                      given.size() - found, fmt::join(names_of(spec), ", "))
                              .c_str());
  return all;
}

std::shared_ptr<Publishing> publisher(const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
                                      std::uint32_t records, const std::string& group, double wait, double busy_wait) {
  BundleSpec spec{.name = name, .tensors = {}, .subscribers = subscribers, .records = records};
  for (const auto& [key, array] : tensors) {
    const auto tensor = nb::cast<std::string>(key);
    const Array like(array, Use::kRead, fmt::format("tensor '{}'", tensor));
    spec.tensors.push_back({.name = tensor, .dtype = like.dtype(), .shape = like.shape()});
  }
  const nb::gil_scoped_release release;
  return shared_unless_inherited(
      std::make_unique<Publishing>(Publisher(spec, {.group = group,
                                                    .wait_seconds = wait,
                                                    .busy = busy_wait > 0 ? BusyPolicy::kWait : BusyPolicy::kReturn,
                                                    .busy_seconds = busy_wait,
                                                    .stop_requested = look_for_signals,
                                                    .notice = tell})));
}

std::optional<std::uint64_t> publish(const PublisherHandle& self, const nb::dict& given, std::uint64_t step) {
  const bool is_first = self.own->look([](const Publisher& one) { return one.generation() == 0; });
  const std::vector<std::optional<Array>> arrays =
      arrays_for(self.own->spec(), given, Use::kRead, "publish", !is_first);
  std::vector<std::uint32_t> changed;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) changed.push_back(i);
  const Turn turn(*self.own);
  return self.own->use().publish(
      changed,
      [&](std::uint32_t tensor, std::span<std::byte> out) {
        std::memcpy(out.data(), arrays[tensor]->bytes().data(), out.size());
      },
      step);
}

std::shared_ptr<Subscribing> subscriber(const std::string& name, const std::string& group, double wait) {
  const nb::gil_scoped_release release;
  return shared_unless_inherited(std::make_unique<Subscribing>(
      Subscriber(name, {.group = group, .wait_seconds = wait, .stop_requested = look_for_signals, .notice = tell})));
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

nb::object tensor(const GenerationHandle& self, const std::string& name) {
  for (std::uint32_t i = 0; i < self->tensor_count(); ++i) {
    const TensorSpec& spec = self->spec(i);
    if (spec.name != name) continue;
    const nb::capsule owner(new SharedLease(self.lease),
                            [](void* kept) noexcept { delete static_cast<SharedLease*>(kept); });
    return as_array(self->tensor(i).data(), spec.dtype, spec.shape, owner, Use::kRead);
  }
  throw nb::key_error(name.c_str());
}

// Copies the generation into arrays; of those of the mapping that it has no name for it raises ValueError.
void copy_to(const GenerationHandle& self, const nb::dict& outs) {
  BundleSpec spec;
  for (std::uint32_t i = 0; i < self->tensor_count(); ++i) spec.tensors.push_back(self->spec(i));
  const std::vector<std::optional<Array>> arrays = arrays_for(spec, outs, Use::kWrite, "copy_to", true);
  const nb::gil_scoped_release release;
  for (std::uint32_t i = 0; i < arrays.size(); ++i)
    if (arrays[i]) std::memcpy(arrays[i]->bytes().data(), self->tensor(i).data(), self->tensor(i).size());
}

}  // namespace

void add_publication(nb::module_& module) {
  nb::class_<PublisherHandle>(module, "Publisher", "Gives a bundle of tensors to any number of subscribers.")
      .def(
          "__init__",
          [](PublisherHandle* self, const std::string& name, const nb::dict& tensors, std::uint32_t subscribers,
             std::uint32_t records, const std::string& group, double wait, double busy_wait) {
            new (self) PublisherHandle{publisher(name, tensors, subscribers, records, group, wait, busy_wait)};
          },
          "name"_a, "tensors"_a, nb::kw_only(), "subscribers"_a = 16, "records"_a = 0, "group"_a = "", "wait"_a = 1.0,
          "busy_wait"_a = 0.0,
          nb::sig(
              "def __init__(self, name: str, tensors: dict[str, typing.Any], *, subscribers: int = 16, records: int = "
              "0, group: str = '', wait: float = 1.0, busy_wait: float = 0.0) -> None"),
          R"(Makes the publication, or takes over one whose publisher has died or left.

tensors: an array for each name, for its shape and dtype alone. records: generations that there is room for; 0: by size.
busy_wait: seconds that publish() waits where subscribers use all records.
Raises Error where it has another publisher after `wait` seconds, and where /dev/shm is full.)")
      .def("publish", &publish, "tensors"_a, "step"_a = 0,
           nb::sig("def publish(self, tensors: dict[str, typing.Any], step: int = 0) -> int | None"),
           "Publishes the next generation, and returns its number. Tensors that are left out stay as they are, but in "
           "the "
           "first one. None: subscribers use every record.")
      .def_prop_ro(
          "generation",
          [](const PublisherHandle& self) {
            return self.own->look([](const Publisher& one) { return one.generation(); });
          },
          "The newest generation's number; 0: there is none yet.")
      .def_prop_ro(
          "step",
          [](const PublisherHandle& self) { return self.own->look([](const Publisher& one) { return one.step(); }); },
          "What it was published with.")
      .def_prop_ro(
          "names", [](const PublisherHandle& self) { return self.own->check(), names_of(self.own->spec()); },
          "The tensors' names.")
      .def(
          "close",
          [](const PublisherHandle& self) {
            if (self.own->is_inherited() || self.own->is_closed) return;
            const Turn turn(*self.own);
            self.own->close();
          },
          "Ends the publication. Subscribers keep what they have.");

  nb::class_<GenerationHandle>(module, "Generation", R"(Tensors as they were published together.

They stay as they are as long as this object, or an array of it, is there. A subscriber has two at most at one time.)")
      .def_prop_ro(
          "number", [](const GenerationHandle& self) { return self->number(); }, "1, 2, ...")
      .def_prop_ro(
          "step", [](const GenerationHandle& self) { return self->step(); }, "What the publisher said of it.")
      .def_prop_ro(
          "unix_ns", [](const GenerationHandle& self) { return self->unix_ns(); }, "When it was published.")
      .def_prop_ro(
          "names",
          [](const GenerationHandle& self) {
            std::vector<std::string> names;
            for (std::uint32_t i = 0; i < self->tensor_count(); ++i) names.push_back(self->spec(i).name);
            return names;
          },
          "The tensors' names.")
      .def("__getitem__", &tensor, "name"_a,
           nb::sig("def __getitem__(self, name: str) -> numpy.typing.NDArray[typing.Any]"),
           "A tensor where it lies, read-only.")
      .def("copy_to", &copy_to, "outs"_a, nb::sig("def copy_to(self, outs: dict[str, typing.Any]) -> None"),
           "Copies tensors into arrays, by name.");

  nb::class_<SubscriberHandle>(module, "Subscriber", "Reads what a publisher publishes.")
      .def(
          "__init__",
          [](SubscriberHandle* self, const std::string& name, const std::string& group, double wait) {
            new (self) SubscriberHandle{subscriber(name, group, wait)};
          },
          "name"_a, nb::kw_only(), "group"_a = "", "wait"_a = 60.0,
          "Waits for the publication up to `wait` seconds; raises Timeout.")
      .def(
          "read",
          [](const SubscriberHandle& self, std::uint64_t newer_than, double timeout) {
            return generation(read(self, newer_than, timeout));
          },
          "newer_than"_a = 0, nb::kw_only(), "timeout"_a = 60.0,
          nb::sig("def read(self, newer_than: int = 0, *, timeout: float = 60.0) -> Generation"),
          "The newest generation, as soon as its number is above `newer_than`. Raises Timeout, and PublisherGone where "
          "nobody is there who would publish it.")
      .def(
          "try_read",
          [](const SubscriberHandle& self, std::uint64_t newer_than) { return generation(try_read(self, newer_than)); },
          "newer_than"_a = 0, nb::sig("def try_read(self, newer_than: int = 0) -> Generation | None"),
          "The same without waiting; None where there is no newer one.")
      .def_prop_ro(
          "newest",
          [](const SubscriberHandle& self) {
            return self.own->look([](const Subscriber& one) { return one.newest(); });
          },
          "The newest generation's number; 0: there is none yet.")
      .def_prop_ro(
          "published",
          [](const SubscriberHandle& self) {
            return self.own->look([](const Subscriber& one) { return one.is_published(); });
          },
          "Whether a publisher is there.")
      .def_prop_ro(
          "names", [](const SubscriberHandle& self) { return self.own->check(), names_of(self.own->spec()); },
          "The tensors' names.")
      .def(
          "close",
          [](const SubscriberHandle& self) {
            if (self.own->is_inherited() || self.own->is_closed) return;
            const SubscriberTurn turn(*self.own);
            self.own->close();
          },
          "Gives its place back. Generations that are held go on.");
}

}  // namespace ps::python
