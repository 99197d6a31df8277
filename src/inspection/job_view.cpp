#include "ps_shm/job_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "config/spelling.hpp"
#include "inspection/checked_records.hpp"
#include "inspection/tables.hpp"
#include "inspection/texts.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/counters.hpp"
#include "shm/segment/events.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/steps/gpu_note.hpp"
#include "shm/steps/ssp_clock.hpp"
#include "shm/steps/worker_table.hpp"
#include "snapshot/snapshot.hpp"
#include "update/bfloat16.hpp"
#include "update/bytes.hpp"
#include "update/traits.hpp"

namespace ps_shm {
namespace {

using shm::CheckedRecord;
using shm::fail_damaged;
using shm::JobSegments;
using shm::VariableShm;

StalenessSummary summarise(const shm::StalenessTotals& totals) {
  return {totals.count, totals.mean(), totals.percentile(0.5), totals.percentile(0.99), totals.max};
}

GpuUse use_of(const shm::GpuNote& note) {
  GpuUse use{.uuid = {},
             .pci_address = note.pci_address,
             .node = note.node,
             .registered_bytes = note.registered_bytes,
             .pulls = to_string(note.pull),
             .pushes = to_string(note.push),
             .native_adds = note.native_adds};
  const auto [high, low] = note.uuid;
  if ((high | low) != 0)
    use.uuid = fmt::format("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", high >> 32, high >> 16 & 0xffff, high & 0xffff,
                           low >> 48, low & 0xffffffffffff);
  return use;
}

void hash_bytes(std::uint64_t& hash, const void* bytes, std::size_t count) {  // FNV-1a
  const auto* next = static_cast<const unsigned char*>(bytes);
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ next[i]) * 1099511628211ULL;
}

}  // namespace

struct PS_SHM_HIDDEN JobView::Impl {
  JobSegments job;
  std::uint32_t ranks, shards;
  std::optional<JobSegments> writable;  // for snapshots; attached at the first one
  const std::shared_ptr<bool> is_taking_snapshot = std::make_shared<bool>(false);
  KnownVariables known{job};

  explicit Impl(JobSegments attached) : job(std::move(attached)), ranks(job.ranks()), shards(job.config().ps_tasks) {}

  static std::unique_ptr<Impl> try_open(const std::string& name, shm::AttachOutcome& outcome) {
    check_job_name(name);
    std::optional<JobSegments> attached =
        JobSegments::try_attach(name, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
    return attached ? std::make_unique<Impl>(std::move(*attached)) : nullptr;
  }

  template <class Look>
  auto guarded(Look&& look) {
    job.refuse_inherited("view");
    return look_at_whole(job, std::forward<Look>(look));
  }

  static bool try_open(shm::Segment& segment, const std::string& name) {
    try {
      return segment.open(name, shm::Access::kReadOnly, shm::kTrustAnybody) == shm::AttachOutcome::kReady;
    } catch (const Error&) {
      return false;  // it can't be mapped
    }
  }

  ByteCount count_bytes(const std::vector<CheckedRecord>& records) {
    ByteCount bytes;
    bytes.control = job.control().file_bytes();
    std::uint64_t in_shards = 0;
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      in_shards += job.shard(shard).file_bytes();
      bytes.free_buffers += job.shard_data_offset();
    }
    std::set<std::pair<std::uint32_t, std::uint32_t>> classes;  // the first record of a class adds its free buffers
    for (const CheckedRecord& record : records) {
      if (shm::is_reserve(*record)) {
        bytes.reserves += record->pieces << record->buffer_class;
        continue;
      }
      bytes.chunk_words += record->pieces * sizeof(shm::PieceWordShm);
      if (record->data_offset == record->words_offset) bytes.chunk_words -= sizeof(float);  // a scalar lies in its word
      if (shm::has_row_counts(*record))
        bytes.chunk_words += ranks * shm::row_counts_stride(*record) * sizeof(std::uint64_t);
      if (shm::is_accumulator(*record))
        bytes.accumulators += record->elements * shm::gradients_per_float(*record) * sizeof(float);
      else
        bytes.values += record->elements * sizeof(float);
      bytes.slots += slot_bytes(*record);
      if (!is_inplace(*record) && classes.emplace(record->shard, record->buffer_class).second)
        bytes.free_buffers += (std::uint64_t{job.lanes()} * shm::kFreeBuffersPerClass) << record->buffer_class;
    }
    const std::uint64_t known =
        bytes.chunk_words + bytes.values + bytes.accumulators + bytes.reserves + bytes.slots + bytes.free_buffers;
    bytes.padding = in_shards > known ? in_shards - known : 0;
    for (const std::string& name : shm::list_segments(shm::control_name(job.job()) + ".w")) {
      shm::Segment gradients;
      if (try_open(gradients, name) && gradients.header().instance == job.instance())
        bytes.gradients += gradients.file_bytes();
    }
    shm::Segment data;
    if (try_open(data, shm::data_name(job.job())) && data.header().instance == job.instance())
      bytes.shared_data = data.file_bytes();
    shm::Segment bridge;
    if (try_open(bridge, shm::bridge_name(job.job())) && bridge.header().instance == job.instance())
      bytes.bridge = bridge.allocated_bytes();
    for (const std::string& name : shm::list_segments(shm::control_name(job.job()) + ".t")) {
      shm::Segment table;
      if (try_open(table, name) && table.header().instance == job.instance()) bytes.tables += table.allocated_bytes();
    }
    return bytes;
  }

  template <class Look>
  auto look_at_table(const std::string& name, Look&& look) {
    return guarded([&] {
      const TableView table = open_table_named(job, name);
      auto found = look(table);
      ps_shm::require_whole(table);
      return found;
    });
  }
};

JobView::JobView(const std::string& job) {
  shm::AttachOutcome outcome;
  impl_ = Impl::try_open(job, outcome);
  if (!impl_) throw shm::attach_error(outcome, shm::control_name(job));
}

JobView::JobView(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JobView::~JobView() = default;
JobView::JobView(JobView&&) noexcept = default;

std::optional<JobView> JobView::try_open(const std::string& job) {
  shm::AttachOutcome outcome;
  std::unique_ptr<Impl> impl = Impl::try_open(job, outcome);
  if (!impl) return std::nullopt;
  return JobView(std::move(impl));
}

JobInfo JobView::info() const {
  return impl_->guarded([&] {
    const std::vector<CheckedRecord> records = copy_records(impl_->job);
    JobSegments& job = impl_->job;
    JobInfo info;
    info.config = job.config();
    const shm::Live live = shm::read_live(job);
    info.live = live.settings;
    info.live_version = live.version;
    info.global_step = job.steps_done();
    info.finished = job.is_finished();
    info.instance = job.instance();
    info.kept = job.is_kept();
    info.servers = job.state().servers.load_relaxed();  // relaxed: diagnostic only
    info.created_unix_ns = job.control().header().created_unix_ns;
    const shm::SnapshotPointShm& point = job.state().snapshot_point;
    const std::uint64_t word = point.word.load_acquire();  // (snapshot.C3)
    const std::uint64_t began = point.since_ns.load_relaxed(), now = shm::now_ns();
    info.snapshots = shm::epoch_of(word);
    info.is_pausing_pushes = shm::snapshot_state(word) != shm::SnapshotState::kOpen;
    info.has_snapshot = job.locks().is_held_by_other(shm::kSnapshotByte);
    info.snapshot_age_seconds = now > began ? double(now - began) * 1e-9 : 0;
    info.guest_ticket = job.worker(job.ranks() - 1).ticket.load_relaxed();  // relaxed: a word by itself
    for (std::uint32_t shard = 0; shard < impl_->shards; ++shard) {
      const shm::HeaderShm& header = job.shard(shard).header();
      TaskInfo task;
      task.is_alive = job.locks().is_held_by_other(shm::kTaskByte + shard);
      task.pid = job.state().task_pids[shard].load_relaxed();  // relaxed: diagnostic only
      task.node = header.node;
      task.huge_pages = header.huge_pages == 1;
      task.file_bytes = job.shard(shard).file_bytes();
      task.used_bytes = job.shard_data_offset();
      task.reserved_bytes = header.reserved_bytes;
      for (const CheckedRecord& record : records) {
        if (record->shard != shard) continue;
        task.used_bytes = std::max(task.used_bytes, record->shard_end);
        task.variables += record->base == 0;
      }
      if (task.is_alive && !info.served) info.ps_pid = task.pid;
      info.served = info.served || task.is_alive;
      info.tasks.push_back(task);
    }
    if (!info.served) info.ps_pid = info.tasks.front().pid;
    info.bytes = impl_->count_bytes(records);
    return info;
  });
}

std::uint64_t JobView::global_step() const {
  return impl_->guarded([&] { return impl_->job.steps_done(); });
}

std::vector<WorkerInfo> JobView::workers() const {
  return impl_->guarded([&] {
    const JobSegments& job = impl_->job;
    std::vector<WorkerState> states;
    for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) states.push_back(shm::worker_state(job, rank));
    std::vector<WorkerInfo> all;
    for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) {
      if (states[rank] == WorkerState::kNever) continue;
      const shm::WorkerShm& entry = job.worker(rank);
      const auto figure = [&](shm::Counter which) { return shm::counter(entry, which); };
      WorkerInfo info;
      info.rank = rank;
      info.state = states[rank];
      info.pid = entry.pid.load_relaxed();  // relaxed, as all below: diagnostic only
      info.owners = entry.holders.load_relaxed();
      info.steps = figure(shm::Counter::kSteps);
      info.pushes = figure(shm::Counter::kPushes);
      info.pulls = figure(shm::Counter::kPulls);
      info.push_retries = figure(shm::Counter::kPushRetries);
      info.pull_retries = figure(shm::Counter::kPullRetries);
      info.dropped = figure(shm::Counter::kDropped);
      info.max_clock_skew = figure(shm::Counter::kMaxClockSkew);
      info.clock = shm::SspClock::steps_of(entry.clock.load_acquire());  // (ssp.C4)
      info.examples = figure(shm::Counter::kExamples);
      info.step_examples = figure(shm::Counter::kStepExamples);
      info.examples_offset = entry.examples_offset.load_relaxed();
      info.restored_examples = figure(shm::Counter::kRestoredExamples);
      info.loss = std::bit_cast<double>(figure(shm::Counter::kLossBits));
      const std::uint64_t joined = entry.joined_ns.load_relaxed();
      const std::uint64_t end = info.state == WorkerState::kLeft ? entry.left_ns.load_relaxed() : shm::now_ns();
      info.seconds = end > joined ? double(end - joined) * 1e-9 : 0.0;
      if (info.state == WorkerState::kAlive) info.waiting_for = waiting_text(job, rank, states);
      shm::StalenessTotals totals;
      totals.add(entry);
      info.staleness = summarise(totals);
      if (const std::optional<shm::GpuNote> note = shm::noted_gpu(entry)) info.gpu = use_of(*note);
      all.push_back(std::move(info));
    }
    return all;
  });
}

std::vector<VariableInfo> JobView::variables() const {
  return impl_->guarded([&] {
    const std::vector<CheckedRecord> records = copy_records(impl_->job);
    std::vector<VariableInfo> all;
    for (const Group& group : grouped(records)) {
      const VariableShm& first = *group.front();
      VariableInfo info;
      info.name = first.name;
      info.dtype = static_cast<DType>(first.dtype);
      info.shape.assign(first.extents, first.extents + first.axes);
      info.rule = static_cast<UpdateRule>(first.rule);
      info.layout = static_cast<Layout>(first.layout);
      const shm::Factors factors = shm::factors_of(first.factors.load_relaxed());
      info.lr_scale = factors.lr_scale;
      info.regularize = factors.regularize;
      info.element_count = shm::element_count(first);
      info.bytes = shm::value_bytes(first);
      info.initialised = is_initialised(first);
      info.row_slots = (first.flags & shm::kRowState) != 0 ? 1 : 0;
      info.slots = slots_of(first);
      std::uint64_t updates = 0, pieces = 0;
      const std::uint64_t rows = first.axes == 0 ? 1 : first.extents[0], row = info.bytes / rows;
      const std::uint64_t each = shm::bytes_of_element(first);
      for (const VariableShm* part : group) {
        info.parts.push_back({.shard = part->shard,
                              .node = impl_->job.shard(part->shard).header().node,
                              .first_row = part->part_begin * each / row,
                              .rows = part->parts == 1 ? rows : part->elements * each / row,
                              .bytes = part->elements * each,
                              .slot_bytes = slot_bytes(*part),
                              .offset = part->data_offset,
                              .chunks = part->pieces,
                              .chunk_elements = part->piece_elements * each / bytes_of(info.dtype)});
        pieces += part->pieces;
        if (info.initialised) updates += sum_updates(impl_->job, *part);
      }
      info.updates = updates / pieces;
      all.push_back(std::move(info));
    }
    return all;
  });
}

std::vector<float> JobView::values(const std::string& name) const {
  return impl_->guarded([&] {
    const Group group = impl_->known.find(name);
    const auto dtype = static_cast<DType>(group.front()->dtype);
    if (!update::takes_gradients(dtype))
      throw Error(fmt::format("variable '{}' has dtype {}, not float32: use bytes()", name, to_string(dtype)));
    std::vector<float> values = read_values(impl_->job, group, 0);
    if (shm::array_dtype(*group.front()) == DType::kFloat32) return values;
    values.insert(values.begin(), shm::element_count(*group.front()) - values.size(), 0.0F);
    update::widen_in_place(values.data(), values.size());
    return values;
  });
}

std::vector<std::byte> JobView::bytes(const std::string& name) const {
  return impl_->guarded([&] {
    const Group group = impl_->known.find(name);
    const std::vector<float> floats = read_values(impl_->job, group, 0);
    const VariableShm& first = *group.front();
    std::vector<std::byte> bytes(shm::value_bytes(first));
    update::fill_bytes(bytes, static_cast<DType>(first.dtype), shm::array_dtype(first),
                       [&](std::span<float> out) { std::copy_n(floats.begin(), out.size(), out.begin()); });
    return bytes;
  });
}

std::vector<std::byte> JobView::sample(const std::string& name, std::uint64_t most) const {
  return impl_->guarded([&] { return sample_values(impl_->job, impl_->known.find(name), most); });
}

std::vector<float> JobView::averages(const std::string& name) const {
  return impl_->guarded([&] {
    const Group group = impl_->known.find(name);
    const VariableShm& first = *group.front();
    const std::uint64_t rules_own = update::slots_per_element(static_cast<UpdateRule>(first.rule), false);
    if (is_inplace(first) || first.slots != rules_own + 1)
      throw Error(fmt::format("variable '{}' has no moving average: its job's optimizer keeps none (`ema`)", name));
    return read_values(impl_->job, group, first.slots);
  });
}

std::vector<float> JobView::slot(const std::string& name, const std::string& slot) const {
  return impl_->guarded([&] {
    const Group group = impl_->known.find(name);
    const VariableShm& first = *group.front();
    std::vector<std::string> slots = slots_of(first);
    if ((first.flags & shm::kRowState) != 0) slots.pop_back();
    const auto found = std::find(slots.begin(), slots.end(), slot);
    if (found == slots.end())
      throw Error(fmt::format("variable '{}' has no slot '{}' of elements; it has {}", name, slot,
                              config::what_there_is(slot, slots)),
                  ErrorCode::kNotFound);
    return read_values(impl_->job, group, 1 + static_cast<std::uint64_t>(found - slots.begin()));
  });
}

std::vector<TableInfo> JobView::tables() const {
  return impl_->guarded([&] {
    std::vector<TableInfo> all;
    for (const TableView& table : open_tables(impl_->job)) {
      all.push_back(describe(table));
      ps_shm::require_whole(table);
    }
    return all;
  });
}

TableCensus JobView::count_rows(const std::string& table, std::uint64_t most) const {
  return impl_->look_at_table(table, [&](const TableView& view) { return ps_shm::count_rows(impl_->job, view, most); });
}

std::vector<TableRow> JobView::table_rows(const std::string& table, std::uint64_t most) const {
  return impl_->look_at_table(table, [&](const TableView& view) {
    return copy_rows(impl_->job, view, shm::read_live(impl_->job).settings.lr, most);
  });
}

Snapshot JobView::snapshot(const SnapshotOptions& options, const std::string& group) const {
  impl_->job.refuse_inherited("view");
  const std::string& name = impl_->job.job();
  if (!impl_->writable) {
    shm::AttachOutcome outcome;
    auto job =
        JobSegments::try_attach(name, shm::Access::kReadWrite, outcome, {.group = shm::shared_with_group(group).group});
    if (!job) throw shm::attach_error(outcome, shm::control_name(name));
    if (job->instance() != impl_->job.instance())
      throw Error(fmt::format("job '{}' has been replaced by another job", name), ErrorCode::kInvalidState);
    impl_->writable.emplace(std::move(*job));
  }
  return Snapshot(std::make_unique<Snapshot::Impl>(
      Snapshotter{.job = *impl_->writable, .is_guest = true, .is_taking = impl_->is_taking_snapshot}, options));
}

BufferCount JobView::buffers() const {
  return impl_->guarded([&] {
    const std::vector<CheckedRecord> records = copy_records(impl_->job);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<const VariableShm*>> classes;  // shard, class
    for (const CheckedRecord& record : records)
      if (!is_inplace(*record) && is_initialised(*record))
        classes[{record->shard, record->buffer_class}].push_back(record.get());
    BufferCount count;
    for (const auto& [place, variables] : classes) add_buffers(impl_->job, variables, count);
    return count;
  });
}

std::vector<Event> JobView::events() const {
  return impl_->guarded([&] {
    std::vector<Event> all;
    for (const shm::EventRecord& record : shm::read_events(impl_->job))
      all.push_back(describe_event(impl_->job, record));
    return all;
  });
}

StalenessSummary JobView::staleness() const {
  return impl_->guarded([&] {
    shm::StalenessTotals totals;
    for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) totals.add(impl_->job.worker(rank));
    return summarise(totals);
  });
}

std::vector<StalenessCount> JobView::staleness_counts() const {
  return impl_->guarded([&] {
    shm::StalenessTotals totals;
    for (std::uint32_t rank = 0; rank < impl_->ranks; ++rank) totals.add(impl_->job.worker(rank));
    std::vector<StalenessCount> counts;
    for (std::uint32_t bucket = 0; bucket < shm::kStalenessBuckets; ++bucket)
      if (totals.buckets[bucket] != 0) counts.push_back({shm::staleness_of_bucket(bucket), totals.buckets[bucket]});
    return counts;
  });
}

std::uint64_t JobView::digest() const {
  return impl_->guarded([&] {
    const std::vector<CheckedRecord> records = copy_records(impl_->job);
    std::vector<Group> groups = grouped(records);
    std::sort(groups.begin(), groups.end(),
              [](const Group& a, const Group& b) { return std::strcmp(a.front()->name, b.front()->name) < 0; });
    std::uint64_t hash = 14695981039346656037ULL;
    for (const Group& group : groups) {
      hash_bytes(hash, group.front()->name, std::strlen(group.front()->name));
      if (!is_initialised(*group.front())) continue;  // it has no values yet
      const std::vector<float> values = read_values(impl_->job, group, 0);
      hash_bytes(hash, values.data(), values.size() * sizeof(float));
    }
    return hash;
  });
}

}  // namespace ps_shm
