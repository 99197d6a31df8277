#include "shm/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "ps/errors.hpp"
#include "shm/futex.hpp"

namespace ps::shm {
namespace {

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr std::uint64_t kBlockBytes = 16384;  // in-place: what one counter of pushes stands for
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

// log2 of a buffer's bytes for a variable of `bytes` with its optimizer slots. Chunks of 16 to 64 KiB keep a chunk
// that is being pushed within the cache; small variables get at least eight, so that two writers seldom meet; big ones
// get larger chunks, so that words stay a small part. (The ranges are design choices; benches/ measures them.)
std::uint32_t choose_class(std::uint64_t bytes) {
  constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB;
  if (bytes <= 8 * 16 * kKiB) {
    const std::uint64_t eighth = std::bit_ceil(bytes / 8 + sizeof(BufferHeaderShm) + 1);
    return std::clamp(static_cast<std::uint32_t>(std::countr_zero(eighth)), 10U, 14U);
  }
  if (bytes <= 16 * kMiB) return 15;
  if (bytes <= 256 * kMiB) return 16;
  return kMaxClass;
}

// A part: rows [first_row, first_row + rows) of the first axis, or the whole of a variable that is not partitioned.
struct PartPlan {
  std::uint64_t begin, elements;
};

// How many parts a variable is cut into: at most one a row.
std::uint64_t count_parts(const VariableSpec& spec, const JobConfigShm& config, bool by_hand) {
  if (config.placement != static_cast<std::uint32_t>(Placement::kPartition) || spec.shape.empty() || by_hand) return 1;
  const std::uint64_t rows = spec.shape[0];
  if (config.max_part_bytes == 0)
    return std::min<std::uint64_t>(rows, config.partitions != 0 ? config.partitions : config.shards);
  const std::uint64_t row_bytes = spec.element_count() / rows * sizeof(float);
  const std::uint64_t rows_per_part = std::max<std::uint64_t>(1, config.max_part_bytes / row_bytes);
  return (rows - 1) / rows_per_part + 1;
}

// As even as whole rows allow, the longer parts first, as TensorFlow's partitioners do.
std::vector<PartPlan> plan_parts(const VariableSpec& spec, std::uint64_t parts) {
  if (parts == 1) return {{0, spec.element_count()}};
  const std::uint64_t rows = spec.shape[0], row = spec.element_count() / rows;
  std::vector<PartPlan> plan;
  for (std::uint64_t part = 0, begin = 0; part < parts; ++part) {
    const std::uint64_t elements = (rows / parts + (part < rows % parts ? 1 : 0)) * row;
    plan.push_back({begin, elements});
    begin += elements;
  }
  return plan;
}

bool is_accumulator(const VariableShm& record) noexcept { return record.base != 0; }

// Elements of one chunk where each has `arrays` floats, in a buffer of that class; slot arrays stay 64-aligned.
std::uint64_t chunk_elements(std::uint32_t buffer_class, std::uint64_t arrays) {
  const std::uint64_t payload = (std::uint64_t{1} << buffer_class) - sizeof(BufferHeaderShm);
  return payload / (sizeof(float) * arrays) / 16 * 16;
}

[[noreturn]] void disagree(const VariableShm& record, const std::string& what, const std::string& theirs,
                           const std::string& yours) {
  throw Error(
      fmt::format("variable '{}' exists with {} {}, you ask for {}: give all programs of the job the same model "
                  "and options",
                  record.name, what, theirs, yours));
}

}  // namespace

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes) {
  return fmt::format("[{}]", fmt::join(extents, extents + axes, ", "));
}

void check_spec(const VariableSpec& spec) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
  if (spec.name.empty() || spec.name.size() > 127 || spec.name.find_first_not_of(kAllowed) != std::string::npos)
    throw Error(fmt::format("'{}' cannot name a variable: use 1 to 127 of A-Z a-z 0-9 _ . : / -", spec.name));
  if (spec.dtype != DType::kFloat32)
    throw Error(
        fmt::format("variable '{}': dtype {} cannot be stored yet, use float32", spec.name, to_string(spec.dtype)));
  if (spec.shape.size() > kMaxAxes)
    throw Error(
        fmt::format("variable '{}' has {} axes; at most {} are possible", spec.name, spec.shape.size(), kMaxAxes));
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : spec.shape) {
    if (extent == 0 || extent > kMaxElements || elements > kMaxElements / extent)
      throw Error(fmt::format("variable '{}' of shape {}: every extent must be at least 1, their product at most 2^40",
                              spec.name, shape_to_string(spec.shape.data(), std::uint32_t(spec.shape.size()))));
    elements *= extent;
  }
}

void check_agreement(const VariableShm& record, const VariableSpec& spec, UpdateRule rule, Layout layout) {
  const std::string theirs = shape_to_string(record.extents, record.axes);
  const std::string yours = shape_to_string(spec.shape.data(), static_cast<std::uint32_t>(spec.shape.size()));
  if (theirs != yours) disagree(record, "shape", theirs, yours);
  if (record.dtype != static_cast<std::uint32_t>(spec.dtype))
    disagree(record, "dtype", to_string(static_cast<DType>(record.dtype)), to_string(spec.dtype));
  if (record.rule != static_cast<std::uint32_t>(rule))
    disagree(record, "update rule", to_string(static_cast<UpdateRule>(record.rule)), to_string(rule));
  if (record.layout != static_cast<std::uint32_t>(layout))
    disagree(record, "layout", to_string(static_cast<Layout>(record.layout)), to_string(layout));
  if (((record.flags & kRegularize) != 0) != spec.regularize)
    disagree(record, "l2", (record.flags & kRegularize) != 0 ? "on" : "off", spec.regularize ? "on" : "off");
}

std::uint32_t Directory::count() const noexcept {
  std::uint32_t position = 0;
  while (position < kMaxVariables && job_.index(position).load_acquire() != 0) ++position;
  return position;
}

VariableShm& Directory::at(std::uint32_t position) const noexcept {
  // The acquire pairs with declare's swap: the record is complete.
  return job_.record((job_.index(position).load_acquire() - 1) % kMaxVariables);
}

std::uint32_t Directory::find(const std::string& name) const noexcept {
  for (std::uint32_t position = 0; position < kMaxVariables && job_.index(position).load_acquire() != 0; ++position)
    if (name == at(position).name) return position;  // part 0 is declared first
  return kNoVariable;
}

std::vector<std::uint32_t> Directory::parts(std::uint32_t first) const {
  std::vector<std::uint32_t> found = {first};
  const VariableShm& whole = at(first);
  for (std::uint32_t position = first + 1, end = count(); position < end && found.size() < whole.parts; ++position) {
    const VariableShm& record = at(position);
    if (!is_accumulator(record) && record.part == found.size() && std::strcmp(record.name, whole.name) == 0)
      found.push_back(position);
  }
  return found;
}

std::uint32_t Directory::accumulator(std::uint32_t base) const noexcept {
  for (std::uint32_t position = base + 1, end = count(); position < end; ++position)
    if (at(position).base == base + 1) return position;
  return kNoVariable;
}

std::vector<std::string> Directory::names() const {
  std::vector<std::string> all;
  for (std::uint32_t position = 0, end = count(); position < end; ++position)
    if (at(position).part == 0 && !is_accumulator(at(position))) all.emplace_back(at(position).name);
  return all;
}

std::uint32_t Directory::claim_record(std::uint32_t byte) const {
  std::vector<bool> published(kMaxVariables);
  for (std::uint32_t position = 0, end = count(); position < end; ++position)
    published[job_.index(position).load_acquire() - 1] = true;
  for (std::uint32_t number = 0; number < kMaxVariables; ++number) {
    if (published[number]) continue;
    std::uint32_t claimed = job_.record(number).claim.load_acquire();
    if (claimed == byte + 1) return number;  // D4: a predecessor's or our own of a lost race
    if (claimed == 0 && job_.record(number).claim.try_exchange_acq_rel(claimed, byte + 1)) return number;
  }
  throw Error(fmt::format(
      "the directory of job '{}' is full: {} variables, or parts of some, are the most a job can have (with "
      "reduce atomic half as many); join small ones, or partition less",
      job_.job(), kMaxVariables));
}

std::uint32_t Directory::choose_shard(const VariableShm& record, std::uint32_t position) const {
  if (is_accumulator(record)) return at(record.base - 1).shard;
  const JobConfigShm& config = job_.config();
  for (std::uint32_t i = 0; i < config.places; ++i)
    if (std::strcmp(job_.place(i).name, record.name) == 0) return job_.place(i).shard % config.shards;
  std::uint32_t placed = 0;
  std::array<std::uint64_t, kMaxShards> load{};
  for (std::uint32_t before = 0; before < position; ++before) {
    const VariableShm& other = at(before);
    if (is_accumulator(other)) continue;
    ++placed;
    load[other.shard] += other.elements * (1 + other.slots);
  }
  if (config.placement != static_cast<std::uint32_t>(Placement::kGreedy)) return placed % config.shards;
  return static_cast<std::uint32_t>(std::min_element(load.begin(), load.begin() + config.shards) - load.begin());
}

void Directory::place(VariableShm& record, std::uint32_t position) {
  record.shard = choose_shard(record, position);
  std::uint64_t end = job_.shard_data_offset(), chunks = 0, gradients = kGradientsOffset, spares = 0;
  for (std::uint32_t before = 0; before < position; ++before) {  // D2
    const VariableShm& other = at(before);
    gradients = std::max(gradients, other.gradient_end);
    if (other.shard != record.shard) continue;
    end = std::max(end, other.shard_end);
    if (other.layout != static_cast<std::uint32_t>(Layout::kVersioned)) continue;
    chunks = std::max(chunks, other.first_chunk + other.pieces);
    if (other.buffer_class == record.buffer_class) spares = other.spares_offset;
  }
  record.gradient_offset = gradients;
  record.gradient_end =
      is_accumulator(record) ? gradients : round_up(gradients + record.elements * sizeof(float), kCacheLine);
  record.words_offset = round_up(end, kCacheLine);
  end = record.words_offset + record.pieces * sizeof(PieceWordShm);
  if (record.layout == static_cast<std::uint32_t>(Layout::kInplace)) {
    record.data_offset = round_up(end, kPage);
    record.shard_end = record.data_offset + record.elements * sizeof(float);
    return;
  }
  const std::uint64_t buffer_bytes = std::uint64_t{1} << record.buffer_class;
  record.first_chunk = chunks;
  record.data_offset = round_up(end, buffer_bytes);  // a buffer's number is its offset divided by its size
  end = record.data_offset + record.pieces * buffer_bytes;
  record.spares_offset = spares != 0 ? spares : end;
  if (spares == 0) end += std::uint64_t{job_.lanes()} * kSparesPerClass * buffer_bytes;
  record.shard_end = end;
  if (end / buffer_bytes >= (1U << 24) || chunks + record.pieces >= (1U << 24) - 1)
    throw Error(
        fmt::format("variable '{}' does not fit its shard: 2^24 buffers of {} bytes are the most; use more "
                    "--ps-tasks",
                    record.name, buffer_bytes));
}

struct Directory::Wanted {
  const VariableSpec& spec;
  UpdateRule rule;
  Layout layout;
  std::uint64_t slots;
  std::uint32_t part, parts;
  PartPlan plan;
  std::uint32_t base;            // accumulators: the position + 1 of what they are for
  std::uint64_t piece_elements;  // of an accumulator: as its base's; 0: to be chosen

  bool is(const VariableShm& record) const {
    return record.base == base && record.part == part && spec.name == record.name;
  }

  void fill(VariableShm& record) const {
    record.dtype = static_cast<std::uint32_t>(spec.dtype);
    record.rule = static_cast<std::uint32_t>(rule);
    record.layout = static_cast<std::uint32_t>(layout);
    record.flags = spec.regularize ? kRegularize : 0;
    record.axes = static_cast<std::uint32_t>(spec.shape.size());
    std::fill_n(record.extents, kMaxAxes, 0);
    std::copy(spec.shape.begin(), spec.shape.end(), record.extents);
    record.elements = plan.elements;
    record.slots = slots;
    record.part = part, record.parts = parts;
    record.part_begin = plan.begin;
    record.whole_elements = spec.element_count();
    record.base = base;
    std::memset(record.name, 0, sizeof record.name);
    spec.name.copy(record.name, sizeof record.name - 1);
    record.init.store_relaxed(0);
    record.buffer_class = 0;
    record.piece_elements = kBlockBytes / sizeof(float);
    if (layout == Layout::kVersioned && piece_elements == 0) {
      record.buffer_class = choose_class(plan.elements * sizeof(float) * (1 + slots));
      record.piece_elements = chunk_elements(record.buffer_class, 1 + slots);
    } else if (layout == Layout::kVersioned) {
      record.buffer_class = kMinClass;
      while (chunk_elements(record.buffer_class, 1) < piece_elements) ++record.buffer_class;
      record.piece_elements = piece_elements;
    }
    record.pieces = (record.elements - 1) / record.piece_elements + 1;
  }
};

std::uint32_t Directory::declare_record(const Wanted& wanted, std::uint32_t byte) {
  VariableShm* record = nullptr;
  for (std::uint32_t position = 0;; ++position) {
    if (position == kMaxVariables) claim_record(byte);  // throws: full
    std::uint32_t found = job_.index(position).load_acquire();
    if (found == 0) {
      if (record == nullptr) {
        record = &job_.record(claim_record(byte));
        fault_point(FaultPoint::kDeclareClaimed);
        wanted.fill(*record);
        fault_point(FaultPoint::kDeclareFilled);
      }
      place(*record, position);
      fault_point(FaultPoint::kDeclarePlaced);
      job_.shard(record->shard).grow(record->shard_end);  // D3
      fault_point(FaultPoint::kDeclareGrown);
      const auto number = static_cast<std::uint32_t>(record - &job_.record(0));
      if (job_.index(position).try_exchange_acq_rel(found, number + 1)) {  // D1; pairs with at()
        fault_point(FaultPoint::kDeclarePublished);
        futex_announce(job_.state().activity);
        fault_point(FaultPoint::kDeclareNext);
        return position;
      }
    }
    // Our own record, if any, stays claimed for our next declaration (D4).
    if (wanted.is(job_.record((found - 1) % kMaxVariables))) return position;
  }
}

std::vector<std::uint32_t> Directory::declare(const VariableSpec& spec, std::uint64_t slots, std::uint32_t byte) {
  check_spec(spec);
  const JobConfigShm& config = job_.config();
  const Layout layout = spec.layout.value_or(static_cast<Layout>(config.layout));
  const UpdateRule rule = spec.rule.value_or(static_cast<UpdateRule>(config.rule));
  if (layout == Layout::kInplace && config.mode == static_cast<std::uint32_t>(Mode::kSync))
    throw Error(
        fmt::format("variable '{}' is in-place, and helping in sync mode is exact for versioned chunks only: use "
                    "layout versioned, or mode async",
                    spec.name));
  if (layout == Layout::kInplace && slots != 0)
    throw Error(fmt::format("variable '{}' is in-place, and {} keeps state beside each parameter: use layout versioned",
                            spec.name, to_string(rule)));
  const std::uint32_t known = find(spec.name);
  if (known != kNoVariable) check_agreement(at(known), spec, rule, layout);
  bool by_hand = false;
  for (std::uint32_t i = 0; i < config.places; ++i) by_hand = by_hand || spec.name == job_.place(i).name;
  const auto parts =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(count_parts(spec, config, by_hand), kMaxVariables + 1));
  std::vector<std::uint32_t> positions;
  for (std::uint32_t part = 0; const PartPlan& plan : plan_parts(spec, parts)) {
    Wanted wanted{spec, rule, layout, slots, part++, parts, plan, 0, 0};
    positions.push_back(declare_record(wanted, byte));
    check_agreement(at(positions.back()), spec, rule, layout);
    if (config.reduce != static_cast<std::uint32_t>(Reduce::kAtomic)) continue;
    wanted.slots = 0;
    wanted.base = positions.back() + 1;
    wanted.piece_elements = at(positions.back()).piece_elements;
    declare_record(wanted, byte);
  }
  return positions;
}

}  // namespace ps::shm
