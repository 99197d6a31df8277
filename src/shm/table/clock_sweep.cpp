// The clock sweep of a table: which rows are worth least, evicting them, and taking back what the dead have left.
#include <algorithm>
#include <utility>

#include "shm/base/clock.hpp"
#include "shm/table/table_part.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kSample = 256;           // a sample of so many rows, of which the worst are evicted
constexpr std::uint64_t kEvictedAtOnce = kPins;  // they share a fence and a reading of the pins
constexpr int kMaxRounds = 8;                    // of evict() and expire(), for rows that others change meanwhile
constexpr std::uint32_t kExactFrequency = 16;    // from there on, uses are counted as Morris (1978) did

// The age of a use at the time `now`. Another process may have noted the time of a use after this one noted `now`: such a
// use has age 0. So the last 2^22 ages, which are 13 days, stand for uses in the future, and 39 days remain for those in
// the past, which is more than the longest ttl.
constexpr std::uint32_t age_of(std::uint32_t used, std::uint32_t now) noexcept {
  const std::uint32_t age = (now - (used >> 8)) & kTimeMask;
  return age <= kTimeMask - (std::uint32_t{1} << 22) ? age : 0;
}

// False: it is another one by now, which `seen` becomes. Relaxed: a hint which rows are worth least.
bool try_leave_hint(AtomicShm<std::uint32_t>& hint, std::uint32_t& seen, std::uint32_t guess) noexcept {
  return hint.value.compare_exchange_strong(seen, guess, std::memory_order_relaxed);
}

}  // namespace

void TablePart::note_time(TableLane& lane) const noexcept {
  lane.time = static_cast<std::uint32_t>(now_ns() >> kTimeShift) & kTimeMask;
}

// Notes a use of the row, where that says something new.
void TablePart::touch(TableLane& lane, TableRowShm& there) const noexcept {
  if (lane.is_guest) return;
  std::uint32_t before = there.used.hint(), now;  // it says only which rows are worth least
  do {
    std::uint32_t time = before >> 8, frequency = before & kMaxFrequency;
    if (eviction_.notes_time && age_of(before, lane.time) != 0) time = lane.time;  // it never moves back
    if (eviction_.counts_uses && frequency < kMaxFrequency) {
      if (frequency < kExactFrequency || lane.draw() % (4 * (frequency - kExactFrequency) + 4) == 0) ++frequency;
    }
    now = make_used(time, frequency);
  } while (now != before && !try_leave_hint(there.used, before, now));
}

bool TablePart::is_expired(const TableLane& lane, const TableRowShm& there) const noexcept {
  return shm_.ttl_ns != 0 && std::uint64_t{age_of(there.used.hint(), lane.time)} << kTimeShift > shm_.ttl_ns;
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
  lane.remember_free(number);
}

// (table.E8) Frees a row that a dead lane was making. Requires: it had that word when it was visited (table.E1).
void TablePart::recover(TableLane& lane, std::uint64_t number, std::uint64_t word) {
  if (!row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kFree, 0))) return;  // (table.E8)
  fault_point(FaultPoint::kRowRecovered);
  lane.remember_free(number);
}

// (table.E2) False: the row has changed since, and its key is noted.
bool TablePart::seal(TableLane& lane, std::uint64_t number, std::uint64_t word, std::uint64_t key, bool is_expired) {
  const std::uint64_t sealed = next_word(word, RowState::kSealed, reference_of(word));
  if (!row(number).word.try_exchange_acq_rel(word, sealed)) {  // (table.E2)
    lane.in_vain.push_back(key);
    return false;
  }
  fault_point(FaultPoint::kRowSealed);
  lane.sealed.push_back({number, sealed, key, is_expired});
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
    const std::uint64_t dead = next_word(word, RowState::kDead, reference_of(word));
    if (!there.word.try_exchange_acq_rel(word, dead)) {  // (table.E5) THE EVICTION
      lane.in_vain.push_back(one.key);
      continue;
    }
    fault_point(FaultPoint::kRowDead);
    ++evicted;
    count(lane, TableCounter::kEvicted);
    if (one.is_expired) count(lane, TableCounter::kExpired);
    const std::uint64_t order = order_of(one.key);
    const std::uint32_t bucket = bucket_of(order);
    link_bucket(lane, bucket);
    static_cast<void>(find(lane, bucket, order, one.key));  // (table.E6)
    free_dead(lane, one.row, dead);
  }
  lane.sealed.clear();
  return evicted;
}

// Goes on over `rows` rows (table.E1). Evicts those that are too old and, if that and the dead have left no
// free row, the `wanted` rows that are worth least. Returns how many it evicted.
std::uint64_t TablePart::sweep(TableLane& lane, std::uint64_t rows, std::uint64_t wanted) {
  const std::uint64_t end = rows_used();
  if (end == 0) return 0;
  std::uint64_t at = shm_.hand.fetch_add_relaxed(rows);  // relaxed: it does not matter who visits which rows
  if (at >= end) {
    // Not only the remainder: that of a sum that grows faster than the table is always near the table's end.
    at %= end;
    shm_.hand.leave_hint(at + rows);
  }
  std::uint64_t evicted = 0;
  lane.candidates.clear();
  lane.in_vain.clear();
  for (; rows != 0; --rows, at = at + 1 == end ? 0 : at + 1) {
    if (rows % kSample == 0) note_time(lane);  // a long sweep goes on while others use rows
    evicted += visit(lane, at, wanted != 0);
  }
  if (lane.free_rows.empty()) evicted += seal_worst(lane, wanted);
  return evicted + evict_sealed(lane);
}

// Repairs what a dead process has left in the row, and seals it if it is too old; otherwise, if `may_evict`, it is a
// candidate. Returns how many rows it evicted.
std::uint64_t TablePart::visit(TableLane& lane, std::uint64_t at, bool may_evict) {
  TableRowShm& there = row(at);
  std::uint64_t word = there.word.load_acquire();  // (table.E1)
  const std::uint64_t key = there.key.load_relaxed();
  switch (state_of(word)) {
    case RowState::kFree: {
      const std::uint64_t owner = reference_of(word);
      const bool is_made = owner != 0 && owner <= shm_.lanes && has_noted(static_cast<std::uint32_t>(owner - 1), at);
      if (is_made) break;
      if (owner == 0)
        lane.remember_free(at);
      else
        recover(lane, at, word);
      break;
    }
    case RowState::kNew: {
      if (is_being_made(at)) break;
      const std::uint64_t order = order_of(key);
      const std::uint32_t bucket = bucket_of(order);
      link_bucket(lane, bucket);
      const Position found = find(lane, bucket, order, key);
      if (found.is_found && found.current == at)
        make_live(at, word), lane.in_vain.push_back(key);  // it may be too old
      else
        recover(lane, at, word);
      break;
    }
    case RowState::kDead: {                          // its evictor has died, or is about to go on
      fence_acquire();                               // (table.F1)
      if (there.word.load_relaxed() != word) break;  // (table.F2) so it was its key
      const std::uint64_t order = order_of(key);
      const std::uint32_t bucket = bucket_of(order);
      link_bucket(lane, bucket);
      static_cast<void>(find(lane, bucket, order, key));  // (table.E6)
      free_dead(lane, at, word);
      break;
    }
    case RowState::kLive:
    case RowState::kSealed: {
      if (is_expired(lane, there)) {
        if (seal(lane, at, word, key, true) && lane.sealed.size() == kEvictedAtOnce) return evict_sealed(lane);
        break;
      }
      if (!may_evict) break;
      std::uint32_t used = there.used.hint();
      const std::uint32_t frequency = used & kMaxFrequency;
      const bool by_frequency = eviction_.counts_uses;
      const std::uint64_t worth =
          (by_frequency ? std::uint64_t{frequency} << 24 : 0) | (kTimeMask - age_of(used, lane.time));
      lane.candidates.push_back({worth, {at, word, key, false}});
      if (by_frequency && frequency != 0 && lane.draw() % 8 == 0)
        try_leave_hint(there.used, used, make_used(used >> 8, frequency - (frequency + 15) / 16));
      break;
    }
  }
  return 0;
}

// Seals the `wanted` candidates that are worth least. Returns how many rows it evicted.
std::uint64_t TablePart::seal_worst(TableLane& lane, std::uint64_t wanted) {
  std::uint64_t evicted = 0;
  const auto worst = lane.candidates.begin() +
                     static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(wanted, lane.candidates.size()));
  std::nth_element(lane.candidates.begin(), worst, lane.candidates.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto one = lane.candidates.begin(); one != worst; ++one) {
    const TableLane::Sealed& row = one->second;
    if (seal(lane, row.row, row.word, row.key, false) && lane.sealed.size() == kEvictedAtOnce)
      evicted += evict_sealed(lane);
  }
  return evicted;
}

void TablePart::make_space(TableLane& lane, bool may_evict) {
  if (may_evict)
    sweep(lane, kSample, kEvictedAtOnce);
  else
    sweep(lane, kEvictedAtOnce, 0);
}

std::uint64_t TablePart::tend(TableLane& lane, std::uint64_t rows) {
  note_time(lane);
  const std::uint64_t evicted = sweep(lane, rows, 0);
  return evicted + repeat_in_vain(lane, true);
}

std::uint64_t TablePart::evict(TableLane& lane, std::span<const std::uint64_t> keys) {
  lane.in_vain.clear();
  const std::uint64_t evicted = seal_and_evict(lane, keys, false);
  return evicted + repeat_in_vain(lane, false);
}

// are_expired: of these keys only the rows that are too old.
std::uint64_t TablePart::seal_and_evict(TableLane& lane, std::span<const std::uint64_t> keys, bool are_expired) {
  std::uint64_t evicted = 0;
  for (const std::uint64_t key : keys) {
    const std::uint64_t order = order_of(key);
    std::uint64_t word;
    const auto found = locate(lane, key, order, bucket_of(order), word);
    if (!found) continue;
    if (state_of(word) == RowState::kNew) {  // its maker may be dead
      make_live(*found, word);
      lane.in_vain.push_back(key);
      continue;
    }
    if (are_expired && !is_expired(lane, row(*found))) continue;
    if (seal(lane, *found, word, key, are_expired) && lane.sealed.size() == kEvictedAtOnce)
      evicted += evict_sealed(lane);
  }
  return evicted + evict_sealed(lane);
}

// Others may have changed a row that nobody pushes: linked or unlinked its neighbour, sealed it, too, without evicting it,
// or made it live for a dump. Each round needs such a change in it, so there is hardly ever a second one.
std::uint64_t TablePart::repeat_in_vain(TableLane& lane, bool are_expired) {
  std::uint64_t evicted = 0;
  for (int round = 0; !lane.in_vain.empty() && round < kMaxRounds; ++round) {
    const std::vector<std::uint64_t> keys = std::exchange(lane.in_vain, {});
    note_time(lane);
    evicted += seal_and_evict(lane, keys, are_expired);
  }
  return evicted;
}

}  // namespace ps_shm::shm
