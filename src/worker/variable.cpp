#include "ps_shm/variable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ps_shm/errors.hpp"
#include "shm/segment/damage.hpp"
#include "shm/segment/placement.hpp"
#include "update/dtypes.hpp"
#include "update/elements.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {

VariablePart::VariablePart(shm::JobSegments& job, const shm::Directory& directory, std::uint32_t where)
    : record(directory.at(where)), shard(job.shard_data(record.shard)), position(where), begin(record.part_begin) {
  if (record.layout == static_cast<std::uint32_t>(Layout::kVersioned))
    versioned.emplace(shard, record);
  else
    inplace.emplace(shard, record);
  if (job.config().reduce != Reduce::kAtomic) return;
  const std::uint32_t found = directory.accumulator(position);
  if (found == shm::kNoVariable)
    shm::fail_damaged(shm::control_name(job.job()), fmt::format("variable '{}' has no accumulator", record.name));
  accumulator_record = &directory.at(found);
  accumulator.emplace(shard, *accumulator_record);
}

VariableState::VariableState(shm::JobSegments& job, const shm::Directory& directory,
                             const std::vector<std::uint32_t>& positions, std::uint32_t rank, std::uint32_t threads)
    : retries_(threads), copied_(threads) {
  for (const std::uint32_t position : positions) {
    VariablePart& part = parts.emplace_back(job, directory, position);
    part.first_piece = pieces;
    pieces += part.record.pieces;
  }
  const shm::VariableShm& first = parts.front().record;
  name = first.name;
  elements = first.whole_elements;
  dtype = static_cast<DType>(first.dtype);
  element_count = shm::element_count(first);
  if (dtype == DType::kFloat32) span_elements_ = elements;
  layout = static_cast<Layout>(first.layout);
  settings = update::settings_of(job.config().optimizer, static_cast<UpdateRule>(first.rule),
                                 (first.flags & shm::kRegularize) != 0, dtype);
  is_sum = update::traits_of(settings.rule).is_sum;
  call_ = update::resolve(settings, 0.0F, 1.0F);
  pulled.assign(pieces, kNotPulled);
  observed.assign(pieces, kNotPulled);
  grain_ = Threads::grain(first.piece_elements * sizeof(float));
  const std::uint64_t workers = job.config().workers;
  start_ = pieces * (rank % workers) / workers;
  if (layout != Layout::kInplace) return;
  is_hashed = shm::is_hashed(first);
  is_scalar = elements == 1 && parts.front().inplace->is_scalar();
  if (first.axes != 0) rows.emplace(parts, rank);
}

void VariableState::refuse_size(std::size_t size, const char* verb) const {
  if (dtype != DType::kFloat32)
    throw Error(
        fmt::format("{} of variable '{}': its dtype is {}, and this call is for float32; pull or assign its bytes{}",
                    verb, name, to_string(dtype), update::has_sum(dtype) ? ", or add to them" : ""));
  throw Error(fmt::format("{} of variable '{}': it has {} elements, the span has {}", verb, name, elements, size));
}

void VariableState::require_bytes(std::size_t bytes, const char* verb) const {
  if (bytes != element_count * bytes_of(dtype))
    throw Error(fmt::format("{} of variable '{}': its {} elements of {} are {} bytes, the span has {}", verb, name,
                            element_count, to_string(dtype), element_count * bytes_of(dtype), bytes));
}

template <class Body>
void VariableState::for_pieces(std::uint64_t begin, std::uint64_t end, std::uint64_t start, Body&& body) {
  std::uint64_t index = begin + start;
  if (index >= pieces) index -= pieces;
  auto part = parts.begin();
  if (parts.size() > 1)
    part = std::upper_bound(parts.begin(), parts.end(), index,
                            [](std::uint64_t piece, const VariablePart& p) { return piece < p.first_piece; }) -
           1;
  for (std::uint64_t done = begin; done < end; ++done) {
    body(*part, index - part->first_piece, index);
    if (++index == pieces) {
      index = 0;
      part = parts.begin();
    } else if (index == part->first_piece + part->record.pieces) {
      ++part;
    }
  }
}

std::vector<VariableState::Slot> VariableState::slots() const {
  const shm::VariableShm& first = parts.front().record;
  const update::Traits& traits = update::traits_of(settings.rule);
  const bool is_inplace = layout == Layout::kInplace;
  std::vector<Slot> all;
  for (std::uint64_t slot = 0; slot < first.slots; ++slot)
    all.push_back({update::slot_name(settings.rule, is_inplace, slot), elements});
  if (is_inplace && traits.has_row_state())
    all.push_back({traits.row_slot.name, elements / first.row_elements});
  else if (is_inplace && traits.slot_for_value() != nullptr)
    all.push_back({traits.slot_for_value(), elements});
  return all;
}

void VariableState::set_values(std::span<const float> given, float learning_rate, const FirstState& first) {
  const auto in_parts = [&](std::span<const float> whole) {
    std::vector<float> ordered(whole.size());
    shm::order_by_parts(whole, ordered, parts.front().record);
    return ordered;
  };
  const std::vector<float> values_by_parts = is_hashed ? in_parts(given) : std::vector<float>();
  const std::span<const float> values = is_hashed ? std::span<const float>(values_by_parts) : given;
  std::vector<std::vector<float>> slots = first.slots;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const bool is_of_rows = slot >= parts.front().record.slots && update::traits_of(settings.rule).has_row_state();
    if (is_hashed && !slots[slot].empty() && !is_of_rows) slots[slot] = in_parts(slots[slot]);
  }
  for_pieces(0, pieces, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t) {
    const std::uint64_t from = part.piece_begin(piece), size = part.piece_size(piece);
    const auto part_values = values.subspan(from, size);
    if (part.inplace) {  // the block counters are zero: the memory is new, and nobody has pushed
      part.inplace->for_rows(piece, [&](float* to, std::uint64_t begin, std::uint64_t count) {
        update::initialise_elements(settings, learning_rate, part_values.data() + begin, to, count);
        if (part.inplace->has_row_state()) to[count] = update::first_row_state(settings, learning_rate);
        set_inplace_slots(part, from + begin, count, slots, to);
      });
      shm::fault_point(shm::FaultPoint::kInitChunk);
      return;
    }
    part.versioned->initialise_chunk(
        piece, part_values, first.updates, [&](const float* values_of_chunk, float* to, std::size_t count) {
          const std::uint64_t stride = part.versioned->stride();
          update::initialise_slots(settings, learning_rate, values_of_chunk, to, stride, count);
          for (std::size_t slot = 0; slot < slots.size(); ++slot)
            if (!slots[slot].empty())
              std::copy_n(slots[slot].begin() + std::ptrdiff_t(from), count, to + slot * stride);
        });
    shm::fault_point(shm::FaultPoint::kInitChunk);
    if (part.accumulator) part.accumulator->initialise_chunk(piece, {});
  });
}

// Stores the slots of `count` elements from `from` on, in the order of parts; the elements lie at `to`.
void VariableState::set_inplace_slots(const VariablePart& part, std::uint64_t from, std::uint64_t count,
                                      const std::vector<std::vector<float>>& slots, float* to) const {
  const std::uint64_t record = part.inplace->record_floats(), row_elements = part.inplace->row_elements();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].empty()) continue;
    if (slot + 1 < record || !part.inplace->has_row_state()) {
      const std::uint64_t place = slot + 1 < record ? slot + 1 : 0;  // the remaining one replaces the value
      for (std::uint64_t i = 0; i < count; ++i) to[i * record + place] = slots[slot][from + i];
      continue;
    }
    const std::uint64_t local = (from - part.begin) / row_elements;
    const std::uint64_t row = is_hashed ? local * parts.size() + part.record.part : part.begin / row_elements + local;
    to[count * record] = slots[slot][row];
  }
}

std::uint64_t VariableState::pull(std::span<float> out, std::uint64_t array, float learning_rate, Threads& threads) {
  if (tape_ != nullptr) [[unlikely]]
    return pull_taped(out, array);
  if (layout == Layout::kVersioned) return pull_from(out, array, update::FirstFloat{}, threads);
  return update::with_element_value(settings, learning_rate, [&](const auto& value_of) {
    if (!is_hashed) return pull_from(out, array, value_of, threads);
    by_parts_.resize(elements);
    const std::uint64_t retries = pull_from(by_parts_, array, value_of, threads);
    shm::order_by_rows(by_parts_, out, parts.front().record);
    return retries;
  });
}

void VariableState::pull_image(std::span<float> out, std::uint64_t epoch) {
  for_pieces(0, pieces, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
    pulled[index] = part.versioned->pull_image(piece, epoch, out.data() + part.piece_begin(piece));
  });
}

template <class ValueOf>
std::uint64_t VariableState::pull_from(std::span<float> out, std::uint64_t array, const ValueOf& value_of,
                                       Threads& threads) {
  const auto pull_one = [&](VariablePart& part, std::uint64_t piece, std::uint64_t index, std::uint64_t& retries) {
    const std::uint64_t version =
        part.versioned
            ? part.versioned->pull_chunk(piece, out.data() + part.begin + part.versioned->chunk_begin(piece), retries,
                                         array)
            : part.inplace->pull_block(piece, out.data() + part.begin + part.inplace->block_begin(piece), value_of);
    if (array == 0) pulled[index] = version;
  };
  if (pieces == 1) {
    std::uint64_t retries = 0;
    pull_one(parts.front(), 0, 0, retries);
    return retries;
  }
  std::fill(retries_.begin(), retries_.end(), 0);
  threads.split(pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
      pull_one(part, piece, index, retries_[thread]);
    });
  });
  return std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
}

bool VariableState::is_as_pulled() noexcept {
  bool is_same = true;
  for_pieces(0, pieces, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
    is_same = is_same && version(part, piece) == pulled[index];
  });
  return is_same;
}

std::uint64_t VariableState::pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                                          std::uint64_t& retries) {
  if (since.size() != pieces) since.assign(pieces, kNotPulled);
  std::fill(retries_.begin(), retries_.end(), 0);
  std::fill(copied_.begin(), copied_.end(), 0);
  threads.split(pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
      if (version(part, piece) != since[index]) {
        float* const to = out.data() + part.piece_begin(piece);
        since[index] =
            part.versioned ? part.versioned->pull_chunk(piece, to, retries_[thread]) : part.inplace->pull_scalar(*to);
        ++copied_[thread];
      }
      pulled[index] = since[index];
    });
  });
  retries = std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
  return std::accumulate(copied_.begin(), copied_.end(), std::uint64_t{0});
}

// The number of updates that the piece had had when it was pushed, minus that number when it was pulled (slot.V1:
// modular).
std::uint64_t VariableState::staleness(const VariablePart& part, std::uint64_t version, std::uint64_t index) noexcept {
  return (version - pulled[index]) & (part.versioned ? shm::kVersionMask : part.inplace->pushes_mask());
}

float VariableState::rate_at(const VariablePart& part, std::uint64_t version, std::uint64_t index,
                             const PushContext& context) noexcept {
  if (!context.staleness_scaling || pulled[index] == kNotPulled) return context.learning_rate;
  return context.learning_rate / static_cast<float>(1 + staleness(part, version, index));
}

// Always inlined: this saves a tenth of the instructions of a scalar push, whatever it is compiled with.
[[gnu::always_inline]] inline void VariableState::note_push(const VariablePart& part, std::uint64_t version,
                                                            std::uint64_t index) noexcept {
  if (pulled[index] == kNotPulled) return;
  observed[index] = staleness(part, version, index);
  ++pulled[index];  // a worker's own update is not staleness
}

// Returns how many updates the block had had before this one.
std::uint64_t VariableState::push_inplace(VariablePart& part, std::uint64_t block, std::uint64_t index,
                                          const float* gradient, const PushContext& context) noexcept {
  const float rate = is_sum ? 0.0F : rate_at(part, part.inplace->pushes(block), index, context);
  return update::with_element_update(settings, rate, context.scale, [&](const auto& update) {
    return part.inplace->push_block(block, gradient, context.adds, update);
  });
}

void VariableState::push_scalar(float gradient, const PushContext& context) noexcept {
  VariablePart& part = parts.front();
  if (is_sum && is_scalar)  // counters that all workers update all the time
    return note_push(
        part,
        part.inplace->push_scalar(gradient, context.adds, [&](float value, float delta) { return value + delta; }), 0);
  note_push(part, push_inplace(part, 0, 0, &gradient, context), 0);
}

// Returns how many updates the piece had had before this one.
std::uint64_t VariableState::push_piece(VariablePart& part, std::uint64_t piece, std::uint64_t index,
                                        const float* gradient, const PushContext& context,
                                        shm::FreeBuffers& free_buffers, std::uint64_t& retries) noexcept {
  if (part.inplace) return push_inplace(part, piece, index, gradient, context);
  const std::uint64_t count = part.versioned->chunk_size(piece), stride = part.versioned->stride();
  const float* following = piece + 1 < part.versioned->chunks() ? part.versioned->likely_place(piece + 1) : nullptr;
  const shm::SwapResult result = part.versioned->push_chunk(
      piece, free_buffers, context.label, [&](float* out, const float* in, std::uint64_t version) {
        if (!context.staleness_scaling)
          return update::apply(call_, version, out, in, stride, gradient, count, following);
        update::apply(settings, {rate_at(part, version, index, context), version}, out, in, stride, gradient,
                      context.scale, count, following);
      });
  retries += result.retries;
  return result.version;
}

const GradientInput& VariableState::by_parts(const GradientInput& gradient) {
  by_parts_.resize(elements);
  shm::order_by_parts(gradient.whole(), by_parts_, parts.front().record);
  return in_room_ = std::span<const float>(by_parts_);
}

template <class Body>
[[gnu::always_inline]] inline std::uint64_t VariableState::for_pushed(const GradientInput& given, Threads& threads,
                                                                      Body&& body) {
  const GradientInput& input = is_hashed ? by_parts(given) : given;
  const auto push_one = [&](VariablePart& part, std::uint64_t piece, std::uint64_t index, std::uint32_t thread,
                            std::uint64_t& retries) {
    const float* numbers = input.piece(index, part.piece_begin(piece), part.piece_size(piece), thread);
    body(part, piece, index, numbers, threads.free_buffers(thread), retries);
  };
  if (pieces == 1) {
    std::uint64_t retries = 0;
    push_one(parts.front(), 0, 0, 0, retries);
    return retries;
  }
  std::fill(retries_.begin(), retries_.end(), 0);
  input.split(threads, pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, start_, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
      push_one(part, piece, index, thread, retries_[thread]);
    });
  });
  return std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
}

std::uint64_t VariableState::push(const GradientInput& given, const PushContext& context, Threads& threads) {
  if (tape_ != nullptr) [[unlikely]]
    return push_taped(given, update::Change::kStep, context, threads.free_buffers(0), nullptr);
  if (layout == Layout::kVersioned && (call_.rate != context.learning_rate || call_.scale != context.scale))
    call_ = update::resolve(settings, context.learning_rate, context.scale);
  return for_pushed(given, threads,
                    [&](VariablePart& part, std::uint64_t piece, std::uint64_t index, const float* g,
                        shm::FreeBuffers& free_buffers, std::uint64_t& retries) {
                      note_push(part, push_piece(part, piece, index, g, context, free_buffers, retries), index);
                    });
}

std::uint64_t VariableState::change(update::Change how, std::span<const float> values, const PushContext& context,
                                    Threads& threads, std::vector<std::uint64_t>* versions) {
  if (versions != nullptr) versions->resize(pieces);
  if (tape_ != nullptr) [[unlikely]]
    return push_taped(values, how, context, threads.free_buffers(0), versions);
  return for_pushed(
      values, threads,
      [&](VariablePart& part, std::uint64_t piece, std::uint64_t index, const float* given,
          shm::FreeBuffers& free_buffers, std::uint64_t& retries) {
        std::uint64_t before;
        if (part.inplace) {
          before = update::with_element_change(settings, how, context.learning_rate, [&](const auto& update) {
            return part.inplace->push_block(piece, given, Adds::kExact, update);
          });
        } else {
          const std::uint64_t count = part.versioned->chunk_size(piece), stride = part.versioned->stride();
          const shm::SwapResult result = part.versioned->push_chunk(
              piece, free_buffers, context.label, [&](float* out, const float* in, std::uint64_t) {
                update::change(settings, how, context.learning_rate, out, in, stride, given, count);
              });
          before = result.version;
          retries += result.retries;
        }
        note_push(part, before, index);
        if (versions != nullptr)
          (*versions)[index] = (before + 1) & (part.versioned ? shm::kVersionMask : part.inplace->pushes_mask());
      });
}

void VariableState::contribute(const GradientInput& gradient, const PushContext& context, Threads& threads) {
  const bool again = contributed == context.label.step + 1;
  gradient.split(threads, pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, start_, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
      const std::uint64_t count = part.piece_size(piece);
      const float* g = gradient.piece(index, part.piece_begin(piece), count, thread);
      static_cast<void>(part.accumulator->contribute(
          piece, threads.free_buffers(thread), context.label, again, [&](float* out, const float* in) {
            update::accumulate(out, in, g, context.scale, settings.clip_value, count);
          }));
    });
  });
}

void VariableState::for_each_pushed(const std::function<void(const VariablePart&, std::uint64_t)>& body) {
  for_pieces(0, pieces, start_, [&](VariablePart& part, std::uint64_t piece, std::uint64_t) { body(part, piece); });
}

void VariableState::count_push() noexcept {
  for_pieces(0, pieces, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
    note_push(part, part.inplace->count_push(piece), index);
  });
}

std::uint64_t VariableState::pull_taped(std::span<float> out, std::uint64_t array) {
  std::uint64_t retries = 0;
  tape_->begin_pull(number_);
  for_pieces(0, pieces, 0, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
    tape_->before_pull(*part.versioned, piece);
    const std::uint64_t version =
        part.versioned->pull_chunk(piece, out.data() + part.piece_begin(piece), retries, array);
    tape_->pulled(version);
    if (array == 0) pulled[index] = version;
  });
  return retries;
}

std::uint64_t VariableState::push_taped(const GradientInput& given, update::Change how, const PushContext& context,
                                        shm::FreeBuffers& free_buffers, std::vector<std::uint64_t>* versions) {
  const std::span<const float> numbers = given.whole();
  std::uint64_t retries = 0;
  tape_->begin_push(number_, record::check_of(numbers, static_cast<std::uint32_t>(how)), start_);
  for_pieces(0, pieces, start_, [&](VariablePart& part, std::uint64_t piece, std::uint64_t index) {
    tape_->before_push(*part.versioned, piece);
    const float* const from = numbers.data() + part.piece_begin(piece);
    const std::uint64_t count = part.versioned->chunk_size(piece), stride = part.versioned->stride();
    const shm::SwapResult result = part.versioned->push_chunk(
        piece, free_buffers, context.label, [&](float* out, const float* in, std::uint64_t version) {
          tape_->trying(version);
          if (how == update::Change::kStep)
            update::apply(settings, {rate_at(part, version, index, context), version}, out, in, stride, from,
                          context.scale, count);
          else
            update::change(settings, how, context.learning_rate, out, in, stride, from, count);
        });
    retries += result.retries;
    tape_->pushed(result.version);
    note_push(part, result.version, index);
    if (versions != nullptr) (*versions)[index] = (result.version + 1) & shm::kVersionMask;
  });
  return retries;
}

const std::string& Variable::name() const noexcept { return state_->name; }
DType Variable::dtype() const noexcept { return state_->dtype; }
std::uint64_t Variable::element_count() const noexcept { return state_->element_count; }
std::uint64_t Variable::rows() const noexcept { return state_->rows ? state_->rows->table().rows() : 0; }
std::uint64_t Variable::row_size() const noexcept { return state_->rows ? state_->rows->table().row_elements() : 0; }
Layout Variable::layout() const noexcept { return state_->layout; }

std::span<const float> Variable::view() const {
  if (state_->layout != Layout::kInplace)
    throw Error(fmt::format(
        "variable '{}' is versioned: its chunks move with every push; pull it, or declare it in-place", state_->name));
  if (state_->parts.size() != 1)
    throw Error(fmt::format("variable '{}' is in {} parts, which are not contiguous; pull it", state_->name,
                            state_->parts.size()));
  if (!state_->parts.front().inplace->is_plain())
    throw Error(fmt::format("the elements of variable '{}' are not contiguous: the state of {} lies between; pull it",
                            state_->name, to_string(state_->settings.rule)));
  return {state_->parts.front().inplace->elements(), state_->elements};
}

}  // namespace ps_shm
