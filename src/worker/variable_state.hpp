// A worker's state of one variable: where its parts lie, and which version of each chunk (block) was pulled last. How
// values are stored, pulled and pushed is in a class for each layout; RecordedState adds the recording.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "ps_shm/variable.hpp"
#include "record/recording.hpp"
#include "shm/segment/directory.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/guest.hpp"
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
  std::uint64_t begin;            // index of its first float in the whole variable
  std::uint64_t gradients_begin;  // the same in a gradient, or in an optimizer slot
  std::uint64_t first_piece = 0;  // index of its first chunk (block) among those of all parts

  std::uint64_t piece_begin(std::uint64_t piece) const noexcept {
    return begin + (versioned ? versioned->chunk_begin(piece) : inplace->block_begin(piece));
  }
  std::uint64_t piece_size(std::uint64_t piece) const noexcept {
    return versioned ? versioned->chunk_size(piece) : inplace->block_size(piece);
  }
  // The same for its gradient, which has a float for each element of the variable's dtype.
  std::uint64_t gradient_begin(std::uint64_t piece) const noexcept {
    return gradients_begin + (versioned ? versioned->gradient_begin(piece) : inplace->block_begin(piece));
  }
  std::uint64_t gradient_size(std::uint64_t piece) const noexcept {
    return versioned ? versioned->gradient_size(piece) : inplace->block_size(piece);
  }
  // The same for array `array` of VersionedVariable::pull_chunk.
  std::uint64_t array_begin(std::uint64_t piece, std::uint64_t array) const noexcept {
    return array == 0 ? piece_begin(piece) : gradient_begin(piece);
  }
};

// A chunk of a variable, or a block of one in place. Passed by value, in two registers.
struct Piece {
  VariablePart& part;
  std::uint64_t chunk;  // its number in the part

  std::uint64_t index() const noexcept { return part.first_piece + chunk; }  // its number in the whole variable
  // Its elements in a gradient, or in an optimizer slot, of the whole variable.
  std::uint64_t from() const noexcept { return part.gradient_begin(chunk); }
  std::uint64_t count() const noexcept { return part.gradient_size(chunk); }
  // The same of its values, in floats.
  std::uint64_t values_from() const noexcept { return part.piece_begin(chunk); }
  std::uint64_t values_count() const noexcept { return part.piece_size(chunk); }
  // Of a chunk: floats from its values to its first slot, and from a slot to the next.
  std::uint64_t stride() const noexcept { return part.versioned->stride(); }
};

// The same label for an update of that kind.
constexpr shm::UpdateLabel labelled(shm::UpdateLabel label, update::Change how) noexcept {
  label.is_step = how == update::Change::kStep;
  label.resets = how == update::Change::kReset;
  return label;
}

// What all chunks of one push have in common.
struct PushContext {
  shm::UpdateLabel label;
  float lr = 0.0F;
  float scale = 1.0F;  // of the gradient: clip_scale
  bool lr_staleness = false;
  Adds adds = Adds::kExact;
};

// A guest's change of a variable.
struct ChangeOnce {
  update::Change how;
  std::span<const float> values;
  std::span<const float> in_doubt;  // for elements of which it is not known whether they were changed; empty: nothing
};

// The initial state of a variable beside its values.
struct FirstState {
  std::uint64_t updates = 0;              // number of updates that the values contain
  std::vector<std::vector<float>> slots;  // as listed by VariableState::slots(); empty: the initial state of its rule
};

struct PS_SHM_HIDDEN VariableState {
  // The state of the variable with these records, of the class for its layout. `recording`: what records or replays the
  // worker, or nullptr; `number`: the variable's number there. Throws Error if an in-place variable is to be recorded.
  static std::unique_ptr<VariableState> make(shm::JobSegments& job, const shm::Directory& directory,
                                             const std::vector<std::uint32_t>& positions, std::uint32_t rank,
                                             std::uint32_t threads, record::Recording* recording, std::uint32_t number);

  virtual ~VariableState() = default;
  VariableState(const VariableState&) = delete;
  VariableState& operator=(const VariableState&) = delete;

  const shm::JobSegments& job;
  std::string name;
  std::uint64_t elements;  // number of floats that its values occupy
  DType dtype;
  DType array_dtype;            // of the arrays in which its values are pulled and set (shm::array_dtype)
  std::uint64_t element_count;  // number of elements of its dtype
  std::vector<std::uint64_t> shape;
  Layout layout;
  update::Settings settings;
  bool is_sum = false;     // whether its update rule only sums
  bool is_hashed = false;  // whether its parts are not ranges of the whole: arrays are reordered by parts first
  bool is_scalar = false;  // in place, one element, without state
  std::vector<VariablePart> parts;
  std::uint64_t pieces = 0;  // number of chunks or blocks of all parts
  std::vector<std::uint64_t>
      pulled;  // per chunk or block: the last pulled version plus this worker's own updates since; or kNotPulled
  std::vector<std::uint64_t> observed;  // per chunk or block: staleness of the last push, or kNotPulled
  std::optional<RowAccess> rows;        // in-place, with an axis
  std::unique_ptr<float[], decltype(&std::free)> gradient_buffer{nullptr, &std::free};  // created on demand
  std::uint64_t contributed = 0;  // sync: step + 1 of the last contribution, and its kind
  update::Change contribution = update::Change::kStep;

  static constexpr std::uint64_t kNotPulled = ~std::uint64_t{0};

  // Takes over the runtime settings, and the factors of its rate and decay, with which its updates are computed.
  void follow(const LiveSettings& live) noexcept {
    settings.momentum = live.momentum;
    settings.beta1 = live.beta1;
    if (const std::uint64_t factors = parts.front().record.factors.load_relaxed(); factors != factors_) [[unlikely]]
      follow_factors(factors);
  }
  void forget_pulls() { std::fill(pulled.begin(), pulled.end(), kNotPulled); }
  bool is_clipped() const noexcept { return !is_sum; }
  bool has_size(std::size_t size) const noexcept { return size == span_elements_; }
  void require_size(std::size_t size, const char* verb) const {
    if (!has_size(size)) refuse_size(size, verb);
  }
  void require_floats(const char* verb) const {
    if (span_elements_ == kNoFloats) refuse_size(0, verb);
  }
  // The same for a gradient, for the average, or for values that are converted to float32.
  void require_gradient(std::size_t size, const char* verb) const {
    if (size != gradient_elements_) refuse_size(size, verb);
  }
  void require_gradients(const char* verb) const {
    if (gradient_elements_ == kNoFloats) refuse_size(0, verb);
  }
  void require_bytes(std::size_t bytes, const char* verb) const;
  void require_delta(std::size_t bytes) const;    // of a dtype that has a sum
  void require_versions(const char* verb) const;  // has_versions()

  // State that is kept beside the values: one float for each element, or for each row.
  struct Slot {
    std::string name;
    std::uint64_t floats;
  };
  std::vector<Slot> slots() const;

  // Stores initial values and slots. Only for the task that has claimed the initialisation.
  virtual void set_values(std::span<const float> values, float lr, const FirstState& first) = 0;

  // Copies the values (array 0) or slot array - 1 to `out`. `learning_rate`: the job's, at step 0. Returns the number
  // of repeated copies.
  virtual std::uint64_t pull(std::span<float> out, std::uint64_t array, float lr, Threads& threads) = 0;

  // Whether a single word shows for each piece that nothing of it has changed: for chunks, and for an element that lies
  // in its counter's word.
  bool has_versions() const noexcept { return layout != Layout::kInplace || is_scalar; }
  // Whether every piece still has the version that this worker pulled last (state.R3). Requires: has_versions().
  virtual bool is_as_pulled() noexcept = 0;
  // Copies the pieces whose versions differ from `since`, and stores their versions there. Returns the number of pieces
  // copied. Requires: has_versions().
  virtual std::uint64_t pull_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                                     std::uint64_t& retries) = 0;

  // Applies the gradient to every chunk or block, starting at a different one than other workers. Records the staleness
  // of each in `observed`. Returns the number of failed swaps and repeated
  // copies.
  virtual std::uint64_t push(const GradientInput& gradient, const PushContext& context, Threads& threads) = 0;

  // The same for a change that bypasses the optimizer; atomic even if the job uses Hogwild! updates. `versions`, if
  // given, receives the version of each chunk or block after it. Requires: not Change::kStep.
  virtual std::uint64_t change(update::Change how, std::span<const float> values, const PushContext& context,
                               Threads& threads, std::vector<std::uint64_t>* versions) = 0;

  // The same for a guest (guest.G3, guest.G4). Returns the number of elements in doubt.
  virtual std::uint64_t change_once(const ChangeOnce& change, const PushContext& context, Threads& threads,
                                    std::uint64_t ticket, shm::GuestBlocks& blocks) = 0;

  std::uint64_t first_pushed() const noexcept { return start_; }  // the piece at which this worker's pushes begin
  // Calls body(part, piece of the part) for all pieces in the order of this worker's pushes.
  void for_each_pushed(const std::function<void(const VariablePart&, std::uint64_t)>& body) {
    for_pieces(0, pieces, start_, [&](Piece piece) { body(piece.part, piece.chunk); });
  }

  // Whether its updates only sum elements where they lie, so that a device can add to them itself. False for a part of
  // one element, which lies in its counter's word.
  bool adds_in_place() const noexcept {
    return layout == Layout::kInplace && update::traits_of(settings.rule).adds_in_place && settings.l2 == 0 &&
           settings.weight_decay == 0 &&
           std::none_of(parts.begin(), parts.end(), [](const VariablePart& part) { return part.inplace->is_scalar(); });
  }

 protected:
  VariableState(shm::JobSegments& of, const shm::Directory& directory, const std::vector<std::uint32_t>& positions,
                std::uint32_t rank, std::uint32_t threads);

  // Calls body(piece) for pieces [begin, end), counted from piece `start`.
  template <class Body>
  void for_pieces(std::uint64_t begin, std::uint64_t end, std::uint64_t start, Body&& body);
  // Calls body(piece, retries) for all pieces, which the threads share, and sums up the retries.
  template <class Body>
  std::uint64_t for_pulled(Threads& threads, Body&& body);
  // The same in the order of this worker's pushes: body(piece, its numbers, thread, retries). The numbers are a
  // gradient, or with kValues bytes of the dtype.
  enum class Numbers { kGradient, kValues };
  template <Numbers kNumbers = Numbers::kGradient, class Body>
  std::uint64_t for_pushed(const GradientInput& gradient, Threads& threads, Body&& body);
  // pull_changed(): version_of(piece) returns the current version, copy(piece, to, retries) the copied one.
  template <class VersionOf, class Copy>
  std::uint64_t copy_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                             std::uint64_t& retries, const VersionOf& version_of, const Copy& copy);

  // The number of updates that the piece had had when it was pushed, minus that number when it was pulled. `mask`: of
  // the layout's version numbers, which wrap around (slot.V1).
  std::uint64_t staleness(std::uint64_t version, std::uint64_t index, std::uint64_t mask) const noexcept {
    return (version - pulled[index]) & mask;
  }
  float rate_at(std::uint64_t version, std::uint64_t index, std::uint64_t mask,
                const PushContext& context) const noexcept {
    if (!context.lr_staleness || pulled[index] == kNotPulled) return context.lr;
    return context.lr / static_cast<float>(1 + staleness(version, index, mask));
  }
  // Always inlined: this saves a tenth of the instructions of a scalar push, whatever it is compiled with.
  [[gnu::always_inline]] inline void note_push(std::uint64_t version, std::uint64_t index,
                                               std::uint64_t mask) noexcept {
    if (pulled[index] == kNotPulled) return;
    observed[index] = staleness(version, index, mask);
    ++pulled[index];  // a worker's own update is not staleness
  }

  std::uint64_t start_ = 0;  // where this worker's pushes begin, far from those of the others

 private:
  void follow_factors(std::uint64_t factors) noexcept;
  [[noreturn]] void refuse_size(std::size_t size, const char* verb) const;

  static constexpr std::uint64_t kNoFloats = ~std::uint64_t{0};
  std::uint64_t span_elements_ = kNoFloats;      // required size of a span of floats; with another dtype no size fits
  std::uint64_t gradient_elements_ = kNoFloats;  // the same for a gradient, of a dtype that takes gradients
  std::vector<std::uint64_t> retries_;           // of the call in progress, per thread
  std::vector<std::uint64_t> copied_;            // pieces copied, likewise
  std::uint64_t grain_ = 1;                      // number of pieces that justify a thread
  std::uint64_t factors_ = 0;                    // VariableShm::factors, as `settings` have them
};

inline update::Change how_to_assign(Slots slots) noexcept {
  return slots == Slots::kReset ? update::Change::kReset : update::Change::kAssign;
}

inline VariableState& state_of(const Variable& variable) noexcept { return *variable.state_; }

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
    body(Piece{*part, index - part->first_piece});
    if (++index == pieces) {
      index = 0;
      part = parts.begin();
    } else if (index == part->first_piece + part->record.pieces) {
      ++part;
    }
  }
}

template <class Body>
std::uint64_t VariableState::for_pulled(Threads& threads, Body&& body) {
  if (pieces == 1) {
    std::uint64_t retries = 0;
    body(Piece{parts.front(), 0}, retries);
    return retries;
  }
  std::fill(retries_.begin(), retries_.end(), 0);
  threads.split(pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, 0, [&](Piece piece) { body(piece, retries_[thread]); });
  });
  return std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
}

template <VariableState::Numbers kNumbers, class Body>
[[gnu::always_inline]] inline std::uint64_t VariableState::for_pushed(const GradientInput& gradient, Threads& threads,
                                                                      Body&& body) {
  const auto push_one = [&](Piece piece, std::uint32_t thread, std::uint64_t& retries) {
    const bool has_values = kNumbers == Numbers::kValues;
    const std::uint64_t begin = has_values ? piece.values_from() : piece.from();
    const std::uint64_t size = has_values ? piece.values_count() : piece.count();
    body(piece, gradient.piece(piece.index(), begin, size, thread), thread, retries);
  };
  if (pieces == 1) {
    std::uint64_t retries = 0;
    push_one(Piece{parts.front(), 0}, 0, retries);
    return retries;
  }
  std::fill(retries_.begin(), retries_.end(), 0);
  gradient.split(threads, pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, start_, [&](Piece piece) { push_one(piece, thread, retries_[thread]); });
  });
  return std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
}

template <class VersionOf, class Copy>
std::uint64_t VariableState::copy_changed(std::span<float> out, std::vector<std::uint64_t>& since, Threads& threads,
                                          std::uint64_t& retries, const VersionOf& version_of, const Copy& copy) {
  if (since.size() != pieces) since.assign(pieces, kNotPulled);
  std::fill(retries_.begin(), retries_.end(), 0);
  std::fill(copied_.begin(), copied_.end(), 0);
  threads.split(pieces, grain_, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t thread) {
    for_pieces(begin, end, 0, [&](Piece piece) {
      std::uint64_t& known = since[piece.index()];
      if (version_of(piece) != known) {
        known = copy(piece, out.data() + piece.values_from(), retries_[thread]);
        ++copied_[thread];
      }
      pulled[piece.index()] = known;
    });
  });
  retries = std::accumulate(retries_.begin(), retries_.end(), std::uint64_t{0});
  return std::accumulate(copied_.begin(), copied_.end(), std::uint64_t{0});
}

}  // namespace ps_shm
