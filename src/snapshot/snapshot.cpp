#include "snapshot/snapshot.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "config/modes.hpp"
#include "config/spelling.hpp"
#include "ps_shm/errors.hpp"
#include "shm/base/clock.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/placement.hpp"
#include "shm/slots/inplace_rows.hpp"
#include "shm/slots/versioned_slot.hpp"
#include "update/bfloat16.hpp"
#include "update/bytes.hpp"
#include "update/elements.hpp"
#include "update/traits.hpp"

namespace ps_shm {
namespace {

using shm::VariableShm;

}  // namespace

std::uint64_t arrays_of(const VariableShm& record) noexcept {
  const update::Traits& traits = update::traits_of(static_cast<UpdateRule>(record.rule));
  const bool has_more = !is_versioned(record) && (traits.has_row_state() || traits.slot_for_value() != nullptr);
  return 1 + record.slots + (has_more ? 1 : 0);
}

bool is_of_rows(const VariableShm& record, std::uint64_t array) noexcept {
  return array > record.slots && (record.flags & shm::kRowState) != 0;
}

std::vector<std::string> slots_of(const VariableShm& record) {
  std::vector<std::string> names;
  for (std::uint64_t slot = 0; slot + 1 < arrays_of(record); ++slot)
    names.emplace_back(update::slot_name(static_cast<UpdateRule>(record.rule), !is_versioned(record), slot));
  return names;
}

std::uint64_t array_of(const VariableShm& record, const std::string& slot) {
  if (slot.empty()) return 0;
  const std::vector<std::string> slots = slots_of(record);
  const auto found = std::find(slots.begin(), slots.end(), slot);
  if (found == slots.end())
    throw Error(
        fmt::format("variable '{}' has no slot '{}'; it has {}", record.name, slot, config::what_there_is(slot, slots)),
        ErrorCode::kNotFound);
  return 1 + static_cast<std::uint64_t>(found - slots.begin());
}

void copy_inplace(const shm::JobSegments& job, const VariableShm& record, std::uint64_t array, std::span<float> out) {
  const shm::InplaceVariable source(job.shard_data(record.shard), record);
  if (is_of_rows(record, array)) {  // after the row's elements
    for (std::uint64_t row = 0; row < source.rows(); ++row)
      shm::read_elements(out.data() + row, source.row_state(source.first_row() + row * source.row_bytes()), 1, 1,
                         update::FirstFloat{});
    return;
  }
  const std::uint64_t place = array <= record.slots ? array : 0;  // an optimizer slot that lies in the value's place
  for (std::uint64_t block = 0; block < source.blocks(); ++block) {
    float* const to = out.data() + source.block_begin(block);
    if (array == 0)
      copy_inplace_block(job, record, block, to);
    else  // the optimizer slots lie after the element's first float
      source.for_rows(block, [&](const std::byte* from, std::uint64_t begin, std::uint64_t count) {
        from += place * source.number_bytes();
        if (source.is_bfloat16())
          shm::read_bfloat16(to + begin, from, source.record(), count, update::FirstFloat{});
        else
          shm::read_elements(to + begin, reinterpret_cast<const float*>(from), source.record(), count,
                             update::FirstFloat{});
      });
  }
}

void copy_inplace_block(const shm::JobSegments& job, const VariableShm& record, std::uint64_t block, float* out) {
  const shm::InplaceVariable source(job.shard_data(record.shard), record);
  update::with_element_value(shm::settings_of(job.config(), record), shm::read_live(job).settings.lr,
                             [&](const auto& value_of) { source.pull_block(block, out, value_of); });
}

Snapshot::Impl::~Impl() {
  if (!taker.job.is_inherited()) unlock();
}

void Snapshot::Impl::lock(WaitLimit wait) {
  const std::uint64_t until = shm::now_ns() + shm::to_ns(wait);
  if (*taker.is_taking)
    throw Error(fmt::format("job '{}' can have one snapshot at a time: release the one that this object has taken",
                            taker.job.job()),
                ErrorCode::kInvalidState);
  while (!taker.job.locks().try_take(shm::kSnapshotByte)) {
    if (taker.each_slice) taker.each_slice();
    if (shm::now_ns() >= until) {
      const std::optional<std::uint32_t> holder =
          shm::holder_of(shm::lock_holders(taker.job.control().descriptor()), shm::kSnapshotByte);
      throw Timeout(
          fmt::format("job '{}' can have one snapshot at a time, and {} did not give the existing one back "
                      "within {:.3g} s",
                      taker.job.job(), holder ? fmt::format("process {}", *holder) : "another process", wait->count()));
    }
    shm::sleep_ns(1'000'000);
  }
  *taker.is_taking = true;
}

void Snapshot::Impl::unlock() noexcept {
  taker.job.locks().release(shm::kSnapshotByte);
  *taker.is_taking = false;
  if (taker.is_guest) shm::remove_if_ended(taker.job);  // names.N9
}

// Lists the initialised variables, and makes the reserves that are missing for versioned chunks (snapshot.C6).
void Snapshot::Impl::list() {
  shm::Directory directory(taker.job);
  std::vector<std::uint32_t> without;
  std::uint64_t bytes = 0;
  for (std::uint32_t position = 0, end = directory.count(); position < end; ++position) {
    const VariableShm& record = directory.at(position);
    if (!shm::is_variable(record) || record.init.load_acquire() != shm::kInitialised) continue;  // (directory.D6)
    if (!taker.job.has_shard(record.shard)) continue;
    variables[record.name].push_back({.record = &record});
    if (!is_versioned(record) || record.reserve.load_acquire() != 0) continue;  // (snapshot.C6)
    without.push_back(position);
    bytes += record.pieces << record.buffer_class;
  }
  std::erase_if(variables, [](const auto& one) { return one.second.size() != one.second.front().record->parts; });
  try {
    if (const std::uint64_t free = shm::shm_free_bytes(); bytes > free)  // before others run short of what there is
      throw Error(fmt::format("there are {} bytes left; free some (inspect_shm ls), or enlarge /dev/shm", free));
    directory.reserve(without, shm::kSnapshotByte);
  } catch (const Error& error) {
    throw Error(
        fmt::format("cannot take a snapshot of job '{}': the first one needs {} bytes in /dev/shm, as much as its "
                    "versioned variables take: {}",
                    taker.job.job(), bytes, error.what()),
        ErrorCode::kNoSpace);
  }
}

// Chooses the in-place variables to copy during the pause: the smallest ones, up to `bytes` in all. The others are not
// point-in-time.
std::vector<Snapshot::Impl::Part*> Snapshot::Impl::small_ones(std::uint64_t bytes) {
  std::vector<Part*> all;
  for (auto& [name, parts] : variables)
    for (Part& part : parts)
      if (!is_versioned(*part.record)) all.push_back(&part);
  const auto bytes_of = [](const Part* part) {
    return part->record->elements * (1 + part->record->slots) * sizeof(float);
  };
  std::stable_sort(all.begin(), all.end(), [&](Part* a, Part* b) { return bytes_of(a) < bytes_of(b); });
  std::vector<Part*> small;
  for (Part* part : all) {
    part->is_point_in_time = bytes_of(part) <= bytes && taker.job.config().adds != Adds::kRacy;
    if (bytes_of(part) > bytes) continue;
    bytes -= bytes_of(part);
    part->copied.resize(arrays_of(*part->record));
    for (std::uint64_t array = 0; array < part->copied.size(); ++array)
      part->copied[array].resize(is_of_rows(*part->record, array) ? part->record->elements / part->record->row_elements
                                                                  : part->record->elements);
    small.push_back(part);
  }
  return small;
}

shm::SnapshotPoint Snapshot::Impl::before_step(shm::SnapshotPointMaker& maker, const SnapshotOptions& options) const {
  const JobConfig& config = taker.job.config();
  if (!traits_of(config.mode).steps_together())
    throw Error(fmt::format("a snapshot of job '{}' at a given step: only mode sync has such a state", config.job));
  constexpr int kLooksAtLocks = 64;  // a look at the locks is a system call
  bool is_given_up = false, is_over = false, is_dead = false;
  int looks = 0;
  const auto made = maker.before_step(options.at_step, [&] {
    is_given_up = options.stop_requested && options.stop_requested();
    is_over = taker.job.is_over();
    is_dead = taker.is_guest && ++looks % kLooksAtLocks == 0 && !taker.job.locks().is_in_use_by_other();
    return is_given_up || is_over || is_dead;
  });
  if (made) return *made;
  if (is_given_up) throw Interrupted();
  if (is_over)
    throw JobFinished(fmt::format("job '{}' has ended before step {}, of which a snapshot was wanted", config.job,
                                  options.at_step));
  if (is_dead)
    throw Error(fmt::format("cannot take a snapshot of job '{}' at step {}: the job is dead", config.job,
                            options.at_step),
                ErrorCode::kInvalidState);
  throw Error(
      fmt::format("cannot take a snapshot of job '{}' at step {}: the job is past it", config.job, options.at_step),
      ErrorCode::kInvalidState);
}

Snapshot::Impl::Impl(const Snapshotter& who, const SnapshotOptions& options) : taker(who) {
  lock(options.wait);
  try {
    shm::SnapshotPointMaker maker(taker.job);
    list();
    const std::vector<Part*> small = small_ones(options.pause_bytes);
    std::uint64_t copying_ns = 0;  // about four times what copying during the pause takes
    for (const Part* part : small)
      for (const std::vector<float>& array : part->copied) copying_ns += array.size() * 4;
    const auto patience = [&]() -> std::uint64_t {
      if (options.patience) return shm::to_ns(*options.patience) + copying_ns;
      constexpr std::uint64_t kLeastNs = 100'000'000, kNsPerByte = 10;
      bool is_complete = true;
      std::uint64_t ns = std::max(kLeastNs, 10 * maker.longest_push_ns(is_complete)) + copying_ns;
      if (!is_complete)  // a worker is in its first push, which may change all variables
        for (const auto& [name, parts] : variables)
          ns += parts.front().record->whole_elements * sizeof(float) * kNsPerByte;
      return ns;
    };
    constexpr int kAttempts = 3;
    for (int attempt = 1;; ++attempt) {
      bool is_good = true;
      if (options.at_step != 0) {
        point = before_step(maker, options);
      } else if (traits_of(taker.job.config().mode).steps_together()) {
        // No worker waits for this, so it may take long.
        point = maker.between_steps(shm::to_ns(options.patience ? options.patience : options.wait));
        if (point.is_held_up)
          throw Error(
              fmt::format("cannot take a snapshot of job '{}': step {} has been decided, but its workers, which are "
                          "stopped or very busy, do not apply it; resume them",
                          taker.job.job(), point.step),
              ErrorCode::kUnavailable);
      } else {
        point = maker.drain(patience(), !small.empty(), taker.rank);
        for (Part* part : small)
          for (std::uint64_t array = 0; array < part->copied.size(); ++array)
            copy_inplace(taker.job, *part->record, array, part->copied[array]);
        is_good = (small.empty() || maker.open(point.epoch)) && !point.is_forced;
      }
      if (is_good) break;
      if (attempt == kAttempts)
        throw Error(
            fmt::format("cannot take a snapshot of job '{}': {} times this process was stopped for longer than the "
                        "workers wait for a snapshot point; try again",
                        taker.job.job(), kAttempts),
            ErrorCode::kUnavailable);
    }
    for (std::uint32_t rank = 0; rank < taker.job.ranks(); ++rank)
      if (point.partial_ranks.contains(rank)) partial_ranks.push_back(rank);
  } catch (...) {
    unlock();
    throw;
  }
}

const std::vector<Snapshot::Impl::Part>& Snapshot::Impl::parts_of(const std::string& name) const {
  taker.job.refuse_inherited("snapshot");
  const auto found = variables.find(name);
  if (found != variables.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, parts] : variables) names.push_back(known);
  throw Error(fmt::format("the snapshot of job '{}' has no variable '{}'; those that were initialised are {}",
                          taker.job.job(), name, config::what_there_is(name, names)),
              ErrorCode::kNotFound);
}

std::uint64_t Snapshot::Impl::array_of(const std::string& name, const std::string& slot) const {
  return ps_shm::array_of(*parts_of(name).front().record, slot);
}

Snapshot::Snapshot(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Snapshot::~Snapshot() = default;
Snapshot::Snapshot(Snapshot&&) noexcept = default;

std::uint64_t Snapshot::epoch() const noexcept { return impl_->point.epoch; }
std::uint64_t Snapshot::global_step() const noexcept { return impl_->point.step; }
const std::vector<std::uint32_t>& Snapshot::partial_ranks() const noexcept { return impl_->partial_ranks; }

std::vector<std::string> Snapshot::variables() const {
  std::vector<std::string> names;
  for (const auto& [name, parts] : impl_->variables) names.push_back(name);
  return names;
}

bool Snapshot::is_point_in_time(const std::string& name) const {
  const std::vector<Impl::Part>& parts = impl_->parts_of(name);
  return std::all_of(parts.begin(), parts.end(), [](const Impl::Part& part) { return part.is_point_in_time; });
}

void Snapshot::copy(const std::string& name, std::span<float> out, const std::string& slot) const {
  const VariableShm& first = *impl_->parts_of(name).front().record;
  const auto dtype = static_cast<DType>(first.dtype);
  if (!update::takes_gradients(dtype))
    throw Error(fmt::format("copy of variable '{}': its dtype is {}; give a span of bytes", name, to_string(dtype)));
  const std::uint64_t array = impl_->array_of(name, slot);
  const bool is_widened = array == 0 && shm::array_dtype(first) != DType::kFloat32;
  const std::uint64_t stored = impl_->floats_of(name, array), floats = is_widened ? element_count(first) : stored;
  if (out.size() != floats)
    throw Error(fmt::format("copy of variable '{}': it has {} elements, the span has {}", name, floats, out.size()));
  impl_->copy(name, 0, out.last(stored), array);
  if (is_widened) update::widen_in_place(out.data(), out.size());
}

void Snapshot::copy(const std::string& name, std::span<std::byte> out, const std::string& slot) const {
  const std::uint64_t array = impl_->array_of(name, slot);
  const std::uint64_t bytes = impl_->bytes_of(name, array);
  if (out.size() != bytes)
    throw Error(fmt::format("copy of variable '{}': it has {} bytes, the span has {}", name, bytes, out.size()));
  impl_->copy_bytes(name, 0, out, array);
}

std::uint64_t Snapshot::updates(const std::string& name) const {
  const VariableShm& first = *impl_->parts_of(name).front().record;
  const std::vector<std::string> slots = slots_of(first);
  if (!is_versioned(first) && std::find(slots.begin(), slots.end(), update::kUpdateCount) != slots.end()) {
    const std::uint64_t array = array_of(first, update::kUpdateCount);
    std::vector<float> counts(impl_->floats_of(name, array));
    impl_->copy(name, 0, counts, array);
    return static_cast<std::uint64_t>(
        std::llround(std::accumulate(counts.begin(), counts.end(), 0.0) / double(counts.size())));
  }
  std::uint64_t updates = 0, pieces = 0;
  for (const Impl::Part& part : impl_->parts_of(name)) {
    const shm::Segment& shard = impl_->taker.job.shard(part.record->shard);
    pieces += part.record->pieces;
    for (std::uint64_t piece = 0; piece < part.record->pieces; ++piece)
      updates += is_versioned(*part.record)
                     ? shm::VersionedVariable(shard, *part.record).image_steps(piece, impl_->point.epoch)
                     : shm::InplaceVariable(shard.data(), *part.record).pushes(piece);
  }
  return updates / pieces;
}

void Snapshot::read(const std::string& name, std::uint64_t begin, std::span<std::byte> out,
                    const std::string& slot) const {
  const std::uint64_t array = impl_->array_of(name, slot);
  const std::uint64_t bytes = impl_->bytes_of(name, array);
  if (begin % sizeof(float) != 0 || begin > bytes || out.size() > bytes - begin)
    throw Error(fmt::format("read of variable '{}': it has {} bytes, but {} bytes from byte {} on were requested", name,
                            bytes, out.size(), begin));
  impl_->copy_bytes(name, begin, out, array);
}

void Snapshot::Impl::copy_bytes(const std::string& name, std::uint64_t begin, std::span<std::byte> out,
                                std::uint64_t array) const {
  const VariableShm& first = *parts_of(name).front().record;
  const DType arrays = shm::array_dtype(first), dtype = array == 0 ? static_cast<DType>(first.dtype) : arrays;
  const std::uint64_t from = begin / (array == 0 ? shm::bytes_of_element(first) : sizeof(float));
  update::fill_bytes(out, dtype, arrays, [&](std::span<float> floats) { copy(name, from, floats, array); });
}

std::uint64_t Snapshot::Impl::bytes_of(const std::string& name, std::uint64_t array) const {
  return array == 0 ? shm::value_bytes(*parts_of(name).front().record) : floats_of(name, array) * sizeof(float);
}

std::uint64_t Snapshot::Impl::floats_of(const std::string& name, std::uint64_t array) const {
  const VariableShm& first = *parts_of(name).front().record;
  if (is_of_rows(first, array)) return first.whole_elements / first.row_elements;
  return array == 0 || !is_versioned(first) ? first.whole_elements : shm::element_count(first);
}

// Copies a complete in-place array: what was copied during the pause, or the current values.
void Snapshot::Impl::copy_all(const std::vector<Part>& parts, std::span<float> out, std::uint64_t array) const {
  const VariableShm& first = *parts.front().record;
  const std::uint64_t unit = is_of_rows(first, array) ? first.row_elements : 1;  // elements for each float of the array
  std::vector<float> by_parts(shm::is_hashed(first) ? out.size() : 0);
  const std::span<float> to = shm::is_hashed(first) ? std::span<float>(by_parts) : out;
  for (const Part& part : parts) {
    const std::span<float> here = to.subspan(part.record->part_begin / unit, part.record->elements / unit);
    if (part.copied.empty())
      copy_inplace(taker.job, *part.record, array, here);
    else
      std::copy(part.copied[array].begin(), part.copied[array].end(), here.begin());
  }
  if (!shm::is_hashed(first)) return;
  if (unit == 1) return shm::order_by_rows(by_parts, out, first);
  shm::for_hashed_rows(
      first, [&](std::uint64_t in_rows, std::uint64_t in_parts) { out[in_rows / unit] = by_parts[in_parts / unit]; });
}

void Snapshot::Impl::copy(const std::string& name, std::uint64_t begin, std::span<float> out,
                          std::uint64_t array) const {
  const std::vector<Part>& parts = parts_of(name);
  const std::uint64_t all = floats_of(name, array), end = begin + out.size();
  if (!is_versioned(*parts.front().record)) {
    if (out.size() == all) return copy_all(parts, out, array);
    if (ordered_of != std::pair(name, array) || begin == 0) {
      ordered.resize(all);
      copy_all(parts, ordered, array);
      ordered_of = {name, array};
    }
    std::copy_n(ordered.begin() + std::ptrdiff_t(begin), out.size(), out.begin());
    return;
  }
  std::vector<float> whole;  // a chunk of which only a part is requested
  for (const Part& part : parts) {
    const shm::VersionedVariable chunks(taker.job.shard(part.record->shard), *part.record);
    const VariableShm& record = *part.record;
    const bool is_slot = array != 0;
    const std::uint64_t part_begin = record.part_begin * (is_slot ? gradients_per_float(record) : 1);
    const std::uint64_t part_end = part_begin + (is_slot ? gradient_floats(record) : record.elements);
    const std::uint64_t chunk_floats = chunks.array_begin(1, array);
    const std::uint64_t from = std::max(begin, part_begin), to = std::min(end, part_end);
    for (std::uint64_t at = from; at < to;) {
      const std::uint64_t chunk = (at - part_begin) / chunk_floats;
      const std::uint64_t chunk_begin = part_begin + chunks.array_begin(chunk, array);
      const std::uint64_t chunk_end = chunk_begin + chunks.array_size(chunk, array), until = std::min(to, chunk_end);
      float* const here = out.data() + (at - begin);
      if (at == chunk_begin && until == chunk_end) {
        chunks.pull_image(chunk, point.epoch, here, array);
      } else {
        whole.resize(chunk_floats);
        chunks.pull_image(chunk, point.epoch, whole.data(), array);
        std::copy_n(whole.begin() + std::ptrdiff_t(at - chunk_begin), until - at, here);
      }
      at = until;
    }
  }
}

}  // namespace ps_shm
