#include "inspection/probe.hpp"

#include <utility>

#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "shm/steps/worker_table.hpp"
#include "update/elements.hpp"

namespace ps_shm {
using namespace shm;
namespace {

JobSegments attach(const std::string& name) {
  check_job_name(name);
  AttachOutcome outcome;
  std::optional<JobSegments> job = JobSegments::try_attach(name, Access::kReadOnly, outcome, kTrustAnybody);
  if (!job) throw attach_error(outcome, control_name(name));
  return std::move(*job);
}

VariableFacts facts_of(const JobSegments& job, const Group& group) {
  const VariableShm& first = *group.front();
  VariableFacts facts;
  facts.name = text_of(first.name);
  facts.dtype = static_cast<DType>(first.dtype);
  facts.array_dtype = array_dtype(first);
  facts.layout = static_cast<Layout>(first.layout);
  facts.shape.assign(first.extents, first.extents + first.axes);
  facts.bytes = value_bytes(first);
  facts.elements = element_count(first);
  if (has_row_counts(first)) {
    facts.rows = first.whole_elements / first.row_elements;
    facts.row_floats = first.row_elements;
  }
  for (const VariableShm* part : group) {
    facts.pieces += part->pieces;
    facts.shards.push_back(part->shard);
    facts.nodes.push_back(job.shard(part->shard).header().node);
  }
  facts.is_initialised = is_initialised(first);
  return facts;
}

}  // namespace

Probe::Probe(const std::string& job) : job_(attach(job)) {}

void Probe::require_whole() const { ps_shm::require_whole(job_); }

std::vector<RankLook> Probe::ranks() const {
  std::vector<RankLook> all;
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& entry = job_.worker(rank);
    RankLook look;
    look.holders = entry.holders.load_relaxed();  // relaxed, as all below: diagnostic only
    if (look.holders == 0) continue;
    look.rank = rank;
    look.state = worker_state(job_, rank);
    if (look.state == WorkerState::kNever) continue;
    look.pid = entry.pid.load_relaxed();
    constexpr int kAttempts = 4;  // a step may end in between
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      look.steps = counter(entry, Counter::kSteps);
      look.pulls = counter(entry, Counter::kPulls);
      look.pushes = counter(entry, Counter::kPushes);
      if (counter(entry, Counter::kSteps) == look.steps) break;
    }
    look.waiting = static_cast<WaitingFor>(entry.waiting_for.load_acquire());  // (waiting.W3)
    look.waiting_on = entry.waiting_on.load_relaxed();
    look.is_pushing = entry.pushing.load_relaxed() != 0;
    look.has_arrived =
        traits_of(job_.config().mode).steps_together() && entry.barriers[0].published.load_relaxed() == job_.steps_done() + 1;
    all.push_back(look);
  }
  return all;
}

std::optional<std::uint32_t> Probe::holder(std::uint32_t rank) const {
  for (const LockHolder& holder : lock_holders(job_.control().descriptor()))
    if (holder.first <= kRankByte + rank && kRankByte + rank <= holder.last) return holder.pid;
  return std::nullopt;
}

const std::vector<VariableFacts>& Probe::variables() {
  if (facts_.empty() || Directory(job_).has(static_cast<std::uint32_t>(records_.size()))) {
    records_ = look_at_whole(job_, [&] { return copy_records(job_); });
    groups_ = grouped(records_);
    facts_.clear();
    for (const Group& group : groups_) facts_.push_back(facts_of(job_, group));
    positions_.assign(groups_.size(), 0);
    for (std::uint32_t position = 0, group = 0; position < records_.size() && group < groups_.size(); ++position)
      if (records_[position].get() == groups_[group].front()) positions_[group++] = position;
  }
  // The records here are copies: only the segment's own record tells whether there are values by now.
  for (std::size_t i = 0; i < facts_.size(); ++i) {
    if (facts_[i].is_initialised) continue;
    const std::uint32_t entry = job_.index(positions_[i]).load_acquire();  // (directory.D1)
    facts_[i].is_initialised = entry != 0 && job_.has_records(entry) && is_initialised(job_.record(entry - 1));
  }
  return facts_;
}

Probe::Place Probe::find(std::size_t variable, std::uint64_t piece) const {
  for (const VariableShm* part : groups_.at(variable)) {
    if (piece < part->pieces) return {*part, piece};
    piece -= part->pieces;
  }
  throw Error("there is no such chunk", ErrorCode::kDamaged);
}

std::uint64_t Probe::updates(std::size_t variable, std::uint64_t piece) const {
  const auto [record, number] = find(variable, piece);
  const Segment& shard = job_.shard(record.shard);
  if (!is_inplace(record)) return VersionedVariable(shard, record).version(number);
  const InplaceVariable inplace(shard.data(), record);
  std::uint64_t sum = inplace.pushes(number);
  if (has_row_counts(record))
    for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank)
      if (job_.worker(rank).holders.load_relaxed() != 0) sum += inplace.row_pushes(number, rank);
  return sum;
}

std::uint32_t Probe::retries(std::size_t variable, std::uint64_t piece) const {
  const auto [record, number] = find(variable, piece);
  return is_inplace(record) ? 0 : VersionedVariable(job_.shard(record.shard), record).lost_swaps(number);
}

bool Probe::read(std::size_t variable, std::uint64_t piece, std::vector<float>& floats) {
  const auto [record, number] = find(variable, piece);
  const Segment& shard = job_.shard(record.shard);
  if (is_inplace(record)) {
    const InplaceVariable source(shard.data(), record);
    floats.resize(source.block_size(number));
    update::with_element_value(
        settings_of(job_.config(), record), read_live(job_).settings.lr,
        [&, block = number](const auto& value_of) { source.pull_block(block, floats.data(), value_of); });
    return true;
  }
  const VersionedVariable source(shard, record);
  floats.resize(source.chunk_size(number));
  constexpr int kAttempts = 8;  // the next call comes soon
  for (int attempt = 0; attempt < kAttempts; ++attempt)
    if (source.try_pull_chunk(number, floats.data()) == PullResult::kWhole)
      return true;
  return false;
}

std::vector<std::uint64_t> Probe::rows(std::size_t variable, std::uint64_t piece) const {
  const auto [record, number] = find(variable, piece);
  const InplaceVariable source(job_.shard_data(record.shard), record);
  const std::uint64_t width = record.row_elements;
  std::vector<std::uint64_t> numbers;
  if (record.piece_elements % width != 0) return numbers;
  const std::uint64_t first = source.block_begin(number) / width, end = first + source.block_size(number) / width;
  for (std::uint64_t row = first; row < end; ++row) numbers.push_back(element_in_whole(record, row * width) / width);
  return numbers;
}

}  // namespace ps_shm
