#include "worker/inplace_state.hpp"

#include <algorithm>

#include "shm/segment/placement.hpp"
#include "update/elements.hpp"

namespace ps_shm {

InplaceState::InplaceState(shm::JobSegments& job, const shm::Directory& directory,
                           const std::vector<std::uint32_t>& positions, std::uint32_t rank, std::uint32_t threads)
    : VariableState(job, directory, positions, rank, threads) {
  const shm::VariableShm& first = parts.front().record;
  is_hashed = shm::is_hashed(first);
  is_bfloat16_ = dtype == DType::kBFloat16;
  rank_ = rank;
  is_scalar = elements == 1 && parts.front().inplace->is_scalar();
  if (first.axes != 0) rows.emplace(parts, rank, job.key_hash());
}

void InplaceState::set_values(std::span<const float> given, float lr, const FirstState& first) {
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
  // The block counters are zero: the memory is new, and nobody has pushed.
  for_pieces(0, pieces, 0, [&](Piece piece) {
    const VariablePart& part = piece.part;
    const std::uint64_t from = piece.values_from();
    part.inplace->for_rows(piece.chunk, [&](std::byte* to, std::uint64_t begin, std::uint64_t count) {
      const float* const wanted = values.data() + from + begin;
      const auto set = [&](auto* elements) {
        update::initialise_elements(settings, lr, wanted, elements, count);
        if (part.inplace->has_row_state())
          *part.inplace->row_state(to) = update::first_row_state(settings, lr);
        set_slots(part, from + begin, count, slots, to);
        update::keep_values(settings, lr, wanted, elements, count);
      };
      if (is_bfloat16_)
        set(reinterpret_cast<shm::BFloat16Bits*>(to));
      else
        set(reinterpret_cast<float*>(to));
    });
    shm::fault_point(shm::FaultPoint::kInitChunk);
  });
}

// Stores the slots of `count` elements from `from` on, in the order of parts; the elements lie at `to`.
void InplaceState::set_slots(const VariablePart& part, std::uint64_t from, std::uint64_t count,
                             const std::vector<std::vector<float>>& slots, std::byte* to) const {
  const std::uint64_t record = part.inplace->record(), row_elements = part.inplace->row_elements();
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot].empty()) continue;
    if (slot + 1 < record || !part.inplace->has_row_state()) {
      const std::uint64_t place = slot + 1 < record ? slot + 1 : 0;  // the remaining one replaces the value
      for (std::uint64_t i = 0; i < count; ++i) {
        const float given = slots[slot][from + i];
        if (is_bfloat16_)
          reinterpret_cast<shm::BFloat16Bits*>(to)[i * record + place] = update::rounded_to_nearest(given);
        else
          reinterpret_cast<float*>(to)[i * record + place] = given;
      }
      continue;
    }
    const std::uint64_t local = (from - part.begin) / row_elements;
    const std::uint64_t row = is_hashed ? local * parts.size() + part.record.part : part.begin / row_elements + local;
    *part.inplace->row_state(to) = slots[slot][row];
  }
}

std::uint64_t InplaceState::pull(std::span<float> out, std::uint64_t array, float lr, Threads& threads) {
  return update::with_element_value(settings, lr, [&](const auto& value_of) {
    if (is_hashed) by_parts_.resize(elements);
    float* const to = is_hashed ? by_parts_.data() : out.data();
    const std::uint64_t retries = for_pulled(threads, [&](Piece piece, std::uint64_t&) {
      const shm::InplaceVariable& blocks = *piece.part.inplace;
      const std::uint64_t version =
          blocks.pull_block(piece.chunk, to + piece.part.begin + blocks.block_begin(piece.chunk), value_of);
      if (array == 0) pulled[piece.index()] = version;
    });
    if (is_hashed) shm::order_by_rows(by_parts_, out, parts.front().record);
    return retries;
  });
}

bool InplaceState::is_as_pulled() noexcept {
  bool is_same = true;
  for_pieces(0, pieces, 0, [&](Piece piece) {
    is_same = is_same && piece.part.inplace->pushes(piece.chunk) == pulled[piece.index()];  // (inplace.P3)
  });
  return is_same;
}

std::uint64_t InplaceState::pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                                         std::uint64_t& retries) {
  return copy_changed(
      out, since, threads, retries,
      [](Piece piece) { return piece.part.inplace->pushes(piece.chunk); },  // (inplace.P3)
      [](Piece piece, float* to, std::uint64_t&) { return piece.part.inplace->pull_scalar(*to); });
}

GradientInput InplaceState::by_parts(const GradientInput& given) {
  if (!is_hashed) return given;
  by_parts_.resize(elements);
  shm::order_by_parts(given.whole(), by_parts_, parts.front().record);
  return std::span<const float>(by_parts_);
}

// Returns how many updates the block had had before this one. Not inlined: otherwise a push of a scalar would have to save
// the registers that it uses.
[[gnu::noinline]] std::uint64_t InplaceState::push_block(Piece piece, const float* gradient,
                                                         const PushContext& context) noexcept {
  shm::InplaceVariable& blocks = *piece.part.inplace;
  const std::uint64_t block = piece.chunk;
  const float rate = is_sum ? 0.0F : rate_at(blocks.pushes(block), piece.index(), blocks.pushes_mask(), context);
  return update::with_element_update(settings, rate, context.scale, [&](const auto& update) {
    if (is_bfloat16_) return blocks.push_block(block, gradient, context.adds, update, rounded(piece));
    return blocks.push_block(block, gradient, context.adds, update);
  });
}

// What a push of bfloat16 updates (inplace.P7). Its own count is in that of the block, so it is another one at each push.
InplaceState::Rounded InplaceState::rounded(Piece piece) const noexcept {
  const shm::InplaceVariable& blocks = *piece.part.inplace;
  const std::uint64_t first = piece.part.begin + blocks.block_begin(piece.chunk);
  return {shm::rounding_of_block(settings.rounding, first, rank_, blocks.pushes(piece.chunk)), blocks.record()};
}

std::uint64_t InplaceState::change_block(update::Change how, Piece piece, const float* values,
                                         const PushContext& context) noexcept {
  shm::InplaceVariable& blocks = *piece.part.inplace;
  return update::with_element_change(settings, how, context.lr, [&](const auto& change) {
    if (!is_bfloat16_) return blocks.push_block(piece.chunk, values, Adds::kExact, change);
    if (change.is_sum())
      return blocks.push_block(piece.chunk, values, Adds::kExact, change, rounded(piece));
    const auto to_nearest = [](std::byte* place, std::uint64_t) {
      return shm::BFloat16Row<shm::RoundToNearest>{place, {}};
    };
    return blocks.push_block(piece.chunk, values, Adds::kExact, change, to_nearest);
  });
}

std::uint64_t InplaceState::push(const GradientInput& gradient, const PushContext& context, Threads& threads) {
  return for_pushed(by_parts(gradient), threads, [&](Piece piece, const float* g, std::uint32_t, std::uint64_t&) {
    note_push(push_block(piece, g, context), piece.index(), piece.part.inplace->pushes_mask());
  });
}

void InplaceState::push_scalar(float gradient, const PushContext& context) noexcept {
  VariablePart& part = parts.front();
  const auto add = [](float value, float delta) { return value + delta; };
  if (is_sum && is_scalar)  // counters that all workers update all the time
    return note_push(part.inplace->push_scalar(gradient, context.adds, add), 0,
                     shm::InplaceVariable::kScalarPushesMask);
  note_push(push_block({part, 0}, &gradient, context), 0, part.inplace->pushes_mask());
}

std::uint64_t InplaceState::change(update::Change how, std::span<const float> values, const PushContext& context,
                                   Threads& threads, std::vector<std::uint64_t>* versions) {
  if (versions != nullptr) versions->resize(pieces);
  return for_pushed(by_parts(values), threads, [&](Piece piece, const float* given, std::uint32_t, std::uint64_t&) {
    const std::uint64_t mask = piece.part.inplace->pushes_mask();
    const std::uint64_t before = change_block(how, piece, given, context);
    note_push(before, piece.index(), mask);
    if (versions != nullptr) (*versions)[piece.index()] = (before + 1) & mask;
  });
}

std::uint64_t InplaceState::change_once(const ChangeOnce& change, const PushContext& context, Threads&, std::uint64_t,
                                        shm::GuestBlocks& blocks) {
  std::uint64_t in_doubt = 0;
  std::span<const float> given = by_parts(change.values).whole();
  for_pieces(0, pieces, 0, [&](Piece piece) {
    const auto found = blocks.begin();
    if (found == shm::GuestBlocks::Block::kDone) return;
    if (found == shm::GuestBlocks::Block::kInDoubt && change.how == update::Change::kAdd) {  // an assign is made again
      in_doubt += piece.values_count();
      if (!change.in_doubt.empty()) {
        change_block(update::Change::kAssign, piece, by_parts(change.in_doubt).whole().data() + piece.values_from(),
                     context);
        given = by_parts(change.values).whole();
      }
    } else {
      change_block(change.how, piece, given.data() + piece.values_from(), context);
    }
    blocks.end();
  });
  return in_doubt;
}

void InplaceState::count_push() noexcept {
  for_pieces(0, pieces, 0, [&](Piece piece) {
    note_push(piece.part.inplace->count_push(piece.chunk), piece.index(), piece.part.inplace->pushes_mask());
  });
}

}  // namespace ps_shm
