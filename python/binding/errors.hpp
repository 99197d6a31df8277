// The package's exceptions, and which of the library's become which.
#pragma once

#include <nanobind/nanobind.h>

namespace ps_shm::python {

void add_errors(nanobind::module_& module);

}  // namespace ps_shm::python
