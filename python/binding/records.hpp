// Attributes of a record in Python: its figures (inspection/figures.hpp).
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <string>
#include <type_traits>

#include "inspection/figures.hpp"

namespace ps_shm::python {

namespace nb = nanobind;

// An enumerator by its name, everything else as it is.
template <class Record>
void add_figures(nb::class_<Record>& type) {
  inspection::for_each_figure<Record>([&](const auto& figure) {
    if (!figure.shown.is_attribute) return;
    const auto read = figure.read;
    type.def_prop_ro(
        figure.name,
        [read](const Record& self) {
          auto value = std::invoke(read, self);
          if constexpr (std::is_enum_v<decltype(value)>)
            return std::string(to_string(value));
          else
            return value;
        },
        figure.help);
  });
}

}  // namespace ps_shm::python
