// What a view returns of workers, variables, tables by key and events.
#include <fmt/format.h>

#include <string>

#include "arrays.hpp"
#include "ps_shm/job_view.hpp"
#include "records.hpp"
#include "server.hpp"

namespace ps_shm::python {
namespace {

void add_gpu_use(nb::module_& module) {
  nb::class_<GpuUse> type(module, "GpuUse",
                          "The GPU of a worker, and how it transfers to and from there. See WorkerInfo.gpu.");
  add_figures(type);
  type.def("__repr__", [](const GpuUse& self) {
    return fmt::format("<GPU {}: pulls: {}, pushes: {}>", self.uuid.empty() ? self.pci_address : self.uuid, self.pulls,
                       self.pushes);
  });
}

void add_worker_info(nb::module_& module) {
  nb::class_<WorkerInfo> type(module, "WorkerInfo",
                              "A rank of a job and its counters, which include those of the rank's earlier owners. "
                              "Returned by View.workers().");
  add_figures(type);
  type.def_ro("loss", &WorkerInfo::loss, "The last reported loss.")
      .def_ro("waiting_for", &WorkerInfo::waiting_for, "What the worker is blocked on, as text; empty: nothing.")
      .def("__repr__", [](const WorkerInfo& self) {
        return fmt::format("<worker {}: {}, process {}, {} steps>", self.rank, to_string(self.state), self.pid,
                           self.steps);
      });
}

void add_variable_info(nb::module_& module) {
  nb::class_<VariableInfo> type(module, "VariableInfo", "A variable of a job. Returned by View.variables().");
  add_figures(type);
  type.def_prop_ro(
          "shape",
          [](const VariableInfo& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents of the axes; () for a scalar.")
      .def("__repr__", [](const VariableInfo& self) {
        return fmt::format("<variable '{}' of {}, shape {}, rule {}, {}>", self.name, to_string(self.dtype),
                           to_text(self.shape), to_string(self.rule), to_string(self.layout));
      });
}

void add_table_info(nb::module_& module) {
  nb::class_<TableInfo> type(module, "TableInfo", "A table by key of a job. Returned by View.tables().");
  add_figures(type);
  type.def_ro("statistics", &TableInfo::statistics, "The TableStatistics: rows, and what was counted.")
      .def("__repr__", [](const TableInfo& self) {
        return fmt::format("<table '{}', rows of {}, rule {}, {} of {} rows>", self.spec.name, self.spec.row_size,
                           to_string(*self.spec.rule), self.statistics.rows, self.statistics.max_rows);
      });
}

void add_event(nb::module_& module) {
  nb::class_<Event>(module, "Event", "Something that happened in a job. Returned by View.events().")
      .def_ro("unix_ns", &Event::unix_ns, "When it happened, in nanoseconds since 1970 (Unix time).")
      .def_ro("kind", &Event::kind,
              "One of 'joined', 'left', 'died', 'initialised', 'set', 'short-quorum', 'ended', 'decided', 'left-out', "
              "'adopted' and 'unregistered'.")
      .def_ro("rank", &Event::rank, "The rank of the worker that it concerns; None: no particular worker.")
      .def_ro("step", &Event::step, "The global step at that moment; of 'decided': the step that was decided.")
      .def_ro("text", &Event::text, "What happened, in one line; diagnostic only.")
      .def("__repr__", [](const Event& self) { return fmt::format("<event at step {}: {}>", self.step, self.text); });
}

}  // namespace

void add_view_records(nb::module_& module) {
  add_gpu_use(module);
  add_worker_info(module);
  add_variable_info(module);
  add_table_info(module);
  add_event(module);
}

}  // namespace ps_shm::python
