// A worker as Python has it, and what its variables share with it.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "calls.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/table.hpp"
#include "ps_shm/worker.hpp"
#include "update/dtypes.hpp"

namespace ps_shm::python {

// A rank of a job. Kept by the worker's object, its variables, and arrays that lie in its memory.
struct Rank : Guarded {
  Rank(const std::string& what, Worker given);
  ~Rank();
  Worker worker;
  // Calls `use` with a JobControl of the job, which is opened once. Called with the interpreter's lock.
  template <class Use>
  void with_control(Use&& use) {
    const std::lock_guard lock(control_mutex_);
    if (!control_) control_.emplace(worker.config().job, worker.config().group);
    use(*control_);
  }

  std::atomic<std::uint64_t> steps{0};  // that it has ended: a signal that comes just behind one finds it counted

 private:
  std::mutex control_mutex_;
  std::optional<JobControl> control_;
};
using SharedRank = std::shared_ptr<Rank>;

// Whether the worker of that job is one of this process. A process of another PID namespace may have the same number.
bool is_own(const std::string& job, const WorkerInfo& worker);

// Python's Worker.
struct WorkerHandle {
  SharedRank rank;

  Worker& use() const { return rank->worker; }
};

struct NamedVariable {
  SharedRank rank;
  Variable variable;
  Shape shape;

  DType dtype() const noexcept { return variable.dtype(); }
  bool has_floats() const noexcept { return dtype() == DType::kFloat32; }
  bool takes_gradients() const noexcept { return update::takes_gradients(dtype()); }
  // The dtype that `array` must have for a pull: the variable's, or float32, to which bfloat16 is converted.
  DType pulled_into(const Array& array) const noexcept {
    return takes_gradients() && array.dtype() == DType::kFloat32 ? DType::kFloat32 : dtype();
  }
  // For messages: push of variable 'w': the gradient.
  std::string about(const char* verb, const char* what) const;
};

// An owner for arrays that lie in the worker's memory.
nb::capsule keep(const SharedRank& rank);

// Kept by who uses it next, not destroyed in a forked child: what it has is the parent's.
template <class T>
std::shared_ptr<T> shared_unless_inherited(std::unique_ptr<T> made) {
  return std::shared_ptr<T>(made.release(), [](T* object) {
    if (!object->is_inherited()) delete object;
  });
}

void add_variable(nb::module_& module);
void add_table(nb::module_& module);
void add_bundle(nb::module_& module);
void add_worker(nb::module_& module);
void add_guest(nb::module_& module);
void add_bridge(nb::module_& module);
void add_gpu(nb::module_& module);

// How a bundle comes into being.
nb::object make_bundle(std::vector<NamedVariable> variables);

// Adds Worker.variable() and Worker.variables().
void add_declaring_methods(nb::class_<WorkerHandle>& type);

// Adds Worker.table().
void add_table_method(nb::class_<WorkerHandle>& type);

// The same for a way to device memory: places for the members' values and their gradients.
nb::object make_link(const std::vector<NamedVariable>& members, const std::vector<Variable>& variables,
                     const std::vector<std::uintptr_t>& parameters, const std::vector<std::uintptr_t>& gradients,
                     int device, const std::string& wire);

}  // namespace ps_shm::python
