#include "arrays.hpp"

#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string_view>
#include <utility>

#include "update/dtypes.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;
using update::NumberKind;

[[noreturn]] void refuse(const std::string& why) { throw nb::type_error(why.c_str()); }

std::string name_of(nb::handle object) { return nb::type_name(object.type()).c_str(); }

// Finds the type of that kind with elements of `bytes` bytes.
bool find_type(NumberKind kind, std::size_t bytes, DType& out) {
  for (const update::DTypeTraits& row : update::kDTypes)
    if (row.kind == kind && row.bytes == bytes) return out = row.dtype, true;
  return false;
}

// Reads a format of Python's module struct.
bool read_format(const char* format, std::size_t bytes, DType& out) {
  if (format == nullptr) return out = DType::kUint8, bytes == 1;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return false;
  if (*format == '?') return find_type(NumberKind::kBool, bytes, out);
  if (std::strchr("bhilqn", *format) != nullptr) return find_type(NumberKind::kSigned, bytes, out);
  if (std::strchr("BHILQNc", *format) != nullptr) return find_type(NumberKind::kUnsigned, bytes, out);
  return std::strchr("efd", *format) != nullptr && find_type(NumberKind::kFloat, bytes, out);
}

struct DLPackKind {
  NumberKind kind;
  nb::dlpack::dtype_code code;
};
constexpr DLPackKind kDLPackKinds[] = {
    {NumberKind::kFloat, nb::dlpack::dtype_code::Float},   {NumberKind::kBFloat, nb::dlpack::dtype_code::Bfloat},
    {NumberKind::kFloat8E4M3, nb::dlpack::dtype_code(10)},  // of DLPack 1.1
    {NumberKind::kFloat8E5M2, nb::dlpack::dtype_code(12)}, {NumberKind::kSigned, nb::dlpack::dtype_code::Int},
    {NumberKind::kUnsigned, nb::dlpack::dtype_code::UInt}, {NumberKind::kBool, nb::dlpack::dtype_code::Bool}};

bool read_dlpack_type(const nb::dlpack::dtype& type, DType& out) {
  if (type.lanes != 1 || type.bits % 8 != 0) return false;
  for (const DLPackKind& row : kDLPackKinds)
    if (type.code == static_cast<std::uint8_t>(row.code)) return find_type(row.kind, type.bits / 8, out);
  return false;
}

bool is_row_major(const nb::dlpack::dltensor& tensor) {
  if (tensor.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] == 0) return true;
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != expected) return false;
    expected *= tensor.shape[axis];
  }
  return true;
}

// The type of an array of NumPy whose elements are of a type of the package ml_dtypes, such as bfloat16. Such an array
// exports no buffer; its bytes do.
const update::DTypeTraits* type_beyond_numpy(nb::handle object) {
  const nb::object type = nb::getattr(object, "dtype", nb::none());
  const nb::object name = nb::getattr(type, "name", nb::none());
  if (!nb::isinstance<nb::str>(name)) return nullptr;
  const update::DTypeTraits* row = update::find_dtype(nb::cast<std::string>(name));
  return row != nullptr && row->npy[1] == 'V' ? row : nullptr;
}

// PyTorch's to_dlpack() takes a third of the time of __dlpack__(), which is written in Python.
nb::object export_dlpack(nb::handle object, Use use, const std::string& what) {
  static std::atomic<PyObject*> to_dlpack = nullptr;  // PyTorch's function, once a tensor has been seen
  if (nb::hasattr(object, "requires_grad")) {
    if (nb::cast<bool>(object.attr("requires_grad")))
      refuse(fmt::format("{} requires grad; pass tensor.detach()", what));
    // DLPack does not say that the elements are those in memory with the other sign.
    const bool is_negated = nb::cast<bool>(object.attr("is_neg")());
    if (is_negated && use != Use::kRead) refuse(fmt::format("{} is a negated view; pass tensor.resolve_neg()", what));
    if (to_dlpack == nullptr)
      to_dlpack = nb::object(nb::module_::import_("torch.utils.dlpack").attr("to_dlpack")).release().ptr();
    return nb::handle(to_dlpack.load())(is_negated ? nb::object(object.attr("resolve_neg")()) : nb::borrow(object));
  }
  // Only since version 1 of DLPack does an array tell whether it is read-only.
  try {
    return object.attr("__dlpack__")("max_version"_a = nb::make_tuple(1, 0));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")();
}

// DLManagedTensorVersioned of DLPack 1.
struct VersionedTensor {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  nb::dlpack::dltensor tensor;

  static constexpr const char* kName = "dltensor_versioned";
  static constexpr std::uint64_t kReadOnly = 1;
};

}  // namespace

Array::Array(nb::handle object, Use use, const std::string& what) {
  if (std::string_view(Py_TYPE(object.ptr())->tp_name) == "MaskedArray")
    refuse(fmt::format("{} is a masked array, whose mask would be lost; pass array.filled(value)", what));
  if (PyObject_CheckBuffer(object.ptr()))
    take_buffer(object, use, what);
  else if (nb::hasattr(object, "__dlpack__"))
    take_dlpack(object, use, what);
  else
    refuse(fmt::format("{} is a {}; pass a NumPy array, a tensor, or what else has the buffer protocol or DLPack", what,
                       name_of(object)));
  for (const std::uint64_t extent : shape_) size_ *= extent;
}

Array::Array(Array&& other) noexcept
    : data_(other.data_),
      dtype_(other.dtype_),
      shape_(std::move(other.shape_)),
      size_(other.size_),
      buffer_(std::exchange(other.buffer_, Py_buffer{})),
      capsule_(std::move(other.capsule_)),
      converts_(other.converts_) {}

Array::~Array() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

void Array::take_buffer(nb::handle object, Use use, const std::string& what) {
  converts_ = "array.astype('{}')";
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
    buffer_ = {};
    nb::python_error error;
    if (const update::DTypeTraits* type = type_beyond_numpy(object)) {
      take_buffer(object.attr("view")(type->bytes == 1 ? "uint8" : "uint16"), use, what);
      dtype_ = type->dtype;
      return;
    }
    throw error;
  }
  // From here on, failing must release the buffer, because no destructor runs after a constructor has thrown.
  const auto fail = [&](const std::string& why) {
    PyBuffer_Release(&buffer_);
    refuse(what + why);
  };
  if (!read_format(buffer_.format, static_cast<std::size_t>(buffer_.itemsize), dtype_))
    fail(fmt::format(" has elements of format '{}', which no variable has", buffer_.format));
  if (PyBuffer_IsContiguous(&buffer_, 'C') == 0)
    fail(" is not row-major and without gaps; pass numpy.ascontiguousarray(array)");
  if (use == Use::kWrite && buffer_.readonly != 0) fail(" is read-only; pass an array that can be written");
  shape_.assign(buffer_.shape, buffer_.shape + buffer_.ndim);
  data_ = buffer_.buf;
}

void Array::take_dlpack(nb::handle object, Use use, const std::string& what) {
  constexpr int kCpu = 1, kCudaHost = 3;
  converts_ = "tensor.to(torch.{})";
  try {
    capsule_ = export_dlpack(object, use, what);
  } catch (nb::python_error& error) {
    // PyTorch before 2.2 exports no bool.
    if (nb::hasattr(object, "requires_grad") &&
        std::string_view(nb::str(nb::object(object.attr("dtype"))).c_str()) == "torch.bool")
      return take_buffer(object.attr("numpy")(), use, what);
    refuse(fmt::format("{} cannot be used where it lies: {}", what, error.what()));
  }
  const nb::dlpack::dltensor* tensor = nullptr;
  if (PyCapsule_IsValid(capsule_.ptr(), VersionedTensor::kName) != 0) {
    const auto* versioned =
        static_cast<const VersionedTensor*>(PyCapsule_GetPointer(capsule_.ptr(), VersionedTensor::kName));
    if (versioned->major != 1) refuse(fmt::format("{} has version {} of DLPack", what, versioned->major));
    if (use == Use::kWrite && (versioned->flags & VersionedTensor::kReadOnly) != 0)
      refuse(what + " is read-only; pass an array that can be written");
    tensor = &versioned->tensor;
  } else {
    tensor = static_cast<const nb::dlpack::dltensor*>(PyCapsule_GetPointer(capsule_.ptr(), "dltensor"));
    if (tensor == nullptr) throw nb::python_error();
  }
  if (tensor->device.device_type != kCpu && tensor->device.device_type != kCudaHost)
    refuse(fmt::format("{} is not in this machine's memory; pass tensor.cpu()", what));
  if (!read_dlpack_type(tensor->dtype, dtype_)) refuse(what + " has elements of a type that no variable has");
  if (!is_row_major(*tensor)) refuse(what + " is not row-major and without gaps; pass tensor.contiguous()");
  shape_.assign(tensor->shape, tensor->shape + tensor->ndim);
  data_ = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
}

void Array::require_type(DType dtype, const std::string& what) const {
  if (dtype_ == dtype) return;
  refuse(fmt::format("{} is of {}, and {} is needed; pass {}", what, to_string(dtype_), to_string(dtype),
                     fmt::format(fmt::runtime(converts_), to_string(dtype))));
}

void Array::require(DType dtype, const Shape& shape, const std::string& what) const {
  require_type(dtype, what);
  if (shape_ == shape) return;
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : shape) elements *= extent;
  if (shape_.size() == 1 && size_ == elements) return;
  if (shape.empty() && size_ == 1) return;
  throw nb::value_error(
      fmt::format("{} has the shape {}, and {} is needed", what, to_text(shape_), to_text(shape)).c_str());
}

std::string name_in(nb::handle key) {
  std::string name;
  if (nb::try_cast(key, name)) return name;
  refuse(fmt::format("names are text, not {} ({})", name_of(key), nb::repr(key).c_str()));
}

std::string to_text(const Shape& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

DType dtype_of(nb::handle given) {
  std::string name;
  if (!nb::try_cast(given, name)) {
    constexpr std::string_view kTorch = "torch.";
    name = nb::str(given).c_str();
    if (name.starts_with(kTorch)) {
      name.erase(0, kTorch.size());
    } else {
      try {
        name = nb::cast<std::string>(nb::module_::import_("numpy").attr("dtype")(given).attr("name"));
      } catch (const nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
        refuse(fmt::format("dtype is a {}; pass a name such as 'float32', or a dtype of NumPy or PyTorch",
                           name_of(given)));
      }
    }
  }
  if (const update::DTypeTraits* row = update::find_dtype(name)) return row->dtype;
  std::vector<std::string> names;
  for (const update::DTypeTraits& row : update::kDTypes) names.emplace_back(row.name);
  throw nb::value_error(fmt::format("dtype '{}' is none of {}", name, fmt::join(names, ", ")).c_str());
}

Shape shape_of(nb::handle given, const std::string& what) {
  const auto extent = [&](nb::handle one) -> std::uint64_t {
    if (PyIndex_Check(one.ptr()) == 0)
      refuse(fmt::format("{} has an extent that is a {}; pass an int or a tuple of ints", what, name_of(one)));
    const nb::object number = nb::steal(PyNumber_Index(one.ptr()));
    std::uint64_t value = 0;
    if (!number.is_valid() || !nb::try_cast(number, value)) {
      PyErr_Clear();
      throw nb::value_error(fmt::format("{} has the extent {}", what, nb::str(one).c_str()).c_str());
    }
    return value;
  };
  if (PyIndex_Check(given.ptr()) != 0) return {extent(given)};
  if (PySequence_Check(given.ptr()) == 0 || nb::isinstance<nb::str>(given))
    refuse(fmt::format("{} is a {}; pass an int or a tuple of ints", what, name_of(given)));
  Shape shape;
  for (const nb::handle one : nb::borrow<nb::sequence>(given)) shape.push_back(extent(one));
  return shape;
}

// NumPy's name for bytes of no type is the one in files of such elements.
void require_numpy(DType dtype, const char* instead) {
  if (update::find_dtype(dtype)->npy[1] == 'V')
    refuse(fmt::format("NumPy has no {}; {}", to_string(dtype), fmt::format(fmt::runtime(instead), to_string(dtype))));
}

nb::dlpack::dtype dlpack_type(DType dtype) {
  const update::DTypeTraits& row = *update::find_dtype(dtype);
  const auto kind = std::find_if(std::begin(kDLPackKinds), std::end(kDLPackKinds),
                                 [&](const DLPackKind& one) { return one.kind == row.kind; });
  return {static_cast<std::uint8_t>(kind->code), static_cast<std::uint8_t>(row.bytes * 8), 1};
}

nb::object new_array(DType dtype, const Shape& shape) {
  static std::atomic<PyObject*> empty = nullptr;  // atomic, because several threads may look it up at the same time
  if (empty == nullptr) empty = nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
  require_numpy(dtype, "pass a tensor of torch.{0} or an array of ml_dtypes.{0} as out");
  nb::list extents;
  for (const std::uint64_t extent : shape) extents.append(extent);
  return nb::handle(empty.load())(nb::tuple(extents), to_string(dtype));
}

nb::object as_array(const void* data, DType dtype, const Shape& shape, nb::handle owner, Use use) {
  require_numpy(dtype, "read into a tensor of torch.{0} or an array of ml_dtypes.{0}");
  const nb::dlpack::dtype type = dlpack_type(dtype);
  const std::vector<std::size_t> extents(shape.begin(), shape.end());
  if (use == Use::kWrite)
    return nb::cast(
        nb::ndarray<nb::numpy>(const_cast<void*>(data), extents.size(), extents.data(), owner, nullptr, type));
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(data, extents.size(), extents.data(), owner, nullptr, type));
}

nb::object as_dlpack(const void* data, DType dtype, const Shape& shape, nb::handle owner, Use use) {
  const std::vector<std::size_t> extents(shape.begin(), shape.end());
  if (use == Use::kWrite)
    return nb::cast(
        nb::ndarray<>(const_cast<void*>(data), extents.size(), extents.data(), owner, nullptr, dlpack_type(dtype)));
  return nb::cast(nb::ndarray<nb::ro>(data, extents.size(), extents.data(), owner, nullptr, dlpack_type(dtype)));
}

}  // namespace ps_shm::python
