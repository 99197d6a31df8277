// A part of a table by key: finds, makes and evicts rows, while other processes do the same and may die at any store.
// docs/protocols.md has the rules (table.*).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/eviction.hpp"
#include "shm/segment/segment.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm::shm {

constexpr std::uint64_t kRowsAtOnce = 64;          // that a lane takes of the unused ones
constexpr std::size_t kFreeRowsAtMost = 1U << 16;  // that a lane remembers; the clock sweep finds the others

// Rows whose memory is asked for together: that of 1 MiB, or of as many rows as a lane takes.
constexpr std::uint64_t rows_of_step(std::uint64_t row_bytes) noexcept {
  return std::max(kRowsAtOnce, (std::uint64_t{1} << 20) / row_bytes);
}
// How many rows of a part have memory once `rows` of them do.
constexpr std::uint64_t rows_to_back(std::uint64_t rows, std::uint64_t max_rows, std::uint64_t row_bytes) noexcept {
  return std::min(max_rows, round_up(rows, rows_of_step(row_bytes)));
}

// Fills the elements of a new row, and their state.
class RowMaker {
 public:
  virtual void make(std::uint64_t key, float* elements) const noexcept = 0;
  // TableRowShm::mark of the rows that it makes.
  virtual std::uint32_t mark() const noexcept { return 0; }

 protected:
  ~RowMaker() = default;
};

// What a lane's owner knows by itself.
struct TableLane {
  TableLaneShm* shared = nullptr;
  std::uint32_t number = 0;
  std::uint32_t owner = 0;               // its number, which its pins and its note have
  std::vector<std::uint32_t> free_rows;  // that may be free, at most kFreeRowsAtMost: others may take them
  bool is_guest = false;                 // what it changes counts as no use of a row, and it evicts none to make space
  std::uint64_t random = 0;

  // A pseudo-random number of 24 bits (Knuth's MMIX).
  std::uint32_t draw() noexcept {
    random = random * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
    return static_cast<std::uint32_t>(random >> 40);
  }

  bool has_lacked_memory = false;  // it needed a row that was never used, and /dev/shm had no memory for it
  std::vector<float> new_row;
  std::uint32_t time = 0;  // now, in the units of TableRowShm::used

  void remember_free(std::uint64_t row) {
    if (free_rows.size() < kFreeRowsAtMost) free_rows.push_back(static_cast<std::uint32_t>(row));
  }

  struct Sealed {
    std::uint64_t row, word, key;
    bool is_expired;
  };
  std::vector<Sealed> sealed;                                   // to be evicted together
  std::vector<std::uint64_t> in_vain;                           // keys of rows that changed before they were evicted
  std::vector<std::pair<std::uint64_t, Sealed>> candidates;     // {worth, row}
  std::vector<std::pair<std::uint64_t, std::uint32_t>> pinned;  // {pin, lane}
};

// (table.P4, table.D1, table.D2) Makes the word `least`, unless it is more.
inline void raise(AtomicShm<std::uint32_t>& word, std::uint32_t least) noexcept {
  std::uint32_t there = word.load_relaxed();
  while (there < least)
    if (word.try_exchange_acq_rel(there, least)) fault_point(FaultPoint::kRowChanged), there = least;  // (table.P4)
}

class TablePart {
 public:
  // Up to kPins keys, none of them twice, where the search for each begins, and which row it probably leads to.
  struct Batch {
    std::span<const std::uint64_t> keys;
    std::array<std::uint64_t, kPins> orders;
    std::array<std::uint32_t, kPins> buckets;
    std::array<std::uint32_t, kPins> rows;  // hints, of which any may be wrong
    std::uint32_t open;                     // bit i: follow() is not at the key's row yet
  };

  // Requires: the segment is a table's, checked. owner_of: the number of a lane's living owner; 0: it has none.
  TablePart(Segment&& segment, std::function<std::uint32_t(std::uint32_t)> owner_of);

  const TableShm& record() const noexcept { return shm_; }
  const KeyHash& hash() const noexcept { return hash_; }
  Segment& segment() noexcept { return segment_; }
  const Segment& segment() const noexcept { return segment_; }

  // Begins to use the lane (table.P0). Requires: this process owns its rank.
  TableLane begin(std::uint32_t lane);

  // Steps that prefetch what the next one reads: the buckets of the keys; the first row of each bucket; and the rest of
  // this row if it is the key's, else the row behind it, as often as follow() is called. Each step is worth most if the
  // steps of other batches come in between.
  Batch ask(std::span<const std::uint64_t> keys) const noexcept;
  void enter(Batch& batch, bool to_write) const noexcept;
  void follow(Batch& batch, bool to_write) const noexcept;

  // (table.P1 to table.P3) Finds or makes the rows of the keys, and pins them: rows[i] is where the elements of key i are, or
  // nullptr if it has no row, because it is not admitted or there is no space. No other key gets them until the lane's
  // next pin() or unpin(). admits_all: whether keys get rows whatever `admit_after` is. Lock-free.
  void pin(TableLane& lane, const Batch& batch, const RowMaker& maker, bool admits_all, float** rows);
  // (table.P6) How often the row has been pushed before. Requires: the lane has pinned it; `elements` is where pin() said.
  static std::uint64_t count_push(float* elements) noexcept {
    TableRowShm& there = *(reinterpret_cast<TableRowShm*>(elements) - 1);
    return there.pushes.fetch_add_relaxed(1);  // relaxed: only the number counts
  }
  // (bridge.T2) Requires: `elements` is where pin() or for_each() said.
  static AtomicShm<std::uint32_t>& mark_of(float* elements) noexcept {
    return (reinterpret_cast<TableRowShm*>(elements) - 1)->mark;
  }
  static std::uint32_t mark_of(const float* elements) noexcept {  // relaxed: only guests write it, one at a time
    return (reinterpret_cast<const TableRowShm*>(elements) - 1)->mark.load_relaxed();
  }
  // (table.P5)
  void unpin(TableLane& lane) noexcept;

  // Calls copy(elements) for the row of key i, again if the row has changed hands meanwhile. False: there is no row.
  // (table.R1 to table.R3) Lock-free.
  template <class Copy>
  bool read(TableLane& lane, const Batch& batch, std::size_t i, Copy&& copy) {
    if (i == 0 && shm_.touch_on_pull != 0) note_time(lane);
    for (;;) {
      std::uint64_t word = 0;
      std::optional<std::uint64_t> found = row_by_hint(batch, i, word);
      if (!found) found = locate(lane, batch.keys[i], batch.orders[i], batch.buckets[i], word);
      if (!found) return false;
      TableRowShm& there = row(*found);
      copy(elements(*found));
      fence_acquire();                                  // (table.R3) pairs with table.I2
      if (there.word.load_relaxed() != word) continue;  // (table.R3)
      if (shm_.touch_on_pull != 0) touch(lane, there);
      return true;
    }
  }

  // The row of a key without a row that is copied, only made. True: it was there, or was made.
  bool contains(TableLane& lane, const Batch& batch, std::size_t i);

  // Evicts the rows of these keys but for those that are being pushed. Returns how many it evicted.
  std::uint64_t evict(TableLane& lane, std::span<const std::uint64_t> keys);
  // Sweeps over so many rows: repairs what the dead have left, and evicts rows that are too old. Returns how
  // many it evicted.
  std::uint64_t tend(TableLane& lane, std::uint64_t rows);

  // The number of a new dump of the table (table.D1). Requires: the table's first part. Throws Error (kExhausted).
  std::uint32_t next_dump();
  // Begins the dump of that number in this part: the rows that have changed since the dump `since` has begun are those
  // with changed_since(), and the keys that were evicted since then are appended to `evicted` (table.D1 to table.D3). A push
  // that is under way, and what happens from now on, belongs to the next dump, too. False: evictions have been
  // forgotten, so all rows are to be taken. Lock-free.
  bool begin_dump(TableLane& lane, std::uint32_t dump, std::uint32_t since, std::vector<std::uint64_t>& evicted);

  // Rows below this number may be in use.
  std::uint64_t rows_used() const noexcept {
    const std::uint64_t next = shm_.rows_next.load_acquire();  // (table.A1)
    return std::min(next, shm_.max_rows);
  }

  // Calls copy(key, elements) for every row that is somebody's and has changed since the dump `since` has begun (0: for
  // all), in the order of their numbers, again for a row that has changed hands meanwhile; then keep(). Rows are of
  // different moments. Lock-free. `rescues`: makes sealed rows live, as a dump of all rows does that others follow.
  template <class Copy, class Keep>
  void for_each(std::uint32_t since, bool rescues, Copy&& copy, Keep&& keep) const {
    for (std::uint64_t number = 0, end = rows_used(); number < end; ++number) {
      TableRowShm& there = row(number);
      if (there.changed.load_relaxed() < since) continue;  // (table.D4)
      for (;;) {
        std::uint64_t word = there.word.load_acquire();  // (table.R1)
        if (state_of(word) != RowState::kLive && state_of(word) != RowState::kSealed) break;
        if (rescues && state_of(word) == RowState::kSealed) {  // its eviction may have been listed before this dump
          const std::uint64_t live = next_word(word, RowState::kLive, reference_of(word));
          static_cast<void>(there.word.try_exchange_acq_rel(word, live));  // (table.D3) lost: rescued, or evicted
          fault_point(FaultPoint::kRowRescued);
          continue;
        }
        copy(there.key.load_relaxed(), elements(number));
        fence_acquire();                                  // (table.R3)
        if (there.word.load_relaxed() != word) continue;  // (table.R3)
        keep();
        break;
      }
    }
  }

  void count(TableLane& lane, TableCounter which, std::uint64_t by = 1) const noexcept {
    lane.shared->counters[static_cast<std::uint32_t>(which)].bump_relaxed(by);
  }
  // Of all lanes.
  std::uint64_t counted(TableCounter which) const noexcept;
  // True once for the table, in whichever process asks first. Requires: the table's first part.
  bool may_tell() noexcept { return shm_.told.fetch_add_relaxed(1) == 0; }  // relaxed: only the number counts

 private:
  struct Position {  // where a key is, or would be linked
    AtomicShm<std::uint64_t>* previous;
    std::uint64_t previous_word, current, current_word;
    bool is_found;
  };

  TableRowShm& row(std::uint64_t number) const noexcept {
    return *reinterpret_cast<TableRowShm*>(rows_ + number * row_bytes_);
  }
  float* elements(std::uint64_t number) const noexcept { return reinterpret_cast<float*>(&row(number) + 1); }
  std::uint64_t order_of(std::uint64_t key) const noexcept { return order_of_row(hash_, key); }
  std::uint32_t bucket_of(std::uint64_t order) const noexcept;
  bool leads_to_row(std::uint64_t reference) const noexcept;
  void lead(Batch& batch, std::size_t i, std::uint64_t reference, bool to_write) const noexcept;
  void fetch(std::uint64_t number, bool is_rest, bool to_write) const noexcept;

  std::optional<std::uint64_t> row_by_hint(const Batch& batch, std::size_t i, std::uint64_t& word) const noexcept;
  std::optional<std::uint64_t> walk(std::uint32_t bucket, std::uint64_t key, std::uint64_t order,
                                    std::uint64_t& word) const noexcept;
  std::optional<std::uint64_t> locate(TableLane& lane, std::uint64_t key, std::uint64_t order, std::uint32_t bucket,
                                      std::uint64_t& word);
  Position find(TableLane& lane, std::uint32_t bucket, std::uint64_t order, std::uint64_t key);
  void link_bucket(TableLane& lane, std::uint32_t bucket);
  void link_next_buckets(TableLane& lane);
  void make_live(std::uint64_t number, std::uint64_t word) noexcept;
  std::optional<std::uint64_t> find_or_make(TableLane& lane, const Batch& batch, std::size_t i, const RowMaker& maker,
                                            bool admits_all);
  std::optional<std::uint64_t> claim(TableLane& lane);
  bool take_unused(TableLane& lane);
  bool has_memory(std::uint64_t rows) noexcept;
  void grow() noexcept;
  bool is_still(TableLane& lane, TableRowShm& there, std::uint64_t key) noexcept;
  bool is_admitted(TableLane& lane, std::uint64_t order) noexcept;
  void touch(TableLane& lane, TableRowShm& there) const noexcept;
  void note_time(TableLane& lane) const noexcept;
  bool has_noted(std::uint32_t lane, std::uint64_t number) const;
  bool is_being_made(std::uint64_t number) const;
  void make_space(TableLane& lane, bool may_evict);
  std::uint64_t sweep(TableLane& lane, std::uint64_t rows, std::uint64_t wanted);
  std::uint64_t visit(TableLane& lane, std::uint64_t at, bool may_evict);
  std::uint64_t seal_worst(TableLane& lane, std::uint64_t wanted);
  bool is_expired(const TableLane& lane, const TableRowShm& there) const noexcept;
  bool seal(TableLane& lane, std::uint64_t number, std::uint64_t word, std::uint64_t key, bool is_expired);
  std::uint64_t seal_and_evict(TableLane& lane, std::span<const std::uint64_t> keys, bool are_expired);
  std::uint64_t repeat_in_vain(TableLane& lane, bool are_expired);
  void list_sealed(TableLane& lane);
  void list(TableLane& lane, std::uint64_t key, std::uint32_t epoch);
  EvictedShm* list_of(std::uint32_t lane) const noexcept;
  bool read_list(std::uint32_t lane, std::uint32_t since, std::vector<std::uint64_t>& keys) const;
  bool is_back(TableLane& lane, std::uint64_t key, std::uint32_t since);
  std::uint64_t evict_sealed(TableLane& lane);
  void recover(TableLane& lane, std::uint64_t number, std::uint64_t word);
  void free_dead(TableLane& lane, std::uint64_t number, std::uint64_t word);
  [[noreturn]] void fail_damaged_list(std::uint64_t reference) const;

  Segment segment_;
  TableShm& shm_;
  const EvictionTraits& eviction_;
  KeyHash hash_;
  TableLaneShm* lanes_;
  AtomicShm<std::uint8_t>* sightings_;
  AtomicShm<std::uint64_t>* buckets_;
  std::byte* rows_;
  std::uint64_t row_bytes_;
  std::function<std::uint32_t(std::uint32_t)> owner_of_;
};

}  // namespace ps_shm::shm
