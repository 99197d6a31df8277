// A worker's state of one variable: where its parts lie, and which version of each chunk (block) was pulled last.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/variable.hpp"
#include "record/tape.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "update/call.hpp"
#include "update/rules.hpp"
#include "worker/gradient_input.hpp"
#include "worker/row_access.hpp"
#include "worker/threads.hpp"

namespace ps_shm {

// A record of the directory, with typed access to its data in the shard.
struct VariablePart {
  VariablePart(shm::JobSegments& job, const shm::Directory& directory, std::uint32_t where);

  shm::VariableShm& record;
  std::byte* shard;
  std::uint32_t position;
  std::optional<shm::VersionedVariable> versioned;
  std::optional<shm::InplaceVariable> inplace;
  shm::VariableShm* accumulator_record = nullptr;  // reduce atomic
  std::optional<shm::VersionedVariable> accumulator;
  std::uint64_t begin;            // index of its first element in the whole variable
  std::uint64_t first_piece = 0;  // index of its first chunk (block) among those of all parts

  std::uint64_t piece_begin(std::uint64_t piece) const noexcept {
    return begin + (versioned ? versioned->chunk_begin(piece) : inplace->block_begin(piece));
  }
  std::uint64_t piece_size(std::uint64_t piece) const noexcept {
    return versioned ? versioned->chunk_size(piece) : inplace->block_size(piece);
  }
};

// What all chunks of one push have in common.
struct PushContext {
  shm::UpdateLabel label;
  float learning_rate = 0.0F;
  float scale = 1.0F;  // of the gradient: clip_scale
  bool staleness_scaling = false;
  Adds adds = Adds::kExact;
};

// The initial state of a variable beside its values.
struct FirstState {
  std::uint64_t updates = 0;              // number of updates that the values contain
  std::vector<std::vector<float>> slots;  // as listed by VariableState::slots(); empty: the initial state of its rule
};

struct PS_SHM_HIDDEN VariableState {
  VariableState(shm::JobSegments& job, const shm::Directory& directory, const std::vector<std::uint32_t>& positions,
                std::uint32_t rank, std::uint32_t threads);

  std::string name;
  std::uint64_t elements;  // number of floats that its values occupy
  DType dtype;
  std::uint64_t element_count;  // number of elements of its dtype
  Layout layout;
  update::Settings settings;
  bool is_sum = false;  // whether its update rule only sums
  std::vector<VariablePart> parts;
  std::uint64_t pieces = 0;  // number of chunks or blocks of all parts
  std::vector<std::uint64_t>
      pulled;  // per chunk or block: the last pulled version plus this worker's own updates since; or kNotPulled
  std::vector<std::uint64_t> observed;  // per chunk or block: staleness of the last push, or kNotPulled
  std::optional<RowAccess> rows;        // in-place, with an axis
  std::unique_ptr<float[], decltype(&std::free)> room{nullptr, &std::free};  // buffer for a gradient, created on demand
  std::uint64_t contributed = 0;  // sync: step + 1 of the last contribution, and its kind
  update::Change contribution = update::Change::kStep;

  static constexpr std::uint64_t kNotPulled = ~std::uint64_t{0};

  void forget_pulls() { std::fill(pulled.begin(), pulled.end(), kNotPulled); }
  bool is_clipped() const noexcept { return !is_sum; }
  void require_size(std::size_t size, const char* verb) const {
    if (size != span_elements_) refuse_size(size, verb);
  }
  void require_floats(const char* verb) const {
    if (span_elements_ == kNoFloats) refuse_size(0, verb);
  }
  void require_bytes(std::size_t bytes, const char* verb) const;

  // State that is kept beside the values: one float for each element, or for each row.
  struct Slot {
    std::string name;
    std::uint64_t floats;
  };
  std::vector<Slot> slots() const;

  // Stores initial values and slots. Only for the task that has claimed the initialisation.
  void set_values(std::span<const float> given, float learning_rate, const FirstState& first);

  // Copies the values (array 0) or slot array - 1 to `out`. `learning_rate`: the job's, at step 0. Returns the number
  // of repeated copies.
  std::uint64_t pull(std::span<float> out, std::uint64_t array, float learning_rate, Threads& threads);

  // Whether a single word shows for each piece that nothing of it has changed: for chunks, and for an element that lies
  // in its counter's word.
  bool has_versions() const noexcept { return layout == Layout::kVersioned || is_scalar; }
  // Whether every piece still has the version that this worker pulled last (state.R3). Requires: has_versions().
  bool is_as_pulled() noexcept;
  // Copies the pieces whose versions differ from `since`, and stores their versions there. Returns the number of pieces
  // copied. Requires: has_versions().
  std::uint64_t pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                             std::uint64_t& retries);

  // Copies the values of the job's last snapshot, which is open. Requires: versioned; the snapshot contains the
  // variable.
  void pull_image(std::span<float> out, std::uint64_t epoch);

  // Whether its parts are not ranges of the whole: arrays of all elements are reordered by parts first.
  bool is_hashed = false;
  bool is_scalar = false;  // in place, one element, without state

  // Applies the gradient to every chunk or block, starting at a different one than other workers. Records the staleness
  // of each in `observed`. Returns the number of failed swaps.
  std::uint64_t push(const GradientInput& gradient, const PushContext& context, Threads& threads);

  // The same for a change that bypasses the optimizer; atomic even if the job uses Hogwild! updates. `versions`, if
  // given, receives the version of each chunk or block after it. Requires: not Change::kStep.
  std::uint64_t change(update::Change how, std::span<const float> values, const PushContext& context, Threads& threads,
                       std::vector<std::uint64_t>* versions);

  // Counts a push of every block that a device has applied itself. Requires: in place, not a scalar.
  void count_push() noexcept;

  // The same as push() for an in-place variable of one element. Requires: it is one.
  void push_scalar(float gradient, const PushContext& context) noexcept;

  // Adds the gradient to the step's accumulators (reduce atomic), except to those that already sum a later step.
  void contribute(const GradientInput& gradient, const PushContext& context, Threads& threads);

  std::uint64_t first_pushed() const noexcept { return start_; }  // the piece at which this worker's pushes begin
  // Calls body(part, piece of the part) for all pieces in the order of this worker's pushes.
  void for_each_pushed(const std::function<void(const VariablePart&, std::uint64_t)>& body);

  // From now on the variable's pulls and pushes are recorded or replayed, as variable `number`. Throws Error if it is
  // in place.
  void use(record::Tape& tape, std::uint32_t number);
  bool is_taped() const noexcept { return tape_ != nullptr; }

  // Whether its updates only sum elements where they lie, so that a device can add to them itself. False for a part of
  // one element, which lies in its counter's word.
  bool adds_in_place() const noexcept {
    return layout == Layout::kInplace && update::traits_of(settings.rule).adds_in_place && settings.l2 == 0 &&
           settings.weight_decay == 0 &&
           std::none_of(parts.begin(), parts.end(), [](const VariablePart& part) { return part.inplace->is_scalar(); });
  }

 private:
  void set_inplace_slots(const VariablePart& part, std::uint64_t from, std::uint64_t count,
                         const std::vector<std::vector<float>>& slots, float* to) const;
  [[noreturn]] void refuse_size(std::size_t size, const char* verb) const;
  // The gradient of a hashed variable, reordered by parts. Valid until the next call.
  const GradientInput& by_parts(const GradientInput& gradient);
  std::uint64_t version(const VariablePart& part, std::uint64_t piece) const noexcept {
    return part.versioned ? part.versioned->version(piece) : part.inplace->pushes(piece);  // (slot.R1), (inplace.P3)
  }
  template <class ValueOf>
  std::uint64_t pull_from(std::span<float> out, std::uint64_t array, const ValueOf& value_of, Threads& threads);
  // Calls body(part, piece of the part, piece of the whole) for pieces [begin, end), counted from piece `start`.
  template <class Body>
  void for_pieces(std::uint64_t begin, std::uint64_t end, std::uint64_t start, Body&& body);
  std::uint64_t staleness(const VariablePart& part, std::uint64_t version, std::uint64_t index) noexcept;
  float rate_at(const VariablePart& part, std::uint64_t version, std::uint64_t index,
                const PushContext& context) noexcept;
  void note_push(const VariablePart& part, std::uint64_t version, std::uint64_t index) noexcept;
  // Calls body(part, piece, piece of the whole, its numbers, spares, retries) for every piece, and sums up the retries.
  template <class Body>
  std::uint64_t for_pushed(const GradientInput& given, Threads& threads, Body&& body);
  // The same as pull, push and change, one piece after the other, each of which is recorded or replayed.
  std::uint64_t pull_taped(std::span<float> out, std::uint64_t array);
  std::uint64_t push_taped(const GradientInput& given, update::Change how, const PushContext& context,
                           shm::FreeBuffers& free_buffers, std::vector<std::uint64_t>* versions);
  std::uint64_t push_inplace(VariablePart& part, std::uint64_t block, std::uint64_t index, const float* gradient,
                             const PushContext& context) noexcept;
  std::uint64_t push_piece(VariablePart& part, std::uint64_t piece, std::uint64_t index, const float* gradient,
                           const PushContext& context, shm::FreeBuffers& free_buffers, std::uint64_t& retries) noexcept;

  static constexpr std::uint64_t kNoFloats = ~std::uint64_t{0};
  std::uint64_t span_elements_ = kNoFloats;  // required size of a span of floats; with another dtype no size fits
  std::uint64_t grain_ = 1;                  // number of pieces that justify a thread
  std::uint64_t start_ = 0;                  // where this worker's pushes begin, far from those of the others
  update::Call call_;                        // versioned: resolved for the rate and scale of the last push
  std::vector<std::uint64_t> retries_;       // of the call in progress, per thread
  std::vector<std::uint64_t> copied_;        // pieces copied, likewise
  std::vector<float> by_parts_;              // buffer of hashed variables
  GradientInput in_room_{std::span<const float>()};
  record::Tape* tape_ = nullptr;
  std::uint32_t number_ = 0;  // in the recording
};

inline update::Change how_to_assign(Slots slots) noexcept {
  return slots == Slots::kReset ? update::Change::kReset : update::Change::kAssign;
}

inline VariableState& state_of(const Variable& variable) noexcept { return *variable.state_; }

}  // namespace ps_shm
