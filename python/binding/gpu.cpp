#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "ps/errors.hpp"
#include "ps/gpu.hpp"
#include "worker.hpp"

namespace ps::python {
namespace {

using namespace nb::literals;

// A link, and the worker that has to outlive it.
struct Linked {
  Linked(SharedRank of, std::unique_ptr<GpuLink> made) : rank(std::move(of)), link(std::move(made)) {}
  Linked(Linked&&) = default;
  ~Linked() {
    if (link && rank->is_inherited()) static_cast<void>(link.release());  // it is the parent's
  }

  SharedRank rank;
  std::unique_ptr<GpuLink> link;
};

// Runs calls of the link with the worker's turn: its pushes and pulls are the worker's.
template <class Calls>
void with_turn(const Linked& self, Calls&& calls) {
  const Turn turn(*self.rank);
  if (!self.link) throw Error("the link to the GPU is closed");
  calls(*self.link);
}

}  // namespace

nb::object make_link(const std::vector<NamedVariable>& members, const std::vector<Variable>& variables,
                     const std::vector<std::uintptr_t>& parameters, const std::vector<std::uintptr_t>& gradients,
                     int device) {
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
    link = std::make_unique<GpuLink>(rank->worker, variables, to, from, GpuOptions{.device = device, .warn = tell});
  }
  return nb::cast(Linked(rank, std::move(link)));
}

void add_gpu(nb::module_& module) {
  nb::class_<Linked>(module, "GpuLink", "A bundle's way to and from device memory, as ps/gpu.hpp has it.")
      .def_prop_ro(
          "stream",
          [](const Linked& self) {
            if (!self.link) throw Error("the link to the GPU is closed");
            return reinterpret_cast<std::uintptr_t>(self.link->stream());
          },
          "A cudaStream_t, for torch.cuda.ExternalStream.")
      .def(
          "pull",
          [](const Linked& self) {
            with_turn(self, [](GpuLink& link) {
              link.start_pull();
              static_cast<void>(link.finish_pull());  // nothing was enqueued behind it that would have to be repeated
            });
          },
          "Pulls all variables, behind what is on the stream. They are there at its end.")
      .def(
          "push",
          [](const Linked& self) {
            with_turn(self, [](GpuLink& link) {
              link.start_push();
              link.finish_push();
            });
          },
          "Pushes all gradients, behind what is on the stream. At its end they may be overwritten.")
      .def(
          "close",
          [](Linked& self) {
            if (!self.link || self.rank->is_inherited()) return;
            if (self.rank->is_closed) return self.link.reset();
            const Turn turn(*self.rank);
            self.link.reset();
          },
          "Waits for the GPU, and lets go of the memory.");
}

}  // namespace ps::python
