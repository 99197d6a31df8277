#include "inspection/nan_watch.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include "config/modes.hpp"
#include "inspection/checked_records.hpp"
#include "shm/base/clock.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/inplace_slot.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "snapshot/snapshot.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm {
using namespace shm;

std::optional<NanFound> NanWatch::look() {
  return look_at_whole(job_, [&] { return look_at_all(); });
}

std::optional<NanFound> NanWatch::look_at_all() {
  if (Directory(job_).has(static_cast<std::uint32_t>(records_.size()))) {  // new variables: start from scratch
    seen_.clear();
    records_ = copy_records(job_);
  }
  for (const CheckedRecord& record : records_) {
    if (record->base != 0 || !update::takes_gradients(static_cast<DType>(record->dtype))) continue;
    const auto position = static_cast<std::uint32_t>(&record - records_.data());
    const std::uint32_t entry = job_.index(position).load_acquire();  // (directory.D1)
    if (entry == 0 || !job_.has_records(entry)) fail_damaged(job_.control().name(), "it has been truncated");
    if (!is_initialised(job_.record(entry - 1))) continue;
    std::vector<Seen>& seen = seen_[record.get()];
    seen.resize(record->pieces);
    if (auto found = is_inplace(*record) ? look_inplace(*record, seen) : look_versioned(*record, seen)) return found;
  }
  return look_at_tables();
}

std::optional<NanFound> NanWatch::look_at_tables() {
  constexpr std::uint64_t kLooksAnOpening = 64;  // of the tables
  constexpr std::uint64_t kAtOnce = 1 << 16;     // values: the chunks' old buffers are soon reused
  if (looks_ % kLooksAnOpening == 0) tables_ = open_tables(job_);
  for (const TableView& table : tables_) {
    const OddRows rows = find_odd_rows(job_, table, std::max<std::uint64_t>(kAtOnce / tables_.size(), 1), looks_);
    if (rows.odd == 0) continue;
    return NanFound{.variable = {},
                    .table = std::string(text_of(table.front().checked->name)),
                    .key = rows.key,
                    .element = rows.element,
                    .value = rows.value,
                    .step = job_.steps_done()};
  }
  ++looks_;
  return std::nullopt;
}

// All buffers of the variable's shard and class, whoever owns them.
std::vector<std::uint64_t> NanWatch::buffers_of(const VariableShm& variable) const {
  std::vector<std::uint64_t> buffers;
  const auto add = [&](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) buffers.push_back(first + i);
  };
  for (const CheckedRecord& record : records_)
    if (!is_inplace(*record) && record->shard == variable.shard && record->buffer_class == variable.buffer_class)
      add(record->data_offset >> record->buffer_class, record->pieces);
  add(variable.free_buffers_offset >> variable.buffer_class, std::uint64_t{job_.lanes()} * kFreeBuffersPerClass);
  return buffers;
}

std::optional<NanFound> NanWatch::look_versioned(const VariableShm& variable, std::vector<Seen>& seen) {
  const VersionedVariable chunks(job_.shard(variable.shard), variable);
  const bool is_widened = static_cast<DType>(variable.dtype) != DType::kFloat32;
  std::vector<float> values(chunks.stride());
  for (std::uint64_t chunk = 0; chunk < chunks.chunks(); ++chunk) {
    Seen& known = seen[chunk];
    if (chunks.version(chunk) + 1 == known.pushes) continue;
    const auto pulled = std::span(values).first(chunks.gradient_size(chunk));
    float* const stored = pulled.last(chunks.chunk_size(chunk)).data();
    const auto widen = [&] {
      if (is_widened) update::widen_in_place(pulled.data(), pulled.size());
    };
    ChunkFacts facts;
    if (chunks.try_pull_labelled(chunk, stored, facts) != PullResult::kWhole) continue;  // later
    widen();
    std::size_t odd = first_odd(pulled);
    if (odd == pulled.size()) {
      known.pushes = facts.version + 1;
      continue;
    }
    // Goes back through the chunk's earlier buffers, as far as they are not reused.
    std::optional<std::uint64_t> clean;
    if (known.pushes != 0) clean = known.pushes - 1;
    ChunkFacts first = facts;
    NanFound found{.variable = variable.name, .value = pulled[odd]};
    for (const std::uint64_t buffer : buffers_of(variable)) {
      ChunkFacts old;
      if (!chunks.try_pull_old(chunk, facts.version, buffer, stored, old)) continue;
      widen();
      const std::size_t place = first_odd(pulled);
      if (place == pulled.size())
        clean = std::max(clean.value_or(0), old.version);
      else if (old.version < first.version)
        first = old, odd = place, found.value = pulled[place];
    }
    found.element = element_in_whole(variable, chunks.gradient_begin(chunk) + odd);
    found.step = first.label.step;
    found.is_initial = first.version == 0;
    if (found.is_initial) return found;
    found.suspects = {first.label.rank};
    if (traits_of(job_.config().mode).steps_together()) found.suspects = guilty_of(variable, first.label.step);
    found.is_certain = clean && *clean + 1 == first.version && found.suspects.size() == 1;
    return found;
  }
  return std::nullopt;
}

// Returns those contributors of a sync step whose gradient is not finite; all contributors if that cannot be
// determined. A gradient belongs to the step as long as its rank has published no later one.
std::vector<std::uint32_t> NanWatch::guilty_of(const VariableShm& variable, std::uint64_t step) const {
  std::vector<std::uint32_t> contributors, guilty;
  // The decision is recorded some microseconds after the first chunk is applied, unless its proposer is stopped.
  for (int attempt = 0; attempt < 100 && contributors.empty(); ++attempt) {
    if (attempt != 0) sleep_ns(1'000'000);
    for (const EventRecord& event : read_events(job_))
      if (event.kind == EventKind::kDecided && event.step == step)
        for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank)
          if (event.ranks.contains(rank)) contributors.push_back(rank);
  }
  for (const std::uint32_t rank : contributors) {
    Segment segment;
    const BarrierEntryShm& entry = job_.worker(rank).barriers[0];
    const std::uint64_t generation = entry.generation.load_relaxed();  // relaxed: a hint
    const std::string name = gradient_name(job_.job(), rank, generation);
    if (entry.published.load_acquire() != step + 1 ||  // (barrier.A2) pairs with barrier.A1
        segment.open(name, Access::kReadOnly, kTrustAnybody) != AttachOutcome::kReady ||
        !segment.is_of(SegmentKind::kGradient, rank, job_.job(), job_.instance()) ||
        segment.usable_bytes() < variable.gradient_end)
      return contributors;
    std::vector<float> gradient(gradient_floats(variable));
    racing_copy(gradient.data(), reinterpret_cast<const float*>(segment.data() + variable.gradient_offset),
                gradient.size());
    if (entry.published.load_acquire() != step + 1) return contributors;  // (barrier.A2) pairs with barrier.A1
    if (first_odd(gradient) != gradient.size()) guilty.push_back(rank);
  }
  return guilty.empty() ? contributors : guilty;
}

NanWatch::Seen NanWatch::count_inplace(const VariableShm& variable, std::uint64_t block) const {
  const InplaceVariable source(job_.shard_data(variable.shard), variable);
  Seen seen{.pushes = source.pushes(block) + 1, .rows = {}, .of_rank = {}, .is_pushing = {}};
  for (std::uint32_t rank = 0; rank < job_.ranks(); ++rank) {
    const WorkerShm& entry = job_.worker(rank);
    const bool was_there = entry.holders.load_relaxed() != 0;  // relaxed, as counters are: diagnostic only
    // A push of rows counts at its end, any other push at its beginning, so check on both sides of the counters.
    const bool was_pushing = was_there && entry.pushing.load_acquire() != 0;  // (state.R2) pairs with snapshot.C7
    seen.of_rank.push_back(was_there ? counter(entry, Counter::kPushes) : 0);
    seen.rows.push_back(was_there && has_row_counts(variable) ? source.row_pushes(block, rank) : 0);
    seen.pushes += seen.rows.back();
    const bool is_pushing = was_there && entry.pushing.load_acquire() != 0;  // (state.R2) pairs with snapshot.C7
    seen.is_pushing.push_back(was_pushing || is_pushing);
  }
  return seen;
}

std::optional<NanFound> NanWatch::look_inplace(const VariableShm& variable, std::vector<Seen>& seen) {
  const InplaceVariable source(job_.shard_data(variable.shard), variable);
  std::vector<float> values(variable.piece_elements);
  for (std::uint64_t block = 0; block < source.blocks(); ++block) {
    Seen& known = seen[block];
    Seen now = count_inplace(variable, block);
    if (now.pushes == known.pushes) continue;
    const auto pulled = std::span(values).first(source.block_size(block));
    copy_inplace_block(job_, variable, block, pulled.data());
    const std::size_t odd = first_odd(pulled);
    if (odd == pulled.size()) {
      known = std::move(now);
      continue;
    }
    NanFound found{.variable = variable.name,
                   .element = element_in_whole(variable, source.block_begin(block) + odd),
                   .value = pulled[odd],
                   .step = job_.steps_done()};
    now = count_inplace(variable, block);  // once more: a push counts after its elements
    found.is_initial = now.pushes == 1;
    const bool was_seen = known.pushes != 0;
    if (!was_seen) {
      known.rows = known.of_rank = std::vector<std::uint64_t>(job_.ranks());
      known.is_pushing.assign(job_.ranks(), false);
    }
    const auto counts = now.rows == known.rows ? &Seen::of_rank : &Seen::rows;
    for (std::uint32_t rank = 0; rank < job_.ranks() && !found.is_initial; ++rank)
      if ((now.*counts)[rank] != (known.*counts)[rank] || now.is_pushing[rank] || known.is_pushing[rank])
        found.suspects.push_back(rank);
    found.is_certain = was_seen && found.suspects.size() == 1;
    known.pushes = 0;
    return found;
  }
  return std::nullopt;
}

}  // namespace ps_shm
