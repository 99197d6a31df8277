#include "worker/variable_state.hpp"

#include <fmt/format.h>

#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/placement.hpp"
#include "update/dtypes.hpp"
#include "worker/inplace_state.hpp"
#include "worker/recorded_state.hpp"

namespace ps_shm {

VariablePart::VariablePart(shm::JobSegments& job, const shm::Directory& directory, std::uint32_t where)
    : record(directory.at(where)),
      shard(job.shard_data(record.shard)),
      position(where),
      begin(record.part_begin),
      gradients_begin(begin * shm::gradients_per_float(record)) {
  if (shm::is_versioned(record))
    versioned.emplace(job.shard(record.shard), record);
  else
    inplace.emplace(shard, record);
  if (job.config().reduce != Reduce::kAtomic) return;
  const std::uint32_t found = directory.accumulator(position);
  if (found == shm::kNoVariable)
    shm::fail_damaged(shm::control_name(job.job()), fmt::format("variable '{}' has no accumulator", record.name));
  accumulator_record = &directory.at(found);
  accumulator.emplace(job.shard(record.shard), *accumulator_record);
}

std::unique_ptr<VariableState> VariableState::make(shm::JobSegments& job, const shm::Directory& directory,
                                                   const std::vector<std::uint32_t>& positions, std::uint32_t rank,
                                                   std::uint32_t threads, record::Recording* recording,
                                                   std::uint32_t number) {
  const shm::VariableShm& first = directory.at(positions.front());
  const bool is_versioned = shm::is_versioned(first);
  if (recording != nullptr) {
    if (!is_versioned)
      throw Error(fmt::format("variable '{}' is in-place: its elements change one by one, in an order that is not "
                              "recorded; declare it versioned",
                              first.name),
                  ErrorCode::kInvalidState);
    return std::make_unique<RecordedState>(job, directory, positions, rank, threads, *recording, number);
  }
  if (is_versioned) return std::make_unique<VersionedState>(job, directory, positions, rank, threads);
  return std::make_unique<InplaceState>(job, directory, positions, rank, threads);
}

VariableState::VariableState(shm::JobSegments& of, const shm::Directory& directory,
                             const std::vector<std::uint32_t>& positions, std::uint32_t rank, std::uint32_t threads)
    : job(of), retries_(threads), copied_(threads) {
  for (const std::uint32_t position : positions) {
    VariablePart& part = parts.emplace_back(of, directory, position);
    part.first_piece = pieces;
    pieces += part.record.pieces;
  }
  const shm::VariableShm& first = parts.front().record;
  name = first.name;
  elements = first.whole_elements;
  dtype = static_cast<DType>(first.dtype);
  element_count = shm::element_count(first);
  shape.assign(first.extents, first.extents + first.axes);
  array_dtype = shm::array_dtype(first);
  if (array_dtype == DType::kFloat32) span_elements_ = elements;
  if (update::takes_gradients(dtype)) gradient_elements_ = element_count;
  layout = static_cast<Layout>(first.layout);
  factors_ = first.factors.load_relaxed();
  settings = shm::settings_of(job.config(), first);
  is_sum = update::traits_of(settings.rule).is_sum;
  pulled.assign(pieces, kNotPulled);
  observed.assign(pieces, kNotPulled);
  grain_ = Threads::grain(first.piece_elements * sizeof(float));
  const std::uint64_t workers = job.config().workers;
  start_ = pieces * (rank % workers) / workers;
}

void VariableState::follow_factors(std::uint64_t factors) noexcept {
  factors_ = factors;
  shm::follow_factors(settings, job.config(), shm::factors_of(factors));
}

void VariableState::refuse_size(std::size_t size, const char* verb) const {
  if (array_dtype != DType::kFloat32 && (gradient_elements_ == kNoFloats || size == gradient_elements_ || size == 0))
    throw Error(
        fmt::format("{} of variable '{}': its dtype is {}, and this call is for float32; pull or assign its bytes{}",
                    verb, name, to_string(dtype), update::has_sum(dtype) ? ", or add to them" : ""));
  throw Error(fmt::format("{} of variable '{}': it has {} elements, the span has {}", verb, name, element_count, size));
}

void VariableState::require_bytes(std::size_t bytes, const char* verb) const {
  if (bytes != element_count * bytes_of(dtype))
    throw Error(fmt::format("{} of variable '{}': its {} elements of {} are {} bytes, the span has {}", verb, name,
                            element_count, to_string(dtype), element_count * bytes_of(dtype), bytes));
}

void VariableState::require_delta(std::size_t bytes) const {
  require_bytes(bytes, "add");
  if (!update::has_sum(dtype))
    throw Error(fmt::format("add to variable '{}': {} has no sum; assign it", name, to_string(dtype)));
}

void VariableState::require_versions(const char* verb) const {
  if (!has_versions())
    throw Error(fmt::format(
        "{} of variable '{}': it is in-place, so its elements change one by one; declare it versioned", verb, name));
}

std::vector<VariableState::Slot> VariableState::slots() const {
  const shm::VariableShm& first = parts.front().record;
  const update::Traits& traits = update::traits_of(settings.rule);
  const bool is_inplace = layout == Layout::kInplace;
  std::vector<Slot> all;
  for (std::uint64_t slot = 0; slot < first.slots; ++slot)
    all.push_back({update::slot_name(settings.rule, is_inplace, slot), element_count});
  if (is_inplace && traits.has_row_state())
    all.push_back({traits.row_slot.name, elements / first.row_elements});
  else if (is_inplace && traits.slot_for_value() != nullptr)
    all.push_back({traits.slot_for_value(), elements});
  return all;
}

}  // namespace ps_shm
