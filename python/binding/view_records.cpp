// What a view returns of workers, variables, tables by key and events.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "arrays.hpp"
#include "ps_shm/job_view.hpp"
#include "server.hpp"

namespace ps_shm::python {
namespace {

void add_gpu_use(nb::module_& module) {
  nb::class_<GpuUse>(module, "GpuUse",
                     "The GPU of a worker, and how it transfers to and from there. See WorkerInfo.gpu.")
      .def_ro("uuid", &GpuUse::uuid, "As nvidia-smi prints it, without 'GPU-' or 'MIG-'; empty: unknown.")
      .def_ro("pci_address", &GpuUse::pci_address, "Such as '0000:1b:00.0'; empty: unknown.")
      .def_prop_ro(
          "node", [](const GpuUse& self) { return self.node < 0 ? std::nullopt : std::optional(self.node); },
          "The memory node next to it; None: unknown.")
      .def_ro("registered_bytes", &GpuUse::registered_bytes, "The bytes of shared memory registered with CUDA.")
      .def_ro("pulls", &GpuUse::pulls,
              "'kernel', 'copy engine' (small chunks by a kernel), 'through host' or 'bfloat16'.")
      .def_ro("pushes", &GpuUse::pushes, "'staged' or 'through host'.")
      .def_ro("native_adds", &GpuUse::native_adds, "Whether the GPU itself adds to in-place variables.")
      .def("__repr__", [](const GpuUse& self) {
        return fmt::format("<GPU {}: pulls: {}, pushes: {}>", self.uuid.empty() ? self.pci_address : self.uuid,
                           self.pulls, self.pushes);
      });
}

void add_worker_info(nb::module_& module) {
  nb::class_<WorkerInfo>(
      module, "WorkerInfo",
      "A rank of a job and its counters, which include those of the rank's earlier owners. Returned by View.workers().")
      .def_ro("rank", &WorkerInfo::rank, "The worker's number in the job, from 0.")
      .def_prop_ro(
          "state", [](const WorkerInfo& self) { return std::string(to_string(self.state)); },
          "The state of the rank's last owner: 'alive', 'left', or 'dead' (it died without leaving). A stopped process "
          "is alive; inspect_shm, which reads /proc as well, shows it as 'stopped'.")
      .def_ro("pid", &WorkerInfo::pid, "The process of the rank's last owner.")
      .def_ro("steps", &WorkerInfo::steps, "The number of steps, without those whose gradient was dropped.")
      .def_ro("pushes", &WorkerInfo::pushes, "The number of pushes, counted per variable.")
      .def_ro("pulls", &WorkerInfo::pulls, "The number of pulls, counted per variable.")
      .def_ro(
          "dropped", &WorkerInfo::dropped,
          "The number of gradients that came too late: in mode sync for their step, in the others for the age limit "
          "`stale`.")
      .def_ro("examples", &WorkerInfo::examples, "The number of examples processed in this job, as reported.")
      .def_ro("loss", &WorkerInfo::loss, "The last reported loss.")
      .def_ro("seconds", &WorkerInfo::seconds,
              "The seconds from the moment that the owner joined until now, or until it left.")
      .def_ro("waiting_for", &WorkerInfo::waiting_for, "What the worker is blocked on, as text; empty: nothing.")
      .def_ro("staleness", &WorkerInfo::staleness, "The Staleness of its pushes.")
      .def_ro("gpu", &WorkerInfo::gpu, "The GpuUse of the rank's last owner; None: it uses none.")
      .def("__repr__", [](const WorkerInfo& self) {
        return fmt::format("<worker {}: {}, process {}, {} steps>", self.rank, to_string(self.state), self.pid,
                           self.steps);
      });
}

void add_variable_info(nb::module_& module) {
  nb::class_<VariableInfo>(module, "VariableInfo", "A variable of a job. Returned by View.variables().")
      .def_ro("name", &VariableInfo::name, "The variable's name.")
      .def_prop_ro(
          "dtype", [](const VariableInfo& self) { return std::string(to_string(self.dtype)); },
          "The type of the elements, such as 'float32'.")
      .def_prop_ro(
          "shape",
          [](const VariableInfo& self) {
            nb::list extents;
            for (const std::uint64_t extent : self.shape) extents.append(extent);
            return nb::tuple(extents);
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "The extents of the axes; () for a scalar.")
      .def_prop_ro(
          "rule", [](const VariableInfo& self) { return std::string(to_string(self.rule)); },
          "The update rule, such as 'adam'.")
      .def_prop_ro(
          "layout", [](const VariableInfo& self) { return std::string(to_string(self.layout)); },
          "'versioned', 'inplace' or 'single-writer'.")
      .def_ro("updates", &VariableInfo::updates, "The average number of pushes per chunk (in-place: per block).")
      .def_ro("slots", &VariableInfo::slots, "The names of the arrays of its optimizer state.")
      .def_ro("initialised", &VariableInfo::initialised, "Whether it has its initial values.")
      .def("__repr__", [](const VariableInfo& self) {
        return fmt::format("<variable '{}' of {}, shape {}, rule {}, {}>", self.name, to_string(self.dtype),
                           to_text(self.shape), to_string(self.rule), to_string(self.layout));
      });
}

void add_table_info(nb::module_& module) {
  nb::class_<TableInfo>(module, "TableInfo", "A table by key of a job. Returned by View.tables().")
      .def_prop_ro(
          "name", [](const TableInfo& self) { return self.spec.name; }, "The table's name.")
      .def_prop_ro(
          "row_size", [](const TableInfo& self) { return self.spec.row_size; }, "The number of elements in a row.")
      .def_prop_ro(
          "dtype", [](const TableInfo& self) { return std::string(to_string(self.spec.dtype)); },
          "The type of the elements: 'float32' or 'bfloat16'.")
      .def_prop_ro(
          "rule", [](const TableInfo& self) { return std::string(to_string(*self.spec.rule)); },
          "The update rule, such as 'adam'.")
      .def_ro("parts", &TableInfo::parts, "The number of segments that it is divided over.")
      .def_ro("row_bytes", &TableInfo::row_bytes, "The size of a row in bytes, with its key and the optimizer's state.")
      .def_ro("buckets", &TableInfo::buckets, "The number of buckets of its index that are in use.")
      .def_ro("statistics", &TableInfo::statistics, "The TableStatistics: rows, and what was counted.")
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
