// The clock's hand of a table: which rows are worth least, evicting them, and taking back what the dead have left.
#include <algorithm>

#include "ps_shm/table_spec.hpp"
#include "shm/base/clock.hpp"
#include "shm/table/table_part.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kLooks = 256;            // a sample of so many rows, of which the worst are evicted
constexpr std::uint64_t kEvictedAtOnce = kPins;  // they share a fence and a look at the pins
constexpr std::uint32_t kExactFrequency = 16;    // from there on, uses are counted as Morris (1978) did

}  // namespace

void TablePart::note_time(TableLane& lane) const noexcept {
  lane.time = static_cast<std::uint32_t>(now_ns() >> kTimeShift) & kTimeMask;
}

// Notes a use of the row, where that says something new.
void TablePart::touch(TableLane& lane, TableRowShm& there) const noexcept {
  if (lane.is_guest) return;
  const std::uint32_t before =
      there.used.load_relaxed();  // relaxed, as the next: only a hint which rows are worth least
  std::uint32_t time = before >> 8, frequency = before & kMaxFrequency;
  const auto by = static_cast<EvictBy>(shm_.evict_by);
  if (by != EvictBy::kAge) time = lane.time;
  if (by == EvictBy::kLeastFrequentlyUsed && frequency < kMaxFrequency) {
    if (frequency < kExactFrequency || lane.draw() % (4 * (frequency - kExactFrequency) + 4) == 0) ++frequency;
  }
  const std::uint32_t now = make_used(time, frequency);
  if (now != before) there.used.store_relaxed(now);
}

// (table.E1) Whether the lane's living owner has noted the row.
bool TablePart::has_noted(std::uint32_t lane, std::uint64_t number) const {
  const std::uint64_t note = lanes_[lane].inserting.load_acquire();  // (table.E1)
  return row_of_pin(note) == number && owner_of_pin(note) == owner_of_(lane);
}

// (table.E1) Whether a living lane is making this row.
bool TablePart::is_being_made(std::uint64_t number) const {
  const std::uint32_t lanes = std::min(shm_.lanes_used.load_acquire(), shm_.lanes);  // (table.P0)
  for (std::uint32_t lane = 0; lane < lanes; ++lane)
    if (has_noted(lane, number)) return true;
  return false;
}

// (table.E7) Requires: the row was dead with that word, and is in no chain.
void TablePart::free_dead(TableLane& lane, std::uint64_t number, std::uint64_t word) {
  if (!row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kFree, 0))) return;  // (table.E7)
  fault_point(FaultPoint::kRowFreed);
  lane.free_rows.push_back(static_cast<std::uint32_t>(number));
}

// (table.E8) Frees a row that a dead lane was making. Requires: it had that word when it was looked at (table.E1).
void TablePart::recover(TableLane& lane, std::uint64_t number, std::uint64_t word) {
  if (!row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kFree, 0))) return;  // (table.E8)
  fault_point(FaultPoint::kRowRecovered);
  lane.free_rows.push_back(static_cast<std::uint32_t>(number));
}

// (table.E2) False: the row has changed since.
bool TablePart::seal(TableLane& lane, std::uint64_t number, std::uint64_t word, bool is_expired) {
  const std::uint64_t sealed = next_word(word, RowState::kSealed, reference_of(word));
  if (!row(number).word.try_exchange_acq_rel(word, sealed)) return false;  // (table.E2)
  fault_point(FaultPoint::kRowSealed);
  lane.sealed.push_back({number, sealed, is_expired});
  return true;
}

// (table.E3 to table.E7) Evicts what the lane has sealed, but for the rows that are pinned.
std::uint64_t TablePart::evict_sealed(TableLane& lane) {
  if (lane.sealed.empty()) return 0;
  list_sealed(lane);  // its fence is table.E3's: pairs with table.P2
  lane.pinned.clear();
  const std::uint32_t lanes = std::min(shm_.lanes_used.load_acquire(), shm_.lanes);  // (table.P0)
  for (std::uint32_t one = 0; one < lanes; ++one)
    for (const AtomicShm<std::uint64_t>& pin : lanes_[one].pins)
      if (const std::uint64_t pinned = pin.load_acquire(); pinned != 0)  // (table.E3) pairs with table.P5
        lane.pinned.emplace_back(pinned, one);
  std::uint64_t evicted = 0;
  for (const TableLane::Sealed& one : lane.sealed) {
    TableRowShm& there = row(one.row);
    std::uint64_t word = one.word;
    const bool is_pinned = std::any_of(lane.pinned.begin(), lane.pinned.end(), [&](const auto& pin) {
      return row_of_pin(pin.first) == one.row && owner_of_pin(pin.first) == owner_of_(pin.second);
    });
    if (is_pinned) {
      static_cast<void>(  // (table.E4) a failure is a rescue
          there.word.try_exchange_acq_rel(word, next_word(word, RowState::kLive, reference_of(word))));
      fault_point(FaultPoint::kRowSpared);
      count(lane, TableCounter::kSpared);
      continue;
    }
    const std::uint64_t key = there.key.load_relaxed(), dead = next_word(word, RowState::kDead, reference_of(word));
    // (table.E5) THE EVICTION; lost: rescued, or sealed in vain
    if (!there.word.try_exchange_acq_rel(word, dead)) continue;
    fault_point(FaultPoint::kRowDead);
    ++evicted;
    count(lane, TableCounter::kEvicted);
    if (one.is_expired) count(lane, TableCounter::kExpired);
    const std::uint64_t order = order_of_row(key);
    const std::uint32_t bucket = bucket_of(order);
    link_bucket(lane, bucket);
    static_cast<void>(find(lane, bucket, order, key));  // (table.E6)
    free_dead(lane, one.row, dead);
  }
  lane.sealed.clear();
  return evicted;
}

// The clock's hand over `looks` rows (table.E1). Evicts those that are too old and, if that and the dead have left no
// free row, the `wanted` rows that are worth least. Returns how many it evicted.
std::uint64_t TablePart::turn(TableLane& lane, std::uint64_t looks, std::uint64_t wanted) {
  const std::uint64_t end = rows_used();
  if (end == 0) return 0;
  std::uint64_t at = shm_.hand.fetch_add_relaxed(looks);  // relaxed: it does not matter who looks at what
  if (at >= end) {
    // Not only the remainder: that of a sum that grows faster than the table is always near the table's end.
    at %= end;
    shm_.hand.leave_hint(at + looks);
  }
  std::uint64_t evicted = 0;
  lane.candidates.clear();
  for (; looks != 0; --looks, at = at + 1 == end ? 0 : at + 1) {
    TableRowShm& there = row(at);
    std::uint64_t word = there.word.load_acquire();  // (table.E1)
    const std::uint64_t key = there.key.load_relaxed();
    switch (state_of(word)) {
      case RowState::kFree: {
        const std::uint64_t owner = reference_of(word);
        const bool is_made =
            owner != 0 && owner <= shm_.lanes && has_noted(static_cast<std::uint32_t>(owner - 1), at);
        if (is_made) break;
        if (owner == 0)
          lane.free_rows.push_back(static_cast<std::uint32_t>(at));
        else
          recover(lane, at, word);
        break;
      }
      case RowState::kNew: {
        if (is_being_made(at)) break;
        const std::uint64_t order = order_of_row(key);
        const std::uint32_t bucket = bucket_of(order);
        link_bucket(lane, bucket);
        const Position found = find(lane, bucket, order, key);
        if (found.is_found && found.current == at)
          make_live(at, word);
        else
          recover(lane, at, word);
        break;
      }
      case RowState::kDead: {                          // its evictor has died, or is about to go on
        fence_acquire();                               // (table.F1)
        if (there.word.load_relaxed() != word) break;  // (table.F2) so it was its key
        const std::uint64_t order = order_of_row(key);
        const std::uint32_t bucket = bucket_of(order);
        link_bucket(lane, bucket);
        static_cast<void>(find(lane, bucket, order, key));  // (table.E6)
        free_dead(lane, at, word);
        break;
      }
      case RowState::kLive:
      case RowState::kSealed: {
        const std::uint32_t used = there.used.load_relaxed(), frequency = used & kMaxFrequency;
        const std::uint32_t age = (lane.time - (used >> 8)) & kTimeMask;
        const bool is_expired = shm_.ttl_ns != 0 && std::uint64_t{age} << kTimeShift > shm_.ttl_ns;
        if (is_expired) {
          if (seal(lane, at, word, true) && lane.sealed.size() == kEvictedAtOnce) evicted += evict_sealed(lane);
          break;
        }
        if (wanted == 0) break;
        const bool by_frequency = static_cast<EvictBy>(shm_.evict_by) == EvictBy::kLeastFrequentlyUsed;
        const std::uint64_t worth = (by_frequency ? std::uint64_t{frequency} << 24 : 0) | (kTimeMask - age);
        lane.candidates.push_back({worth, {at, word, false}});
        if (by_frequency && frequency != 0 && lane.draw() % 8 == 0)
          there.used.store_relaxed(make_used(used >> 8, frequency - (frequency + 15) / 16));
        break;
      }
    }
  }
  wanted = lane.free_rows.empty() ? std::min<std::uint64_t>(wanted, lane.candidates.size()) : 0;
  const auto worst = lane.candidates.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::nth_element(lane.candidates.begin(), worst, lane.candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto one = lane.candidates.begin(); one != worst; ++one) {
    if (seal(lane, one->second.row, one->second.word, false) && lane.sealed.size() == kEvictedAtOnce)
      evicted += evict_sealed(lane);
  }
  return evicted + evict_sealed(lane);
}

void TablePart::make_room(TableLane& lane, bool may_evict) {
  if (may_evict)
    turn(lane, kLooks, kEvictedAtOnce);
  else
    turn(lane, kEvictedAtOnce, 0);
}

std::uint64_t TablePart::tend(TableLane& lane, std::uint64_t looks) {
  note_time(lane);
  std::uint64_t evicted = 0, before;
  do {  // as evict()
    before = evicted;
    evicted += turn(lane, looks, 0);
  } while (evicted != before);
  return evicted;
}

std::uint64_t TablePart::evict(TableLane& lane, std::span<const std::uint64_t> keys) {
  std::uint64_t evicted = 0, before;
  do {  // a seal is void where a neighbour in the list has been linked or unlinked, so that takes several rounds
    before = evicted;
    for (const std::uint64_t key : keys) {
      const std::uint64_t order = order_of_row(key);
      std::uint64_t word;
      const auto found = locate(lane, key, order, bucket_of(order), word);
      if (!found || (state_of(word) != RowState::kLive && state_of(word) != RowState::kSealed)) continue;
      if (seal(lane, *found, word, false) && lane.sealed.size() == kEvictedAtOnce) evicted += evict_sealed(lane);
    }
    evicted += evict_sealed(lane);
  } while (evicted != before && evicted < keys.size());
  return evicted;
}

}  // namespace ps_shm::shm
