// A bundle's variables, and the arrays that are given for them, which are checked once.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker.hpp"

namespace ps_shm::python {

struct Bundle {
  std::vector<NamedVariable> members;
  std::vector<Variable> variables;

  Rank& rank() const { return *members.front().rank; }
};

// Arrays for a bundle's variables, checked once. Where None was given instead of an array, the variable is left out.
struct Pinned {
  Pinned() = default;
  Pinned(Pinned&&) = default;

  const void* of = nullptr;  // the bundle that they are for
  std::vector<Variable> variables;
  std::vector<Array> arrays;
  std::vector<std::span<float>> to;
  std::vector<std::span<const float>> from;
  std::vector<Versions> since;  // what the arrays hold, for pull_changed()
  bool is_writable = true;
  bool may_convert = false;  // some variables are of bfloat16, whose arrays may be of float32
  nb::object given;          // the bundle and the arrays, which it keeps alive
  std::vector<std::pair<nb::object, std::uintptr_t>> tensors;  // of PyTorch, whose memory may move
};

// Whether the array is handed over as floats; others are handed over as bytes.
inline bool has_floats(const Array& array) noexcept { return array.dtype() == DType::kFloat32; }

enum class Give { kValues, kGradient, kEither };

// For one call. Throws type_error or value_error for arrays that do not suit.
Pinned pin(const Bundle& self, nb::handle given, Use use, const char* verb, Give what);

// For as long as Python keeps the result, which keeps the arrays; check_pinned() tells whether their memory has moved.
Pinned keep_pinned(const nb::object& self, const nb::object& arrays, bool writable);

// What a bundle requires of arrays that were pinned before. Throws value_error, and type_error if they are not writable.
void check_pinned(const Bundle& self, const Pinned& pinned, bool writable = true);

// Calls `call` with the arrays that were pinned before, or pins `given` for this call.
template <class Call>
void with_pinned(const Bundle& self, nb::handle given, bool writable, const char* verb, Give what, Call&& call) {
  Pinned* pinned = nullptr;
  if (!nb::try_cast(given, pinned)) {
    const Pinned now = pin(self, given, writable ? Use::kWrite : Use::kRead, verb, what);
    const Turn turn(self.rank());
    return call(now);
  }
  check_pinned(self, *pinned, writable);
  if (what != Give::kEither && pinned->may_convert)
    for (std::size_t i = 0; i < pinned->arrays.size(); ++i)
      pinned->arrays[i].require_type(what == Give::kGradient ? DType::kFloat32 : pinned->variables[i].dtype(),
                                     fmt::format("{} of variable '{}': the array", verb, pinned->variables[i].name()));
  const Turn turn(self.rank());
  call(*pinned);
}

}  // namespace ps_shm::python
