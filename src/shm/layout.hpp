// Every byte that processes share: pictures, structures, asserts and the fingerprint of them all. Start reading here.
//
// /ps.JOB            control segment, fixed size; created by the ps
//
//   0        +---------------------+  written by                          read by
//            | HeaderShm           |  creator, before `layout_version`    all
//   512      | JobConfigShm        |  creator, before `layout_version`    all
//   2048     | JobStateShm         |  whoever wins a swap                 all
//   4096     | index[1024]         |  declarers, by compare-exchange      all
//   8192     | PlaceShm[64]        |  creator, before `layout_version`    declarers
//   16384    | EventShm[256 + 1024]|  whoever has the event's ticket      inspector  life of the job; decisions
//   180224   | VariableShm[1024]   |  declarer (claimed), initialiser     all
//   704512   | WorkerShm[ranks]    |  holder of the rank                  all
//            +---------------------+
//
// /ps.JOB.K          shard K: grows (posix_fallocate) by what is declared; mapped once at `reserved_bytes`
//
//   0        +---------------------+
//            | HeaderShm           |  creator                             all
//   512      | SpareTableShm[lanes]|  holder of the rank                  settlers (V6)
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
//   512      | pushed[1024]        |  the worker                          helpers      step + 1 of the last push
//   8704     | squared norm        |  the worker                          helpers      float64, of all of the step's
//   16384    | gradients           |  the worker                          helpers      at VariableShm::gradient_offset
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
// A record is a variable, or one part of a partitioned one, or (reduce atomic) the accumulator of either. A rank has a
// lane of spare buffers for each thread that may push.
//
// A buffer: | BufferHeaderShm 64 B | parameters | optimizer slots, one array after the other |
//
// A row of an in-place variable, of which an element's state lies beside it, so that one exchange changes both:
//   add, sgd                               {w} {w} ...          adam, adamw       {w, m, v, t} ...
//   momentum, nesterov, adagrad, rmsprop   {w, slot} ...        ftrl              {z, n} ...  (w is a function of both)
//   rowwise_adagrad                        {w} {w} ... n, and what makes the row a multiple of 16 bytes
// Between the block counters and the rows lie, for each rank, counters of how often it has pushed rows of a block.
//
// What a reader finds if a writer dies between two stores:
//   HeaderShm      no version yet: "being created"; the owner's lock is gone, so the next ps reclaims the name (N1, N2)
//   index          the word is one swap: the variable is there or it is not; its record was complete before
//   VariableShm    a claimed record that never got into the index is used again by the next holder of the same lock byte
//   `init`         names the lock byte of a dead task: the next who waits takes the initialisation over
//   chunk          word and current buffer are untouched until the one swap; a stamp "building" is nobody's buffer
//   SpareShm       "in flight": the next holder of the rank settles it (spares.hpp)
//   BarrierEntryShm  `published` is stored after the gradient: it counts, or it does not (barrier.hpp)
//   LiveShm        the settings word still names the record before: the change has not happened
//   EventShm       "building" or an old ticket: that event is missing; it is for people
//   clock          one store: the step is counted or it is not
//   rows           some are updated and others not; each element with its state, by one exchange
//   a row's n      (rowwise_adagrad) it may count a push whose elements have not changed yet: smaller steps, nothing torn
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
inline constexpr std::uint32_t kLayoutVersion = 5;           // raised with every change of this file
inline constexpr std::uint32_t kArithmeticVersion = 2;       // raised when an update rule's bits change (I6)

inline constexpr std::uint32_t kMaxRanks = 256;
inline constexpr std::uint32_t kMaxShards = 64;
inline constexpr std::uint32_t kMaxPlaces = 64;
inline constexpr std::uint32_t kMaxNodes = 64;
inline constexpr std::uint32_t kMaxVariables = 1024;
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

enum class SegmentKind : std::uint32_t { kControl = 1, kShard = 2, kGradient = 3, kData = 4 };

struct alignas(kWriterLine) HeaderShm {
  std::uint64_t magic;
  AtomicShm<std::uint32_t> layout_version;  // 0 while being created; stored last (release), read first (acquire)
  std::uint32_t kind;                       // SegmentKind
  std::uint64_t fingerprint;
  std::uint64_t instance;        // the job's, in every segment of it (N4)
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

// JobConfig as its ps fixed it; plain fields, complete before the version is published.
struct alignas(kWriterLine) JobConfigShm {
  std::uint32_t workers;
  std::uint32_t max_workers;  // length of the worker table
  std::uint32_t threads;      // lanes of a rank in the spare tables
  std::uint32_t shards;
  std::uint32_t mode, layout, adds, reduce;  // ps::Mode and so on
  std::uint32_t placement, partitions;
  std::uint64_t max_part_bytes;
  std::uint64_t steps, seed;
  double linger_seconds, step_timeout_seconds;
  std::uint32_t elastic_min, elastic_max;
  std::uint32_t places;  // of PlaceShm in use
  std::uint32_t numa;
  std::uint32_t numa_nodes;  // of `nodes` in use
  std::uint32_t huge_pages;
  // ps::Optimizer, resolved.
  std::uint32_t rule, schedule_kind, staleness_scaling;
  float learning_rate, clip_norm;  // as the job began, as `quorum` and `staleness` below; LiveShm has what holds now
  float schedule_decay, schedule_decay_steps, schedule_warmup_steps;
  float momentum, beta1, beta2, rho, epsilon, initial_accumulator, ftrl_beta, l1, l2, weight_decay, clip_value, ema;
  std::uint32_t quorum;
  std::uint64_t staleness;
  std::uint64_t chunk_bytes;  // 0: by size
  std::uint32_t nodes[kMaxNodes];
  std::uint32_t partition_by;
  std::uint8_t reserved[556];
};

// A variable's shard by hand.
struct PlaceShm {
  char name[124];
  std::uint32_t shard;
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

// One crash-tolerant barrier (barrier.hpp). All of it on one line: whoever decides a round opens the next one, and those
// who wait look at all three.
struct alignas(kWriterLine) BarrierShm {
  AtomicShm<std::uint64_t> step;      // rounds completed; of barrier 0: the global step
  AtomicShm<std::uint64_t> decision;  // {step + 1 : 48, proposer : 16}
  AtomicShm<std::uint32_t> futex;     // of those who wait for a round (W1)
  std::uint8_t pad0[108];
};

struct alignas(kWriterLine) JobStateShm {
  BarrierShm barriers[kBarriers];
  AtomicShm<std::uint32_t> activity;      // futex: something was declared, initialised, joined, left or changed
  AtomicShm<std::uint32_t> ended;         // 1: the ps was asked to end the job; workers finish their step and leave
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
  std::uint8_t reserved[640];
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

// The set of ranks whose gradients make a step (B3).
struct RankSetShm {
  AtomicShm<std::uint64_t> bits[kMaxRanks / 64];
};

struct alignas(kWriterLine) BarrierEntryShm {
  AtomicShm<std::uint64_t> active_from;  // first round that waits for this rank (B1)
  AtomicShm<std::uint64_t> published;    // round + 1 of the last arrival; 0: none
  AtomicShm<std::uint64_t> generation;   // of the gradient segment that holds it
  AtomicShm<std::uint64_t> proposal;     // round + 1 that `proposed` was written for; 0: none
  RankSetShm proposed;
  AtomicShm<std::uint32_t> learning_rate, clip_norm;  // bits of floats: the settings that hold for the round (B8)
  AtomicShm<std::uint64_t> included;                  // round + 1 of the last decision with this rank in it; by helpers
  std::uint8_t reserved[48];
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
  kCount_
};
inline constexpr std::uint32_t kCounters = static_cast<std::uint32_t>(Counter::kCount_);

// One rank. Only the holder of its lock byte writes (L4).
struct alignas(kWriterLine) WorkerShm {
  AtomicShm<std::uint32_t> state;  // RankState
  AtomicShm<std::uint32_t> pid;
  AtomicShm<std::uint64_t> holders;             // how many have held the rank; names the gradient segment (L5)
  AtomicShm<std::uint64_t> joined_ns, left_ns;  // CLOCK_MONOTONIC
  AtomicShm<std::uint32_t> waiting_for;         // WaitingFor, for the inspector
  AtomicShm<std::uint32_t> pad0;
  AtomicShm<std::uint64_t> waiting_on;  // a rank, a step or a variable's number, by waiting_for
  AtomicShm<std::uint64_t> clock;       // ssp: {epoch : 16, steps : 48} (ssp_clock.hpp)
  std::uint8_t pad1[72];
  BarrierEntryShm barriers[kBarriers];
  AtomicShm<std::uint64_t> counters[16];
  AtomicShm<std::uint64_t> staleness[kStalenessBuckets];  // counters.hpp
};

enum class WaitingFor : std::uint32_t {
  kNothing = 0,
  kInitialised = 1,
  kStep = 2,
  kBarrier = 3,
  kVariable = 4,
  kClock = 5,
  kData = 6
};

inline constexpr std::uint32_t kRegularize = 1;  // VariableShm::flags
inline constexpr std::uint32_t kRowState = 2;    // the same: a float of state behind each row's elements

// A record of the directory. Immutable once the index names it, but for `init`.
struct alignas(kWriterLine) VariableShm {
  AtomicShm<std::uint32_t> claim;  // lock byte + 1 of the task that fills or filled the record; 0: free
  std::uint32_t dtype, rule, layout, flags;
  std::uint32_t axes;
  std::uint32_t shard;
  std::uint32_t buffer_class;       // log2 of a buffer's bytes (versioned)
  std::uint64_t extents[kMaxAxes];  // of the whole variable
  std::uint64_t elements;           // of this part, as all that follows
  std::uint64_t slots;              // optimizer slots per element; in-place: floats of state beside it
  std::uint64_t piece_elements;     // of a chunk or block; the last one may be shorter
  std::uint64_t pieces;
  std::uint64_t first_chunk;      // number of chunk 0 in the shard (stamps, V1)
  std::uint64_t words_offset;     // chunk words or block counters, 128 B each
  std::uint64_t data_offset;      // buffers or elements
  std::uint64_t spares_offset;    // the class's spares, wherever its first variable put them
  std::uint64_t shard_end;        // the shard's bytes in use, this variable included
  std::uint64_t gradient_offset;  // in gradient segments
  std::uint64_t gradient_end;
  char name[128];
  std::uint32_t part, parts;        // 0 of 1: not partitioned
  std::uint64_t part_begin;         // its first element in the whole
  std::uint64_t whole_elements;     // of all parts together
  std::uint32_t base;               // accumulators: position + 1 of the record whose gradients it sums; 0: a variable
  std::uint32_t partition_by;       // ps::PartitionBy, of parts
  std::uint64_t row_elements;       // along all axes but the first
  std::uint64_t row_floats;         // in-place: from one row to the next
  std::uint64_t row_counts_offset;  // in-place: u64 per rank and block, how often it has pushed rows of the block
  AtomicShm<std::uint64_t> init;    // 0: nobody yet; make_init_claim: being initialised; kInitialised
  std::uint8_t pad1[120];
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

// A chunk's word, alone on its line: {version : 40, buffer : 24} (V1). In-place: how often the block was pushed; of a
// variable of one element {pushes : 32, the element : 32}, so that one exchange changes both.
struct alignas(kWriterLine) PieceWordShm {
  AtomicShm<std::uint64_t> word;
  std::uint8_t pad0[56];
  AtomicShm<std::uint32_t> wanted;  // whose turn it is (versioned_slot.hpp); only a hint
  std::uint8_t pad1[60];
};

// In front of each buffer. All of it counts only under the stamp's check (V4).
struct alignas(kCacheLine) BufferHeaderShm {
  AtomicShm<std::uint64_t> stamp;           // {chunk : 24, version : 40}, or kBuilding
  AtomicShm<std::uint64_t> included_steps;  // sync steps that the values contain: steps 0 to this - 1;
                                            // accumulators: the step that is being summed + 1
  AtomicShm<std::uint64_t> writer_step;     // global step of the last update
  AtomicShm<std::uint32_t> writer;          // its rank
  AtomicShm<std::uint32_t> pad0;
  RankSetShm contributors;  // accumulators: whose gradients are in (B9)
};

// One spare buffer of one lane, shard and class (V5).
struct SpareShm {
  AtomicShm<std::uint64_t> record;      // {valid : 1, in flight : 1, buffer : 24}; 0: the rank's first one, unused yet
  AtomicShm<std::uint64_t> note_chunk;  // while in flight: the chunk's number in the shard
  AtomicShm<std::uint64_t> note_word;   // while in flight: the word that the swap expects
  AtomicShm<std::uint64_t> pad0;
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

inline constexpr std::size_t kConfigOffset = 512;
inline constexpr std::size_t kStateOffset = 2048;
inline constexpr std::size_t kIndexOffset = 4096;
inline constexpr std::size_t kPlacesOffset = kIndexOffset + 4 * kMaxVariables;
inline constexpr std::size_t kEventsOffset = kPlacesOffset + sizeof(PlaceShm) * kMaxPlaces;
inline constexpr std::size_t kVariablesOffset = kEventsOffset + sizeof(EventShm) * (kLifeEvents + kDecisions);
inline constexpr std::size_t kWorkersOffset = kVariablesOffset + sizeof(VariableShm) * kMaxVariables;
inline constexpr std::size_t kSparesOffset = 512;
inline constexpr std::size_t kPushedOffset = 512;
inline constexpr std::size_t kNormOffset = kPushedOffset + 8 * kMaxVariables;
inline constexpr std::uint64_t kNoNorm = ~std::uint64_t{0};  // there: it was not asked for; no sum has these bits
inline constexpr std::size_t kGradientsOffset = 16384;
inline constexpr std::size_t kSharedRecordOffset = 512;
inline constexpr std::size_t kSharedDataOffset = 4096;

// Lock bytes of the control segment (L1): the byte's task is alive while it is held.
inline constexpr std::uint32_t kTaskByte = 0;                          // + ps task
inline constexpr std::uint32_t kRankByte = kMaxShards;                 // + rank
inline constexpr std::uint32_t kRemoverByte = kMaxShards + kMaxRanks;  // held only as part of the whole range (N2)
inline constexpr std::uint32_t kSetterByte = kRemoverByte + 1;         // who changes the live settings
inline constexpr std::uint32_t kLoaderByte = kSetterByte + 1;          // who loads the shared data (D1)
inline constexpr std::uint32_t kLockBytes = kLoaderByte + 1;

namespace layout_asserts {

// A size or offset that moves without a new kLayoutVersion lets two builds write over each other's fields.
static_assert(sizeof(HeaderShm) == 512 && offsetof(HeaderShm, layout_version) == 8 &&
              offsetof(HeaderShm, fingerprint) == 16 && offsetof(HeaderShm, instance) == 24 &&
              offsetof(HeaderShm, initial_bytes) == 32 && offsetof(HeaderShm, reserved_bytes) == 40 &&
              offsetof(HeaderShm, created_unix_ns) == 48 && offsetof(HeaderShm, job) == 64);
static_assert(sizeof(JobConfigShm) == 1024 && offsetof(JobConfigShm, steps) == 48 &&
              offsetof(JobConfigShm, step_timeout_seconds) == 72 && offsetof(JobConfigShm, nodes) == 208);
static_assert(sizeof(PlaceShm) == 128 && sizeof(LiveShm) == 128 && offsetof(LiveShm, clock_epoch) == 28);
static_assert(sizeof(EventShm) == 128 && offsetof(EventShm, step) == 24 && offsetof(EventShm, ranks) == 48);
static_assert(sizeof(BarrierShm) == 128 && offsetof(BarrierShm, decision) == 8 && offsetof(BarrierShm, futex) == 16);
static_assert(sizeof(JobStateShm) == 2048 && offsetof(JobStateShm, activity) == 256 &&
              offsetof(JobStateShm, clocks) == 384 && offsetof(JobStateShm, event_tickets) == 512 &&
              offsetof(JobStateShm, live) == 640 && offsetof(JobStateShm, task_pids) == 1152);
static_assert(sizeof(BarrierEntryShm) == 128 && offsetof(BarrierEntryShm, published) == 8 &&
              offsetof(BarrierEntryShm, proposal) == 24 && offsetof(BarrierEntryShm, proposed) == 32 &&
              offsetof(BarrierEntryShm, learning_rate) == 64);
static_assert(sizeof(WorkerShm) == 128 + 256 + 128 + 768 && offsetof(WorkerShm, clock) == 48 &&
              offsetof(WorkerShm, barriers) == 128 && offsetof(WorkerShm, counters) == 384 &&
              offsetof(WorkerShm, staleness) == 512);
static_assert(kCounters <= 16, "the counters' array is full");
static_assert(sizeof(VariableShm) == 512 && offsetof(VariableShm, extents) == 32 &&
              offsetof(VariableShm, elements) == 96 && offsetof(VariableShm, words_offset) == 136 &&
              offsetof(VariableShm, gradient_end) == 176 && offsetof(VariableShm, name) == 184 &&
              offsetof(VariableShm, part) == 312 && offsetof(VariableShm, base) == 336 &&
              offsetof(VariableShm, row_elements) == 344 && offsetof(VariableShm, row_counts_offset) == 360 &&
              offsetof(VariableShm, init) == 368);
static_assert(sizeof(PieceWordShm) == 2 * kCacheLine && offsetof(PieceWordShm, wanted) == kCacheLine &&
              sizeof(BufferHeaderShm) == kCacheLine);
static_assert(offsetof(BufferHeaderShm, included_steps) == 8 && offsetof(BufferHeaderShm, writer) == 24 &&
              offsetof(BufferHeaderShm, contributors) == 32);
static_assert(sizeof(SpareShm) == 32 && sizeof(SpareTableShm) >= 32 * kClasses * kSparesPerClass);
static_assert(sizeof(SpareTableShm) % kWriterLine == 0, "two ranks' spare records would share a writer's line");
static_assert(kConfigOffset >= sizeof(HeaderShm) && kStateOffset >= kConfigOffset + sizeof(JobConfigShm) &&
              kIndexOffset >= kStateOffset + sizeof(JobStateShm));
static_assert(kEventsOffset == 16384 && kVariablesOffset == 180224 && kWorkersOffset == 704512,
              "the picture above is out of date");
static_assert(sizeof(SharedDataShm) == 1024 && offsetof(SharedDataShm, key) == 16 &&
              kSharedRecordOffset + sizeof(SharedDataShm) <= kSharedDataOffset);
static_assert(kNormOffset == 8704 && kNormOffset + 8 <= kGradientsOffset);

template <class... Structs>
constexpr bool plain() {
  return (std::is_standard_layout_v<Structs> && ...) && (std::is_trivially_copyable_v<Structs> && ...);
}
static_assert(std::is_standard_layout_v<WorkerShm> && std::is_standard_layout_v<VariableShm>,
              "offsets of a type that is not standard-layout differ between compilers");
static_assert(plain<JobConfigShm>(), "would not survive being in another process's memory");

}  // namespace layout_asserts

// Two binaries with different fingerprints refuse each other's segments.
consteval std::uint64_t layout_fingerprint() {
  std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, 64 bits
  const std::uint64_t facts[] = {
      kLayoutVersion,
      kArithmeticVersion,
      sizeof(HeaderShm),
      sizeof(JobConfigShm),
      sizeof(JobStateShm),
      sizeof(LiveShm),
      sizeof(EventShm),
      sizeof(PlaceShm),
      kLiveRecords,
      kLifeEvents,
      kDecisions,
      sizeof(BarrierShm),
      sizeof(WorkerShm),
      sizeof(BarrierEntryShm),
      sizeof(VariableShm),
      sizeof(BufferHeaderShm),
      sizeof(PieceWordShm),
      sizeof(SpareShm),
      sizeof(SpareTableShm),
      sizeof(SharedDataShm),
      kMaxVariables,
      kMaxRanks,
      kMaxShards,
      kMinClass,
      kMaxClass,
      kSparesPerClass,
      kCounters,
      kStalenessBuckets,
      kWorkersOffset,
      kSparesOffset,
      kGradientsOffset,
      offsetof(WorkerShm, counters),
      offsetof(WorkerShm, staleness),
      offsetof(VariableShm, init),
      offsetof(VariableShm, part),
      offsetof(VariableShm, row_elements),
      offsetof(BufferHeaderShm, contributors),
      offsetof(JobConfigShm, rule),
      offsetof(JobConfigShm, nodes),
      offsetof(JobStateShm, activity),
      offsetof(JobStateShm, live),
      offsetof(WorkerShm, clock),
      offsetof(BarrierEntryShm, proposed),
  };
  for (std::uint64_t fact : facts) hash = (hash ^ fact) * 1099511628211ULL;
  return hash;
}
inline constexpr std::uint64_t kFingerprint = layout_fingerprint();

}  // namespace ps::shm
