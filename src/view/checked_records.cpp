#include "view/checked_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "ps/errors.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/versioned_slot.hpp"

namespace ps {
using namespace shm;
namespace {

// A chunk that is whole is read at the first attempt, and at the second where its writers are faster than the copy; so
// many in a row only fail where no writer will ever repair the stamp.
constexpr int kPullAttempts = 10000;

// Whether `count` things of `unit` bytes from `offset` on end before `end`, without overflow.
bool fits(std::uint64_t offset, std::uint64_t count, std::uint64_t unit, std::uint64_t end) {
  return offset <= end && count <= (end - offset) / unit;
}

bool has_name(const VariableShm& variable) {
  const std::size_t length = strnlen(variable.name, sizeof variable.name);
  return length != 0 && length < sizeof variable.name &&
         std::all_of(variable.name, variable.name + length, [](char c) { return c > ' ' && c < 0x7f; });
}

bool has_shape(const VariableShm& variable) {
  if (variable.axes > kMaxAxes || variable.elements == 0) return false;
  std::uint64_t elements = 1;
  for (std::uint32_t axis = 0; axis < variable.axes; ++axis)
    if (__builtin_mul_overflow(elements, variable.extents[axis], &elements)) return false;
  if (elements != variable.whole_elements || variable.parts == 0 || variable.part >= variable.parts) return false;
  return variable.part_begin < elements && variable.elements <= elements - variable.part_begin &&
         (variable.parts != 1 || variable.elements == elements);
}

// Whether all that reading the variable touches lies within the shard's `end` bytes, but for the buffers that chunk
// words name. Its sizes are those of layout.hpp.
bool has_place(const VariableShm& variable, std::uint64_t end) {
  if (variable.piece_elements == 0 || variable.pieces != (variable.elements - 1) / variable.piece_elements + 1 ||
      variable.words_offset % kCacheLine != 0 ||
      !fits(variable.words_offset, variable.pieces, sizeof(PieceWordShm), end))
    return false;
  if (is_inplace(variable))
    return variable.data_offset % sizeof(float) == 0 &&
           fits(variable.data_offset, variable.elements, sizeof(float), end);
  if (variable.layout != static_cast<std::uint32_t>(Layout::kVersioned) || variable.buffer_class < kMinClass ||
      variable.buffer_class > kMaxClass)
    return false;
  const std::uint64_t buffer_bytes = std::uint64_t{1} << variable.buffer_class;
  const std::uint64_t floats = (buffer_bytes - sizeof(BufferHeaderShm)) / sizeof(float);
  return variable.slots < floats && variable.piece_elements <= floats / (1 + variable.slots) &&
         variable.pieces <= kBufferMask && variable.first_chunk <= kBufferMask - variable.pieces &&
         fits(variable.data_offset, variable.pieces, buffer_bytes, end);
}

}  // namespace

void fail_damaged(const std::string& segment, const std::string& what) {
  throw Error(fmt::format("/dev/shm/{} is damaged: {}; remove its job with inspect_shm rm --force", segment, what));
}

CheckedRecord copy_record(JobSegments& job, std::uint32_t number, std::uint32_t shards) {
  const VariableShm& shared = job.record(number);
  auto copy = std::make_unique<VariableShm>();
  std::memcpy(static_cast<void*>(copy.get()), &shared,
              offsetof(VariableShm, init));              // immutable since it was published
  copy->init.store_relaxed(shared.init.load_acquire());  // pairs with the initialiser's release: words and values
  const auto require = [&](bool good, const char* what) {
    if (!good) fail_damaged(control_name(job.job()), fmt::format("variable record {} has {}", number, what));
  };
  require(has_name(*copy), "no name");
  require(has_shape(*copy), "no possible shape");
  require(copy->rule >= 1 && copy->rule <= static_cast<std::uint32_t>(UpdateRule::kFtrl), "an unknown update rule");
  require(copy->dtype == static_cast<std::uint32_t>(DType::kFloat32), "an unknown dtype");
  require(copy->shard < shards, "a shard that does not exist");
  // D3: the shard was grown before the record was published, so its size of now covers the variable.
  require(has_place(*copy, job.shard(copy->shard).file_bytes()), "offsets or sizes outside of its shard");
  return copy;
}

void read_values(JobSegments& job, const VariableShm& variable, std::uint64_t array, std::span<float> values) {
  if (is_inplace(variable)) {
    const InplaceVariable source(job.shard_data(variable.shard), variable);
    for (std::uint64_t block = 0; block < source.blocks(); ++block)
      source.pull_block(block, values.data() + source.block_begin(block));
    return;
  }
  const Segment& shard = job.shard(variable.shard);
  const VersionedVariable source(shard.data(), variable);
  std::uint64_t shard_bytes = shard.file_bytes();
  for (std::uint64_t chunk = 0; chunk < source.chunks(); ++chunk) {
    float* out = values.data() + source.chunk_begin(chunk);
    PullResult result = PullResult::kTorn;
    for (int attempt = 0; attempt < kPullAttempts && result != PullResult::kWhole; ++attempt) {
      result = source.try_pull_chunk(chunk, out, shard_bytes, array);
      if (result != PullResult::kNoBuffer) continue;
      // The buffer may be a spare that came with a variable declared since the size was looked up.
      const std::uint64_t known_bytes = std::exchange(shard_bytes, shard.file_bytes());
      if (shard_bytes == known_bytes)
        fail_damaged(shard.name(), fmt::format("chunk {} of variable '{}' lies outside of it", chunk, variable.name));
    }
    if (result != PullResult::kWhole)
      throw Error(
          fmt::format("chunk {} of variable '{}' is torn: its stamp differed from its word {} times; /dev/shm/{} is "
                      "damaged, or stop its workers and try again",
                      chunk, variable.name, kPullAttempts, shard.name()));
  }
}

void add_buffers(JobSegments& job, const std::vector<const VariableShm*>& variables, BufferCount& count) {
  const VariableShm& first = *variables.front();
  const std::uint32_t index = first.buffer_class - kMinClass;
  std::map<std::uint64_t, std::uint32_t> names;  // buffer -> how often it is named
  for (const VariableShm* variable : variables)
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      names.emplace((variable->data_offset >> variable->buffer_class) + chunk, 0);
  for (std::uint32_t spare = 0; spare < job.lanes() * kSparesPerClass; ++spare)
    names.emplace((first.spares_offset >> first.buffer_class) + spare, 0);
  for (const VariableShm* variable : variables) {
    const auto* words = reinterpret_cast<const PieceWordShm*>(job.shard_data(variable->shard) + variable->words_offset);
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      ++names[buffer_of(words[chunk].word.load_acquire())];
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> doubts;  // each owns one of the two
  for (std::uint32_t lane = 0; lane < job.lanes(); ++lane)
    for (std::uint32_t which = 0; which < kSparesPerClass; ++which) {
      const SpareShm& spare = job.spare_table(first.shard, lane).spares[index][which];
      const std::uint64_t record = spare.record.load_acquire();
      if (is_in_flight(record))
        doubts.emplace_back(buffer_of(record), buffer_of(spare.note_word.load_relaxed()));  // relaxed: after the record
      else
        ++names[spare_buffer(record, first, lane, which)];
    }
  for (const auto& [spare, replaced] : doubts) ++names[names[spare] == 0 ? spare : replaced];
  count.in_doubt += doubts.size();
  count.buffers += names.size();
  for (const auto& [buffer, times] : names) {
    count.lost += times == 0;
    count.shared += times > 1;
  }
}

std::uint64_t sum_updates(JobSegments& job, const VariableShm& variable) {
  const auto* words = reinterpret_cast<const PieceWordShm*>(job.shard_data(variable.shard) + variable.words_offset);
  std::uint64_t sum = 0;
  for (std::uint64_t piece = 0; piece < variable.pieces; ++piece) {
    const std::uint64_t word = words[piece].word.load_acquire();
    sum += is_inplace(variable) ? word : version_of(word);
  }
  return sum;
}

}  // namespace ps
