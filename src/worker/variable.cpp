#include "ps_shm/variable.hpp"

#include <fmt/format.h>

#include "ps_shm/errors.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

const char* to_string(Slots slots) noexcept {
  switch (slots) {
    case Slots::kKeep:
      return "keep";
    case Slots::kReset:
      return "reset";
  }
  return "unknown";
}

namespace {

shm::Factors factors_of(const VariableState& state) {
  state.job.refuse_inherited("worker");
  return shm::factors_of(state.parts.front().record.factors.load_relaxed());
}

}  // namespace

const std::string& Variable::name() const noexcept { return state_->name; }
DType Variable::dtype() const noexcept { return state_->dtype; }
std::uint64_t Variable::element_count() const noexcept { return state_->element_count; }
std::span<const std::uint64_t> Variable::shape() const noexcept { return state_->shape; }
std::uint64_t Variable::rows() const noexcept { return state_->rows ? state_->rows->table().rows() : 0; }
std::uint64_t Variable::row_size() const noexcept { return state_->rows ? state_->rows->table().row_elements() : 0; }
Layout Variable::layout() const noexcept { return state_->layout; }

float Variable::lr_scale() const { return factors_of(*state_).lr_scale; }
float Variable::regularize() const { return factors_of(*state_).regularize; }

std::span<const float> Variable::view() const {
  state_->job.refuse_inherited("worker");
  if (state_->layout != Layout::kInplace)
    throw Error(fmt::format(
        "variable '{}' is versioned: its chunks move with every push; pull it, or declare it in-place", state_->name));
  if (state_->parts.size() != 1)
    throw Error(fmt::format("variable '{}' is in {} parts, which are not contiguous; pull it", state_->name,
                            state_->parts.size()));
  if (state_->dtype != DType::kFloat32)
    throw Error(fmt::format("the elements of variable '{}' are {}, and a view is of float32; pull it", state_->name,
                            to_string(state_->dtype)));
  if (!state_->parts.front().inplace->is_plain())
    throw Error(fmt::format("the elements of variable '{}' are not contiguous: the state of {} lies between; pull it",
                            state_->name, to_string(state_->settings.rule)));
  return {state_->parts.front().inplace->elements(), state_->elements};
}

}  // namespace ps_shm
