// The classes around a job that are neither its workers nor its variables.
#pragma once

#include <nanobind/nanobind.h>

namespace ps_shm::python {

void add_server(nanobind::module_& module);
void add_publishers(nanobind::module_& module);
void add_subscribers(nanobind::module_& module);
void add_folder(nanobind::module_& module);
void add_checkpoint(nanobind::module_& module);
void add_view(nanobind::module_& module);
void add_view_records(nanobind::module_& module);

}  // namespace ps_shm::python
