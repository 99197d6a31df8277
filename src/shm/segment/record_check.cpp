#include "shm/segment/directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/placement.hpp"
#include "update/traits.hpp"

namespace ps_shm::shm {
namespace {

template <class Enum>
bool is_one_of(std::uint32_t value, Enum last) {
  return value >= 1 && value <= static_cast<std::uint32_t>(last);
}

template <std::size_t Size>
bool is_text(const char (&text)[Size]) {
  const std::string_view content = text_of(text);
  return !content.empty() && content.size() < Size &&
         std::all_of(content.begin(), content.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// What the records checked so far say.
struct CheckedSoFar {
  explicit CheckedSoFar(const JobSegments& job) : occupied(job) {}

  std::vector<CheckedRecord> records;                                           // by position
  Occupancy occupied;                                                           // by these records
  std::unordered_map<std::string_view, std::vector<const VariableShm*>> parts;  // the parts of each variable, in order
};

// Checks one record, after those before it were checked. Its contents must follow from its name, shape and rule, the
// settings, and the records before it.
class RecordCheck {
 public:
  RecordCheck(JobSegments& job, const VariableShm& record, const CheckedSoFar& before)
      : job_(job), record_(record), before_(before) {}

  void check() const {
    require(is_text(record_.name), "no valid name");
    require(bytes_of(dtype()) != 0, "an unknown dtype");
    require(update::find_rule(record_.rule) != nullptr, "an unknown update rule");
    require(is_one_of(record_.layout, Layout::kSingleWriter), "an unknown layout");
    require(record_.layout != static_cast<std::uint32_t>(Layout::kSingleWriter) || job_.ranks() == 1,
            "a layout for one worker in a job for several");
    require((record_.flags & ~(kRowState | kReserve)) == 0, "unknown flags");
    require(update::takes_gradients(dtype()) || is_versioned(record_), "a layout that its dtype cannot have");
    require(update::takes_gradients(dtype()) || record_.rule == static_cast<std::uint32_t>(UpdateRule::kAdd),
            "an update rule for a dtype that takes no gradients");
    check_shape();
    if (!is_variable(record_))
      check_base();
    else
      check_factors(), check_slots(), check_part();
    check_place();
    const std::uint64_t init = record_.init.load_relaxed();
    const std::uint64_t byte = init & 0xffff;
    require(init == 0 || init == kInitialised || (byte != 0 && byte <= kRankByte + job_.ranks()),
            "an initialiser that does not exist");
  }

 private:
  void require(bool good, const char* what) const {
    if (!good)
      fail_damaged(control_name(job_.job()),
                   fmt::format("the variable record at position {} has {}", before_.records.size(), what));
  }

  DType dtype() const { return static_cast<DType>(record_.dtype); }

  void check_shape() const {
    require(record_.axes <= kMaxAxes, "too many axes");
    std::uint64_t elements = 1;
    for (std::uint32_t axis = 0; axis < record_.axes; ++axis) {
      const std::uint64_t extent = record_.extents[axis];
      require(extent != 0 && extent <= kMaxElements / elements, "an impossible shape");
      elements *= extent;
    }
    const PartsPlan plan(job_, text_of(record_.name), std::span(record_.extents, record_.axes), dtype(),
                         static_cast<Layout>(record_.layout));
    require(record_.parts == plan.count() && record_.part < record_.parts && record_.whole_elements == plan.elements(),
            "an impossible shape");
    const PartPlan part = plan.part(record_.part);
    require(record_.part_begin == part.begin && record_.elements == part.elements, "an impossible shape");
  }

  // The variable that an accumulator or a reserve belongs to; null for other records.
  const VariableShm* base() const { return !is_variable(record_) ? before_.records[record_.base - 1].get() : nullptr; }

  void check_base() const {
    require((is_reserve(record_) || job_.config().reduce == Reduce::kAtomic) &&
                record_.base <= before_.records.size() && is_variable(*this->base()),
            "no base variable");
    const VariableShm& base = *this->base();
    require(text_of(base.name) == text_of(record_.name) && base.part == record_.part && base.layout == record_.layout &&
                base.elements == record_.elements && base.rule == record_.rule && base.dtype == record_.dtype &&
                record_.slots == (is_reserve(record_) ? base.slots : 0) && is_versioned(record_),
            "a base variable that does not match it");
  }

  void check_factors() const {
    const Factors now = factors_of(record_.factors.load_relaxed());
    for (const float factor :
         {std::bit_cast<float>(record_.lr_scale), std::bit_cast<float>(record_.regularize), now.lr_scale,
          now.regularize}) {
      require(factor >= 0 && std::isfinite(factor), "a factor of its settings that is no non-negative number");
    }
  }

  void check_slots() const {
    const update::Traits& traits = update::traits_of(static_cast<UpdateRule>(record_.rule));
    require(record_.slots ==
                update::slots_per_element(traits.rule, job_.config().optimizer.ema > 0, !is_versioned(record_)),
            "a number of optimizer slots that differs from its update rule's");
    require(((record_.flags & kRowState) != 0) == traits.has_row_state() &&
                (traits.works_versioned || !is_versioned(record_)),
            "row state that differs from its update rule's");
    require(record_.partition_by ==
                static_cast<std::uint32_t>(is_versioned(record_) ? PartitionBy::kRange : job_.config().partition_by),
            "a partitioning that differs from its job's");
  }

  // Parts are declared in order. A part without its predecessors would leave the variable one part short: a task that
  // declares the missing part would find the variable initialised, and wait for ever for a chunk that nobody has
  // filled.
  void check_part() const {
    const auto found = before_.parts.find(text_of(record_.name));
    const std::size_t before = found == before_.parts.end() ? 0 : found->second.size();
    require(record_.part <= before, "no preceding part");
    require(record_.part == before, "the name and part of another record");
    if (before == 0) return;
    const VariableShm& first = *found->second.front();
    require(record_.axes == first.axes && std::equal(record_.extents, record_.extents + first.axes, first.extents) &&
                record_.layout == first.layout && record_.rule == first.rule && record_.flags == first.flags &&
                record_.lr_scale == first.lr_scale && record_.regularize == first.regularize &&
                record_.dtype == first.dtype,
            "a shape or rule that differs from its first part's");
  }

  // directory.D2: it lies where its declarer had to place it.
  void check_place() const {
    VariableShm expected;
    std::memcpy(static_cast<void*>(&expected), &record_, offsetof(VariableShm, init));
    try {
      choose_pieces(expected, base(), job_.config().chunk_bytes);
      choose_place(expected, base(), job_, before_.occupied);
    } catch (const Error& error) {
      require(false, error.what());
    }
    require(record_.shard == expected.shard && record_.buffer_class == expected.buffer_class &&
                record_.piece_elements == expected.piece_elements && record_.pieces == expected.pieces &&
                record_.words_offset == expected.words_offset && record_.data_offset == expected.data_offset &&
                record_.shard_end == expected.shard_end && record_.gradient_offset == expected.gradient_offset &&
                record_.gradient_end == expected.gradient_end && record_.row_elements == expected.row_elements &&
                record_.row_bytes == expected.row_bytes && record_.row_counts_offset == expected.row_counts_offset &&
                (!is_versioned(record_) || (record_.first_chunk == expected.first_chunk &&
                                            record_.free_buffers_offset == expected.free_buffers_offset)),
            "a place that does not follow from the records before it");
    const Segment& shard = job_.shard(record_.shard);
    if (!job_.has_shard(record_.shard))  // its task may have started after this process attached
      fail_damaged(shard_name(job_.job(), record_.shard),
                   fmt::format("it is gone, and variable '{}' lies in it", text_of(record_.name)));
    // directory.D3: the shard grew before the record was published, so the shard's current size covers the variable.
    if (record_.shard_end > shard.usable_bytes())
      fail_damaged(shard.name(),
                   fmt::format("it has been truncated, and variable '{}' lies in it", text_of(record_.name)));
  }

  JobSegments& job_;
  const VariableShm& record_;
  const CheckedSoFar& before_;
};

}  // namespace

std::vector<CheckedRecord> copy_records(JobSegments& job) {
  CheckedSoFar checked(job);
  std::vector<bool> named(kMaxVariables);
  std::vector<std::uint64_t> reserves;  // first buffers, by the position of the record they belong to; 0: none
  std::uint32_t covered = 0;            // number of records that the control segment's file is known to cover
  for (std::uint32_t position = 0; position < kMaxVariables; ++position) {
    const std::uint32_t entry = job.index(position).load_acquire();  // (directory.D1) pairs with declare's swap
    if (entry == 0) break;
    if (entry > kMaxVariables || named[entry - 1])
      fail_damaged(control_name(job.job()), fmt::format("index {} names record {}", position, entry));
    // directory.D7: the file grew before the record was published.
    if (entry > covered && !job.has_records(entry))
      fail_damaged(control_name(job.job()), fmt::format("it has been truncated before record {}", entry));
    covered = std::max(covered, entry);
    named[entry - 1] = true;
    const VariableShm& shared = job.record(entry - 1);
    auto copy = std::make_unique<VariableShm>();
    std::memcpy(static_cast<void*>(copy.get()), &shared,
                offsetof(VariableShm, init));                    // immutable since it was published
    copy->init.store_relaxed(shared.init.load_acquire());        // (directory.D6) words and values
    copy->reserve.store_relaxed(shared.reserve.load_acquire());  // (snapshot.C6) its record comes after this one
    copy->factors.store_relaxed(shared.factors.load_relaxed());
    RecordCheck(job, *copy, checked).check();
    static_cast<void>(checked.occupied.add(*copy));  // true: shard and class were checked
    if (is_variable(*copy)) checked.parts[text_of(copy->name)].push_back(copy.get());
    if (is_reserve(*copy)) reserves[copy->base - 1] = copy->data_offset >> copy->buffer_class;
    checked.records.push_back(std::move(copy));
    reserves.push_back(0);
  }
  for (std::size_t position = 0; position < reserves.size(); ++position) {
    const VariableShm& record = *checked.records[position];
    const std::uint64_t named = record.reserve.load_relaxed();
    if (named != 0 && named != reserves[position])
      fail_damaged(control_name(job.job()),
                   fmt::format("variable '{}' names a reserve that is not its own", text_of(record.name)));
  }
  return std::move(checked.records);
}

}  // namespace ps_shm::shm
