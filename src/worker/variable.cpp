#include "ps/variable.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "ps/errors.hpp"
#include "worker/variable_state.hpp"

namespace ps {

Variable::State::State(const shm::VariableShm& shared, std::uint32_t where, std::byte* shard)
    : record(shared), position(where), name(shared.name), pulled(shared.pieces, kNotPulled) {
  if (shared.layout == static_cast<std::uint32_t>(Layout::kVersioned))
    versioned.emplace(shard, shared);
  else
    inplace.emplace(shard, shared);
}

void Variable::State::require_size(std::size_t size, const char* verb) const {
  if (size != record.elements)
    throw Error(
        fmt::format("{} of variable '{}': it has {} elements, the span has {}", verb, name, record.elements, size));
}

void Variable::State::set_values(std::span<const float> values) noexcept {
  if (inplace) {
    std::copy(values.begin(), values.end(), inplace->elements());
    return;  // the block counters are zero: the bytes are new, and nobody has pushed
  }
  for (std::uint64_t chunk = 0; chunk < versioned->chunks(); ++chunk)
    versioned->initialise_chunk(chunk, values.subspan(versioned->chunk_begin(chunk), versioned->chunk_size(chunk)));
}

std::uint64_t Variable::State::push_versioned(std::uint64_t chunk, const float* gradient, const update::Hyper& hyper,
                                              shm::UpdateLabel label, shm::Spares& spares, std::uint64_t& retries) {
  const UpdateRule rule = static_cast<UpdateRule>(record.rule);
  const std::uint64_t count = versioned->chunk_size(chunk);
  gradient += versioned->chunk_begin(chunk);
  const shm::SwapResult result = versioned->push_chunk(
      chunk, spares, label, [&](float* out, const float* in) { update::apply(rule, out, in, gradient, count, hyper); });
  retries += result.retries;
  return result.version;
}

std::uint64_t Variable::State::push_inplace(std::uint64_t block, const float* gradient, const update::Hyper& hyper,
                                            Adds adds) {
  gradient += inplace->block_begin(block);
  if (static_cast<UpdateRule>(record.rule) == UpdateRule::kAdd)
    return inplace->push_block(block, gradient, adds, update::add_one);
  return inplace->push_block(block, gradient, adds,
                             [hyper](float value, float g) { return update::sgd_one(value, g, hyper); });
}

std::uint64_t Variable::State::push(std::span<const float> gradient, const update::Hyper& hyper, Adds adds,
                                    shm::UpdateLabel label, std::uint32_t workers, shm::Spares& spares,
                                    const std::function<void(std::uint64_t)>& staleness) {
  const std::uint64_t pieces = pulled.size();
  std::uint64_t retries = 0, piece = pieces * (label.rank % workers) / workers;
  for (std::uint64_t done = 0; done < pieces; ++done) {
    const std::uint64_t version = versioned ? push_versioned(piece, gradient.data(), hyper, label, spares, retries)
                                            : push_inplace(piece, gradient.data(), hyper, adds);
    if (pulled[piece] != kNotPulled) {
      staleness((version - pulled[piece]) & shm::kVersionMask);  // V1: modular
      ++pulled[piece];                                           // one's own update is not staleness
    }
    if (++piece == pieces) piece = 0;
  }
  return retries;
}

const std::string& Variable::name() const noexcept { return state_->name; }
std::uint64_t Variable::element_count() const noexcept { return state_->record.elements; }
Layout Variable::layout() const noexcept { return static_cast<Layout>(state_->record.layout); }

std::span<const float> Variable::view() const {
  if (!state_->inplace)
    throw Error(fmt::format(
        "variable '{}' is versioned: its chunks move with every push; pull it, or declare it in-place", state_->name));
  return {state_->inplace->elements(), state_->record.elements};
}

}  // namespace ps
