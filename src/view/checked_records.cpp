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
#include "shm/live_settings.hpp"
#include "shm/versioned_slot.hpp"
#include "update/elements.hpp"

namespace ps {
using namespace shm;
namespace {

// A chunk that is whole is read at the first attempt, and at the second where its writers are faster than the copy; so
// many in a row only fail where no writer will ever repair the stamp.
constexpr int kPullAttempts = 10000;

}  // namespace

void read_values(JobSegments& job, const VariableShm& variable, std::uint64_t array, std::span<float> values) {
  if (is_inplace(variable)) {
    const InplaceVariable source(job.shard_data(variable.shard), variable);
    const update::Settings settings = update::settings_of(
        job.settings().optimizer, static_cast<UpdateRule>(variable.rule), (variable.flags & kRegularize) != 0);
    update::with_element_value(settings, read_live(job).settings.learning_rate, [&](const auto& value_of) {
      for (std::uint64_t block = 0; block < source.blocks(); ++block)
        source.pull_block(block, values.data() + source.block_begin(block), value_of);
    });
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
  std::byte* shard = job.shard_data(variable.shard);
  std::uint64_t sum = 0;
  for (std::uint64_t piece = 0; piece < variable.pieces; ++piece)
    sum += is_inplace(variable) ? InplaceVariable(shard, variable).pushes(piece)
                                : VersionedVariable(shard, variable).version(piece);
  if (has_row_counts(variable))
    for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
      if (job.worker(rank).holders.load_relaxed() != 0)  // relaxed: a rank that has just come has pushed nothing
        for (std::uint64_t piece = 0; piece < variable.pieces; ++piece)
          sum += InplaceVariable(shard, variable).row_pushes(piece, rank);
  return sum;
}

}  // namespace ps
