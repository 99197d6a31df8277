#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/folder_publisher.hpp"
#include "server.hpp"
#include "tensors.hpp"
#include "worker.hpp"
#include "writing.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

struct FolderPublishing : Guarded {
  FolderPublishing(FolderPublisher given, const std::string& folder, bool of_rounds)
      : Guarded(fmt::format("the publisher to {}", folder)),
        tensors(given.tensors()),
        rounds(of_rounds),
        made(std::move(given)) {}

  // Requires: this thread has the turn.
  FolderPublisher::Writing begin() {
    writing.clear_dropped();
    return made->begin();
  }

  const NamedTensors tensors;
  const bool rounds;  // float32 to bfloat16
  std::optional<FolderPublisher> made;
  WritingState<FolderPublisher::Writing> writing;
};

struct FolderHandle {
  std::shared_ptr<FolderPublishing> own;
};
using FolderWriting = WritingHandle<FolderPublishing>;

std::shared_ptr<FolderPublishing> folder_publisher(const std::string& folder, const nb::dict& tensors,
                                                   std::uint32_t files, const std::string& static_files,
                                                   nb::handle dtype) {
  const bool rounds = rounds_to(dtype);
  std::vector<TensorSpec> specs = tensor_specs(tensors, rounds);
  const Released release;
  return shared_unless_inherited(std::make_unique<FolderPublishing>(
      FolderPublisher(folder, std::move(specs), {.files = files, .static_files = static_files}), folder, rounds));
}

std::uint64_t publish(const FolderHandle& self, const nb::dict& given, std::uint64_t step) {
  std::vector<TensorPart> parts;
  for (const auto& [name, array] : given)
    parts.push_back(tensor_part(self.own->tensors, name_in(name), array, std::nullopt, self.own->rounds, "publish"));
  const Turn turn(*self.own);
  FolderPublisher::Writing writing = self.own->begin();
  for (const TensorPart& part : parts) write_part(writing, self.own->tensors, part);
  return writing.commit(step);
}

FolderWriting begin(const FolderHandle& self, std::uint64_t step) {
  FolderWriting made(self.own, step);
  const Turn turn(*self.own);
  made.id = self.own->writing.begin(self.own->begin());
  return made;
}

void add_writing(nb::module_& module) {
  nb::class_<FolderWriting> made(module, "NewFolderGeneration",
                                 "A generation of a folder that is being written, as NewGeneration. Returned by "
                                 "FolderPublisher.begin().");
  add_writing_methods(made, "NewFolderGeneration");
  made.def("commit", &FolderWriting::commit,
           R"(Publishes the generation and returns its number.

Tensors of which nothing was written are copied from the generation before.

Raises:
    Error: it is the first generation of this publisher and a tensor was not written, or some elements of a tensor were
        written and others were not (INVALID_ARGUMENT); the folder cannot be written (NO_SPACE, PERMISSION_DENIED,
        SYSTEM); the generation has been committed or given up, or the publisher is closed (INVALID_STATE).)");
}

void add_folder_publishing(nb::class_<FolderHandle>& type) {
  type.def("publish", &publish, "tensors"_a, "step"_a = 0,
           nb::sig("def publish(self, tensors: dict[str, A], step: int = 0) -> int"),
           R"(Publishes the next generation and returns its number, which is one more than the last one's.

Args:
    tensors: for each tensor's name a row-major array of its dtype and shape. Tensors that are left out are copied from
        the generation before. The first generation of a publisher needs all of them.
    step: a number of the caller's own, such as the training step. The file's metadata has it.

Raises:
    NotFound: there is no tensor of a name.
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

Progress: as publish().)");
}

void add_folder_facts(nb::class_<FolderHandle>& type) {
  type.def_prop_ro(
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
}

}  // namespace

void add_folder(nb::module_& module) {
  nb::class_<FolderHandle> type(
      module, "FolderPublisher",
      "Publishes tensors to a folder. Programs use ps_shm.FolderPublisher, which derives from it.");
  type.def(
      "__init__",
      [](FolderHandle* self, const std::filesystem::path& folder, const nb::dict& tensors, std::uint32_t files,
         const std::filesystem::path& static_files, nb::object dtype) {
        new (self) FolderHandle{folder_publisher(folder.string(), tensors, files, static_files.string(), dtype)};
      },
      "folder"_a, "tensors"_a, nb::kw_only(), "files"_a = 2, "static_files"_a = "", "dtype"_a = nb::none(),
      nb::sig("def __init__(self, folder: str | os.PathLike[str], tensors: dict[str, typing.Any], *, files: int = 2, "
              "static_files: str | os.PathLike[str] = '', dtype: DType | None = None) -> None"),
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
    TypeError: an array cannot be used.)");
  add_folder_publishing(type);
  add_folder_facts(type);
  add_writing(module);
}

}  // namespace ps_shm::python
