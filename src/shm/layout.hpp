// Every byte that processes share: pictures, structures, asserts and the fingerprint of them all. Start reading here.
//
// /ps.JOB            control segment: created by the ps; grows by records (posix_fallocate); mapped once, at `reserved_bytes`
//
//   0        +---------------------+  written by                          read by
//            | HeaderShm           |  creator, before `layout_version`    all
//   2048     | JobStateShm         |  whoever wins a swap                 all
//   4096     | index[16384]        |  declarers, by compare-exchange      all
//   69632    | SettingsShm         |  creator, before `layout_version`    all
//   81920    | EventShm[256 + 1024]|  whoever has the event's ticket      inspector  life of the job; decisions
//   245760   | WorkerShm[ranks]    |  holder of the rank                  all
//            +---------------------+  4096-aligned, then 128 at a time as they are needed (directory.D7):
//            | VariableShm[16384]  |  declarer (claimed), initialiser     all
//            +---------------------+
//
// /ps.JOB.K          shard K: grows (posix_fallocate) by what is declared; mapped once at `reserved_bytes`
//
//   0        +---------------------+
//            | HeaderShm           |  creator                             all
//   512      | SpareTableShm[lanes]|  holder of the rank                  settlers (slot.V6)
//            +---------------------+  4096-aligned, then per record in the order of the index:
//            | chunk words, 128 B  |  initialiser, pushers by swap        all          (in-place: block counters)
//            | buffers of a class  |  initialiser, their owners           all          (in-place: rows, see below)
//            | spares of the class |  their owners                        all          (first variable of the class)
//            +---------------------+
//
// /ps.JOB.wR.G       gradient segment of rank R's holder number G (sync mode): grows as the shard does
//
//   0        +---------------------+
//            | HeaderShm           |  the worker                          all
//   512      | pushed[16384]       |  the worker                          helpers      {update::Change : 2, step + 1 : 62}
//   131584   | squared norm        |  the worker                          helpers      float64, of all of the step's
//   135168   | gradients           |  the worker                          helpers      at VariableShm::gradient_offset
//            +---------------------+
//
// /ps.JOB.data       what the workers share read-only (--share-data); complete before it has a name (shared_data.hpp)
//
//   0        +---------------------+
//            | HeaderShm           |  the loader                          workers
//   512      | SharedDataShm       |  the loader                          workers      what it is
//   4096     | bytes               |  the loader                          workers
//            +---------------------+
//
// /ps_publication.NAME   what a publisher publishes and others read; of no job: bundle_layout.hpp
//
// A record is a variable, or one part of a partitioned one, or (reduce atomic) the accumulator of either, or a reserve:
// a buffer for each chunk of one, made for the first snapshot (cut.hpp). A rank has a lane of spare buffers for each
// thread that may push.
//
// A buffer: | BufferHeaderShm 64 B | parameters | optimizer slots, one array after the other |
//
// A row of an in-place variable, of which an element's state lies beside it, so that one exchange changes both:
//   add, sgd                               {w} {w} ...          adam, adamw       {w, m, v, t} ...
//   momentum, nesterov, adagrad, rmsprop   {w, slot} ...        ftrl              {z, n} ...  (w is a function of both)
//   rowwise_adagrad                        {w} {w} ... n, and what makes the row a multiple of 16 bytes
// Between the block counters and the rows lie, for each rank, counters of how often it has pushed rows of a block.
//
// A writer that dies between two stores (invariant.I2; docs/protocols.md has it for each step) leaves in
//   HeaderShm      no version yet: "being created"; nobody holds a lock, so the next ps reclaims the name (names.N2)
//   index          the word is one swap: the variable is there or it is not; its record was complete before
//   VariableShm    a claimed record that never got into the index is used again by the next holder of that lock byte
//   `init`         the lock byte of a dead task: a waiter takes the initialisation over (directory.D5)
//   chunk          word and current buffer are untouched until the one swap; a stamp "building" is nobody's buffer
//   SpareShm       "in flight": the next holder of the rank settles it (spares.hpp)
//   CutShm         a cut that is not open yet: whoever waits for it opens it (cut.hpp)
//   `pushing`      a push that nobody waits for any more; the next holder of the rank clears it
//   BarrierEntryShm  `published` is stored after the gradient: it counts, or it does not (barrier.hpp)
//   LiveShm        the settings word still names the record before: the change has not happened
//   EventShm       "building" or an old ticket: that event is missing; it is for people
//   clock          one store: the step is counted or it is not
//   rows           some are updated and others not; each element with its state, by one exchange
//   a row's n      (rowwise_adagrad) it may count a push whose elements have not changed yet: smaller steps
//   row counters   a push is missing whose rows are there: staleness that others see is one too small
//   counters, loss   one update is missing: they are for people
//
// Integers are little-endian as the machine has them; offsets are bytes from the start of their segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/atomic.hpp"

namespace ps::shm {

inline constexpr std::uint64_t kMagic = 0x31304d4853535021;  // "!PSSHM01"
inline constexpr std::uint32_t kLayoutVersion = 9;           // raised with every change of the segments
inline constexpr std::uint32_t kArithmeticVersion = 2;       // raised when an update rule's bits change (barrier.B10)

inline constexpr std::uint32_t kMaxRanks = 256;
inline constexpr std::uint32_t kMaxShards = 64;
inline constexpr std::uint32_t kMaxVariables = 16384;
inline constexpr std::uint32_t kRecordsAtOnce = 128;  // that the control segment grows by: 64 KiB
inline constexpr std::uint32_t kMaxAxes = 8;
inline constexpr std::uint32_t kMinClass = 8;   // log2 of the smallest buffer, 256 B
inline constexpr std::uint32_t kMaxClass = 20;  // log2 of the largest, 1 MiB
inline constexpr std::uint32_t kClasses = kMaxClass - kMinClass + 1;
inline constexpr std::uint32_t kSparesPerClass =
    4;  // more give slow readers more grace, and fill caches (benches/tuning.py)
inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kWriterLine = 128;  // adjacent-line prefetch pairs lines: keeps writers apart
inline constexpr std::size_t kPage = 4096;
inline constexpr std::uint32_t kBarriers = 2;  // 0: the training step, 1: Worker::barrier()
inline constexpr std::uint32_t kStalenessBuckets = 96;
inline constexpr std::uint32_t kLiveRecords = 4;   // a reader fails only if so many changes pass it
inline constexpr std::uint32_t kLifeEvents = 256;  // joins, deaths, changes: rare
inline constexpr std::uint32_t kDecisions = 1024;  // one a sync step: the last second of a fast job

enum class SegmentKind : std::uint32_t { kControl = 1, kShard = 2, kGradient = 3, kData = 4, kBundle = 5 };

struct alignas(kWriterLine) HeaderShm {
  std::uint64_t magic;
  AtomicShm<std::uint32_t> layout_version;  // 0 while being created; stored last (release), read first (acquire)
  std::uint32_t kind;                       // SegmentKind
  std::uint64_t fingerprint;
  std::uint64_t instance;        // the job's, in every segment of it (names.N4)
  std::uint64_t initial_bytes;   // a shorter file is damaged
  std::uint64_t reserved_bytes;  // how much address space to map; the file may grow up to here
  std::uint64_t created_unix_ns;
  std::uint32_t creator_pid;
  std::uint32_t number;  // shard or rank
  char job[72];
  std::int32_t node;         // memory node that the pages are bound to; -1: none
  std::uint32_t huge_pages;  // 1: every mapping asks for them
  std::uint8_t reserved[368];
};

// JobConfig as its ps fixed it, resolved: lines NAME=VALUE (config/job_settings.hpp), complete before the version is
// published. A program that attaches reads a copy.
struct alignas(kWriterLine) SettingsShm {
  std::uint32_t bytes;  // of `text`
  char text[12284];     // 64 variables placed by hand take 8128 bytes at most, 64 nodes 704, all else some 1500
};

// LiveSettings: record `version % kLiveRecords` of JobStateShm::live holds while `live_version` says so
// (live_settings.hpp).
struct alignas(kWriterLine) LiveShm {
  AtomicShm<std::uint32_t> mode, quorum;
  AtomicShm<std::uint64_t> staleness;
  AtomicShm<std::uint32_t> learning_rate, clip_norm;  // bits of floats
  AtomicShm<std::uint32_t> workers;
  AtomicShm<std::uint32_t> clock_epoch;  // counts the changes to mode ssp; 0: never yet (ssp_clock.hpp)
  std::uint8_t reserved[96];
};

// One crash-tolerant barrier (barrier.hpp). All of it on one line: whoever decides a round opens the next one, and
// those who wait look at all three.
struct alignas(kWriterLine) BarrierShm {
  AtomicShm<std::uint64_t> step;      // rounds completed; of barrier 0: the global step
  AtomicShm<std::uint64_t> decision;  // {step + 1 : 44, low bits of its epoch : 12, proposer : 8}; of barrier 1: 0
  AtomicShm<std::uint32_t> futex;     // of those who wait for a round (waiting.W1)
  std::uint8_t pad0[108];
};

// Consistent cuts (cut.hpp). The word is read by each push.
struct alignas(kWriterLine) CutShm {
  AtomicShm<std::uint64_t> word;         // {epoch : 40, state : 2}
  AtomicShm<std::uint64_t> since_ns;     // CLOCK_MONOTONIC: when the cut under way began
  AtomicShm<std::uint64_t> patience_ns;  // how long its drain may take
  AtomicShm<std::uint64_t> forced;       // epoch that a waiter has opened for want of patience
  AtomicShm<std::uint64_t> given_up;     // the last epoch whose maker has not waited for all pushes before it
  std::uint8_t pad0[88];
  AtomicShm<std::uint32_t> futex;  // of pushes that wait for the cut to be open
  std::uint8_t pad1[124];
};

enum class JobEnd : std::uint32_t { kNotYet = 0, kAllLeft = 1, kLingerOver = 2, kAsked = 3 };

struct alignas(kWriterLine) JobStateShm {
  BarrierShm barriers[kBarriers];
  AtomicShm<std::uint32_t> activity;      // futex: something was declared, initialised, joined, left or changed
  AtomicShm<std::uint32_t> ended;         // JobEnd: why the ps has ended the job; workers finish their step and leave
  AtomicShm<std::uint32_t> keep;          // 1: the last ps task leaves the segments behind
  AtomicShm<std::uint32_t> servers;       // how many ps have served the job: its creator, and each that took it over
  AtomicShm<std::uint64_t> live_version;  // counts changes of the settings
  AtomicShm<std::uint32_t> short_quorum;  // how many the last decision had, where that was too few; else 0
  std::uint8_t pad1[100];
  AtomicShm<std::uint32_t> clocks;  // futex: an ssp clock has moved
  std::uint8_t pad2[124];
  AtomicShm<std::uint64_t> event_tickets[2];  // handed out so far: life, decisions (events.hpp)
  std::uint8_t pad3[112];
  LiveShm live[kLiveRecords];
  AtomicShm<std::uint32_t> task_pids[kMaxShards];  // of the owners of task bytes
  CutShm cut;
  std::uint8_t reserved[384];
};

// Something that happened, in a ring (events.hpp).
struct alignas(kWriterLine) EventShm {
  AtomicShm<std::uint64_t> sequence;  // ticket + 1 when complete; kEventBuilding | ticket + 1 meanwhile
  AtomicShm<std::uint64_t> unix_ns;
  AtomicShm<std::uint32_t> kind, rank;
  AtomicShm<std::uint64_t> step, first, second;  // meaning by kind
  AtomicShm<std::uint64_t> ranks[kMaxRanks / 64];
  std::uint8_t reserved[48];
};

// The set of ranks whose gradients make a step (barrier.B3).
struct RankSetShm {
  AtomicShm<std::uint64_t> bits[kMaxRanks / 64];
};

struct alignas(kWriterLine) BarrierEntryShm {
  AtomicShm<std::uint64_t> active_from;  // first round that waits for this rank (barrier.B1)
  AtomicShm<std::uint64_t> published;    // round + 1 of the last arrival; 0: none
  AtomicShm<std::uint64_t> generation;   // of the gradient segment that holds it
  AtomicShm<std::uint64_t> proposal;     // round + 1 that `proposed` was written for; 0: none
  RankSetShm proposed;
  AtomicShm<std::uint32_t> learning_rate, clip_norm;  // bits of floats, that hold for the round (barrier.B8)
  AtomicShm<std::uint64_t> included;  // round + 1 of a decision with it that it may not have read (barrier.B11)
  AtomicShm<std::uint64_t> changed;   // reduce atomic: round + 1 that the segment has adds or assigns for (barrier.B13)
  std::uint8_t reserved[40];
};

enum class RankState : std::uint32_t { kNever = 0, kJoined = 1, kLeft = 2 };

// What a worker counts, for people; labels are in counters.hpp.
enum class Counter : std::uint32_t {
  kSteps,
  kPushes,
  kPulls,
  kPushRetries,
  kPullRetries,
  kDropped,
  kExamples,
  kStalenessSum,
  kStalenessCount,
  kStalenessMax,
  kLossBits,
  kLeadMax,
  kStepExamples,
  kRestoredExamples,
  kCount_
};
inline constexpr std::uint32_t kCounters = static_cast<std::uint32_t>(Counter::kCount_);

// One rank. Only the holder of its lock byte writes (locks.L4); deciders raise `included` of its barriers.
struct alignas(kWriterLine) WorkerShm {
  AtomicShm<std::uint32_t> state;  // RankState
  AtomicShm<std::uint32_t> pid;
  AtomicShm<std::uint64_t> holders;             // how many have held the rank; names the gradient segment (locks.L5)
  AtomicShm<std::uint64_t> joined_ns, left_ns;  // CLOCK_MONOTONIC
  AtomicShm<std::uint32_t> waiting_for;         // WaitingFor, for the inspector
  AtomicShm<std::uint32_t> pad0;
  AtomicShm<std::uint64_t> waiting_on;  // a step, a bound or a variable's position, by waiting_for
  AtomicShm<std::uint64_t> clock;       // ssp: {epoch : 16, entering : 1, steps : 47} (ssp_clock.hpp)
  AtomicShm<std::uint64_t>
      examples_offset;  // examples at global step s: this + s * Counter::kStepExamples, modulo 2^64
  std::uint8_t pad1[64];
  BarrierEntryShm barriers[kBarriers];
  AtomicShm<std::uint64_t> counters[14];
  AtomicShm<std::uint64_t> pushing;                       // epoch + 1 of the push under way; 0: none (cut.hpp)
  AtomicShm<std::uint64_t> push_ns;                       // about the longest of its last pushes
  AtomicShm<std::uint64_t> staleness[kStalenessBuckets];  // counters.hpp
};

enum class WaitingFor : std::uint32_t {
  kNothing = 0,
  kInitialised = 1,
  kStep = 2,
  kBarrier = 3,
  kVariable = 4,
  kClock = 5,
  kData = 6,
  kCut = 7
};

inline constexpr std::uint32_t kRegularize = 1;  // VariableShm::flags
inline constexpr std::uint32_t kRowState = 2;    // the same: a float of state behind each row's elements
inline constexpr std::uint32_t kReserve = 4;     // the same: a buffer more for each chunk of `base` (cut.C6)

// A record of the directory. Immutable once the index names it, but for `init`.
struct alignas(kWriterLine) VariableShm {
  AtomicShm<std::uint32_t> claim;  // lock byte + 1 of the task that fills or filled the record; 0: free
  std::uint32_t dtype, rule, layout, flags;
  std::uint32_t axes;
  std::uint32_t shard;
  std::uint32_t buffer_class;       // log2 of a buffer's bytes (versioned)
  std::uint64_t extents[kMaxAxes];  // of the whole variable
  std::uint64_t elements;        // of this part, as all that follows; of another dtype: the floats that its bytes take
  std::uint64_t slots;           // optimizer slots per element; in-place: floats of state beside it
  std::uint64_t piece_elements;  // of a chunk or block; the last one may be shorter
  std::uint64_t pieces;
  std::uint64_t first_chunk;      // number of chunk 0 in the shard (stamps, slot.V1)
  std::uint64_t words_offset;     // chunk words or block counters, 128 B each
  std::uint64_t data_offset;      // buffers or elements
  std::uint64_t spares_offset;    // the class's spares, wherever its first variable put them
  std::uint64_t shard_end;        // the shard's bytes in use, this variable included
  std::uint64_t gradient_offset;  // in gradient segments
  std::uint64_t gradient_end;
  char name[128];
  std::uint32_t part, parts;         // 0 of 1: not partitioned
  std::uint64_t part_begin;          // its first element in the whole
  std::uint64_t whole_elements;      // of all parts together
  std::uint32_t base;                // accumulators and reserves: position + 1 of the record that they are for; else 0
  std::uint32_t partition_by;        // ps::PartitionBy, of parts
  std::uint64_t row_elements;        // along all axes but the first
  std::uint64_t row_floats;          // in-place: from one row to the next
  std::uint64_t row_counts_offset;   // in-place: u64 per rank and block, how often it has pushed rows of the block
  AtomicShm<std::uint64_t> init;     // 0: nobody yet; make_init_claim: being initialised; kInitialised
  AtomicShm<std::uint64_t> reserve;  // versioned: number of the first buffer of its reserve; 0: there is none (cut.C6)
  std::uint8_t pad1[128];
};
// A scalar has none. A part of one row of one element has them, though it lies in its counter's word like a scalar.
constexpr bool has_row_counts(const VariableShm& variable) noexcept {
  return variable.row_floats != 0 && variable.axes != 0;  // only what lies in place has the former
}
// From one rank's counters to the next's, in counters: on lines of their own.
constexpr std::uint64_t row_counts_stride(const VariableShm& variable) noexcept {
  return (variable.pieces + 15) / 16 * 16;
}
inline constexpr std::uint64_t kInitialised = ~std::uint64_t{0};

// BarrierEntryShm::generation: {attempt : 32, holder of the rank : 32}; there is a second attempt only where a name is
// taken by what another user has left behind.
inline constexpr std::uint64_t kHolderMask = 0xffffffff;

// {holder : 48, lock byte + 1 : 16}. The holder's number is in it so that a successor in the same rank and another
// rank's worker, who both take a dead one's initialisation over, can't both win.
constexpr std::uint64_t make_init_claim(std::uint64_t holder, std::uint32_t byte) noexcept {
  return holder << 16 | (byte + 1);
}

// A chunk's word, alone on its line: {version : 40, buffer : 24} (slot.V1). In-place: how often the block was pushed;
// of a variable of one element {pushes : 32, the element : 32}, so that one exchange changes both.
struct alignas(kWriterLine) PieceWordShm {
  AtomicShm<std::uint64_t> word;
  std::uint8_t pad0[56];
  AtomicShm<std::uint32_t> wanted;      // whose turn it is (versioned_slot.hpp); only a hint
  AtomicShm<std::uint32_t> lost_swaps;  // of pushes, about: for people; counted by who has lost one
  std::uint8_t pad1[56];
};

// In front of each buffer. All of it counts only under the stamp's check (slot.V4).
struct alignas(kCacheLine) BufferHeaderShm {
  AtomicShm<std::uint64_t> stamp;           // {chunk : 24, version : 40}, or kBuilding
  AtomicShm<std::uint64_t> included_steps;  // sync steps that the values contain: steps 0 to this - 1;
                                            // accumulators: the step that is being summed + 1
  AtomicShm<std::uint64_t> writer_step;     // global step of the last update
  AtomicShm<std::uint32_t> writer;          // its rank
  AtomicShm<std::uint32_t> pad0;
  RankSetShm contributors;  // accumulators: whose gradients are in (barrier.B9); others: fork_of()
};

// One spare buffer of one lane, shard and class (slot.V5).
struct SpareShm {
  AtomicShm<std::uint64_t> record;      // {valid : 1, in flight : 1, buffer : 24}; 0: the rank's first one, unused yet
  AtomicShm<std::uint64_t> note_chunk;  // while in flight: the chunk's number in the shard
  AtomicShm<std::uint64_t> note_word;   // while in flight: the word that the swap expects
  AtomicShm<std::uint64_t> note_gain;   // while in flight: the buffer that is the rank's once it has swapped
};

struct alignas(kWriterLine) SpareTableShm {
  SpareShm spares[kClasses][kSparesPerClass];
};

// What the shared data is; plain fields, complete before the segment has a name.
struct alignas(kWriterLine) SharedDataShm {
  std::uint64_t bytes;  // from kSharedDataOffset on
  std::uint64_t key_bytes;
  char key[1008];  // says what it is, cut off at its end where it is longer
};

inline constexpr std::size_t kStateOffset = 2048;
inline constexpr std::size_t kIndexOffset = 4096;
inline constexpr std::size_t kSettingsOffset = kIndexOffset + 4 * kMaxVariables;
inline constexpr std::size_t kEventsOffset = kSettingsOffset + sizeof(SettingsShm);
inline constexpr std::size_t kWorkersOffset = kEventsOffset + sizeof(EventShm) * (kLifeEvents + kDecisions);
inline constexpr std::size_t kSparesOffset = 512;
inline constexpr std::size_t kPushedOffset = 512;
inline constexpr std::size_t kNormOffset = kPushedOffset + 8 * kMaxVariables;
inline constexpr std::uint64_t kNoNorm = ~std::uint64_t{0};  // there: it was not asked for; no sum has these bits
inline constexpr std::size_t kGradientsOffset = 135168;
inline constexpr std::size_t kSharedRecordOffset = 512;
inline constexpr std::size_t kSharedDataOffset = 4096;

// Lock bytes of the control segment (locks.L1): the byte's task is alive while it is held.
inline constexpr std::uint32_t kTaskByte = 0;                         // + ps task
inline constexpr std::uint32_t kRankByte = kMaxShards;                // + rank
inline constexpr std::uint32_t kRemoverByte = kRankByte + kMaxRanks;  // held only with the whole range (names.N2)
inline constexpr std::uint32_t kSetterByte = kRemoverByte + 1;        // changes the live settings (settings.S1)
inline constexpr std::uint32_t kLoaderByte = kSetterByte + 1;         // loads the shared data (data.D1)
inline constexpr std::uint32_t kSnapshotByte = kLoaderByte + 1;       // takes a snapshot (cut.C8)
inline constexpr std::uint32_t kLockBytes = kSnapshotByte + 1;

// layout_fields.hpp lists every field and pins its place; these are the facts that code counts on.
static_assert(sizeof(HeaderShm) == 512 && sizeof(SettingsShm) == 12288 && sizeof(EventShm) == 128 &&
                  sizeof(VariableShm) == 512 && sizeof(WorkerShm) == 1280,
              "the pictures above are out of date");
static_assert(kSettingsOffset == 69632 && kEventsOffset == 81920 && kWorkersOffset == 245760 && kNormOffset == 131584,
              "the pictures above are out of date");
static_assert(kMaxVariables % kRecordsAtOnce == 0 && kRecordsAtOnce * sizeof(VariableShm) % kPage == 0,
              "growing by records would end beyond the last one, or within a page");
static_assert(kCounters <= 14, "the counters' array is full");
static_assert(sizeof(BufferHeaderShm) == kCacheLine, "parameters would not begin on a cache line");
static_assert(sizeof(PieceWordShm) == 2 * kCacheLine && offsetof(PieceWordShm, wanted) == kCacheLine,
              "the hint would share the word's line");
static_assert(sizeof(SpareTableShm) % kWriterLine == 0, "two ranks' spare records would share a writer's line");
static_assert(kStateOffset >= sizeof(HeaderShm) && kIndexOffset >= kStateOffset + sizeof(JobStateShm) &&
                  kSharedRecordOffset + sizeof(SharedDataShm) <= kSharedDataOffset &&
                  kNormOffset + 8 <= kGradientsOffset,
              "two areas of a segment would overlap");

}  // namespace ps::shm
