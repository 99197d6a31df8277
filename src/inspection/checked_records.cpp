#include "inspection/checked_records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "snapshot/snapshot.hpp"
#include "update/bytes.hpp"
#include "update/elements.hpp"

namespace ps_shm {
using namespace shm;
namespace {

// An intact chunk is read at the first attempt, or at the second if its writers are faster than the copy. So many
// attempts fail in a row only if no writer will ever repair the stamp, or if a single writer's pushes in place to the
// chunk follow each other without a pause.
constexpr int kPullAttempts = 10000;

void read_chunk(const Segment& shard, const VariableShm& variable, std::uint64_t chunk, float* out,
                std::uint64_t array) {
  const VersionedVariable source(shard, variable);
  const std::uint64_t first_version = source.version(chunk);
  PullResult result = PullResult::kTorn;
  for (int attempt = 0; attempt < kPullAttempts && result != PullResult::kWhole; ++attempt) {
    result = source.try_pull_chunk(chunk, out, array);
    if (result == PullResult::kNoBuffer)
      fail_damaged(shard.name(), fmt::format("chunk {} of variable '{}' lies outside of it", chunk, variable.name));
  }
  if (result != PullResult::kWhole && source.version(chunk) != first_version)
    throw Error(
        fmt::format("chunk {} of variable '{}' changes all the time: its worker pushes without a pause; try again",
                    chunk, variable.name),
        ErrorCode::kUnavailable);
  if (result != PullResult::kWhole)
    throw Error(
        fmt::format("chunk {} of variable '{}' is torn: its stamp differed from its word {} times; /dev/shm/{} is "
                    "damaged, or stop its workers and try again",
                    chunk, variable.name, kPullAttempts, shard.name()),
        ErrorCode::kDamaged);
}

}  // namespace

void require_whole(const JobSegments& job) {
  const auto check = [](const Segment& segment, std::size_t bytes) {
    if (segment.was_cut_off() || segment.file_bytes() < bytes) fail_damaged(segment.name(), "it has been truncated");
  };
  check(job.control(), kWorkersOffset + job.ranks() * sizeof(WorkerShm));
  for (std::uint32_t shard = 0; shard < job.config().ps_tasks; ++shard)
    check(job.shard(shard), job.shard_data_offset());
}

void read_values(JobSegments& job, const VariableShm& variable, std::uint64_t array, std::span<float> values) {
  if (is_inplace(variable)) {
    copy_inplace(job, variable, array, values);
    return;
  }
  const Segment& shard = job.shard(variable.shard);
  const VersionedVariable source(shard, variable);
  for (std::uint64_t chunk = 0; chunk < source.chunks(); ++chunk)
    read_chunk(shard, variable, chunk, values.data() + source.array_begin(chunk, array), array);
}

std::vector<std::byte> sample_values(JobSegments& job, const Group& group, std::uint64_t most) {
  const VariableShm& first = *group.front();
  const std::uint64_t whole = value_bytes(first), unit = bytes_of(static_cast<DType>(first.dtype));
  const std::uint64_t share = (whole + most * unit - 1) / (most * unit);  // one piece of so many is read
  std::vector<std::byte> sample;
  std::vector<float> piece;
  std::uint64_t number = 0;  // index among the variable's pieces
  for (const VariableShm* part : group) {
    const Segment& shard = job.shard(part->shard);
    for (std::uint64_t at = 0; at < part->pieces; ++at, ++number) {
      if (number % share != 0) continue;
      const std::uint64_t begin = at * part->piece_elements;
      piece.resize(std::min(part->piece_elements, part->elements - begin));
      if (is_inplace(*part))
        copy_inplace_block(job, *part, at, piece.data());
      else
        read_chunk(shard, *part, at, piece.data(), 0);
      // Elements of another dtype may end within the last float.
      const std::uint64_t each = bytes_of_element(*part), before = (part->part_begin + begin) * each;
      const std::uint64_t bytes = std::min(piece.size() * each, whole - std::min(whole, before));
      sample.resize(sample.size() + bytes);
      update::fill_bytes(std::span(sample).last(bytes), static_cast<DType>(part->dtype), array_dtype(*part),
                         [&](std::span<float> floats) { std::copy_n(piece.begin(), floats.size(), floats.begin()); });
    }
  }
  return sample;
}

namespace {

std::uint64_t reserve_of(const VariableShm& variable) { return variable.reserve.load_relaxed(); }  // relaxed: a copy's

}  // namespace

void add_buffers(JobSegments& job, const std::vector<const VariableShm*>& variables, BufferCount& count) {
  const VariableShm& first = *variables.front();
  const std::uint32_t index = first.buffer_class - kMinClass;
  std::map<std::uint64_t, std::uint32_t> names;  // buffer -> how often it is named
  for (const VariableShm* variable : variables)
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk)
      for (const std::uint64_t first : {variable->data_offset >> variable->buffer_class, reserve_of(*variable)})
        if (first != 0) names.emplace(first + chunk, 0);
  for (std::uint32_t free_buffer = 0; free_buffer < job.lanes() * kFreeBuffersPerClass; ++free_buffer)
    names.emplace((first.free_buffers_offset >> first.buffer_class) + free_buffer, 0);
  for (const VariableShm* variable : variables) {
    const auto* words = reinterpret_cast<const PieceWordShm*>(job.shard_data(variable->shard) + variable->words_offset);
    const VersionedVariable chunks(job.shard(variable->shard), *variable);
    for (std::uint64_t chunk = 0; chunk < variable->pieces; ++chunk) {
      const std::uint64_t buffer = buffer_of(words[chunk].word.load_acquire());  // (slot.R1)
      ++names[buffer];
      if (reserve_of(*variable) != 0 && buffer < job.shard(variable->shard).file_bytes() >> variable->buffer_class)
        ++names[chunks.kept_by(chunk)];
    }
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> doubts;  // for each: the rank owns one of the two
  for (std::uint32_t lane = 0; lane < job.lanes(); ++lane)
    for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which) {
      const FreeBufferShm& free_buffer = job.free_buffer_table(first.shard, lane).free_buffers[index][which];
      const std::uint64_t record = free_buffer.record.load_acquire();  // (slot.S3) pairs with slot.S1: the note
      if (is_in_flight(record))
        doubts.emplace_back(buffer_of(record),
                            buffer_of(free_buffer.note_gain.load_relaxed()));  // relaxed: after the record
      else
        ++names[free_buffer_of(record, first, lane, which)];
    }
  for (const auto& [free_buffer, gain] : doubts) ++names[names[free_buffer] == 0 ? free_buffer : gain];
  count.in_doubt += doubts.size();
  count.buffers += names.size();
  for (const auto& [buffer, times] : names) {
    count.lost += times == 0;
    count.shared += times > 1;
  }
}

std::vector<Group> grouped(const std::vector<CheckedRecord>& records) {
  std::vector<Group> groups;
  std::unordered_map<std::string_view, std::size_t> numbers;  // index of the group, by name
  for (const CheckedRecord& record : records) {
    if (record->base != 0) continue;
    const auto [found, is_new] = numbers.emplace(text_of(record->name), groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(record.get());  // in the order of its parts, which was checked
  }
  std::erase_if(groups, [](const Group& group) { return group.size() != group.front()->parts; });
  return groups;
}

Group find_group(const JobSegments& job, const std::vector<CheckedRecord>& records, const std::string& name) {
  std::vector<std::string> names;
  for (const Group& group : grouped(records)) {
    names.emplace_back(group.front()->name);
    if (names.back() != name) continue;
    if (!is_initialised(*group.front()))
      throw Error(fmt::format("variable '{}' is not initialised yet", name), ErrorCode::kInvalidState);
    return group;
  }
  throw Error(
      fmt::format("there is no variable '{}': job '{}' has {}", name, job.job(), config::what_there_is(name, names)),
      ErrorCode::kNotFound);
}

// Whether the record is still the one that was checked, and its values still exist.
bool KnownVariables::is_as_checked(std::uint32_t position) const {
  const VariableShm& checked = *records_[position];
  const std::uint32_t entry = job_.index(position).load_acquire();  // (directory.D1)
  return entry != 0 && job_.has_records(entry) &&
         std::memcmp(static_cast<const void*>(&job_.record(entry - 1)), &checked, offsetof(VariableShm, init)) == 0 &&
         checked.shard_end <= job_.shard(checked.shard).usable_bytes();
}

Group KnownVariables::find(const std::string& name) {
  const auto found = positions_.find(name);
  const bool is_complete = !Directory(job_).has(static_cast<std::uint32_t>(records_.size()));
  if (is_complete && found != positions_.end() &&
      std::all_of(found->second.begin(), found->second.end(),
                  [&](std::uint32_t position) { return is_as_checked(position); })) {
    Group group;
    for (const std::uint32_t position : found->second) group.push_back(records_[position].get());
    if (group.size() == group.front()->parts && is_initialised(*group.front())) return group;
  }
  records_ = copy_records(job_);
  positions_.clear();
  for (std::uint32_t position = 0; position < records_.size(); ++position)
    if (records_[position]->base == 0) positions_[records_[position]->name].push_back(position);
  return find_group(job_, records_, name);
}

std::vector<float> read_values(JobSegments& job, const Group& group, std::uint64_t array) {
  const VariableShm& first = *group.front();
  const bool is_slot = array != 0 && !is_inplace(first);
  const std::uint64_t each = is_slot ? gradients_per_float(first) : 1;
  std::vector<float> all(is_slot ? element_count(first) : first.whole_elements);
  for (const VariableShm* part : group)
    read_values(job, *part, array,
                std::span(all).subspan(each * part->part_begin, is_slot ? gradient_floats(*part) : part->elements));
  if (!is_hashed(first)) return all;
  std::vector<float> ordered(all.size());
  order_by_rows(all, ordered, first);
  return ordered;
}

std::uint64_t sum_updates(JobSegments& job, const VariableShm& variable) {
  const Segment& shard = job.shard(variable.shard);
  std::uint64_t sum = 0;
  for (std::uint64_t piece = 0; piece < variable.pieces; ++piece)
    sum += is_inplace(variable) ? InplaceVariable(shard.data(), variable).pushes(piece)
                                : VersionedVariable(shard, variable).version(piece);
  if (has_row_counts(variable))
    for (std::uint32_t rank = 0; rank < job.ranks(); ++rank)
      if (job.worker(rank).holders.load_relaxed() != 0)  // relaxed: a rank that has just joined has pushed nothing
        for (std::uint64_t piece = 0; piece < variable.pieces; ++piece)
          sum += InplaceVariable(shard.data(), variable).row_pushes(piece, rank);
  return sum;
}

}  // namespace ps_shm
