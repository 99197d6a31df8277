#include "shm/segment/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <string>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kBlockBytes = 16384;  // in-place: roughly the size of a block, which has one counter of pushes

// The elements of one chunk, if there are `arrays` floats for each element, in a buffer of that class. Arrays stay
// 64-byte aligned.
std::uint64_t chunk_elements(std::uint32_t buffer_class, std::uint64_t arrays) {
  const std::uint64_t payload = (std::uint64_t{1} << buffer_class) - sizeof(BufferHeaderShm);
  return payload / (sizeof(float) * arrays) / 16 * 16;
}

// log2 of a buffer's bytes for a variable whose elements have `arrays` floats each. Small variables are one chunk:
// with two or three chunks, two writers collide all the time, while they take turns on a single chunk
// (versioned_slot.hpp). Up to 256 KiB, two writers collide least often with chunks of 8 KiB. Above that, the fixed
// cost of a chunk no longer shows at 32 KiB, and with larger chunks the free buffers displace other data from a core's
// cache. Large variables are read from memory, by a processor that reads ahead within each array of a chunk: with
// optimizer slots, these are long enough in chunks of 64 and 128 KiB. benches/tuning.py measures all of this. Where pushes
// change chunks in place, no free buffer displaces anything, and the longest arrays are best.
std::uint32_t class_by_size(std::uint64_t elements, std::uint64_t arrays, bool is_in_place) {
  for (std::uint32_t buffer_class = 10; buffer_class <= 14; ++buffer_class)
    if (elements <= chunk_elements(buffer_class, arrays)) return buffer_class;
  const std::uint64_t bytes = elements * sizeof(float) * arrays;
  if (bytes <= 256 << 10) return 13;
  if (bytes > 4 << 20 && is_in_place) return kMaxClass;
  return bytes <= 4 << 20 || arrays == 1 ? 15 : arrays == 2 ? 16 : 17;
}

// The floats of a chunk for each float of its values: that one, and the optimizer slots.
std::uint64_t arrays_of_chunk(const VariableShm& record) { return 1 + record.slots * gradients_per_float(record); }

bool is_size(std::uint64_t chunk_bytes) { return chunk_bytes != 0 && chunk_bytes != kChunkBytesForGpu; }

std::uint32_t choose_class(const VariableShm& record, std::uint64_t chunk_bytes) {
  if (is_size(chunk_bytes)) return static_cast<std::uint32_t>(std::countr_zero(chunk_bytes));
  const std::uint64_t arrays = arrays_of_chunk(record);
  const bool is_in_place = record.layout == static_cast<std::uint32_t>(Layout::kSingleWriter);
  const std::uint32_t by_size = class_by_size(record.elements, arrays, is_in_place);
  // A link to a GPU pulls float32 only.
  if (chunk_bytes == 0 || array_dtype(record) != DType::kFloat32 || record.elements * sizeof(float) < kLargeForGpu)
    return by_size;
  for (std::uint32_t buffer_class = by_size; buffer_class <= kMaxClass; ++buffer_class)
    if (chunk_elements(buffer_class, arrays) * sizeof(float) >= kGpuChunkBytes) return buffer_class;
  return by_size;  // with more than six slots, which no rule has: larger chunks would not help
}

// The shard that the settings assign to the variable, if any.
std::optional<std::uint32_t> place_by_hand(const JobSegments& job, std::string_view name) {
  const auto found = job.config().place.find(std::string(name));
  return found == job.config().place.end() ? std::nullopt : std::optional(found->second);
}

// The number of parts that a variable is partitioned into: at most one for each row.
std::uint64_t count_parts(const JobSegments& job, std::string_view name, std::uint64_t rows, std::uint64_t row_bytes) {
  const JobConfig& config = job.config();
  if (config.placement != Placement::kPartition || rows == 1 || place_by_hand(job, name)) return 1;
  if (config.max_part_bytes == 0)
    return std::min<std::uint64_t>(rows, config.partitions != 0 ? config.partitions : config.ps_tasks);
  const std::uint64_t rows_per_part = std::max<std::uint64_t>(1, config.max_part_bytes / row_bytes);
  return (rows - 1) / rows_per_part + 1;
}

std::uint32_t choose_shard(const VariableShm& record, const VariableShm* base, const JobSegments& job,
                           const Occupancy& before) {
  if (base != nullptr) return base->shard;
  const JobConfig& config = job.config();
  if (const auto shard = place_by_hand(job, text_of(record.name))) return *shard % config.ps_tasks;
  return config.placement == Placement::kGreedy ? before.least_loaded() : before.variables() % config.ps_tasks;
}

}  // namespace

PartsPlan::PartsPlan(const JobSegments& job, std::string_view name, std::span<const std::uint64_t> shape, DType dtype,
                     Layout layout) {
  const std::uint64_t bytes =
      std::accumulate(shape.begin(), shape.end(), std::uint64_t{bytes_of(dtype)}, std::multiplies<std::uint64_t>());
  rows_ = shape.empty() ? 1 : shape[0];
  std::uint64_t row_bytes = bytes / rows_;
  const bool is_inplace = layout == Layout::kInplace;
  if (!is_inplace && row_bytes % sizeof(float) != 0) rows_ = 1, row_bytes = round_up(bytes, sizeof(float));
  row_elements_ = row_bytes / (is_inplace ? bytes_of(dtype) : sizeof(float));
  const std::uint64_t parts = count_parts(job, name, rows_, row_bytes);
  count_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(parts, kMaxVariables + 1));
}

PartPlan PartsPlan::part(std::uint32_t number) const noexcept {
  const std::uint64_t rows = rows_ / count_, longer = rows_ % count_;
  return {(number * rows + std::min<std::uint64_t>(number, longer)) * row_elements_,
          (rows + (number < longer ? 1 : 0)) * row_elements_};
}

Occupancy::Occupancy(const JobSegments& job) : shards_(job.config().ps_tasks, {.end = job.shard_data_offset()}) {}

bool Occupancy::add(const VariableShm& record) noexcept {
  const std::uint32_t index = record.buffer_class - kMinClass;
  if (record.shard >= shards_.size() || (is_versioned(record) && index >= kClasses)) return false;
  Shard& shard = shards_[record.shard];
  shard.end = std::max(shard.end, record.shard_end);
  gradients_end_ = std::max(gradients_end_, record.gradient_end);
  if (is_variable(record)) {
    ++variables_;
    shard.load += record.elements * arrays_of_chunk(record) * bytes_of_element(record);
  }
  if (!is_versioned(record)) return true;
  shard.chunks = std::max(shard.chunks, record.first_chunk + record.pieces);
  if (shard.free_buffers[index] == 0) shard.free_buffers[index] = record.free_buffers_offset;
  return true;
}

std::uint32_t Occupancy::least_loaded() const noexcept {
  const auto found =
      std::min_element(shards_.begin(), shards_.end(), [](const Shard& a, const Shard& b) { return a.load < b.load; });
  return static_cast<std::uint32_t>(found - shards_.begin());
}

namespace {

// A block is a power of two of rows, so that a row's block is found by a shift. A row that is longer than a block, and
// has no row state after its elements, is divided into several blocks.
void choose_blocks(VariableShm& record) noexcept {
  const std::uint64_t record_bytes = (1 + record.slots) * bytes_of_element(record);
  const bool has_row_state = (record.flags & kRowState) != 0;
  record.row_bytes = record.row_elements * record_bytes;
  if (has_row_state) record.row_bytes = round_up(record.row_bytes, sizeof(float)) + sizeof(float);
  // Keeps the elements of the next row as aligned as those of the first row: for exchanges of 16 bytes, or for a load of
  // four elements of bfloat16.
  if (bytes_of_element(record) < sizeof(float))
    record.row_bytes = round_up(record.row_bytes, std::min<std::uint64_t>(8, std::bit_ceil(record.row_bytes)));
  else if (has_row_state)
    record.row_bytes = round_up(record.row_bytes, 16);
  record.piece_elements =
      record.row_bytes <= kBlockBytes || has_row_state
          ? record.row_elements * std::bit_floor(std::max<std::uint64_t>(1, kBlockBytes / record.row_bytes))
          : kBlockBytes / record_bytes;
}

}  // namespace

void choose_pieces(VariableShm& record, const VariableShm* base, std::uint64_t chunk_bytes) noexcept {
  record.buffer_class = 0;
  record.row_elements = record.axes == 0 ? 1 : std::max<std::uint64_t>(1, record.whole_elements / record.extents[0]);
  record.row_bytes = 0;
  if (!is_versioned(record)) choose_blocks(record);
  if (is_versioned(record) && base == nullptr) {
    record.buffer_class = choose_class(record, chunk_bytes);
    record.piece_elements = chunk_elements(record.buffer_class, arrays_of_chunk(record));
  } else if (is_reserve(record)) {
    record.buffer_class = base->buffer_class;
    record.piece_elements = base->piece_elements;
  } else if (is_versioned(record)) {
    record.buffer_class = kMinClass;
    while (chunk_elements(record.buffer_class, gradients_per_float(record)) < base->piece_elements)
      ++record.buffer_class;
    record.piece_elements = base->piece_elements;
  }
  record.pieces = (record.elements - 1) / record.piece_elements + 1;
}

namespace {

constexpr std::uint64_t kBufferNumbers = std::uint64_t{1} << 24, kChunkNumbers = kBufferNumbers - 1;  // slot.V1

// Places the record's buffers, and the free buffers of its class if it is the first of the class, behind `begin`.
// False: the class has too few numbers for them.
bool try_place_buffers(VariableShm& record, std::uint64_t begin, const JobSegments& job,
                       const Occupancy::Shard& shard) noexcept {
  const std::uint64_t buffer_bytes = std::uint64_t{1} << record.buffer_class;
  record.data_offset = round_up(begin, buffer_bytes);  // a buffer's number is its offset divided by its size
  std::uint64_t end = record.data_offset + record.pieces * buffer_bytes;
  record.free_buffers_offset = shard.free_buffers[record.buffer_class - kMinClass];
  if (record.free_buffers_offset == 0) {
    record.free_buffers_offset = end;
    end += std::uint64_t{job.lanes()} * kFreeBuffersPerClass * buffer_bytes;
  }
  record.shard_end = end;
  return end / buffer_bytes < kBufferNumbers;
}

}  // namespace

void choose_place(VariableShm& record, const VariableShm* base, const JobSegments& job, const Occupancy& before) {
  record.shard = choose_shard(record, base, job, before);
  const Occupancy::Shard& shard = before.shard(record.shard);
  const std::uint64_t gradients = before.gradients_end(), chunks = shard.chunks;  // directory.D2
  record.gradient_offset = gradients;
  record.gradient_end =
      is_variable(record)
          ? round_up(gradients + record.elements * gradients_per_float(record) * sizeof(float), kCacheLine)
          : gradients;
  record.words_offset = round_up(shard.end, kWriterLine);
  std::uint64_t end = record.words_offset + (is_reserve(record) ? 0 : record.pieces * sizeof(PieceWordShm));
  record.first_chunk = record.free_buffers_offset = 0;
  record.row_counts_offset = end;
  if (!is_versioned(record)) {
    // In its counter's word (inplace_slot.hpp).
    const bool is_scalar = record.elements == 1 && record.row_bytes == sizeof(float) && record.slots == 0;
    if (has_row_counts(record)) end += job.ranks() * row_counts_stride(record) * sizeof(std::uint64_t);
    record.data_offset = is_scalar ? record.words_offset : round_up(end, kPage);
    record.shard_end = is_scalar ? end : record.data_offset + record.elements / record.row_elements * record.row_bytes;
    return;
  }
  if (is_reserve(record)) {
    record.first_chunk = base->first_chunk;
    if (!try_place_buffers(record, end, job, shard))
      throw Error(
          fmt::format(
              "variable '{}' cannot have a reserve for snapshots: it would end at {:.1f} GiB of its shard, but buffers "
              "of {} bytes can be numbered only in the first {:.1f} GiB; use larger `chunk-bytes` or more `ps-tasks`",
              text_of(record.name), double(record.shard_end) / (1 << 30), 1U << record.buffer_class,
              double(kBufferNumbers << record.buffer_class) / (1 << 30)),
          ErrorCode::kNoSpace);
    return;
  }
  record.first_chunk = chunks;
  if (chunks + record.pieces >= kChunkNumbers)
    throw Error(
        fmt::format(
            "variable '{}' does not fit into its shard, which would have {} chunks; the maximum is 2^24; use larger "
            "`chunk-bytes` or more `ps-tasks`",
            text_of(record.name), chunks + record.pieces),
        ErrorCode::kNoSpace);
  // Far into a shard there are no numbers left for small buffers. Larger buffers hold the same chunks.
  while (!try_place_buffers(record, end, job, shard)) {
    if (is_size(job.config().chunk_bytes) || record.buffer_class == kMaxClass)
      throw Error(
          fmt::format(
              "variable '{}' does not fit into its shard: it would end at {:.1f} GiB, but buffers of {} bytes can be "
              "numbered only in the first {:.1f} GiB; declare it before larger variables, or use larger "
              "`chunk-bytes` or more `ps-tasks`",
              text_of(record.name), double(record.shard_end) / (1 << 30), 1U << record.buffer_class,
              double(kBufferNumbers << record.buffer_class) / (1 << 30)),
          ErrorCode::kNoSpace);
    ++record.buffer_class;
  }
}

}  // namespace ps_shm::shm
