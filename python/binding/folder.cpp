#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/folder_publisher.hpp"
#include "server.hpp"
#include "tensors.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

struct FolderPublishing : Guarded {
  FolderPublishing(FolderPublisher given, const std::string& folder, bool of_rounds)
      : Guarded(fmt::format("the publisher to {}", folder)),
        tensors(given.tensors()),
        rounds(of_rounds),
        made(std::move(given)) {}

  // Requires, like all that follows: this thread has the turn.
  FolderPublisher::Writing& begin() {
    if (writing && dropped == writing_id) writing.reset();
    writing.emplace(made->begin());
    ++writing_id;
    return *writing;
  }

  const std::vector<TensorSpec> tensors;
  const bool rounds;  // float32 to bfloat16
  std::optional<FolderPublisher> made;
  std::optional<FolderPublisher::Writing> writing;
  std::uint64_t writing_id = 0;
  std::atomic<std::uint64_t> dropped{0};
};

struct FolderHandle {
  std::shared_ptr<FolderPublishing> own;
};

// A generation that is being written. Any thread may drop it, so it is given up by the next call that begins one.
struct FolderWriting {
  FolderWriting(std::shared_ptr<FolderPublishing> of, std::uint64_t of_step) : own(std::move(of)), step(of_step) {}
  FolderWriting(FolderWriting&&) = default;
  FolderWriting& operator=(FolderWriting&&) = delete;
  ~FolderWriting() {
    if (own) own->dropped = id;
  }

  // Requires: this thread has the turn.
  FolderPublisher::Writing& use() const {
    if (!own->writing || own->writing_id != id)
      throw Error("the generation has been committed or given up", ErrorCode::kInvalidState);
    return *own->writing;
  }

  std::shared_ptr<FolderPublishing> own;
  std::uint64_t step, id = 0;
  std::optional<std::uint64_t> number;
};

std::shared_ptr<FolderPublishing> folder_publisher(const std::string& folder, const nb::dict& tensors,
                                                   std::uint32_t files, const std::string& static_files,
                                                   const std::string& dtype) {
  const bool rounds = rounds_to(dtype);
  std::vector<TensorSpec> specs = tensor_specs(tensors, rounds);
  const Released release;
  return shared_unless_inherited(std::make_unique<FolderPublishing>(
      FolderPublisher(folder, std::move(specs), {.files = files, .static_files = static_files}), folder, rounds));
}

void write_part(FolderPublisher::Writing& writing, const std::vector<TensorSpec>& tensors, const TensorPart& part) {
  const DType dtype = tensors[part.tensor].dtype;
  if (part.array.dtype() == dtype)
    writing.write(part.tensor, part.array.bytes(), part.begin * bytes_of(dtype));
  else
    writing.write_floats(part.tensor, part.array.as<const float>(), part.begin);
}

std::uint64_t publish(const FolderHandle& self, const nb::dict& given, std::uint64_t step) {
  std::vector<TensorPart> parts;
  for (const auto& [name, array] : given)
    parts.push_back(
        tensor_part(self.own->tensors, nb::cast<std::string>(name), array, std::nullopt, self.own->rounds, "publish"));
  const Turn turn(*self.own);
  FolderPublisher::Writing& writing = self.own->begin();
  try {
    for (const TensorPart& part : parts) write_part(writing, self.own->tensors, part);
    const std::uint64_t generation = writing.commit(step);
    self.own->writing.reset();
    return generation;
  } catch (...) {
    self.own->writing.reset();
    throw;
  }
}

FolderWriting begin(const FolderHandle& self, std::uint64_t step) {
  FolderWriting made(self.own, step);
  const Turn turn(*self.own);
  self.own->begin();
  made.id = self.own->writing_id;
  return made;
}

void write(const FolderWriting& self, const std::string& name, const nb::object& given, std::uint64_t begin) {
  const TensorPart part = tensor_part(self.own->tensors, name, given, begin, self.own->rounds, "write");
  const Turn turn(*self.own);
  write_part(self.use(), self.own->tensors, part);
}

std::uint64_t commit(FolderWriting& self) {
  const Turn turn(*self.own);
  self.number = self.use().commit(self.step);
  self.own->writing.reset();
  return *self.number;
}

void give_up(const FolderWriting& self) {
  const Turn turn(*self.own);
  if (self.own->writing_id == self.id) self.own->writing.reset();
}

void add_writing(nb::module_& module) {
  nb::class_<FolderWriting>(module, "NewFolderGeneration",
                            R"(A generation of a folder that is being written. Returned by FolderPublisher.begin().

Nobody sees it before it is committed, which the end of a `with` block does. It is given up if the block raises, or if the
object is dropped.)")
      .def("write", &write, "name"_a, "tensor"_a, "begin"_a = 0,
           nb::sig("def write(self, name: str, tensor: Array, begin: int = 0) -> None"),
           R"(Copies an array into a tensor of the generation.

Args:
    name: the name of the tensor.
    tensor: a row-major array of its dtype: of its shape, or some of its elements in row-major order.
    begin: where they begin, as an index into the flattened tensor. A tensor that is written in parts has to be
        written completely.

Raises:
    KeyError: there is no tensor of that name.
    ValueError: the array has another shape, or does not fit.
    TypeError: the array has another dtype or cannot be used.
    Error: the generation has been committed or given up, or the publisher is closed (INVALID_STATE).)")
      .def("commit", &commit,
           R"(Publishes the generation and returns its number.

Tensors of which nothing was written are copied from the generation before.

Raises:
    Error: it is the first generation of this publisher and a tensor was not written (INVALID_ARGUMENT); the folder
        cannot be written (NO_SPACE, PERMISSION_DENIED, SYSTEM); the generation has been committed or given up, or the
        publisher is closed (INVALID_STATE).)")
      .def_prop_ro(
          "number", [](const FolderWriting& self) { return self.number; }, nb::sig("def number(self) -> int | None"),
          "The generation's number once it is committed, until then None.")
      .def(
          "__enter__", [](FolderWriting& self) -> FolderWriting& { return self; }, nb::rv_policy::reference,
          nb::sig("def __enter__(self) -> NewFolderGeneration"))
      .def(
          "__exit__",
          [](FolderWriting& self, nb::handle kind, nb::handle, nb::handle) {
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
          nb::sig("def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: "
                  "TracebackType | None) -> None"));
}

}  // namespace

void add_folder(nb::module_& module) {
  nb::class_<FolderHandle>(module, "FolderPublisher",
                           "Publishes tensors to a folder. Programs use ps_shm.FolderPublisher, which derives from it.")
      .def(
          "__init__",
          [](FolderHandle* self, const std::string& folder, const nb::dict& tensors, std::uint32_t files,
             const std::string& static_files, const std::string& dtype) {
            new (self) FolderHandle{folder_publisher(folder, tensors, files, static_files, dtype)};
          },
          "folder"_a, "tensors"_a, nb::kw_only(), "files"_a = 2, "static_files"_a = "", "dtype"_a = "",
          nb::sig(
              "def __init__(self, folder: str, tensors: dict[str, typing.Any], *, files: int = 2, static_files: str "
              "= '', dtype: str = '') -> None"),
          R"(Creates the folder, or takes over one whose publisher has died or left.

Generations of a folder that is taken over are numbered on. What a killed publisher has not completed is removed.

Args:
    folder: the folder's path. In /dev/shm the files are in memory.
    tensors: for each tensor's name an array, of which only shape and dtype are used, or a pair of these, such as
        ("bfloat16", (512, 512)).
    files: how many generations the folder has, 2 to 64: the newest ones.
    static_files: a folder to whose entries each generation's folder has symbolic links, except to weights. Empty: none.
    dtype: "bfloat16": tensors whose array in `tensors` is of float32 are published as bfloat16, and float32 arrays are
        rounded to nearest while they are copied. Empty: as they are.

Raises:
    Error: another process publishes to the folder, or it has an entry `latest` that is no link (ALREADY_EXISTS); an
        argument is invalid (INVALID_ARGUMENT); there is no folder `static_files` (NOT_FOUND); the folder cannot be
        written (PERMISSION_DENIED, NO_SPACE, SYSTEM).
    TypeError: an array cannot be used.)")
      .def("publish", &publish, "tensors"_a, "step"_a = 0,
           nb::sig("def publish(self, tensors: dict[str, A], step: int = 0) -> int"),
           R"(Publishes the next generation and returns its number, which is one more than the last one's.

Args:
    tensors: for each tensor's name a row-major array of its dtype and shape. Tensors that are left out are copied from
        the generation before. The first generation of a publisher needs all of them.
    step: a number of the caller's own, such as the training step. The file's metadata has it.

Raises:
    KeyError: there is no tensor of a name.
    ValueError: an array has the wrong shape.
    TypeError: an array has another dtype or cannot be used.
    Error: a tensor is missing in the first generation (INVALID_ARGUMENT); the folder cannot be written (NO_SPACE,
        PERMISSION_DENIED, SYSTEM); another generation is being written, the publisher is closed, or it belongs to the
        parent of a forked process (INVALID_STATE). Nothing is published then.

Progress: as the file system's. It never waits for a reader.)")
      .def("begin", &begin, "step"_a = 0,
           R"(Begins the next generation, whose tensors are written one after the other.

    with publisher.begin(step) as generation:
        for name, tensor in gathered_tensors():
            generation.write(name, tensor)

At the end of the block it is published as a whole. If the block raises, nothing is published.

Args:
    step: a number of the caller's own, such as the training step. The file's metadata has it.

Raises:
    Error: the folder cannot be written (NO_SPACE, PERMISSION_DENIED, SYSTEM); another generation is being written, the
        publisher is closed, or it belongs to the parent of a forked process (INVALID_STATE).

Progress: as publish().)")
      .def_prop_ro(
          "generation",
          [](const FolderHandle& self) {
            const Turn turn(*self.own);
            return self.own->made->generation();
          },
          "The number of the newest generation, by this publisher or an earlier one; 0 if there is none yet.")
      .def_prop_ro(
          "path",
          [](const FolderHandle& self) {
            const Turn turn(*self.own);
            return self.own->made->path();
          },
          "The folder of the newest generation; empty if there is none yet.")
      .def("__repr__", [](const FolderHandle& self) { return fmt::format("<{}>", self.own->what()); })
      .def(
          "close",
          [](const FolderHandle& self) {
            if (self.own->is_inherited() || self.own->is_closed) return;
            const Turn turn(*self.own);
            self.own->is_closed = true;
            self.own->made.reset();
          },
          "Ends publishing. The folder stays as it is. Calling it again does nothing, and neither does a call in a "
          "forked "
          "child.");
  add_writing(module);
}

}  // namespace ps_shm::python
