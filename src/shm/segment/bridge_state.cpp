#include "shm/segment/bridge_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ps_shm/errors.hpp"
#include "shm/base/atomic.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "shm/segment/liveness.hpp"
#include "update/hash.hpp"

namespace ps_shm::shm {
namespace {

constexpr auto kArrays = static_cast<std::uint32_t>(BridgeState::Array::kCount_);
constexpr std::uint32_t kBridgeByte = 0;  // of the segment's own lock bytes: whoever holds it has the state

std::size_t rounded(std::size_t bytes) noexcept { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::size_t BridgeState::bytes_of(const Form& form) noexcept {
  const std::size_t floats = form.blocks * kBridgeBlock * sizeof(float);
  return kBridgeTextOffset + 2 * kBridgeTextBytes + 2 * kBridgePart * kBridgeBlock * sizeof(float) +
         (form.has_momentum ? 3 : 2) * floats + rounded(form.blocks) + rounded(form.blocks * form.wire_bytes);
}

BridgeState::BridgeState(const std::string& job, std::uint64_t instance, const Form& form) : form_(form) {
  const std::size_t floats = form.blocks * kBridgeBlock * sizeof(float);
  scratch_ = kBridgeTextOffset + 2 * kBridgeTextBytes;
  anchor_ = scratch_ + 2 * kBridgePart * kBridgeBlock * sizeof(float);
  momentum_ = anchor_ + floats;
  base_ = momentum_ + (form.has_momentum ? floats : 0);
  present_ = base_ + floats;
  sum_ = present_ + rounded(form.blocks);
  end_ = bytes_of(form);
  for (std::size_t table = 0; table < form.tables.size(); ++table)
    for (std::uint32_t which = 0; which < kArrays; ++which) {
      arrays_.push_back(end_);
      const std::size_t element = element_bytes(table, static_cast<Array>(which)), most = form.tables[table].most;
      if (most > (Segment::kMaxReserved - end_) / element)
        throw Error(
            fmt::format("job '{}': the rows of {} keys of a table need more than the 64 TiB that a segment may "
                        "have: allow fewer keys",
                        job, most));
      end_ += rounded(most * element);
    }
  reserved_.resize(arrays_.size());
  take_or_make(bridge_name(job), job, instance);
}

void BridgeState::take_or_make(const std::string& name, const std::string& job, std::uint64_t instance) {
  while (!try_take_found(name, job, instance)) {
    Segment made = Segment::create(SegmentKind::kBridge, 0, job, instance, bytes_of(form_), end_);
    if (end_ != bytes_of(form_)) made.extend(end_);
    auto& record = *reinterpret_cast<BridgeShm*>(made.data() + kBridgeRecordOffset);
    record.blocks = form_.blocks;
    record.wire_bytes = form_.wire_bytes;
    record.momentum = form_.has_momentum ? 1 : 0;
    record.tables = hash_of(form_);
    made.publish();  // before it has a name: no process finds it incomplete
    if (!TaskLocks(made.descriptor()).try_take(kBridgeByte) || !made.link(name)) continue;
    segment_ = std::move(made);
    return;
  }
}

// False: there is none. Throws Error.
bool BridgeState::try_take_found(const std::string& name, const std::string& job, std::uint64_t instance) {
  for (;;) {
    Segment found;
    const AttachOutcome outcome = found.open(name, Access::kReadWrite);
    if (outcome == AttachOutcome::kAbsent) return false;
    if (outcome != AttachOutcome::kReady) throw attach_error(outcome, name);
    if (!TaskLocks(found.descriptor()).try_take(kBridgeByte))
      throw Error(fmt::format("job '{}' has a bridge already", job), ErrorCode::kAlreadyExists);
    if (!found.is_named(name)) continue;  // its owner has removed it meanwhile
    const bool is_of_job = found.is_of(SegmentKind::kBridge, 0, job, instance);
    if (!is_of_job && !unlink_segment(name)) throw attach_error(AttachOutcome::kNoPermission, name);
    if (!is_of_job) return false;
    const auto& record = *reinterpret_cast<const BridgeShm*>(found.data() + kBridgeRecordOffset);
    if (record.blocks != form_.blocks || record.wire_bytes != form_.wire_bytes ||
        (record.momentum != 0) != form_.has_momentum || record.tables != hash_of(form_))
      throw Error(
          fmt::format(
              "/dev/shm/{} was made for other variables or tables, another wire format or another outer rule; "
              "start the bridge as before, or remove that file: what this box has done since the last round is not "
              "counted then",
              name),
          ErrorCode::kInvalidState);
    if (found.usable_bytes() < end_) fail_damaged(name, "it is shorter than its record says");
    segment_ = std::move(found);
    return true;
  }
}

std::uint64_t BridgeState::hash_of(const Form& form) noexcept {
  std::uint64_t hash = 0;
  for (const Rows& rows : form.tables)
    for (const std::uint64_t one : {rows.most, rows.row_size, rows.wire_bytes}) hash = update::mixed(hash + one + 1);
  return hash;
}

std::size_t BridgeState::element_bytes(std::size_t table, Array which) const noexcept {
  const Rows& rows = form_.tables[table];
  switch (which) {
    case Array::kAnchor:
    case Array::kBase:
      return rows.row_size * sizeof(float);
    case Array::kCutRows:
    case Array::kLastRows:
    case Array::kSumRows:
      return rows.wire_bytes;
    default:
      return sizeof(std::uint64_t);
  }
}

std::span<std::byte> BridgeState::array(std::size_t table, Array which) const noexcept {
  const std::size_t begin = arrays_[table * kArrays + static_cast<std::uint32_t>(which)];
  return {segment_.data() + begin, form_.tables[table].most * element_bytes(table, which)};
}

void BridgeState::reserve(std::size_t table, Array which, std::uint64_t count) {
  const std::size_t number = table * kArrays + static_cast<std::uint32_t>(which);
  const std::size_t wanted = rounded(count * element_bytes(table, which));
  if (wanted <= reserved_[number]) return;
  segment_.allocate(arrays_[number] + reserved_[number], arrays_[number] + wanted);
  reserved_[number] = wanted;
}

std::string BridgeState::newest_text(const Segment& segment) {
  const auto& record = *reinterpret_cast<const BridgeShm*>(segment.data() + kBridgeRecordOffset);
  for (;;) {
    const std::uint64_t writes = record.writes.load_acquire();  // bridge.S1
    if (writes == 0) return {};
    const std::size_t bytes = read_once(record.text_bytes[writes % 2]);
    if (bytes > kBridgeTextBytes) fail_damaged(segment.name(), "its text is longer than the segment allows");
    std::string text(reinterpret_cast<const char*>(segment.data()) + kBridgeTextOffset + writes % 2 * kBridgeTextBytes,
                     bytes);
    fence_acquire();  // bridge.S1
    if (record.writes.load_relaxed() == writes) return text;
  }
}

std::optional<BridgeState::Seen> BridgeState::look(const std::string& job, std::uint64_t instance) {
  const std::string name = bridge_name(job);
  Segment found;
  const AttachOutcome outcome = found.open(name, Access::kReadOnly, kTrustAnybody);
  if (outcome == AttachOutcome::kAbsent) return std::nullopt;
  if (outcome != AttachOutcome::kReady) throw attach_error(outcome, name);
  if (!found.is_of(SegmentKind::kBridge, 0, job, instance)) return std::nullopt;
  if (found.usable_bytes() < kBridgeTextOffset + 2 * kBridgeTextBytes) fail_damaged(name, "it is too short");
  std::string text = newest_text(found);
  if (found.was_cut_off()) fail_damaged(name, "it was cut off");
  if (text.empty()) return std::nullopt;
  return Seen{std::move(text), TaskLocks(found.descriptor()).is_held_by_other(kBridgeByte)};
}

void BridgeState::write(const std::string& text) noexcept {
  BridgeShm& record = this->record();
  const std::uint64_t next = record.writes.load_relaxed() + 1;
  fence_release();  // (bridge.S1) a reader that finds bytes of this text finds the count before it
  text.copy(reinterpret_cast<char*>(segment_.data()) + kBridgeTextOffset + next % 2 * kBridgeTextBytes,
            kBridgeTextBytes);
  record.text_bytes[next % 2] = std::min(text.size(), kBridgeTextBytes);
  record.writes.store_release(next);  // bridge.S1
}

void BridgeState::rewind() noexcept { record().cursor.store_release(0); }  // bridge.S6

BridgeState::Part BridgeState::part_of(std::uint64_t part) const noexcept {
  const std::size_t begin = part * kBridgePart * kBridgeBlock;
  const std::size_t count = std::min(kBridgePart * kBridgeBlock, form_.blocks * kBridgeBlock - begin);
  return {anchor().subspan(begin, count), form_.has_momentum ? momentum().subspan(begin, count) : std::span<float>()};
}

BridgeState::Part BridgeState::scratch_of(std::uint64_t part) const noexcept {
  float* const scratch = reinterpret_cast<float*>(segment_.data() + scratch_);
  const std::size_t count = part_of(part).anchor.size();
  return {{scratch, count}, {scratch + kBridgePart * kBridgeBlock, form_.has_momentum ? count : 0}};
}

void BridgeState::copy(const Part& to, const Part& from) noexcept {
  std::memcpy(to.anchor.data(), from.anchor.data(), from.anchor.size_bytes());
  if (!from.momentum.empty()) std::memcpy(to.momentum.data(), from.momentum.data(), from.momentum.size_bytes());
}

}  // namespace ps_shm::shm
