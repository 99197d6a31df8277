#include "worker/recorded_state.hpp"

#include <xxhash.h>

namespace ps_shm {

std::uint32_t RecordedState::check_of(std::span<const float> numbers, update::Change how) noexcept {
  const XXH64_hash_t hash = XXH3_64bits_withSeed(numbers.data(), numbers.size_bytes(), static_cast<std::uint32_t>(how));
  return static_cast<std::uint32_t>(hash ^ hash >> 32);
}

std::uint64_t RecordedState::pull(std::span<float> out, std::uint64_t array, float, Threads&) {
  std::uint64_t retries = 0;
  recording_.begin_pull(number_);
  for_pieces(0, pieces, 0, [&](Piece piece) {
    shm::VersionedVariable& chunks = *piece.part.versioned;
    recording_.before_pull(chunks, piece.chunk);
    const std::uint64_t version =
        chunks.pull_chunk(piece.chunk, out.data() + piece.part.array_begin(piece.chunk, array), retries, array);
    recording_.pulled(version);
    if (array == 0) pulled[piece.index()] = version;
  });
  return retries;
}

std::uint64_t RecordedState::push(const GradientInput& gradient, const PushContext& context, Threads& threads) {
  return apply(update::Change::kStep, gradient.whole(), context, threads.free_buffers(0), nullptr);
}

std::uint64_t RecordedState::change(update::Change how, std::span<const float> values, const PushContext& context,
                                    Threads& threads, std::vector<std::uint64_t>* versions) {
  if (versions != nullptr) versions->resize(pieces);
  return apply(how, values, context, threads.free_buffers(0), versions);
}

std::uint64_t RecordedState::apply(update::Change how, std::span<const float> numbers, const PushContext& context,
                                   shm::FreeBuffers& free_buffers, std::vector<std::uint64_t>* versions) {
  std::uint64_t retries = 0;
  recording_.begin_push(number_, check_of(numbers, how), start_);
  for_pieces(0, pieces, start_, [&](Piece piece) {
    shm::VersionedVariable& chunks = *piece.part.versioned;
    recording_.before_push(chunks, piece.chunk);
    const float* const given = numbers.data() + (how == update::Change::kStep ? piece.from() : piece.values_from());
    const shm::SwapResult result = chunks.push_chunk(
        piece.chunk, free_buffers, labelled(context.label, how), [&](float* out, const float* in, shm::ChunkPast past) {
          recording_.trying(past.version);
          if (how == update::Change::kStep)
            update::apply(settings,
                          {rate_at(past.version, piece.index(), shm::kVersionMask, context), past.steps, piece.from()},
                          out, in, piece.stride(), given, context.scale, piece.count());
          else
            update::change(settings, how, context.lr, out, in, piece.stride(), given, piece.count());
        });
    retries += result.retries;
    recording_.pushed(result.version);
    note_push(result.version, piece.index(), shm::kVersionMask);
    if (versions != nullptr) (*versions)[piece.index()] = (result.version + 1) & shm::kVersionMask;
  });
  return retries;
}

}  // namespace ps_shm
