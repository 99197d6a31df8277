#include "shm/publication/publication.hpp"

#include <fmt/format.h>

#include "shm/base/clock.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kNoGeneration = 0;  // RecordShm::stamp

}  // namespace

// A dead rank's lease may belong to its successor a moment later. It is not cleared, and the death is not remembered.
void GenerationWriter::find_taken(bool looks_at_locks) {
  const std::uint64_t newest = bundle_.newest().newest.load_relaxed();  // relaxed: only publishers write it
  taken_.reset();
  busy_ranks_.clear();
  if (generation_of(newest) != 0) taken_.set(record_of(newest));
  for (std::uint32_t rank = 0; rank < bundle_.subscribers(); ++rank)
    for (const AtomicShm<std::uint64_t>& word : bundle_.subscriber(rank).leases) {
      const std::uint64_t lease = word.load_acquire();  // (publication.P2) pairs with publication.P4, publication.P12
      if (lease == 0 || lease > bundle_.records()) continue;
      if (looks_at_locks && !bundle_.locks().is_held_by_other(kSubscriberByte + rank)) continue;
      taken_.set(lease - 1);
      if (lease - 1 != record_of(newest) && (busy_ranks_.empty() || busy_ranks_.back() != rank))
        busy_ranks_.push_back(rank);
    }
  living_.clear();
  for (std::uint32_t number = 0; number < bundle_.records(); ++number)
    if (taken_[number]) living_.push_back(number);
}

bool GenerationWriter::find_record() {
  fence_store_load();  // (publication.P1) after `newest` advanced, before leases are read; pairs with publication.P4
  for (const bool looks_at_locks : {false, true}) {
    find_taken(looks_at_locks);
    if (taken_.count() < bundle_.records()) break;
  }
  record_ = 0;  // the first one: its bytes may still be cached
  while (record_ < bundle_.records() && taken_[record_]) ++record_;
  if (record_ == bundle_.records()) {
    bundle_.newest().busy.bump_relaxed(1);  // relaxed: diagnostic only
    return false;
  }
  busy_ranks_.clear();
  return true;
}

GenerationWriter::Records GenerationWriter::used_slots(std::uint32_t tensor) const noexcept {
  Records used;
  if (bundle_.tensor_bytes(tensor) == 0) return used;  // it has slot 0 always, and nothing to keep there
  for (const std::uint32_t record : living_) {
    const std::uint32_t slot = bundle_.slots(record)[tensor].load_relaxed();  // relaxed: stored by a publisher long ago
    if (slot < bundle_.records()) used.set(slot);
  }
  return used;
}

void GenerationWriter::begin() {
  has_place_.assign(bundle_.tensors(), false);
  bundle_.record(record_).stamp.store_relaxed(kNoGeneration);
  fault_point(FaultPoint::kPublishBuilding);
  fence_release();  // (publication.P6) before everything that follows; pairs with publication.P11
}

std::byte* GenerationWriter::place(std::uint32_t tensor) {
  AtomicShm<std::uint16_t>& slot = bundle_.slots(record_)[tensor];
  if (has_place_[tensor]) return bundle_.slot(tensor, slot.load_relaxed());  // relaxed: this object has stored it
  const Records used = used_slots(tensor);
  std::uint32_t number = 0;
  while (used[number]) ++number;  // ends: fewer records are taken than there are slots
  if (!has_memory_[tensor][number]) {
    bundle_.allocate(tensor, number);  // (publication.P14)
    has_memory_[tensor].set(number);
    fault_point(FaultPoint::kPublishAllocated);
  }
  slot.store_relaxed(static_cast<std::uint16_t>(number));
  has_place_[tensor] = true;
  fault_point(FaultPoint::kPublishSlot);
  return bundle_.slot(tensor, number);
}

bool GenerationWriter::is_complete() const noexcept {
  if (generation_of(bundle_.newest().newest.load_relaxed()) != 0) return true;  // relaxed: only publishers write it
  for (std::uint32_t tensor = 0; tensor < bundle_.tensors(); ++tensor)
    if (!has_place_[tensor] && bundle_.tensor_bytes(tensor) != 0) return false;
  return true;
}

std::uint64_t GenerationWriter::commit(std::uint64_t step, bool is_partial) {
  NewestShm& state = bundle_.newest();
  const std::uint64_t before = state.newest.load_relaxed(), generation = generation_of(before) + 1;
  RecordShm& record = bundle_.record(record_);
  const AtomicShm<std::uint16_t>* const old_slots = bundle_.slots(record_of(before));
  std::uint64_t written = 0, count = 0;
  for (std::uint32_t tensor = 0; tensor < bundle_.tensors(); ++tensor)
    if (bundle_.tensor_bytes(tensor) == 0)  // it never changes, and the first generation has no old slot for it
      bundle_.slots(record_)[tensor].store_relaxed(0);
    else if (has_place_[tensor])
      written += bundle_.tensor_bytes(tensor), ++count;
    else
      bundle_.slots(record_)[tensor].store_relaxed(old_slots[tensor].load_relaxed());
  record.step.store_relaxed(step);
  record.unix_ns.store_relaxed(unix_now_ns());
  record.changed.store_relaxed(count);
  record.partial.store_relaxed(is_partial ? 1 : 0);
  fault_point(FaultPoint::kPublishWritten);
  record.stamp.store_release(generation);  // (publication.P7) pairs with publication.P11
  fault_point(FaultPoint::kPublishStamped);
  state.newest.store_release(make_newest(generation, record_));  // (publication.P8) pairs with publication.P4
  fault_point(FaultPoint::kPublishMoved);
  state.written_bytes.bump_relaxed(written);
  futex_announce(bundle_.waiters().futex);  // publication.P9
  fault_point(FaultPoint::kPublishAnnounced);
  return generation;
}

std::uint64_t GenerationWriter::publish(const std::vector<bool>& changed, std::uint64_t step, const Fill& fill) {
  begin();
  for (std::uint32_t tensor = 0; tensor < bundle_.tensors(); ++tensor)
    if (changed[tensor]) {
      fill(tensor, place(tensor));
      fault_point(FaultPoint::kPublishTensor);
    }
  return commit(step);
}

std::uint64_t GenerationWriter::trim() {
  fence_store_load();  // (publication.P1)
  find_taken(true);
  const std::size_t before = bundle_.segment().allocated_bytes();
  std::uint64_t pinned = 0;
  for (std::uint32_t rank = 0; rank < bundle_.subscribers(); ++rank)
    if (bundle_.locks().is_held_by_other(kSubscriberByte + rank))
      pinned |= bundle_.subscriber(rank).pinned.load_acquire();  // (publication.P16) after the leases
  std::vector<Records> used;
  for (std::uint32_t tensor = 0; tensor < bundle_.tensors(); ++tensor) used.push_back(used_slots(tensor));
  for (std::uint32_t slot = 0; slot < bundle_.records(); ++slot) {
    if (slot < kPinnableRows && (pinned >> slot & 1) != 0) continue;
    for (std::uint32_t first = 0; first < bundle_.tensors(); ++first) {
      if (used[first][slot]) continue;
      std::uint32_t last = first;  // of a run: its tensors may share pages
      while (last + 1 < bundle_.tensors() && !used[last + 1][slot]) ++last;
      for (std::uint32_t tensor = first; tensor <= last; ++tensor) has_memory_[tensor].reset(slot);
      bundle_.give_back(first, last, slot);  // (publication.P14)
      fault_point(FaultPoint::kPublicationTrimmed);
      first = last;
    }
  }
  const std::size_t after = bundle_.segment().allocated_bytes();
  return before > after ? before - after : 0;
}

void GenerationWriter::populate() {
  bundle_.populate();
  for (Records& slots : has_memory_) slots.set();
}

std::vector<std::uint64_t> leased_by(const Bundle& bundle, std::uint32_t rank) {
  std::vector<std::uint64_t> generations;
  for (const AtomicShm<std::uint64_t>& word : bundle.subscriber(rank).leases) {
    const std::uint64_t lease = word.load_relaxed();  // relaxed: diagnostic only
    if (lease == 0 || lease > bundle.records()) continue;
    if (const auto seen = look_at(bundle, static_cast<std::uint32_t>(lease - 1)))
      generations.push_back(seen->generation);
  }
  return generations;
}

std::optional<SeenRecord> look_at(const Bundle& bundle, std::uint32_t record) noexcept {
  const RecordShm& shared = bundle.record(record);
  SeenRecord seen;
  seen.generation = shared.stamp.load_acquire();  // (publication.P11) pairs with publication.P7
  if (seen.generation == kNoGeneration) return std::nullopt;
  seen.step = shared.step.load_relaxed();
  seen.unix_ns = shared.unix_ns.load_relaxed();
  seen.changed = shared.changed.load_relaxed();
  seen.is_partial = shared.partial.load_relaxed() != 0;
  fence_acquire();  // (publication.P11) pairs with publication.P6
  if (shared.stamp.load_relaxed() != seen.generation) return std::nullopt;
  return seen;
}

std::string why_newest_is_damaged(const Bundle& bundle) {
  for (;;) {  // ends: another generation has come in each round but the last
    const std::uint64_t newest = bundle.newest().newest.load_acquire();  // (publication.P4)
    if (newest == 0) return {};
    const std::uint32_t record = record_of(newest);
    std::string why;
    if (generation_of(newest) == 0 || record >= bundle.records()) {
      why = "the word that names the newest generation is impossible";
    } else {
      for (std::uint32_t tensor = 0; tensor < bundle.tensors() && why.empty(); ++tensor)
        if (bundle.slots(record)[tensor].load_relaxed() >= bundle.records())
          why = fmt::format("tensor {} of the newest generation names no slot", tensor);
      const std::uint64_t stamp = bundle.record(record).stamp.load_acquire();  // (publication.P11)
      if (stamp != generation_of(newest)) why = "the newest generation is not in the record that `newest` names";
    }
    fence_acquire();  // (publication.P11) pairs with publication.P6
    if (bundle.newest().newest.load_relaxed() == newest) return why;
  }
}

}  // namespace ps_shm::shm
