// Arrays that Python gives: any object with the buffer protocol (NumPy, memoryview, array) or DLPack (PyTorch and others).
// They are used where they lie. Nothing is converted or copied: what does not fit raises, and says what to pass.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/types.hpp"

namespace ps_shm::python {

namespace nb = nanobind;

using Shape = std::vector<std::uint64_t>;

enum class Use { kRead, kReadLater, kWrite };  // kReadLater: as they are then, so never from a copy

// The elements of an object, held for as long as this lives. To be made and destroyed with the interpreter's lock.
class Array {
 public:
  // `what` begins the message: push of 'w': the gradient. Raises TypeError where the object is no array in this machine's
  // memory, row-major, or is read-only where it is to be written.
  Array(nb::handle object, Use use, const std::string& what);
  Array(Array&& other) noexcept;
  Array& operator=(Array&&) = delete;
  ~Array();

  DType dtype() const noexcept { return dtype_; }
  const Shape& shape() const noexcept { return shape_; }
  std::uint64_t size() const noexcept { return size_; }
  template <class T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data_), size_};
  }
  std::span<std::byte> bytes() const noexcept { return {static_cast<std::byte*>(data_), size_ * bytes_of(dtype_)}; }

  // Raises TypeError where it is of another type, ValueError where it has neither this shape nor that many elements in one
  // axis.
  void require(DType dtype, const Shape& shape, const std::string& what) const;
  void require_type(DType dtype, const std::string& what) const;

 private:
  void take_buffer(nb::handle object, Use use, const std::string& what);
  void take_dlpack(nb::handle object, Use use, const std::string& what);

  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  std::uint64_t size_ = 1;
  Py_buffer buffer_{};  // obj is null where it is none
  nb::object capsule_;
  const char* converts_ = "";  // how to convert an object of this kind
};

// A key of a dict of named arrays; raises TypeError if it is no text.
std::string name_in(nb::handle key);

std::string to_text(const Shape& shape);  // (10, 3)

// A name, as "int64", or a type of NumPy, ml_dtypes or PyTorch. Raises TypeError, ValueError.
DType dtype_of(nb::handle given);

// An extent, or a sequence of them. Raises TypeError, ValueError; `what` begins the message.
Shape shape_of(nb::handle given, const std::string& what);

// A new NumPy array, not initialised.
nb::object new_array(DType dtype, const Shape& shape);
// A NumPy array of memory that `owner` keeps. Raises TypeError for a type that NumPy does not have.
nb::object as_array(const void* data, DType dtype, const Shape& shape, nb::handle owner, Use use);
// The same as an object with DLPack, of any type.
nb::object as_dlpack(const void* data, DType dtype, const Shape& shape, nb::handle owner, Use use);

}  // namespace ps_shm::python
