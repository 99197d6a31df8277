// The bytes of a table by key: one segment for each part.
//
// /ps_shm.JOB.tN.P       part P of table N: created by the first worker that declares it, complete before it is named; its
//                        file has its full length, and gets memory as rows come
//
//   0        +---------------------+  written by                       read by
//            | HeaderShm           |  creator                          all
//   512      | TableShm            |  creator; each inserter           all
//            | TableLaneShm[lanes] |  owner of the rank                who evicts, inspector
//            +---------------------+  4096-aligned
//            | sightings, 1 B each |  pushers of keys without a row    the same   (only with admit_after > 1)
//            +---------------------+  4096-aligned
//            | EvictedShm[lanes]   |  owner of the rank                who dumps   `listed_at_most` for each lane; memory as
//            |                     |                                              they come
//            +---------------------+  65536-aligned
//            | buckets, 8 B each   |  by compare-exchange              all        2^max_bits; memory for 2^bits
//            +---------------------+  65536-aligned
//            | rows                |  by compare-exchange              all        max_rows; memory for `rows_backed`
//            +---------------------+
//
// A row: | TableRowShm 32 B | elements with their state beside them, as in-place rows have them (layout.hpp) |
// The numbers of a table of bfloat16 take half of that, but for a row's own state (inplace_bfloat16.hpp).
//
// All rows and buckets form one list, sorted by the job's hash of the key: a split-ordered list (Shalev and Shavit 2006)
// on the list of Michael (2002). A bucket is only a way into it. The word of a row says whose the row is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shm/base/atomic.hpp"
#include "shm/segment/layout.hpp"
#include "update/hash.hpp"

namespace ps_shm::shm {

inline constexpr std::uint32_t kPins = 32;  // rows that a lane works on at once
inline constexpr std::uint32_t kMaxTables = 1024;
inline constexpr std::uint64_t kMaxTableRowSize = std::uint64_t{1} << 20;  // floats
inline constexpr std::uint64_t kMaxTableRows = 0xfffffffe;                 // of one part

// A link word: {seq : 28, state : 3, kind : 1, index : 32}. Every change of a word adds one to `seq`.
enum class RowState : std::uint64_t {
  kFree = 0,    // index 0: anybody's, as a row that was never used; else lane + 1 that is making a row of it
  kNew = 1,     // complete, perhaps not linked yet; index and kind, here and below: the successor
  kLive = 2,    // the row of its key
  kSealed = 3,  // live, and somebody means to evict it
  kDead = 4,    // evicted, perhaps still linked
};
inline constexpr std::uint64_t kBucketKind = std::uint64_t{1} << 32;  // the successor is a bucket
inline constexpr std::uint64_t kEndOfList = 0xffffffff;               // as a successor
inline constexpr std::uint64_t kReferenceMask = (std::uint64_t{1} << 33) - 1;
constexpr RowState state_of(std::uint64_t word) noexcept { return static_cast<RowState>(word >> 33 & 7); }
constexpr std::uint64_t reference_of(std::uint64_t word) noexcept { return word & kReferenceMask; }
// The word that follows `word`.
constexpr std::uint64_t next_word(std::uint64_t word, RowState state, std::uint64_t reference) noexcept {
  return ((word >> 36) + 1) << 36 | static_cast<std::uint64_t>(state) << 33 | reference;
}

using update::KeyHash;
using update::mixed;
constexpr std::uint64_t reversed(std::uint64_t bits) noexcept {
  bits = __builtin_bswap64(bits);
  bits = (bits & 0x0f0f0f0f0f0f0f0f) << 4 | (bits >> 4 & 0x0f0f0f0f0f0f0f0f);
  bits = (bits & 0x3333333333333333) << 2 | (bits >> 2 & 0x3333333333333333);
  return (bits & 0x5555555555555555) << 1 | (bits >> 1 & 0x5555555555555555);
}
// The order of the list: of rows, in which keys settle what is equal, and of buckets, each of which precedes the rows
// whose hashes begin with its bits, the lowest one first.
constexpr std::uint64_t order_of_row(const KeyHash& hash, std::uint64_t key) noexcept { return hash(key) | 1; }
constexpr std::uint64_t order_of_bucket(std::uint64_t bucket) noexcept { return reversed(bucket); }

struct TableRowShm {
  AtomicShm<std::uint64_t> key;
  AtomicShm<std::uint64_t> word;
  AtomicShm<std::uint32_t> used;     // make_used()
  AtomicShm<std::uint32_t> changed;  // TableShm::dump_epoch at the last push (table.P4), at least; 0: never pushed
  AtomicShm<std::uint32_t> pushes;   // that have begun; only rows of bfloat16 are counted (table.P6)
  AtomicShm<std::uint32_t> mark;     // (bridge.T2) which anchor the row has; 0: none, as when it was made
};

// TableRowShm::used: the time of the last use in units of 2^28 ns, a quarter of a second, and how often the row is used,
// less a part of it now and then when the clock sweep passes (clock_sweep.cpp). A hint which rows are worth least.
inline constexpr std::uint32_t kTimeMask = 0xffffff, kMaxFrequency = 0xff;
inline constexpr unsigned kTimeShift = 28;
constexpr std::uint32_t make_used(std::uint32_t time, std::uint32_t frequency) noexcept {
  return time << 8 | frequency;
}

enum class TableCounter : std::uint32_t {
  kMade,        // rows
  kEvicted,     // rows, by whatever cause
  kExpired,     // those of them that were too old
  kSpared,      // not evicted, since somebody was pushing them
  kRescued,     // pushed while they were being evicted
  kUnadmitted,  // pushes of keys that have no row yet
  kRefused,     // pushes of keys for which there is no room
  kHits,        // pulled keys that had a row
  kMisses,      // and that had none
  kRestarts,    // searches that began anew (table.F2, table.E6)
  kCount_
};
inline constexpr std::uint32_t kTableCounters = static_cast<std::uint32_t>(TableCounter::kCount_);

// A pin or a note: {owner : 32, row + 1 : 32}, with the number of the rank's owner that wrote it (ranks.J1). 0: none.
constexpr std::uint64_t make_pin(std::uint64_t owner, std::uint64_t row) noexcept { return owner << 32 | (row + 1); }
constexpr std::uint64_t owner_of_pin(std::uint64_t pin) noexcept { return pin >> 32; }
constexpr std::uint64_t row_of_pin(std::uint64_t pin) noexcept { return (pin & 0xffffffff) - 1; }

// What a lane (a rank's thread) is working on. Only its owner writes it.
struct alignas(kWriterLine) TableLaneShm {
  AtomicShm<std::uint64_t> pins[kPins];               // make_pin() (table.P1)
  AtomicShm<std::uint64_t> inserting;                 // make_pin() (table.I1)
  AtomicShm<std::uint64_t> counters[kTableCounters];  // diagnostic only
  AtomicShm<std::uint64_t> listed;                    // evictions that it has listed (table.L1)
  AtomicShm<std::uint32_t> lost;                      // those of this dump epoch, and of earlier ones, may be missing
  std::uint8_t pad0[28];
};

// A key whose row a lane has sealed to evict it (table.L1). Entry n of a lane is in place n % TableShm::listed_at_most.
struct EvictedShm {
  AtomicShm<std::uint64_t> key;
  AtomicShm<std::uint32_t> epoch;  // TableShm::dump_epoch then
  std::uint32_t pad0;
};

struct alignas(kWriterLine) TableShm {
  char name[128];
  std::uint32_t rule, slots, has_row_state, lanes;
  std::uint32_t part, parts;
  std::uint64_t row_elements, row_floats, row_bytes;  // row_floats: with the state; row_bytes: with TableRowShm
  std::uint64_t max_rows, max_bits;                   // of this part
  std::uint64_t sightings, sightings_offset, buckets_offset, rows_offset, bytes;
  std::uint32_t lr_scale, regularize;  // bits of floats, as the next
  std::uint32_t admit_after, evict, touch_on_pull, initial_range, dtype, pad0;
  std::uint64_t ttl_ns, seed;
  std::uint64_t listed_at_most, evicted_offset;  // of each lane; all rings of EvictedShm follow each other
  std::uint64_t key_hash[2];                     // as JobStateShm has it
  std::uint8_t pad1[72];
  AtomicShm<std::uint32_t> bits;        // log2 of the buckets in use: a hint, any smaller number works, too (table.G4)
  AtomicShm<std::uint32_t> lanes_used;  // lanes below it may have pins (table.P0)
  AtomicShm<std::uint32_t> dump_epoch;  // 1, and one more with each dump (table.D1)
  AtomicShm<std::uint32_t> told;        // of part 0: workers that have met a full /dev/shm; the first one says so
  std::uint8_t pad2[112];
  AtomicShm<std::uint64_t> rows_next;     // rows below it may be in use (table.A1)
  AtomicShm<std::uint64_t> rows_backed;   // rows below it have memory
  AtomicShm<std::uint64_t> buckets_made;  // buckets below it have been linked, or soon will be: a hint
  std::uint8_t pad3[104];
  AtomicShm<std::uint64_t> hand;  // of the clock sweep: the next row that it visits
  std::uint8_t pad4[120];
};

constexpr KeyHash key_hash_of(const TableShm& table) noexcept {
  return {.first = table.key_hash[0], .second = table.key_hash[1]};
}

inline constexpr std::size_t kTableOffset = 512;
inline constexpr std::size_t kLanesOffset = kTableOffset + sizeof(TableShm);

static_assert(sizeof(TableRowShm) == 32 && sizeof(EvictedShm) == 16 && sizeof(TableLaneShm) == 384 &&
                  sizeof(TableShm) == 768,
              "the pictures above are out of date");

}  // namespace ps_shm::shm
