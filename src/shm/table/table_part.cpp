#include "shm/table/table_part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "ps_shm/errors.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/attach_outcome.hpp"
#include "update/call.hpp"

namespace ps_shm::shm {
namespace {

constexpr int kMaxWalk = 64;                  // rows; find() goes further
constexpr int kMaxSweeps = 64;                // for one row
constexpr std::uint32_t kNoRow = 0xffffffff;  // as a hint
constexpr std::uint64_t kLine = 64;
constexpr std::uint64_t kMostFetched = 1024;  // bytes of a row; the processor itself goes on from there

constexpr bool is_bucket(std::uint64_t reference) noexcept { return (reference & kBucketKind) != 0; }
// 64 bits: it is shifted by up to 32.
constexpr std::uint64_t index_of(std::uint64_t reference) noexcept { return reference & (kBucketKind - 1); }
// Otherwise a push could find no row that it can have.
constexpr bool may_be_linked(std::uint64_t word) noexcept {
  return state_of(word) >= RowState::kNew && state_of(word) <= RowState::kDead;
}

}  // namespace

TablePart::TablePart(Segment&& segment, std::function<std::uint32_t(std::uint32_t)> owner_of)
    : segment_(std::move(segment)),
      shm_(*reinterpret_cast<TableShm*>(segment_.data() + kTableOffset)),
      eviction_(traits_of(static_cast<Evict>(shm_.evict))),
      hash_(key_hash_of(shm_)),
      lanes_(reinterpret_cast<TableLaneShm*>(segment_.data() + kLanesOffset)),
      sightings_(reinterpret_cast<AtomicShm<std::uint8_t>*>(segment_.data() + shm_.sightings_offset)),
      buckets_(reinterpret_cast<AtomicShm<std::uint64_t>*>(segment_.data() + shm_.buckets_offset)),
      rows_(segment_.data() + shm_.rows_offset),
      row_bytes_(shm_.row_bytes),
      owner_of_(std::move(owner_of)) {}

void TablePart::fail_damaged_list(std::uint64_t reference) const {
  fail_damaged(segment_.name(),
               fmt::format("its list leads to {:#x}, which is not a row or a bucket that belongs there", reference));
}

TableLane TablePart::begin(std::uint32_t number) {
  TableLane lane;
  lane.shared = &lanes_[number];
  lane.number = number;
  lane.owner = owner_of_(number);
  lane.random = hash_(std::uint64_t{lane.owner} << 32 | number);  // the same again in a job with the same seed
  lane.new_row.assign(shm_.row_floats, 0.0F);
  // (table.P0) What a dead owner of the lane has left ends here, behind its data. Evictors look at the lane from now on.
  for (AtomicShm<std::uint64_t>& pin : lane.shared->pins) pin.store_release(0);  // (table.P0) pairs with table.D2
  fault_point(FaultPoint::kLaneCleared);
  lane.shared->inserting.store_release(0);  // (table.P0)
  fault_point(FaultPoint::kLaneReady);
  std::uint32_t used = shm_.lanes_used.load_acquire();                                 // (table.P0)
  while (used <= number && !shm_.lanes_used.try_exchange_acq_rel(used, number + 1)) {  // (table.P0)
  }
  fault_point(FaultPoint::kLaneUsed);
  note_time(lane);
  return lane;
}

std::uint32_t TablePart::bucket_of(std::uint64_t order) const noexcept {
  return static_cast<std::uint32_t>(reversed(order) & ((std::uint64_t{1} << shm_.bits.hint()) - 1));
}

// Asks for the lines of a row: the one that it begins in, or the others.
void TablePart::fetch(std::uint64_t number, bool is_rest, bool to_write) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(&row(number));
  const std::uintptr_t end = begin + std::min(row_bytes_, kMostFetched), first = begin & ~(kLine - 1);
  for (std::uintptr_t at = is_rest ? first + kLine : first; at < (is_rest ? end : first + kLine); at += kLine)
    if (to_write)
      update::prefetch_to_own(reinterpret_cast<const void*>(at));
    else
      __builtin_prefetch(reinterpret_cast<const void*>(at));
}

bool TablePart::leads_to_row(std::uint64_t reference) const noexcept {
  return !is_bucket(reference) && index_of(reference) < shm_.max_rows;
}

TablePart::Batch TablePart::ask(std::span<const std::uint64_t> keys) const noexcept {
  Batch batch;
  batch.keys = keys;
  batch.open = 0;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    batch.orders[i] = order_of(keys[i]);
    batch.buckets[i] = bucket_of(batch.orders[i]);
    batch.rows[i] = kNoRow;
    __builtin_prefetch(&buckets_[batch.buckets[i]]);
  }
  return batch;
}

void TablePart::enter(Batch& batch, bool to_write) const noexcept {
  for (std::size_t i = 0; i < batch.keys.size(); ++i)
    lead(batch, i, reference_of(buckets_[batch.buckets[i]].hint()), to_write);
}

void TablePart::lead(Batch& batch, std::size_t i, std::uint64_t reference, bool to_write) const noexcept {
  const std::uint32_t bit = std::uint32_t{1} << i;
  if (leads_to_row(reference)) {
    batch.rows[i] = static_cast<std::uint32_t>(index_of(reference));
    batch.open |= bit;
    fetch(batch.rows[i], false, to_write);
  } else {
    batch.rows[i] = kNoRow;
    batch.open &= ~bit;
  }
}

void TablePart::follow(Batch& batch, bool to_write) const noexcept {
  for (std::uint32_t open = batch.open; open != 0; open &= open - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(open));
    const TableRowShm& there = row(batch.rows[i]);
    if (there.key.hint() != batch.keys[i]) {
      lead(batch, i, reference_of(there.word.hint()), to_write);
    } else {
      batch.open &= ~(std::uint32_t{1} << i);
      fetch(batch.rows[i], true, to_write);
    }
  }
}

std::optional<std::uint64_t> TablePart::row_by_hint(const Batch& batch, std::size_t i,
                                                    std::uint64_t& word) const noexcept {
  const std::uint64_t number = batch.rows[i];
  if (number == kNoRow) return std::nullopt;
  const TableRowShm& there = row(number);
  word = there.word.load_acquire();  // (table.R1)
  const bool is_its = (state_of(word) == RowState::kLive || state_of(word) == RowState::kSealed) &&
                      there.key.load_relaxed() == batch.keys[i];
  return is_its ? std::optional(number) : std::nullopt;
}

// A walk without a look at the path: it meets the row, or does not, which only find() can confirm.
std::optional<std::uint64_t> TablePart::walk(std::uint32_t bucket, std::uint64_t key, std::uint64_t order,
                                             std::uint64_t& word) const noexcept {
  word = buckets_[bucket].load_acquire();  // (table.R1)
  if (state_of(word) != RowState::kLive) return std::nullopt;
  for (int steps = 0; steps < kMaxWalk; ++steps) {
    const std::uint64_t reference = reference_of(word);
    if (is_bucket(reference) || index_of(reference) >= shm_.max_rows) return std::nullopt;
    const TableRowShm& there = row(index_of(reference));
    word = there.word.load_acquire();  // (table.R1)
    const std::uint64_t its_key = there.key.load_relaxed();
    if (its_key == key) {
      const bool is_its = state_of(word) == RowState::kLive || state_of(word) == RowState::kSealed;
      return is_its ? std::optional<std::uint64_t>(index_of(reference)) : std::nullopt;
    }
    if (order_of(its_key) > order) return std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> TablePart::locate(TableLane& lane, std::uint64_t key, std::uint64_t order,
                                               std::uint32_t bucket, std::uint64_t& word) {
  if (const auto found = walk(bucket, key, order, word)) return found;
  link_bucket(lane, bucket);
  const Position position = find(lane, bucket, order, key);
  if (!position.is_found) return std::nullopt;
  word = position.current_word;
  return index_of(position.current);
}

bool TablePart::contains(TableLane& lane, const Batch& batch, std::size_t i) {
  std::uint64_t word;
  return row_by_hint(batch, i, word) || locate(lane, batch.keys[i], batch.orders[i], batch.buckets[i], word);
}

// Michael's search from a linked bucket for the first row or bucket that is not before (order, key). Unlinks the dead
// rows that it meets.
TablePart::Position TablePart::find(TableLane& lane, std::uint32_t bucket, std::uint64_t order, std::uint64_t key) {
  for (;; count(lane, TableCounter::kRestarts)) {
    Position at{&buckets_[bucket], buckets_[bucket].load_acquire(), 0, 0, false};  // (table.F1)
    std::uint64_t order_before = 0, key_before = 0;
    for (;;) {
      at.current = reference_of(at.previous_word);
      if (at.current == kEndOfList) return at;
      AtomicShm<std::uint64_t>* current;
      std::uint64_t its_order, its_key = 0;
      if (is_bucket(at.current)) {
        if (index_of(at.current) >> shm_.max_bits != 0) fail_damaged_list(at.current);
        current = &buckets_[index_of(at.current)];
        its_order = order_of_bucket(index_of(at.current));
        if (its_order >= order) {  // (table.F3) a bucket is never unlinked, and its word is anywhere in memory
          at.is_found = its_order == order;
          return at;
        }
        at.current_word = current->load_acquire();  // (table.F1) pairs with table.G2
      } else {
        if (at.current >= shm_.max_rows) fail_damaged_list(at.current);
        TableRowShm& there = row(at.current);
        current = &there.word;
        at.current_word = current->load_acquire();  // (table.F1) pairs with table.I5, table.E5, table.E6
        its_key = there.key.load_relaxed();         // (table.F1)
        its_order = order_of(its_key);
      }
      fence_acquire();                                             // (table.F1)
      if (at.previous->load_relaxed() != at.previous_word) break;  // (table.F2) it was linked, so its key stands
      if (!is_bucket(at.current) && state_of(at.current_word) == RowState::kDead) {  // (table.F3)
        std::uint64_t expected = at.previous_word;
        const std::uint64_t without =
            next_word(at.previous_word, state_of(at.previous_word), reference_of(at.current_word));
        if (!at.previous->try_exchange_acq_rel(expected, without)) break;  // (table.E6)
        fault_point(FaultPoint::kRowUnlinked);
        free_dead(lane, at.current, at.current_word);
        at.previous_word = without;
        continue;
      }
      if (its_order > order || (its_order == order && its_key >= key)) {
        at.is_found = its_order == order && its_key == key;
        if (at.is_found && !may_be_linked(at.current_word)) fail_damaged_list(at.current);
        return at;
      }
      // Otherwise the list could lead in a circle.
      if (its_order <= order_before && (its_order < order_before || its_key <= key_before))
        fail_damaged_list(at.current);
      order_before = its_order, key_before = its_key;
      at.previous = current, at.previous_word = at.current_word;
    }
  }
}

void TablePart::make_live(std::uint64_t number, std::uint64_t word) noexcept {
  static_cast<void>(  // (table.I6) whoever meets it linked; a failure means that another one has
      row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kLive, reference_of(word))));
  fault_point(FaultPoint::kRowLive);
}

// (table.G1 to table.G3) Links the bucket, and first the one that it was split from.
void TablePart::link_bucket(TableLane& lane, std::uint32_t bucket) {
  if (state_of(buckets_[bucket].load_acquire()) == RowState::kLive) return;  // (table.G1)
  if (bucket == 0) fail_damaged_list(kBucketKind);                           // it is linked from the beginning
  const std::uint32_t parent = bucket & ~std::bit_floor(bucket);
  link_bucket(lane, parent);
  for (;;) {
    std::uint64_t word = buckets_[bucket].load_acquire();  // (table.G1) before the search
    if (state_of(word) == RowState::kLive) return;
    const Position at = find(lane, parent, order_of_bucket(bucket), 0);
    if (at.is_found) {
      const std::uint64_t live = next_word(word, RowState::kLive, reference_of(word));
      const bool is_mine = buckets_[bucket].try_exchange_acq_rel(word, live);  // (table.G1)
      fault_point(FaultPoint::kBucketLive);
      if (is_mine) return;
      continue;
    }
    const std::uint64_t ready = next_word(word, RowState::kNew, at.current);
    if (!buckets_[bucket].try_exchange_acq_rel(word, ready)) continue;  // (table.G2)
    fault_point(FaultPoint::kBucketReady);
    std::uint64_t expected = at.previous_word;
    static_cast<void>(at.previous->try_exchange_acq_rel(  // (table.G3) won or lost: the next search shows it
        expected, next_word(at.previous_word, state_of(at.previous_word), kBucketKind | bucket)));
    fault_point(FaultPoint::kBucketLinked);
  }
}

// Links two buckets for each of the rows that a lane takes at once, so that all of a new half are linked when half of its
// rows are made. The searches for them begin at neighbouring buckets, and lead to rows anywhere, which are prefetched
// together. A bucket that a killed worker leaves out is linked by whoever needs it.
void TablePart::link_next_buckets(TableLane& lane) {
  constexpr std::uint64_t kAtOnce = 2 * kRowsAtOnce;
  const std::uint64_t all = std::uint64_t{1} << shm_.bits.hint();
  if (shm_.buckets_made.load_relaxed() >= all) return;
  const std::uint64_t first = shm_.buckets_made.fetch_add_relaxed(kAtOnce);  // relaxed, as before: a hint
  const std::uint64_t end = std::min(first + kAtOnce, all);
  const auto first_of_parent = [&](std::uint64_t bucket) {
    return reference_of(buckets_[bucket & ~std::bit_floor(bucket)].hint());
  };
  for (std::uint64_t bucket = first; bucket < end; ++bucket)
    if (const std::uint64_t next = first_of_parent(bucket); leads_to_row(next))
      __builtin_prefetch(&row(index_of(next)), 1);
  for (std::uint64_t bucket = first; bucket < end; ++bucket) {
    const std::uint64_t next = first_of_parent(bucket);
    if (!leads_to_row(next)) continue;
    if (const std::uint64_t second = reference_of(row(index_of(next)).word.hint()); leads_to_row(second))
      __builtin_prefetch(&row(index_of(second)), 1);
  }
  for (std::uint64_t bucket = first; bucket < end; ++bucket) link_bucket(lane, static_cast<std::uint32_t>(bucket));
}

// (table.G4) Doubles the number of buckets if there are more rows.
void TablePart::grow() noexcept {
  std::uint32_t bits = shm_.bits.load_acquire();  // (table.G4)
  if (bits >= shm_.max_bits || shm_.rows_next.load_relaxed() <= std::uint64_t{1} << bits) return;
  const std::size_t half = sizeof(std::uint64_t) << bits;
  if (!segment_.try_allocate(shm_.buckets_offset + half, shm_.buckets_offset + 2 * half))
    return;  // the chains get longer
  fault_point(FaultPoint::kBucketsBacked);
  static_cast<void>(shm_.bits.try_exchange_acq_rel(bits, bits + 1));  // (table.G4)
  fault_point(FaultPoint::kBucketsDoubled);
}

bool TablePart::has_memory(std::uint64_t rows) noexcept {
  std::uint64_t backed = shm_.rows_backed.load_acquire();  // (table.A1)
  if (rows <= backed) return true;
  const std::uint64_t wanted = rows_to_back(rows, shm_.max_rows, row_bytes_);
  // What was left, another worker may have taken for the same rows.
  if (!segment_.try_allocate(shm_.rows_offset + backed * row_bytes_, shm_.rows_offset + wanted * row_bytes_))
    return rows <= shm_.rows_backed.load_acquire();  // (table.A1)
  fault_point(FaultPoint::kRowsBacked);
  while (backed < wanted && !shm_.rows_backed.try_exchange_acq_rel(backed, wanted)) {  // (table.A1)
  }
  return true;
}

// (table.A1) Rows that were never used, as free rows of this lane. False: there are none, or there is no memory.
bool TablePart::take_unused(TableLane& lane) {
  std::uint64_t next = shm_.rows_next.load_acquire();  // (table.A1)
  std::uint64_t end;
  do {
    if (next >= shm_.max_rows) return false;
    end = std::min(next + kRowsAtOnce, shm_.max_rows);
    if (!has_memory(end)) {
      lane.has_lacked_memory = true;
      return false;
    }
  } while (!shm_.rows_next.try_exchange_acq_rel(next, end));  // (table.A1)
  fault_point(FaultPoint::kRowsTaken);
  for (std::uint64_t number = end; number-- > next;) lane.remember_free(number);
  grow();
  link_next_buckets(lane);
  return true;
}

// (table.I1, table.I2) Claims a free row, evicting others if there is none. The row is FREE(this lane), and noted.
// Nothing: the table is full.
std::optional<std::uint64_t> TablePart::claim(TableLane& lane) {
  for (int sweeps = 0;;) {
    while (!lane.free_rows.empty()) {
      const std::uint32_t number = lane.free_rows.back();
      lane.free_rows.pop_back();
      lane.shared->inserting.store_release(make_pin(lane.owner, number));  // (table.I1) before the claim
      fault_point(FaultPoint::kRowNoted);
      std::uint64_t word = row(number).word.load_acquire();  // (table.I2)
      if (state_of(word) != RowState::kFree || reference_of(word) != 0) continue;
      // (table.I2) THE CLAIM
      if (!row(number).word.try_exchange_acq_rel(word, next_word(word, RowState::kFree, lane.number + 1))) continue;
      fault_point(FaultPoint::kRowClaimed);
      fence_release();  // (table.I2) who copies what lay here sees another word (table.R3)
      return number;
    }
    // (table.I7) Otherwise the clock sweep would take the row that was lost for one that is being made.
    lane.shared->inserting.store_release(0);
    fault_point(FaultPoint::kClaimLost);
    if (take_unused(lane)) continue;
    const bool may_evict = !lane.is_guest && eviction_.makes_space;
    if (sweeps++ == (may_evict ? kMaxSweeps : 1)) return std::nullopt;
    make_space(lane, may_evict);
  }
}

// (table.I1 to table.I7) Nothing: the key is not admitted, or there is no space.
std::optional<std::uint64_t> TablePart::find_or_make(TableLane& lane, const Batch& batch, std::size_t i,
                                                     const RowMaker& maker, bool admits_all) {
  std::uint64_t ignored;
  if (const auto found = row_by_hint(batch, i, ignored)) return found;
  const std::uint64_t key = batch.keys[i], order = batch.orders[i];
  const std::uint32_t bucket = batch.buckets[i];
  if (const auto found = walk(bucket, key, order, ignored)) return found;
  link_bucket(lane, bucket);
  std::optional<std::uint64_t> mine;
  for (;;) {
    const Position at = find(lane, bucket, order, key);
    if (at.is_found) {
      if (state_of(at.current_word) == RowState::kNew) make_live(at.current, at.current_word);
      if (mine) {  // another has made it
        AtomicShm<std::uint64_t>& word = row(*mine).word;
        word.store_release(next_word(word.load_relaxed(), RowState::kFree, 0));  // (table.I5) not linked: this lane's
        fault_point(FaultPoint::kRowGivenBack);
        lane.shared->inserting.store_release(0);  // (table.I7)
        lane.remember_free(*mine);
      }
      return at.current;
    }
    if (!mine) {
      if (!admits_all && !is_admitted(lane, order)) return std::nullopt;
      mine = claim(lane);  // may evict, so `at` is old
      if (!mine) {
        if (!lane.is_guest) count(lane, TableCounter::kRefused);
        return std::nullopt;
      }
      TableRowShm& made = row(*mine);
      made.key.store_relaxed(key);  // (table.I3) private, as the next
      made.used.leave_hint(make_used(lane.time, 0));
      made.pushes.store_relaxed(0);
      made.mark.store_relaxed(maker.mark());
      maker.make(key, lane.new_row.data());
      racing_copy(elements(*mine), lane.new_row.data(), lane.new_row.size());
      fault_point(FaultPoint::kRowFilled);
      continue;
    }
    AtomicShm<std::uint64_t>& word = row(*mine).word;
    const std::uint64_t ready = next_word(word.load_relaxed(), RowState::kNew, at.current);
    word.store_release(ready);  // (table.I4)
    fault_point(FaultPoint::kRowReady);
    std::uint64_t expected = at.previous_word;
    // (table.I5) THE INSERTION
    if (!at.previous->try_exchange_acq_rel(expected, next_word(at.previous_word, state_of(at.previous_word), *mine)))
      continue;
    fault_point(FaultPoint::kRowLinked);
    make_live(*mine, ready);
    lane.shared->inserting.store_release(0);  // (table.I7)
    fault_point(FaultPoint::kRowDone);
    count(lane, TableCounter::kMade);
    if (shm_.ttl_ns != 0) sweep(lane, 2, 0);
    return mine;
  }
}

// Whether a key without a row gets one with this push. It is counted in two cells, of which the smaller is taken
// (count-min, Cormode and Muthukrishnan 2005). A cell that is shared admits early; the counts are halved, line by line,
// while rows are made, so that what was seen long ago counts less.
bool TablePart::is_admitted(TableLane& lane, std::uint64_t order) noexcept {
  if (shm_.admit_after <= 1) return true;
  const std::uint64_t mask = shm_.sightings - 1;
  AtomicShm<std::uint8_t>* const cells[2] = {&sightings_[(order >> 20) & mask], &sightings_[mixed(order) & mask]};
  const std::uint32_t seen = std::min<std::uint32_t>(cells[0]->hint(), cells[1]->hint()) + 1U;
  if (seen >= shm_.admit_after) {
    constexpr std::uint64_t kLine = 64, kEvery = 32;  // all are halved about once while max_rows rows are made
    if (lane.draw() % kEvery != 0) return true;
    AtomicShm<std::uint8_t>* const line = &sightings_[lane.draw() & mask & ~(kLine - 1)];
    for (std::uint64_t i = 0; i < kLine; ++i)
      if (const std::uint8_t there = line[i].hint(); there != 0) line[i].leave_hint(there / 2);
    return true;
  }
  for (AtomicShm<std::uint8_t>* cell : cells)
    if (const std::uint8_t there = cell->hint(); there < seen) cell->leave_hint(static_cast<std::uint8_t>(seen));
  count(lane, TableCounter::kUnadmitted);
  return false;
}

// (table.P3) Whether the row, which is pinned, is still the key's. Brings it back where somebody means to evict it.
bool TablePart::is_still(TableLane& lane, TableRowShm& there, std::uint64_t key) noexcept {
  std::uint64_t word = there.word.load_acquire();  // (table.P3)
  for (;;) {
    if (state_of(word) != RowState::kLive && state_of(word) != RowState::kSealed) return false;
    if (there.key.load_relaxed() != key) return false;
    if (state_of(word) == RowState::kLive) return true;
    if (there.word.try_exchange_acq_rel(word, next_word(word, RowState::kLive, reference_of(word)))) {  // (table.P3)
      fault_point(FaultPoint::kRowRescued);
      count(lane, TableCounter::kRescued);
      return true;
    }
  }
}

void TablePart::pin(TableLane& lane, const Batch& batch, const RowMaker& maker, bool admits_all, float** rows) {
  AtomicShm<std::uint64_t>* const pins = lane.shared->pins;
  std::array<std::optional<std::uint64_t>, kPins> found;
  note_time(lane);
  const auto find_and_pin = [&](std::size_t i) {
    found[i] = find_or_make(lane, batch, i, maker, admits_all);
    // Also ends the pin before, behind its data.
    pins[i].store_release(found[i] ? make_pin(lane.owner, *found[i]) : 0);  // (table.P1)
    fault_point(FaultPoint::kRowPinned);
  };
  for (std::size_t i = 0; i < batch.keys.size(); ++i) find_and_pin(i);
  fence_store_load();  // (table.P2) pairs with table.E3
  for (std::size_t i = 0; i < batch.keys.size(); ++i) {
    while (found[i] && !is_still(lane, row(*found[i]), batch.keys[i])) {  // (table.P3)
      pins[i].store_release(0);                                           // (table.P3)
      find_and_pin(i);
      fence_store_load();  // (table.P2)
    }
    rows[i] = found[i] ? elements(*found[i]) : nullptr;
    if (!found[i]) continue;
    raise(row(*found[i]).changed, shm_.dump_epoch.load_relaxed());  // (table.P4) behind the fence of table.P2
    touch(lane, row(*found[i]));                                    // (table.P4)
  }
}

void TablePart::unpin(TableLane& lane) noexcept {
  for (AtomicShm<std::uint64_t>& pin : lane.shared->pins)
    if (pin.load_relaxed() != 0) pin.store_release(0);  // (table.P5)
}

std::uint64_t TablePart::counted(TableCounter which) const noexcept {
  std::uint64_t sum = 0;
  for (std::uint32_t lane = 0; lane < shm_.lanes; ++lane)
    sum += lanes_[lane].counters[static_cast<std::uint32_t>(which)].load_relaxed();
  return sum;
}

}  // namespace ps_shm::shm
