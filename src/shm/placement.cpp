#include "shm/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "ps/errors.hpp"

namespace ps::shm {
namespace {

constexpr std::uint64_t kBlockBytes = 16384;  // in-place: about what one counter of pushes stands for

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

bool is_versioned(const VariableShm& record) { return record.layout == static_cast<std::uint32_t>(Layout::kVersioned); }

// Elements of one chunk where each has `arrays` floats, in a buffer of that class; slot arrays stay 64-aligned.
std::uint64_t chunk_elements(std::uint32_t buffer_class, std::uint64_t arrays) {
  const std::uint64_t payload = (std::uint64_t{1} << buffer_class) - sizeof(BufferHeaderShm);
  return payload / (sizeof(float) * arrays) / 16 * 16;
}

// log2 of a buffer's bytes for a variable whose elements have `arrays` floats each. Small ones are one chunk: with two or
// three chunks two writers keep meeting, and one chunk is handed over by turns (versioned_slot.hpp). Up to 256 KiB two
// writers meet least with chunks of 8 KiB. Above, what a chunk costs beside its bytes no longer shows at 32 KiB, and with
// larger ones the spares crowd out what else is in a core's cache (benches/tuning.py measures all of this).
std::uint32_t choose_class(std::uint64_t elements, std::uint64_t arrays) {
  for (std::uint32_t buffer_class = 10; buffer_class <= 14; ++buffer_class)
    if (elements <= chunk_elements(buffer_class, arrays)) return buffer_class;
  return elements * sizeof(float) * arrays <= 256 << 10 ? 13 : 15;
}

// The shard that the variable was given by hand, or nothing.
const PlaceShm* place_by_hand(const JobSegments& job, std::string_view name) {
  for (std::uint32_t i = 0; i < job.config().places; ++i)
    if (name == text_of(job.place(i).name)) return &job.place(i);
  return nullptr;
}

// How many parts a variable is cut into: at most one a row.
std::uint64_t count_parts(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape,
                          std::uint64_t elements) {
  const JobConfigShm& config = job.config();
  if (config.placement != static_cast<std::uint32_t>(Placement::kPartition) || shape.empty() ||
      place_by_hand(job, name) != nullptr)
    return 1;
  const std::uint64_t rows = shape[0];
  if (config.max_part_bytes == 0)
    return std::min<std::uint64_t>(rows, config.partitions != 0 ? config.partitions : config.shards);
  const std::uint64_t row_bytes = elements / rows * sizeof(float);
  const std::uint64_t rows_per_part = std::max<std::uint64_t>(1, config.max_part_bytes / row_bytes);
  return (rows - 1) / rows_per_part + 1;
}

std::uint32_t choose_shard(const VariableShm& record, const JobSegments& job,
                           std::span<const VariableShm* const> before) {
  if (is_accumulator(record)) return before[record.base - 1]->shard;
  const JobConfigShm& config = job.config();
  if (const PlaceShm* place = place_by_hand(job, text_of(record.name))) return place->shard % config.shards;
  std::uint32_t placed = 0;
  std::array<std::uint64_t, kMaxShards> load{};
  for (const VariableShm* other : before) {
    if (is_accumulator(*other)) continue;
    ++placed;
    load[other->shard] += other->elements * (1 + other->slots);
  }
  if (config.placement != static_cast<std::uint32_t>(Placement::kGreedy)) return placed % config.shards;
  return static_cast<std::uint32_t>(std::min_element(load.begin(), load.begin() + config.shards) - load.begin());
}

}  // namespace

// As even as whole rows allow, the longer parts first, as TensorFlow's partitioners do.
std::vector<PartPlan> plan_parts(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape) {
  const std::uint64_t elements =
      std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<std::uint64_t>());
  const std::uint64_t parts =
      std::min<std::uint64_t>(count_parts(job, name, shape, elements), std::uint64_t{kMaxVariables} + 1);
  if (parts == 1) return {{0, elements}};
  const std::uint64_t rows = shape[0], row = elements / rows;
  std::vector<PartPlan> plan;
  for (std::uint64_t part = 0, begin = 0; part < parts; ++part) {
    const std::uint64_t size = (rows / parts + (part < rows % parts ? 1 : 0)) * row;
    plan.push_back({begin, size});
    begin += size;
  }
  return plan;
}

namespace {

// A block is a power of two of rows, so that a row's block is found by a shift; or a piece of a row that is longer, where
// no state of the row lies behind it.
void choose_blocks(VariableShm& record) noexcept {
  const std::uint64_t record_floats = 1 + record.slots;
  const bool has_row_state = (record.flags & kRowState) != 0;
  record.row_floats = record.row_elements * record_floats;
  // The next row's elements stay 16-aligned, as theirs are.
  if (has_row_state) record.row_floats = round_up(record.row_floats + 1, 4);
  const std::uint64_t row_bytes = record.row_floats * sizeof(float);
  record.piece_elements =
      row_bytes <= kBlockBytes || has_row_state
          ? record.row_elements * std::bit_floor(std::max<std::uint64_t>(1, kBlockBytes / row_bytes))
          : kBlockBytes / sizeof(float) / record_floats;
}

}  // namespace

void choose_pieces(VariableShm& record, const VariableShm* base, std::uint64_t chunk_bytes) noexcept {
  record.buffer_class = 0;
  record.row_elements = record.axes == 0 ? 1 : record.whole_elements / record.extents[0];
  record.row_floats = 0;
  if (!is_versioned(record)) choose_blocks(record);
  if (is_versioned(record) && base == nullptr) {
    record.buffer_class = chunk_bytes != 0 ? static_cast<std::uint32_t>(std::countr_zero(chunk_bytes))
                                           : choose_class(record.elements, 1 + record.slots);
    record.piece_elements = chunk_elements(record.buffer_class, 1 + record.slots);
  } else if (is_versioned(record)) {
    record.buffer_class = kMinClass;
    while (chunk_elements(record.buffer_class, 1) < base->piece_elements) ++record.buffer_class;
    record.piece_elements = base->piece_elements;
  }
  record.pieces = (record.elements - 1) / record.piece_elements + 1;
}

void choose_place(VariableShm& record, const JobSegments& job, std::span<const VariableShm* const> before) {
  record.shard = choose_shard(record, job, before);
  std::uint64_t end = job.shard_data_offset(), chunks = 0, gradients = kGradientsOffset, spares = 0;
  for (const VariableShm* other : before) {  // D2
    gradients = std::max(gradients, other->gradient_end);
    if (other->shard != record.shard) continue;
    end = std::max(end, other->shard_end);
    if (!is_versioned(*other)) continue;
    chunks = std::max(chunks, other->first_chunk + other->pieces);
    if (other->buffer_class == record.buffer_class) spares = other->spares_offset;
  }
  record.gradient_offset = gradients;
  record.gradient_end =
      is_accumulator(record) ? gradients : round_up(gradients + record.elements * sizeof(float), kCacheLine);
  record.words_offset = round_up(end, kWriterLine);
  end = record.words_offset + record.pieces * sizeof(PieceWordShm);
  record.first_chunk = record.spares_offset = 0;
  record.row_counts_offset = end;
  if (!is_versioned(record)) {
    const bool is_scalar = record.elements == 1 && record.row_floats == 1;  // in its counter's word (inplace_slot.hpp)
    if (has_row_counts(record)) end += job.ranks() * row_counts_stride(record) * sizeof(std::uint64_t);
    record.data_offset = is_scalar ? record.words_offset : round_up(end, kPage);
    record.shard_end =
        is_scalar ? end
                  : record.data_offset + record.elements / record.row_elements * record.row_floats * sizeof(float);
    return;
  }
  const std::uint64_t buffer_bytes = std::uint64_t{1} << record.buffer_class;
  record.first_chunk = chunks;
  record.data_offset = round_up(end, buffer_bytes);  // a buffer's number is its offset divided by its size
  end = record.data_offset + record.pieces * buffer_bytes;
  record.spares_offset = spares != 0 ? spares : end;
  if (spares == 0) end += std::uint64_t{job.lanes()} * kSparesPerClass * buffer_bytes;
  record.shard_end = end;
  if (end / buffer_bytes >= (1U << 24) || chunks + record.pieces >= (1U << 24) - 1)
    throw Error(
        fmt::format("variable '{}' does not fit its shard: 2^24 buffers of {} bytes are the most; use more "
                    "--ps-tasks",
                    text_of(record.name), buffer_bytes));
}

}  // namespace ps::shm
