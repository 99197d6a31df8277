// The package's exceptions, and which of the library's become which.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

namespace ps_shm::python {

void add_errors(nanobind::module_& module);

// Throws Error (NOT_FOUND) with a text such as "the bundle has no variable 'v'; it has w, b".
[[noreturn]] void fail_not_found(const std::string& whole, const std::string& kind, const std::string& name,
                                 const std::vector<std::string>& known);

}  // namespace ps_shm::python
