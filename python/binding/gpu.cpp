#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "ps_shm/errors.hpp"
#include "ps_shm/gpu.hpp"
#include "worker.hpp"

namespace ps_shm::python {
namespace {

using namespace nb::literals;

// A link, and a reference to the worker, which must outlive the link.
struct Linked {
  Linked(SharedRank of, std::unique_ptr<GpuLink> made) : rank(std::move(of)), link(std::move(made)) {}
  Linked(Linked&&) = default;
  ~Linked() {
    if (link && rank->is_inherited()) static_cast<void>(link.release());  // it belongs to the parent process
  }

  SharedRank rank;
  std::unique_ptr<GpuLink> link;
};

// Calls `calls` with the link while this thread has the worker's turn, because the link pulls and pushes as the worker.
template <class Calls>
void with_turn(const Linked& self, Calls&& calls) {
  const Turn turn(*self.rank);
  if (!self.link) throw Error("the link to the GPU is closed", ErrorCode::kInvalidState);
  calls(*self.link);
}

}  // namespace

nb::object make_link(const std::vector<NamedVariable>& members, const std::vector<Variable>& variables,
                     const std::vector<std::uintptr_t>& parameters, const std::vector<std::uintptr_t>& gradients,
                     int device, const std::string& wire) {
  if (wire != "float32" && wire != "bfloat16-push")
    throw nb::value_error(fmt::format("unknown wire '{}': 'float32' or 'bfloat16-push'", wire).c_str());
  const Wire of_gradients = wire == "bfloat16-push" ? Wire::kBFloat16 : Wire::kFloat32;
  const GpuOptions options{.device = device, .wire = of_gradients, .warn = tell};
  constexpr std::uintptr_t kAlignment = 256;
  std::vector<float*> to;
  std::vector<const float*> from;
  for (const std::uintptr_t one : parameters) to.push_back(reinterpret_cast<float*>(one));
  for (const std::uintptr_t one : gradients) from.push_back(reinterpret_cast<const float*>(one));
  for (const std::vector<std::uintptr_t>* all : {&parameters, &gradients})
    for (const std::uintptr_t one : *all)
      if (one % kAlignment != 0)
        throw nb::value_error(fmt::format("device memory for a link is to be aligned to {} bytes", kAlignment).c_str());
  const SharedRank& rank = members.front().rank;
  std::unique_ptr<GpuLink> link;
  {
    const Turn turn(*rank);
    link = std::make_unique<GpuLink>(rank->worker, variables, to, from, options);
  }
  return nb::cast(Linked(rank, std::move(link)));
}

void add_gpu(nb::module_& module) {
  nb::class_<Linked>(module, "GpuLink",
                     R"(Transfers a bundle's variables to the memory of one GPU, and their gradients from there.

Made by Bundle.link(), which says which memory it uses. ps_shm.torch.Optimizer uses one for a model on a GPU. After
close(), pull(), push() and `stream` raise Error (INVALID_STATE). So do pull() and push() after the worker has left
and in a forked child.)")
      .def_prop_ro(
          "stream",
          [](const Linked& self) {
            if (!self.link) throw Error("the link to the GPU is closed", ErrorCode::kInvalidState);
            return reinterpret_cast<std::uintptr_t>(self.link->stream());
          },
          "The link's CUDA stream, a cudaStream_t as an integer, as torch.cuda.ExternalStream takes it.")
      .def(
          "pull",
          [](const Linked& self) {
            with_turn(self, [](GpuLink& link) {
              link.start_pull();
              static_cast<void>(link.finish_pull());  // no work was enqueued after it, so none has to be repeated
            });
          },
          R"(Pulls all variables into device memory, after the work that is already on the stream.

When it returns, the values are there. Each chunk is one version of that chunk, and each element of an in-place
variable is whole.

Raises:
    Error: the GPU failed (DEVICE).

Progress: lock-free, apart from the wait for the GPU.)")
      .def(
          "push",
          [](const Linked& self) {
            with_turn(self, [](GpuLink& link) {
              link.start_push();
              link.finish_push();
            });
          },
          R"(Pushes all gradients from device memory, after the work that is already on the stream.

They are applied as by Variable.push(). When it returns, the gradients in device memory may be overwritten.

Raises:
    Error: the GPU failed (DEVICE; some chunks may have been pushed then), or as Variable.push().)")
      .def(
          "close",
          [](Linked& self) {
            if (!self.link || self.rank->is_inherited()) return;
            if (self.rank->is_closed) return self.link.reset();
            const Turn turn(*self.rank);
            self.link.reset();
          },
          "Waits for the GPU and destroys the link; its device memory may then be freed. Calling it again does "
          "nothing, and neither does a call in a forked child.");
}

}  // namespace ps_shm::python
