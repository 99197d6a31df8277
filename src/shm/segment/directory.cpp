#include "shm/segment/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>
#include <unordered_map>

#include "config/job_settings.hpp"
#include "config/modes.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/futex.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/placement.hpp"
#include "update/bfloat16.hpp"

namespace ps_shm::shm {
namespace {

[[noreturn]] void disagree(const VariableShm& record, const std::string& what, const std::string& theirs,
                           const std::string& yours) {
  throw Error(
      fmt::format(
          "variable '{}' already exists with {} {}, but {} was requested; give all programs of the job the same "
          "model and options",
          record.name, what, theirs, yours),
      ErrorCode::kIncompatible);
}

}  // namespace

std::string shape_to_string(const std::uint64_t* extents, std::uint32_t axes) {
  return fmt::format("[{}]", fmt::join(extents, extents + axes, ", "));
}

void check_factors(std::string_view name, const Factors& factors) {
  const auto is_factor = [](float value) { return value >= 0 && std::isfinite(value); };
  if (!is_factor(factors.regularize) || !is_factor(factors.lr_scale))
    throw Error(
        fmt::format("variable '{}': the factors of its learning rate and weight decay must be at least 0, not {} "
                    "and {}",
                    name, factors.lr_scale, factors.regularize));
}

void check_spec(const VariableSpec& spec) {
  constexpr char kAllowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-";
  if (spec.name.empty() || spec.name.size() > 127 || spec.name.find_first_not_of(kAllowed) != std::string::npos)
    throw Error(fmt::format("'{}' is not a valid variable name; use 1 to 127 of the characters A-Z a-z 0-9 _ . : / -",
                            spec.name));
  if (bytes_of(spec.dtype) == 0)
    throw Error(fmt::format("variable '{}': there is no dtype {}", spec.name, std::uint32_t(spec.dtype)));
  if (!update::takes_gradients(spec.dtype) && spec.rule.value_or(UpdateRule::kAdd) != UpdateRule::kAdd)
    throw Error(fmt::format("variable '{}' has dtype {}, which takes no gradients; its update rule must be add",
                            spec.name, to_string(spec.dtype)));
  if (!update::takes_gradients(spec.dtype) && spec.layout.value_or(Layout::kVersioned) != Layout::kVersioned)
    throw Error(fmt::format("variable '{}' has dtype {}, and only float32 and bfloat16 can be in-place; its layout must "
                            "be versioned",
                            spec.name, to_string(spec.dtype)));
  if (const auto layout = std::uint32_t(spec.layout.value_or(Layout::kVersioned));
      layout < std::uint32_t(Layout::kVersioned) || layout > std::uint32_t(Layout::kSingleWriter))
    throw Error(fmt::format("variable '{}': there is no layout {}", spec.name, layout));
  check_factors(spec.name, {.lr_scale = spec.lr_scale, .regularize = spec.regularize});
  if (spec.shape.size() > kMaxAxes)
    throw Error(fmt::format("variable '{}' has {} axes; the maximum is {}", spec.name, spec.shape.size(), kMaxAxes));
  std::uint64_t elements = 1;
  for (const std::uint64_t extent : spec.shape) {
    if (extent == 0 || extent > kMaxElements || elements > kMaxElements / extent)
      throw Error(
          fmt::format("variable '{}' of shape {}: every extent must be at least 1, and their product at most 2^40",
                      spec.name, shape_to_string(spec.shape.data(), std::uint32_t(spec.shape.size()))));
    elements *= extent;
  }
}

void follow_factors(update::Settings& settings, const JobConfig& config, const Factors& factors) noexcept {
  const update::Settings now = update::settings_of(config.optimizer, settings.rule, factors.regularize, settings.dtype,
                                                   factors.lr_scale);
  settings.lr_scale = now.lr_scale;
  settings.l1 = now.l1;
  settings.l2 = now.l2;
  settings.weight_decay = now.weight_decay;
}

update::Settings settings_of(const JobConfig& config, const VariableShm& record) noexcept {
  const Factors factors = factors_of(record.factors.load_relaxed());
  update::Settings settings =
      update::settings_of(config.optimizer, static_cast<UpdateRule>(record.rule), factors.regularize,
                          array_dtype(record), factors.lr_scale);
  if (static_cast<DType>(record.dtype) == DType::kBFloat16)
    settings.rounding = update::rounding_seed(config::seed_of(config), text_of(record.name));
  return settings;
}

VariableSpec resolved(VariableSpec spec, const JobConfig& config) {
  if (!spec.rule) spec.rule = update::takes_gradients(spec.dtype) ? config.optimizer.rule : UpdateRule::kAdd;
  if (!spec.layout) spec.layout = update::takes_gradients(spec.dtype) ? config.layout : Layout::kVersioned;
  return spec;
}

void check_agreement(const VariableShm& record, const VariableSpec& spec) {
  const std::string theirs = shape_to_string(record.extents, record.axes);
  const std::string yours = shape_to_string(spec.shape.data(), static_cast<std::uint32_t>(spec.shape.size()));
  if (theirs != yours) disagree(record, "shape", theirs, yours);
  if (record.dtype != static_cast<std::uint32_t>(spec.dtype))
    disagree(record, "dtype", to_string(static_cast<DType>(record.dtype)), to_string(spec.dtype));
  if (record.rule != static_cast<std::uint32_t>(*spec.rule))
    disagree(record, "update rule", to_string(static_cast<UpdateRule>(record.rule)), to_string(*spec.rule));
  if (record.layout != static_cast<std::uint32_t>(*spec.layout))
    disagree(record, "layout", to_string(static_cast<Layout>(record.layout)), to_string(*spec.layout));
  const auto require_same = [&](const char* what, std::uint32_t bits, float yours) {
    const auto theirs = std::bit_cast<float>(bits);
    if (theirs != yours) disagree(record, what, fmt::format("{}", theirs), fmt::format("{}", yours));
  };
  require_same("factor of l2 and weight decay", record.regularize, spec.regularize);
  require_same("factor of the learning rate", record.lr_scale, spec.lr_scale);
}

// Positions of records by variable, and what the records so far have taken.
class Directory::Known {
 public:
  explicit Known(const JobSegments& job) : occupied_(job) {}

  std::uint32_t count() const noexcept { return static_cast<std::uint32_t>(accumulators_.size()); }
  const Occupancy& occupied() const noexcept { return occupied_; }
  bool is_published(std::uint32_t number) const noexcept { return number < published_.size() && published_[number]; }

  // Adds the record at position count(), which is record `number` of the segment. False: an earlier position names the
  // same record, or the record's place is impossible.
  [[nodiscard]] bool add(const VariableShm& record, std::uint32_t number) {
    if (is_published(number) || !occupied_.add(record)) return false;
    if (number >= published_.size()) published_.resize(number + 1);
    published_[number] = true;
    if (is_variable(record)) {
      std::vector<std::uint32_t>& parts = parts_[text_of(record.name)];
      if (record.part == parts.size()) parts.push_back(count());
    } else if (record.base <= count()) {
      (is_reserve(record) ? reserves_ : accumulators_)[record.base - 1] = count();
    }
    accumulators_.push_back(kNoVariable);
    reserves_.push_back(kNoVariable);
    return true;
  }

  std::span<const std::uint32_t> parts(std::string_view name) const {
    const auto found = parts_.find(name);
    return found == parts_.end() ? std::span<const std::uint32_t>() : found->second;
  }
  // Of the record at `position` < count().
  std::uint32_t accumulator(std::uint32_t position) const noexcept { return accumulators_[position]; }
  std::uint32_t reserve(std::uint32_t position) const noexcept { return reserves_[position]; }

  // The number from which on records may be free for the holder of `byte`. Earlier records are published, or claimed
  // for good by other tasks.
  std::uint32_t& first_free(std::uint32_t byte) noexcept {
    if (byte != byte_) first_free_ = 0;
    byte_ = byte;
    return first_free_;
  }

 private:
  Occupancy occupied_;
  std::unordered_map<std::string_view, std::vector<std::uint32_t>> parts_;  // by names in the segment
  std::vector<std::uint32_t> accumulators_, reserves_;                      // by position; kNoVariable: none
  std::vector<bool> published_;                                             // by number
  std::uint32_t byte_ = kLockBytes, first_free_ = 0;
};

Directory::Directory(JobSegments& job) noexcept : job_(job) {}
Directory::~Directory() = default;

bool Directory::has(std::uint32_t position) const noexcept {
  return position < kMaxVariables && job_.index(position).load_acquire() != 0;  // (directory.D1)
}

std::uint32_t Directory::count() const noexcept {
  std::uint32_t position = 0;
  while (has(position)) ++position;
  return position;
}

VariableShm& Directory::at(std::uint32_t position) const {
  // (directory.D1) pairs with the swap in declare_record: the record is complete.
  const std::uint32_t entry = job_.index(position).load_acquire();
  if (entry == 0 || (entry > covered_ && !job_.has_records(entry)))  // directory.D7
    fail_damaged(control_name(job_.job()), fmt::format("index {} names record {}", position, entry));
  covered_ = std::max(covered_, entry);
  return job_.record(entry - 1);
}

Directory::Known& Directory::look() const {
  if (!known_) known_ = std::make_unique<Known>(job_);
  for (std::uint32_t position = known_->count(); has(position); ++position) {
    const VariableShm& record = at(position);
    if (!known_->add(record, static_cast<std::uint32_t>(&record - &job_.record(0))))
      fail_damaged(control_name(job_.job()), fmt::format("the record at position {} is not valid", position));
  }
  return *known_;
}

std::uint32_t Directory::find(const std::string& name) const {
  const std::span<const std::uint32_t> parts = look().parts(name);
  return parts.empty() ? kNoVariable : parts.front();
}

std::vector<std::uint32_t> Directory::parts(std::uint32_t first) const {
  const std::span<const std::uint32_t> parts = look().parts(text_of(at(first).name));
  return {parts.begin(), parts.end()};
}

std::uint32_t Directory::accumulator(std::uint32_t base) const { return look().accumulator(base); }

std::vector<std::string> Directory::names() const {
  std::vector<std::string> all;
  for (std::uint32_t position = 0, end = count(); position < end; ++position)
    if (at(position).part == 0 && is_variable(at(position))) all.emplace_back(at(position).name);
  return all;
}

void Directory::fail_full() const {
  throw Error(
      fmt::format("the variable directory of job '{}' is full: a job can have at most {} variables, counting each part "
                  "of a partitioned one (half as many "
                  "with reduce atomic, and half as many with snapshots); merge small variables, or use fewer parts",
                  job_.job(), kMaxVariables),
      ErrorCode::kExhausted);
}

std::uint32_t Directory::claim_record(std::uint32_t byte) {
  const Known& known = look();
  for (std::uint32_t& number = known_->first_free(byte); number < kMaxVariables; ++number) {
    if (known.is_published(number)) continue;
    job_.make_record(number);  // directory.D7
    fault_point(FaultPoint::kDeclareMade);
    std::uint32_t claimed = job_.record(number).claim.load_acquire();  // (directory.D4)
    if (claimed == byte + 1) return number;  // directory.D4: a predecessor's, or this task's own from a lost race
    // (directory.D4)
    if (claimed == 0 && job_.record(number).claim.try_exchange_acq_rel(claimed, byte + 1)) return number;
  }
  fail_full();
}

struct Directory::Wanted {
  const VariableSpec& spec;  // resolved
  std::uint64_t slots, whole_elements;
  std::uint32_t part, parts;
  PartPlan plan;
  PartitionBy partition_by;
  std::uint32_t base;        // accumulators and reserves: position + 1 of the record that they belong to
  const VariableShm* whose;  // that record, or nullptr
  std::uint32_t more_flags = 0;

  void fill(VariableShm& record) const {
    record.dtype = static_cast<std::uint32_t>(spec.dtype);
    record.rule = static_cast<std::uint32_t>(*spec.rule);
    record.layout = static_cast<std::uint32_t>(*spec.layout);
    record.flags = (update::traits_of(*spec.rule).has_row_state() ? kRowState : 0) | more_flags;
    record.lr_scale = std::bit_cast<std::uint32_t>(spec.lr_scale);
    record.regularize = std::bit_cast<std::uint32_t>(spec.regularize);
    record.axes = static_cast<std::uint32_t>(spec.shape.size());
    std::fill_n(record.extents, kMaxAxes, 0);
    std::copy(spec.shape.begin(), spec.shape.end(), record.extents);
    record.elements = plan.elements;
    record.slots = slots;
    record.part = part, record.parts = parts;
    record.part_begin = plan.begin;
    record.whole_elements = whole_elements;
    record.base = base;
    record.partition_by = static_cast<std::uint32_t>(partition_by);
    std::memset(record.name, 0, sizeof record.name);
    spec.name.copy(record.name, sizeof record.name - 1);
    record.init.store_relaxed(0);
    record.reserve.store_relaxed(0);
    record.factors.store_relaxed(word_of({.lr_scale = spec.lr_scale, .regularize = spec.regularize}));
  }
};

namespace {

// Chunks do not end at rows, so the parts of a versioned variable must be contiguous.
PartitionBy partition_by(Layout layout, const JobConfig& config) {
  return layout == Layout::kInplace ? config.partition_by : PartitionBy::kRange;
}

}  // namespace

std::uint32_t Directory::declare_record(const Wanted& wanted, std::uint32_t byte) {
  VariableShm* record = nullptr;
  for (;;) {
    const Known& known = look();
    // The record of this task, if any, stays claimed for its next declaration (directory.D4).
    if (wanted.base != 0) {
      const std::uint32_t there =
          (wanted.more_flags & kReserve) != 0 ? known.reserve(wanted.base - 1) : known.accumulator(wanted.base - 1);
      if (there != kNoVariable) return there;
    }
    const std::span<const std::uint32_t> parts = known.parts(wanted.spec.name);
    if (wanted.base == 0 && wanted.part < parts.size()) return parts[wanted.part];
    if (record == nullptr) {
      record = &job_.record(claim_record(byte));
      fault_point(FaultPoint::kDeclareClaimed);
      wanted.fill(*record);
      fault_point(FaultPoint::kDeclareFilled);
      continue;  // another task may have declared it since: its place depends on this reading
    }
    choose_pieces(*record, wanted.whose, job_.config().chunk_bytes);
    choose_place(*record, wanted.whose, job_, known.occupied());
    fault_point(FaultPoint::kDeclarePlaced);
    job_.shard(record->shard).grow(record->shard_end);  // directory.D3
    fault_point(FaultPoint::kDeclareGrown);
    const std::uint32_t position = known.count();
    const auto number = static_cast<std::uint32_t>(record - &job_.record(0));
    std::uint32_t found = 0;
    if (!job_.index(position).try_exchange_acq_rel(found, number + 1)) continue;  // (directory.D1) pairs with at()
    fault_point(FaultPoint::kDeclarePublished);
    futex_announce(job_.state().activity);
    fault_point(FaultPoint::kDeclareNext);
    return position;
  }
}

// Fails if the directory has no room for all parts, before some of the parts take the room that there is.
void Directory::require_room(const std::string& name, std::uint32_t parts) const {
  const Known& known = look();
  std::uint64_t wanted = parts;
  if (job_.config().reduce == Reduce::kAtomic) wanted *= 2;
  for (const std::uint32_t part : known.parts(name)) wanted -= known.accumulator(part) == kNoVariable ? 1 : 2;
  if (known.count() + wanted > kMaxVariables) fail_full();
}

std::vector<std::uint32_t> Directory::declare(const VariableSpec& given, std::uint64_t slots, std::uint32_t byte) {
  check_spec(given);
  const JobConfig& config = job_.config();
  const VariableSpec spec = resolved(given, config);
  const Layout layout = *spec.layout;
  const UpdateRule rule = *spec.rule;
  if (update::find_rule(static_cast<std::uint32_t>(rule)) == nullptr)
    throw Error(fmt::format("variable '{}': there is no update rule {}", spec.name, static_cast<std::uint32_t>(rule)));
  const update::Traits& traits = update::traits_of(rule);
  if (layout == Layout::kInplace && ps_shm::traits_of(config.mode).needs_versioned)
    throw Error(fmt::format(
        "variable '{}' is in-place, but sync mode needs versioned chunks, so that workers can help each other; use "
        "layout versioned, or mode async",
        spec.name));
  if (layout == Layout::kInplace && config.optimizer.ema > 0 && !traits.is_sum)
    throw Error(fmt::format(
        "variable '{}' is in-place, and in-place variables have no moving average; use layout versioned, or no ema",
        spec.name));
  if (layout == Layout::kInplace && slots == 3 && spec.dtype == DType::kFloat32 && !kHas16ByteExchange)
    throw Error(
        fmt::format("variable '{}' is in-place, but {} needs a compare-exchange of 16 bytes, which this build "
                    "lacks; use layout versioned, or bfloat16",
                    spec.name, traits.name));
  if (layout == Layout::kInplace && traits.reads_by_rate && !config.optimizer.schedule.is_constant())
    throw Error(
        fmt::format("variable '{}' is in-place, and {} computes its values from the learning rate; use "
                    "`lr-schedule` constant, or layout versioned",
                    spec.name, traits.name));
  if (traits.reads_by_rate && spec.lr_scale == 0)
    throw Error(
        fmt::format("variable '{}': the factor of its learning rate must be greater than 0, because {} divides by "
                    "the rate",
                    spec.name, traits.name));
  if (layout == Layout::kSingleWriter) config::require_single_writer(config, fmt::format("variable '{}'", spec.name));
  if (layout != Layout::kInplace && !traits.works_versioned)
    throw Error(fmt::format("variable '{}' is versioned, but {} keeps state for each row; use layout inplace",
                            spec.name, traits.name));
  const std::uint32_t known = find(spec.name);
  if (known != kNoVariable) check_agreement(at(known), spec);
  std::vector<std::uint32_t> positions;
  const PartsPlan plan(job_, spec.name, spec.shape, spec.dtype, layout);
  const std::uint32_t parts = plan.count();
  require_room(spec.name, parts);
  for (std::uint32_t part = 0; part < parts; ++part) {
    Wanted wanted{spec, slots, plan.elements(), part, parts, plan.part(part), partition_by(layout, config), 0, nullptr};
    positions.push_back(declare_record(wanted, byte));
    check_agreement(at(positions.back()), spec);
    if (config.reduce != Reduce::kAtomic) continue;
    wanted.slots = 0;
    wanted.base = positions.back() + 1;
    wanted.whose = &at(positions.back());
    declare_record(wanted, byte);
  }
  return positions;
}

// Declares the reserve of the record at `position`; returns its position. One that nothing names yet is found again.
std::uint32_t Directory::declare_reserve(std::uint32_t position, std::uint32_t byte) {
  const VariableShm& whose = at(position);
  const VariableSpec spec{.name = whose.name,
                          .shape = {whose.extents, whose.extents + whose.axes},
                          .rule = static_cast<UpdateRule>(whose.rule),
                          .dtype = static_cast<DType>(whose.dtype),
                          .layout = static_cast<Layout>(whose.layout),
                          .regularize = std::bit_cast<float>(whose.regularize),
                          .lr_scale = std::bit_cast<float>(whose.lr_scale)};
  const Wanted wanted{spec,
                      whose.slots,
                      whose.whole_elements,
                      whose.part,
                      whose.parts,
                      {whose.part_begin, whose.elements},
                      static_cast<PartitionBy>(whose.partition_by),
                      position + 1,
                      &whose,
                      kReserve};
  return declare_record(wanted, byte);
}

void Directory::reserve(const std::vector<std::uint32_t>& positions, std::uint32_t byte) {
  struct Made {
    VariableShm* whose;
    const VariableShm* record;
    std::size_t begin() const { return record->data_offset; }
    std::size_t end() const { return begin() + (record->pieces << record->buffer_class); }
  };
  std::vector<Made> made;
  try {
    for (const std::uint32_t position : positions) {
      VariableShm& whose = at(position);
      if (whose.reserve.load_relaxed() != 0) continue;  // relaxed: only the holder of kSnapshotByte writes it
      made.push_back({&whose, &at(declare_reserve(position, byte))});
      fault_point(FaultPoint::kReserveMade);
      // The bytes of one that was declared before may have been given back.
      job_.shard(made.back().record->shard).allocate(made.back().begin(), made.back().end());
    }
  } catch (...) {
    for (const Made& one : made) job_.shard(one.record->shard).give_back(one.begin(), one.end());  // nothing names them
    throw;
  }
  for (const Made& one : made) {
    const std::uint64_t first = one.record->data_offset >> one.record->buffer_class;
    one.whose->reserve.store_release(first);  // (snapshot.C6) its bytes exist
    fault_point(FaultPoint::kReserveNamed);
  }
}

}  // namespace ps_shm::shm
