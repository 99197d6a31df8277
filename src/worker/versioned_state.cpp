#include "worker/versioned_state.hpp"

#include <algorithm>
#include <optional>

#include "shm/base/streaming.hpp"

namespace ps_shm {
namespace {

// If the values, their slots, the gradient and the caller's copy take so many bytes, they do not stay in most caches
// until the next step.
constexpr std::uint64_t kStreamedBytes = std::uint64_t{32} << 20;

// A push changes so many elements of a chunk before it copies them to the caller. Short blocks let the processor wait
// for the lines of the copy and for those of the next block at the same time (0.4 million floats, sgd: 0.8 of the
// time). What is streamed waits for memory anyway, and is copied from the second-level cache.
constexpr std::uint64_t kCopiedElements = 1024, kStreamedElements = 16384;

// A chunk of so many elements is changed where it lies, if that is allowed. A shorter one has a free buffer in the
// first-level cache, and no space for the undo log.
constexpr std::uint64_t kInPlaceElements = 2048;

}  // namespace

void VersionedState::set_values(std::span<const float> values, float lr, const FirstState& first) {
  for_pieces(0, pieces, 0, [&](Piece piece) {
    VariablePart& part = piece.part;
    const auto initialise_slots = [&](const float* values_of_chunk, float* to) {
      update::initialise_slots(settings, lr, values_of_chunk, to, piece.stride(), piece.count());
      for (std::size_t slot = 0; slot < first.slots.size(); ++slot)
        if (!first.slots[slot].empty())
          std::copy_n(first.slots[slot].begin() + std::ptrdiff_t(piece.from()), piece.count(),
                      to + slot * piece.stride());
    };
    part.versioned->initialise_chunk(piece.chunk, values.subspan(piece.values_from(), piece.values_count()),
                                     first.updates, initialise_slots);
    shm::fault_point(shm::FaultPoint::kInitChunk);
    if (part.accumulator) part.accumulator->initialise_chunk(piece.chunk, {});
  });
}

std::uint64_t VersionedState::pull(std::span<float> out, std::uint64_t array, float, Threads& threads) {
  return for_pulled(threads, [&](Piece piece, std::uint64_t& retries) {
    float* const to = out.data() + piece.part.array_begin(piece.chunk, array);
    const std::uint64_t version = piece.part.versioned->pull_chunk(piece.chunk, to, retries, array);
    if (array == 0) pulled[piece.index()] = version;
  });
}

bool VersionedState::is_as_pulled() noexcept {
  bool is_same = true;
  for_pieces(0, pieces, 0, [&](Piece piece) {
    is_same = is_same && piece.part.versioned->version(piece.chunk) == pulled[piece.index()];  // (slot.R1)
  });
  return is_same;
}

std::uint64_t VersionedState::pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                                           std::uint64_t& retries) {
  return copy_changed(
      out, since, threads, retries,
      [](Piece piece) { return piece.part.versioned->version(piece.chunk); },  // (slot.R1)
      [](Piece piece, float* to, std::uint64_t& again) {
        return piece.part.versioned->pull_chunk(piece.chunk, to, again);
      });
}

void VersionedState::pull_image(std::span<float> out, std::uint64_t epoch) {
  for_pieces(0, pieces, 0, [&](Piece piece) {
    pulled[piece.index()] = piece.part.versioned->pull_image(piece.chunk, epoch, out.data() + piece.values_from());
  });
}

// Calls apply(at, n), which changes elements [at, at + n) of the `count` ones at `out`, and copies these to `copy`,
// until all are changed and copied.
template <class Apply>
void VersionedState::copy_in_blocks(std::uint64_t count, const float* out, float* copy, const Apply& apply) const {
  const bool is_streamed = elements * sizeof(float) * (3 + parts.front().record.slots) >= kStreamedBytes;
  const std::uint64_t most = is_streamed ? kStreamedElements : kCopiedElements;
  for (std::uint64_t at = 0; at < count; at += most) {
    const std::uint64_t part = std::min(most, count - at);
    apply(at, part);
    if (is_streamed)
      shm::stream_copy(reinterpret_cast<std::byte*>(copy + at), reinterpret_cast<const std::byte*>(out + at),
                       part * sizeof(float));
    else
      std::copy_n(out + at, part, copy + at);
  }
}

// As update::apply(); where `copy` is not nullptr, the values go there, too. Not inlined, so that other pushes do not
// save registers for it.
[[gnu::noinline]] void VersionedState::apply_and_copy(const update::Call& call, std::uint64_t steps,
                                                      std::uint64_t first, float* out, const float* in,
                                                      std::uint64_t stride, const float* g, std::uint64_t count,
                                                      const float* following, float* copy) const {
  if (copy == nullptr) return update::apply(call, steps, first, out, in, stride, g, count, following);
  copy_in_blocks(count, out, copy, [&](std::uint64_t at, std::uint64_t n) {
    const float* const next = at + n < count ? in + at + n : following;
    update::apply(call, steps, first + at, out + at, in + at, stride, g + at, n, next);
  });
}

template <bool kInPlace>
[[gnu::always_inline]] inline std::uint64_t VersionedState::push_chunks(const GradientInput& gradient,
                                                                        const PushContext& context, Threads& threads) {
  return for_pushed(gradient, threads, [&](Piece piece, const float* g, std::uint32_t thread, std::uint64_t& retries) {
    shm::VersionedVariable& chunks = *piece.part.versioned;
    const std::uint64_t chunk = piece.chunk;
    const float* following = chunk + 1 < chunks.chunks() ? chunks.likely_place(chunk + 1) : nullptr;
    float* const copy = gradient.is_copied_back() ? gradient.out() + piece.values_from() : nullptr;
    const bool copies_blocks = copy != nullptr && settings.dtype == DType::kFloat32;
    shm::FreeBuffers& free_buffers = threads.free_buffers(thread);
    const auto swap = [&] {
      return chunks.push_chunk(
          chunk, free_buffers, context.label, [&](float* out, const float* in, shm::ChunkPast past) {
            if (copies_blocks || context.lr_staleness) [[unlikely]] {
              const update::Call call =
                  context.lr_staleness
                      ? update::resolve(settings, rate_at(past.version, piece.index(), shm::kVersionMask, context),
                                        context.scale)
                      : call_;
              return apply_and_copy(call, past.steps, piece.from(), out, in, piece.stride(), g, piece.count(),
                                    following, copies_blocks ? copy : nullptr);
            }
            update::apply(call_, past.steps, piece.from(), out, in, piece.stride(), g, piece.count(), following);
          });
    };
    const auto change = [&] {
      const std::optional<shm::SwapResult> result = chunks.try_push_in_place(
          chunk, free_buffers, context.label,
          [&](float* values, std::uint64_t apart, std::uint64_t begin, std::uint64_t n, shm::ChunkPast past,
              const shm::UndoLog* log) {
            const auto apply = [&](std::uint64_t at, std::uint64_t some) {
              float* const block = values + at;
              if (log == nullptr)
                return update::apply(call_, past.steps, piece.from(), block, block, apart, g + begin + at, some);
              const float* const next = at + some < n ? block + some : following;
              update::apply_in_place(call_, past.steps, block, apart, g + at, some, next, log->behind(at));
            };
            if (copy == nullptr) return apply(0, n);
            copy_in_blocks(n, values, copy + begin, apply);
          });
      return result ? *result : swap();
    };
    shm::SwapResult result;
    if constexpr (kInPlace)
      result = change();
    else
      result = swap();
    retries += result.retries;
    note_push(result.version, piece.index(), shm::kVersionMask);
    if (copy == nullptr) return;
    const std::uint64_t version =
        copies_blocks ? (result.version + 1) & shm::kVersionMask : chunks.pull_chunk(chunk, copy, retries);
    gradient.versions()[piece.index()] = pulled[piece.index()] = version;
  });
}

std::uint64_t VersionedState::push(const GradientInput& gradient, const PushContext& context, Threads& threads) {
  if (call_.rate != context.lr * settings.lr_scale || call_.scale != context.scale ||
      call_.settings.momentum != settings.momentum || call_.settings.beta1 != settings.beta1 ||
      call_.settings.l2 != settings.l2 || call_.settings.weight_decay != settings.weight_decay)
    call_ = update::resolve(settings, context.lr, context.scale);
  if (layout == Layout::kSingleWriter && update::can_apply_in_place(settings) && !context.lr_staleness &&
      parts.front().record.piece_elements >= kInPlaceElements)
    return push_in_place(gradient, context, threads);
  return push_chunks<false>(gradient, context, threads);
}

// A function of its own, so that other pushes do not save registers for it.
[[gnu::noinline]] std::uint64_t VersionedState::push_in_place(const GradientInput& gradient, const PushContext& context,
                                                              Threads& threads) {
  return push_chunks<true>(gradient, context, threads);
}

std::uint64_t VersionedState::change(update::Change how, std::span<const float> values, const PushContext& context,
                                     Threads& threads, std::vector<std::uint64_t>* versions) {
  if (versions != nullptr) versions->resize(pieces);
  const shm::UpdateLabel label = labelled(context.label, how);
  return for_pushed<Numbers::kValues>(
      values, threads, [&](Piece piece, const float* given, std::uint32_t thread, std::uint64_t& retries) {
        const shm::SwapResult result = piece.part.versioned->push_chunk(
            piece.chunk, threads.free_buffers(thread), label, [&](float* out, const float* in, shm::ChunkPast) {
              update::change(settings, how, context.lr, out, in, piece.stride(), given, piece.count());
            });
        retries += result.retries;
        note_push(result.version, piece.index(), shm::kVersionMask);
        if (versions != nullptr) (*versions)[piece.index()] = (result.version + 1) & shm::kVersionMask;
      });
}

// (guest.G3) A chunk that has the ticket is left alone.
std::uint64_t VersionedState::change_once(const ChangeOnce& change, const PushContext& context, Threads& threads,
                                          std::uint64_t ticket, shm::GuestBlocks&) {
  for_pieces(0, pieces, 0, [&](Piece piece) {
    const float* const given = change.values.data() + piece.values_from();
    const auto apply = [&](float* out, const float* in, shm::ChunkPast) {
      update::change(settings, change.how, context.lr, out, in, piece.stride(), given, piece.count());
      return true;
    };
    static_cast<void>(piece.part.versioned->apply_step(piece.chunk, ticket - 1, threads.free_buffers(0),
                                                       labelled(context.label, change.how), apply));
  });
  return 0;
}

void VersionedState::contribute(const GradientInput& gradient, const PushContext& context, Threads& threads) {
  const bool again = contributed == context.label.step + 1;
  for_pushed(gradient, threads, [&](Piece piece, const float* g, std::uint32_t thread, std::uint64_t&) {
    static_cast<void>(piece.part.accumulator->contribute(
        piece.chunk, threads.free_buffers(thread), context.label, again, [&](float* out, const float* in) {
          update::accumulate(out, in, g, context.scale, settings.clip_value, piece.count());
        }));
  });
}

}  // namespace ps_shm
