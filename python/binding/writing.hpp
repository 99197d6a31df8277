// A generation that Python writes tensor by tensor, for publishers to shared memory and to folders.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "calls.hpp"
#include "ps_shm/errors.hpp"
#include "tensors.hpp"
#include "worker.hpp"

namespace ps_shm::python {

// What a publisher has of the generation that it writes. Requires, for all calls: this thread has the publisher's turn.
template <class Writing>
class WritingState {
 public:
  // Returns the number of this generation among those that were begun.
  std::uint64_t begin(Writing&& begun) {
    writing_.emplace(std::move(begun));
    return ++id_;
  }
  // Throws Error if this is no longer the generation that is written.
  Writing& use(std::uint64_t id) {
    if (!writing_ || id_ != id) throw Error("the generation has been committed or given up", ErrorCode::kInvalidState);
    return *writing_;
  }
  void end(std::uint64_t id) {
    if (id_ == id) writing_.reset();
  }

  // Any thread may drop the object of a generation, also without the turn. The next call that begins one gives it up.
  void drop(std::uint64_t id) noexcept { dropped_ = id; }
  void clear_dropped() { end(dropped_); }

 private:
  std::optional<Writing> writing_;
  std::uint64_t id_ = 0;
  std::atomic<std::uint64_t> dropped_{0};
};

// `Publishing`, the publisher, is Guarded and has its WritingState as `writing`, its `tensors`, and whether it `rounds`.
template <class Publishing>
struct WritingHandle {
  WritingHandle(std::shared_ptr<Publishing> of, std::uint64_t of_step) : own(std::move(of)), step(of_step) {}
  WritingHandle(WritingHandle&&) = default;
  WritingHandle& operator=(WritingHandle&&) = delete;
  ~WritingHandle() {
    if (own) own->writing.drop(id);
  }

  std::uint64_t commit() {
    const Turn turn(*own);
    number = own->writing.use(id).commit(step);
    own->writing.end(id);
    return *number;
  }
  void give_up() const {
    const Turn turn(*own);
    own->writing.end(id);
  }

  std::shared_ptr<Publishing> own;
  std::uint64_t step, id = 0;
  std::optional<std::uint64_t> number;
};

template <class Writing>
void write_part(Writing& writing, const NamedTensors& tensors, const TensorPart& part) {
  const DType dtype = tensors[part.tensor].dtype;
  if (part.array.dtype() == dtype)
    writing.write(part.tensor, part.array.bytes(), part.begin * bytes_of(dtype));
  else
    writing.write_floats(part.tensor, part.array.template as<const float>(), part.begin);
}

// Adds what all of them have; `name` is that of the class in Python.
template <class Publishing>
void add_writing_methods(nb::class_<WritingHandle<Publishing>>& made, const std::string& name) {
  using namespace nb::literals;
  using Handle = WritingHandle<Publishing>;
  made.def(
          "write",
          [](const Handle& self, const std::string& tensor, const nb::object& given, std::uint64_t begin) {
            const TensorPart part = tensor_part(self.own->tensors, tensor, given, begin, self.own->rounds, "write");
            const Turn turn(*self.own);
            write_part(self.own->writing.use(self.id), self.own->tensors, part);
          },
          "name"_a, "tensor"_a, "begin"_a = 0,
          nb::sig("def write(self, name: str, tensor: Array, begin: int = 0) -> None"),
          R"(Copies an array into a tensor of the generation.

Args:
    name: the name of the tensor.
    tensor: a row-major array of its dtype (or of float32, see `dtype` of the publisher): of its shape, or some of its
        elements in row-major order.
    begin: where they begin, as an index into the flattened tensor. Parts may be written in any order, and may overlap;
        a tensor of which some elements are missing at the end is not published.

Raises:
    NotFound: there is no tensor of that name.
    ValueError: the array has another shape, or does not fit.
    TypeError: the array has another dtype or cannot be used.
    Error: the generation has been committed or given up, or the publisher is closed (INVALID_STATE).

Progress: wait-free.)")
      .def_prop_ro(
          "number", [](const Handle& self) { return self.number; }, nb::sig("def number(self) -> int | None"),
          "The generation's number once it is committed, until then None.")
      .def(
          "__enter__", [](Handle& self) -> Handle& { return self; }, nb::rv_policy::reference,
          nb::sig(("def __enter__(self) -> " + name).c_str()))
      .def(
          "__exit__",
          [](Handle& self, nb::handle kind, nb::handle, nb::handle) {
            if (!kind.is_none()) return self.give_up();
            if (self.number) return;
            try {
              self.commit();
            } catch (...) {  // the block is over: nobody can complete it
              self.give_up();
              throw;
            }
          },
          "kind"_a.none(), "error"_a.none(), "trace"_a.none(),
          nb::sig("def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: "
                  "TracebackType | None) -> None"));
}

}  // namespace ps_shm::python
