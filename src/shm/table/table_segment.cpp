#include "shm/table/table_segment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "config/eviction.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/slots/inplace_bfloat16.hpp"
#include "update/dtypes.hpp"
#include "update/traits.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint32_t kFirstBits = 9;  // log2 of the buckets that a table begins with: a page of them

std::uint32_t number_of(std::uint32_t table, std::uint32_t part) noexcept { return table << 16 | part; }

// Where everything lies. Requires: the sizes are set.
void place(TableShm& table) noexcept {
  const std::uint64_t numbers = table.row_elements * (1 + table.slots);
  table.row_floats = static_cast<DType>(table.dtype) == DType::kBFloat16 ? floats_of_bfloat16(numbers) : numbers;
  if (table.has_row_state != 0) ++table.row_floats;
  table.row_floats = round_up(table.row_floats, 4);  // the elements of each row are 16-byte aligned
  table.row_bytes = sizeof(TableRowShm) + table.row_floats * sizeof(float);
  table.max_bits = std::bit_width(table.max_rows - 1);
  table.max_bits = std::max<std::uint64_t>(table.max_bits, kFirstBits);
  table.sightings = table.admit_after <= 1 ? 0 : std::bit_ceil(std::max<std::uint64_t>(kPage, 2 * table.max_rows));
  table.sightings_offset = round_up(kLanesOffset + table.lanes * sizeof(TableLaneShm), kPage);
  constexpr std::uint64_t kFewest = kPage / sizeof(EvictedShm), kMost = 1 << 18;
  table.listed_at_most = round_up(std::clamp(table.max_rows / 16, kFewest, kMost), kFewest);
  table.evicted_offset = round_up(table.sightings_offset + table.sightings, kPage);
  table.buckets_offset =
      round_up(table.evicted_offset + table.lanes * table.listed_at_most * sizeof(EvictedShm), kLargestPage);
  table.rows_offset = round_up(table.buckets_offset + (sizeof(std::uint64_t) << table.max_bits), kLargestPage);
  table.bytes = round_up(table.rows_offset + table.max_rows * table.row_bytes, kLargestPage);
}

// As all workers have to give it.
void describe(TableShm& table, const JobSegments& job, const TableForm& form, std::uint32_t part, std::uint32_t parts) {
  const TableSpec& spec = form.spec;
  spec.name.copy(table.name, sizeof table.name - 1);
  table.rule = static_cast<std::uint32_t>(form.rule);
  table.slots = form.slots;
  table.has_row_state = form.has_row_state ? 1 : 0;
  table.lanes = job.lanes();
  table.part = part, table.parts = parts;
  table.dtype = static_cast<std::uint32_t>(spec.dtype);
  table.row_elements = spec.row_size;
  table.max_rows = (spec.max_rows - 1) / parts + 1;
  table.lr_scale = std::bit_cast<std::uint32_t>(spec.lr_scale);
  table.regularize = std::bit_cast<std::uint32_t>(spec.regularize);
  table.admit_after = spec.admit_after;
  table.evict = static_cast<std::uint32_t>(spec.evict);
  table.touch_on_pull = spec.touch_on_pull ? 1 : 0;
  table.initial_range = std::bit_cast<std::uint32_t>(spec.initial_range);
  table.ttl_ns = static_cast<std::uint64_t>(std::llround(spec.ttl * 1e9));
  table.seed = spec.seed;
  table.key_hash[0] = job.key_hash().first, table.key_hash[1] = job.key_hash().second;
  place(table);
}

constexpr std::size_t kDescribed = offsetof(TableShm, bits);  // bytes that say what a table is

Segment make(const JobSegments& job, const TableShm& wanted, std::uint32_t number,
             const std::function<std::uint32_t(std::uint32_t)>& lane_owner,
             const std::function<void(TablePart&)>& fill) {
  Segment segment = Segment::create(SegmentKind::kTable, number, job.job(), job.instance(), wanted.evicted_offset,
                                    wanted.bytes, job.control().sharing());
  fault_point(FaultPoint::kTableMade);
  const std::uint32_t shard = (number >> 16) + wanted.part;
  const std::int32_t node = job.shard(shard % job.config().ps_tasks).header().node;
  static_cast<void>(segment.place_memory(node < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(node)),
                                         job.config().huge_pages));
  segment.extend(wanted.bytes);
  segment.allocate(wanted.buckets_offset, wanted.buckets_offset + (sizeof(std::uint64_t) << kFirstBits));
  auto& table = *reinterpret_cast<TableShm*>(segment.data() + kTableOffset);
  std::memcpy(static_cast<void*>(&table), &wanted, kDescribed);
  table.bits.store_relaxed(kFirstBits);  // relaxed, as the next: nobody else can see it
  table.dump_epoch.store_relaxed(1);
  auto* const first = reinterpret_cast<AtomicShm<std::uint64_t>*>(segment.data() + wanted.buckets_offset);
  first->store_relaxed(next_word(0, RowState::kLive, kEndOfList));
  fault_point(FaultPoint::kTableFilled);
  if (fill) {
    TablePart part(std::move(segment), lane_owner);
    fill(part);
    segment = std::move(part.segment());
  }
  segment.publish();  // before it has a name: no process finds it incomplete
  return segment;
}

// The part, made if it is not there. `is_found`: whether it was. Nothing: a segment of another job has been removed, or
// another process has made it meanwhile: try again.
std::optional<Segment> open_or_make(const JobSegments& job, const TableShm& wanted, std::uint32_t table,
                                    const std::function<std::uint32_t(std::uint32_t)>& lane_owner,
                                    const std::function<void(TablePart&)>& fill) {
  const std::string name = table_name(job.job(), table, wanted.part);
  Segment segment;
  const AttachOutcome found = segment.open(name, Access::kReadWrite, job.trust());
  if (found == AttachOutcome::kAbsent) {
    segment = make(job, wanted, number_of(table, wanted.part), lane_owner, fill);
    fault_point(FaultPoint::kTablePublished);
    if (!segment.link(name)) return std::nullopt;
    fault_point(FaultPoint::kTableNamed);
    return segment;
  }
  if (found != AttachOutcome::kReady) throw attach_error(found, name);
  if (segment.header().instance != job.instance()) {  // of an earlier job of that name (data.D3)
    if (!unlink_segment(name))
      throw Error(
          fmt::format("cannot name /dev/shm/{}: something that belongs to {} has the name; remove it, or choose "
                      "another job name",
                      name, owner_of(name)),
          ErrorCode::kAlreadyExists);
    return std::nullopt;
  }
  if (!is_table(segment, job)) fail_damaged(name, "it is not a table of that job");
  return segment;
}

void check_agreement(const TableShm& there, const TableShm& wanted) {
  const auto disagree = [&](const char* what, auto theirs, auto yours) {
    if (theirs == yours) return;
    throw Error(fmt::format("table '{}' already exists with {} {}, but {} was requested; give all programs of the job "
                            "the same model and options",
                            text_of(there.name), what, theirs, yours),
                ErrorCode::kIncompatible);
  };
  const auto number = [](std::uint32_t bits) { return std::bit_cast<float>(bits); };
  disagree("rows of", there.row_elements, wanted.row_elements);
  const auto name_of = [](std::uint32_t dtype) { return std::string(to_string(static_cast<DType>(dtype))); };
  disagree("dtype", name_of(there.dtype), name_of(wanted.dtype));
  disagree("update rule", there.rule, wanted.rule);
  disagree("max_rows", there.max_rows * there.parts, wanted.max_rows * wanted.parts);
  disagree("admit_after", there.admit_after, wanted.admit_after);
  const auto way_of = [](std::uint32_t evict) { return std::string(to_string(static_cast<Evict>(evict))); };
  disagree("evict", way_of(there.evict), way_of(wanted.evict));
  disagree("ttl", double(there.ttl_ns) / 1e9, double(wanted.ttl_ns) / 1e9);
  disagree("touch_on_pull", there.touch_on_pull != 0, wanted.touch_on_pull != 0);
  disagree("initial_range", number(there.initial_range), number(wanted.initial_range));
  disagree("seed", there.seed, wanted.seed);
  disagree("factor of l2 and weight decay", number(there.regularize), number(wanted.regularize));
  disagree("factor of the learning rate", number(there.lr_scale), number(wanted.lr_scale));
}

// The number of the table of that name, or of the first one that this process has not seen.
std::uint32_t first_to_open(JobSegments& job, const std::string& name) {
  const std::vector<std::string>& seen = job.tables_seen();
  return static_cast<std::uint32_t>(std::find(seen.begin(), seen.end(), name) - seen.begin());
}
void note_name(JobSegments& job, std::uint32_t table, const Segment& segment) {
  if (job.tables_seen().size() == table) job.tables_seen().emplace_back(text_of(table_record(segment).name));
}

}  // namespace

bool is_table(const Segment& segment, const JobSegments& job, TableShm& checked) noexcept {
  if (!segment.covers(kLanesOffset)) return false;
  std::memcpy(static_cast<void*>(&checked), segment.data() + kTableOffset, kDescribed);
  const TableShm& there = checked;
  const update::Traits* const rule = update::find_rule(there.rule);
  if (rule == nullptr || there.slots != update::slots_per_element(rule->rule, false, true) ||
      there.has_row_state != (rule->has_row_state() ? 1U : 0U) ||
      !update::takes_gradients(static_cast<DType>(there.dtype)))
    return false;
  if (there.part >= there.parts || there.parts > kMaxShards || there.lanes != job.lanes() || there.row_elements == 0 ||
      there.row_elements > kMaxTableRowSize || there.max_rows == 0 || there.max_rows > kMaxTableRows ||
      find_eviction(there.evict) == nullptr || key_hash_of(there) != job.key_hash() ||
      std::memchr(there.name, 0, sizeof there.name) == nullptr)
    return false;
  TableShm placed = {};
  std::memcpy(static_cast<void*>(&placed), &there, kDescribed);
  place(placed);
  const auto* const bits = reinterpret_cast<const TableShm*>(segment.data() + kTableOffset);
  return std::memcmp(&placed, &there, kDescribed) == 0 && there.bytes <= segment.usable_bytes() &&
         bits->bits.hint() <= there.max_bits &&
         segment.is_of(SegmentKind::kTable, segment.header().number, job.job(), job.instance()) &&
         (segment.header().number & 0xffff) == there.part;
}

std::vector<std::unique_ptr<TablePart>> open_table(JobSegments& job, const TableForm& form,
                                                   const std::function<std::uint32_t(std::uint32_t)>& lane_owner,
                                                   const std::function<void(TablePart&)>& fill) {
  const std::uint32_t parts = parts_of_tables(job.config());
  std::vector<std::unique_ptr<TablePart>> opened;
  for (std::uint32_t table = first_to_open(job, form.spec.name); table < kMaxTables;) {
    TableShm wanted = {};
    describe(wanted, job, form, static_cast<std::uint32_t>(opened.size()), parts);
    std::optional<Segment> segment = open_or_make(job, wanted, table, lane_owner, fill);
    if (!segment) continue;
    const TableShm& there = table_record(*segment);
    note_name(job, table, *segment);
    if (text_of(there.name) != form.spec.name) {  // only part 0 of another table
      ++table;
      continue;
    }
    check_agreement(there, wanted);
    opened.push_back(std::make_unique<TablePart>(std::move(*segment), lane_owner));
    if (opened.size() == parts) return opened;
  }
  throw Error(fmt::format("job '{}' cannot have more than {} tables", job.job(), kMaxTables), ErrorCode::kExhausted);
}

bool has_table(JobSegments& job, const std::string& name) {
  const std::uint32_t parts = parts_of_tables(job.config());
  for (std::uint32_t table = first_to_open(job, name), part = 0; table < kMaxTables;) {
    Segment segment;
    if (segment.open(table_name(job.job(), table, part), Access::kReadOnly, job.trust()) != AttachOutcome::kReady ||
        !is_table(segment, job))
      return false;
    note_name(job, table, segment);
    if (text_of(table_record(segment).name) != name)
      ++table;
    else if (++part == parts)
      return true;
  }
  return false;
}

std::vector<Segment> find_tables(const JobSegments& job) {
  std::vector<Segment> found;
  for (std::uint32_t table = 0; table < kMaxTables; ++table) {
    for (std::uint32_t part = 0, parts = 1; part < parts; ++part) {
      Segment segment;
      const AttachOutcome outcome = segment.open(table_name(job.job(), table, part), Access::kReadOnly, job.trust());
      if (part == 0 && outcome == AttachOutcome::kAbsent) return found;
      if (outcome != AttachOutcome::kReady || !is_table(segment, job)) break;
      parts = table_record(segment).parts;
      found.push_back(std::move(segment));
    }
  }
  return found;
}

}  // namespace ps_shm::shm
