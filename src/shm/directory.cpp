#include "shm/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ps/errors.hpp"
#include "shm/futex.hpp"
#include "shm/inplace_slot.hpp"
#include "shm/placement.hpp"

namespace ps::shm {
namespace {

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

void Directory::place(VariableShm& record, std::uint32_t position) {
  std::vector<const VariableShm*> before;
  for (std::uint32_t earlier = 0; earlier < position; ++earlier) before.push_back(&at(earlier));
  choose_place(record, job_, before);
}

struct Directory::Wanted {
  const VariableSpec& spec;
  UpdateRule rule;
  Layout layout;
  std::uint64_t slots;
  std::uint32_t part, parts;
  PartPlan plan;
  std::uint32_t partition_by;
  std::uint32_t base;        // accumulators: the position + 1 of what they are for
  const VariableShm* whose;  // that record, or nullptr

  bool is(const VariableShm& record) const {
    return record.base == base && record.part == part && spec.name == record.name;
  }

  void fill(VariableShm& record, std::uint64_t chunk_bytes) const {
    record.dtype = static_cast<std::uint32_t>(spec.dtype);
    record.rule = static_cast<std::uint32_t>(rule);
    record.layout = static_cast<std::uint32_t>(layout);
    record.flags = (spec.regularize ? kRegularize : 0) | (rule == UpdateRule::kRowwiseAdagrad ? kRowState : 0);
    record.axes = static_cast<std::uint32_t>(spec.shape.size());
    std::fill_n(record.extents, kMaxAxes, 0);
    std::copy(spec.shape.begin(), spec.shape.end(), record.extents);
    record.elements = plan.elements;
    record.slots = slots;
    record.part = part, record.parts = parts;
    record.part_begin = plan.begin;
    record.whole_elements = spec.element_count();
    record.base = base;
    record.partition_by = partition_by;
    std::memset(record.name, 0, sizeof record.name);
    spec.name.copy(record.name, sizeof record.name - 1);
    record.init.store_relaxed(0);
    choose_pieces(record, whose, chunk_bytes);
  }
};

namespace {

// Versioned chunks cut through rows, so a part's have to follow each other.
std::uint32_t partition_by(Layout layout, const JobConfigShm& config) {
  return layout == Layout::kInplace ? config.partition_by : static_cast<std::uint32_t>(PartitionBy::kRange);
}

}  // namespace

std::uint32_t Directory::declare_record(const Wanted& wanted, std::uint32_t byte) {
  VariableShm* record = nullptr;
  for (std::uint32_t position = 0;; ++position) {
    if (position == kMaxVariables) claim_record(byte);  // throws: full
    std::uint32_t found = job_.index(position).load_acquire();
    if (found == 0) {
      if (record == nullptr) {
        record = &job_.record(claim_record(byte));
        fault_point(FaultPoint::kDeclareClaimed);
        wanted.fill(*record, job_.config().chunk_bytes);
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
  if (layout == Layout::kInplace && config.ema > 0 && rule != UpdateRule::kAdd)
    throw Error(fmt::format(
        "variable '{}' is in-place, where no moving average is kept: use layout versioned, or no ema", spec.name));
  if (layout == Layout::kInplace && slots == 3 && !kHas16ByteExchange)
    throw Error(
        fmt::format("variable '{}' is in-place: {} needs a compare-exchange of 16 bytes, which this build has "
                    "not; use layout versioned",
                    spec.name, to_string(rule)));
  if (layout == Layout::kInplace && rule == UpdateRule::kFtrl && !optimizer_of(config).schedule.is_constant())
    throw Error(
        fmt::format("variable '{}' is in-place, where ftrl computes values of the learning rate: use "
                    "--lr-schedule constant, or layout versioned",
                    spec.name));
  if (layout == Layout::kVersioned && rule == UpdateRule::kRowwiseAdagrad)
    throw Error(fmt::format("variable '{}' is versioned, and rowwise_adagrad keeps state of rows: use layout inplace",
                            spec.name));
  const std::uint32_t known = find(spec.name);
  if (known != kNoVariable) check_agreement(at(known), spec, rule, layout);
  std::vector<std::uint32_t> positions;
  const std::vector<PartPlan> plans = plan_parts(job_, spec.name, spec.shape);
  const auto parts = static_cast<std::uint32_t>(plans.size());
  for (std::uint32_t part = 0; const PartPlan& plan : plans) {
    Wanted wanted{spec, rule, layout, slots, part++, parts, plan, partition_by(layout, config), 0, nullptr};
    positions.push_back(declare_record(wanted, byte));
    check_agreement(at(positions.back()), spec, rule, layout);
    if (config.reduce != static_cast<std::uint32_t>(Reduce::kAtomic)) continue;
    wanted.slots = 0;
    wanted.base = positions.back() + 1;
    wanted.whose = &at(positions.back());
    declare_record(wanted, byte);
  }
  return positions;
}

}  // namespace ps::shm
