// All bytes that processes share: pictures, structures, asserts and the fingerprint of the layout. Start reading here.
//
// /ps_shm.JOB            control segment: created by the ps; grows by records (posix_fallocate); mapped once, at `reserved_bytes`
//
//   0        +---------------------+  written by                          read by
//            | HeaderShm           |  creator, before `layout_version`    all
//   2048     | JobStateShm         |  winner of each exchange             all
//   4096     | index[16384]        |  declarers, by compare-exchange      all
//   69632    | SettingsShm         |  creator, before `layout_version`    all
//   81920    | EventShm[256 + 1024]|  holder of the event's ticket        inspector  life of the job; decisions
//   245760   | WorkerShm[ranks]    |  owner of the rank                   all
//            +---------------------+  4096-aligned; the file grows by 128 records at a time (directory.D7):
//            | VariableShm[16384]  |  declarer (claimed), initialiser     all
//            +---------------------+
//
// /ps_shm.JOB.K          shard K: grows with each declaration (posix_fallocate); mapped once, at `reserved_bytes`
//
//   0        +---------------------+
//            | HeaderShm           |  creator                             all
//   512      | FreeBufferTableShm[lanes]|  owner of the rank                   recovering processes (slot.V6)
//            +---------------------+  4096-aligned, then for each record in the order of the index:
//            | chunk words, 128 B  |  initialiser, pushers by swap        all          (in-place: block counters)
//            | buffers of a class  |  initialiser, their owners           all          (in-place: rows, see below)
//            | free buffers        |  their owners                        all          (at the first of its class)
//            +---------------------+
//
// /ps_shm.JOB.wR.G       gradient segment of rank R's owner number G (sync mode): grows as a shard does
//
//   0        +---------------------+
//            | HeaderShm           |  the worker                          all
//   512      | pushed[16384]       |  the worker                          helpers   {update::Change : 2, step + 1 : 62}
//   131584   | squared norm        |  the worker                          helpers      float64, of the step's gradients
//   196608   | gradients           |  the worker                          helpers      at VariableShm::gradient_offset
//            +---------------------+
//
// /ps_shm.JOB.data       read-only data of all workers (--share-data); complete before it is named (shared_data.hpp)
//
//   0        +---------------------+
//            | HeaderShm           |  the loader                          workers
//   512      | SharedDataShm       |  the loader                          workers      size and content
//   4096     | bytes               |  the loader                          workers
//            +---------------------+
//
// /ps_shm.JOB.tN.P       part P of a table by key: table_layout.hpp
//
// /ps_shm.JOB.bridge     state of the job's bridge to other boxes (bridge_state.hpp)
//
//   0        +---------------------+
//            | HeaderShm           |  the bridge                         inspect_shm
//   512      | BridgeShm           |  the bridge                         inspect_shm
//   4096     | text[2]             |  the bridge: JSON, 512 KiB each     inspect_shm
//            | scratch             |  of a part of the next two
//            | anchor              |  floats
//            | momentum            |  floats, if the outer rule has one
//            | base                |  floats
//            | present             |  a byte for each block
//            | sum                 |  in the wire format, of the blocks that are present
//            +---------------------+
//
// /ps_shm_publication.NAME   a publication, which belongs to no job: bundle_layout.hpp
//
// A record describes a variable, or one part of a partitioned variable, or the accumulator of either (reduce atomic),
// or a reserve: one more buffer for each chunk of a variable, made for the first snapshot
// (snapshot_point.hpp). A rank has one list of free buffers, a lane, for each thread that may push.
//
// A buffer: | BufferHeaderShm 64 B | parameters | optimizer slots, one float32 array after the other |
//
// A row of an in-place variable. An element's optimizer state lies beside it, so that one exchange changes both:
//   add, sgd                               {w} {w} ...          adam, adamw       {w, m, v, t} ...
//   momentum, nesterov, adagrad, rmsprop   {w, slot} ...        ftrl              {z, n} ...  (w is a function of both)
//   rowwise_adagrad                        {w} {w} ... n, and padding to a multiple of 16 bytes
// Between the block counters and the rows, each rank has counters of its pushes of rows, one for each block.
//
// What a writer leaves behind if it dies between two stores (invariant.I2; docs/protocols.md has it for each step):
//   HeaderShm      no version yet: "being created"; nobody holds a lock, so the next ps reclaims the name (names.N2)
//   index          the word is set by one exchange: the variable exists or it does not; its record was complete before
//   VariableShm    a claimed record that never got into the index is used again by the next holder of that lock byte
//   `init`         the lock byte of a dead task: a waiter takes the initialisation over (directory.D5)
//   chunk          word and current buffer are untouched until the one swap; no buffer stamped "building" is current
//   FreeBufferShm  "in flight": the next owner of the rank recovers it (free_buffers.hpp)
//   SnapshotPointShm  a snapshot point that is not open yet: a push that waits for it opens it (snapshot_point.hpp)
//   `pushing`      a push that nobody waits for any more; the next owner of the rank clears it
//   `factors`      parts of a variable that a setter has not reached have the old ones until it is set again
//   BarrierEntryShm  `published` is stored after the gradient: the gradient counts, or it does not (barrier.hpp)
//   LiveShm        the version still names the previous record: the change has not happened
//   EventShm       "building" or an old ticket: that event is missing; events are diagnostic only
//   clock          one store: the step is counted or it is not
//   rows           some are updated and others not; each element together with its state, by one exchange
//   a row's n      (rowwise_adagrad) it may count a push whose elements have not changed yet: smaller steps
//   row counters   a push whose rows were changed is not counted: the staleness that others measure is one too small
//   counters, loss   one update is missing: they are diagnostic only
//
// Integers have the machine's byte order (little-endian); offsets are in bytes from the start of their segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/base/atomic.hpp"

namespace ps_shm::shm {

constexpr std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) noexcept {
  return (bytes + unit - 1) / unit * unit;
}

inline constexpr std::uint64_t kMagic = 0x31304d4853535021;  // "!PSSHM01"
inline constexpr std::uint32_t kLayoutVersion = 24;          // raised with every change of the layout
inline constexpr std::uint32_t kArithmeticVersion = 2;  // raised when an update rule's results change (barrier.B10)

inline constexpr std::uint32_t kMaxRanks = 256;
inline constexpr std::uint32_t kMaxShards = 64;
inline constexpr std::uint32_t kMaxVariables = 16384;
inline constexpr std::uint32_t kRecordsAtOnce = 128;  // the control segment grows by so many: 64 KiB
inline constexpr std::uint32_t kMaxAxes = 8;
inline constexpr std::uint32_t kMinClass = 8;   // log2 of the smallest buffer, 256 B
inline constexpr std::uint32_t kMaxClass = 20;  // log2 of the largest, 1 MiB
inline constexpr std::uint32_t kClasses = kMaxClass - kMinClass + 1;
inline constexpr std::uint32_t kFreeBuffersPerClass =
    4;  // more give slow readers more time, but fill caches (benches/tuning.py)
inline constexpr std::size_t kCacheLine = 64;
inline constexpr std::size_t kWriterLine = 128;  // the prefetcher fetches lines in pairs: keeps two writers apart
inline constexpr std::size_t kPage = 4096;  // keeps apart what different processes write or grow
// The largest page of a kernel that is supported: Linux for Grace often has 64 KiB. What is protected, registered with
// CUDA, or mapped by itself begins at a multiple of it and ends at one.
inline constexpr std::size_t kLargestPage = 64 << 10;
inline constexpr std::uint32_t kBarriers = 2;  // 0: the training step, 1: Worker::barrier()
inline constexpr std::uint32_t kStalenessBuckets = 96;
inline constexpr std::uint32_t kLiveRecords = 4;   // a reader fails only if so many changes overtake it
inline constexpr std::uint32_t kLiveWords = 15;    // at most so many runtime settings
inline constexpr std::uint32_t kLifeEvents = 256;  // joins, deaths, changes of settings: rare
inline constexpr std::uint32_t kDecisions = 1024;  // one for each sync step: the last second of a fast job

enum class SegmentKind : std::uint32_t {
  kControl = 1,
  kShard = 2,
  kGradient = 3,
  kData = 4,
  kBundle = 5,
  kTable = 6,
  kBridge = 7
};

struct alignas(kWriterLine) HeaderShm {
  std::uint64_t magic;
  AtomicShm<std::uint32_t> layout_version;  // 0 while being created; stored last (release), read first (acquire)
  std::uint32_t kind;                       // SegmentKind
  std::uint64_t fingerprint;
  std::uint64_t instance;        // of the job, in each of its segments (names.N4)
  std::uint64_t initial_bytes;   // a shorter file is damaged
  std::uint64_t reserved_bytes;  // address space to map; the file may grow up to this size
  std::uint64_t created_unix_ns;
  std::uint32_t creator_pid;
  std::uint32_t number;  // shard or rank
  char job[72];
  std::int32_t node;         // memory node that the pages are bound to, or -1
  std::uint32_t huge_pages;  // 1: every mapping asks for them
  std::uint8_t reserved[368];
};

// The JobConfig as its ps resolved it: lines NAME=VALUE (config/job_settings.hpp), complete before the layout version
// is published. A process that attaches reads a copy.
struct alignas(kWriterLine) SettingsShm {
  std::uint32_t bytes;  // of `text`
  char text[12284];     // at most 8384 bytes for 64 variables placed by hand, 704 for 64 nodes, some 1500 for the rest
};

// Runtime settings (LiveSettings). Record `version % kLiveRecords` of JobStateShm::live is valid while `live_version`
// is `version` (live_settings.hpp).
struct alignas(kWriterLine) LiveShm {
  AtomicShm<std::uint64_t> words[kLiveWords];  // of the setting with the LiveKey k: word k - 1 (live_record.hpp)
  AtomicShm<std::uint32_t> clock_epoch;        // counts the changes to mode ssp; 0: none yet (ssp_clock.hpp)
  std::uint8_t pad0[4];
};

// A crash-tolerant barrier (barrier.hpp). All of it shares one line: the worker that decides a round also opens the
// next one, and waiting workers read all three words.
struct alignas(kWriterLine) BarrierShm {
  AtomicShm<std::uint64_t> step;      // rounds completed; of barrier 0: the global step
  AtomicShm<std::uint64_t> decision;  // {step + 1 : 44, low bits of the epoch : 12, proposer : 8}; of barrier 1: 0
  AtomicShm<std::uint32_t> futex;     // where workers wait for a round (waiting.W1)
  std::uint8_t pad0[108];
};

// The snapshot word and what belongs to it (snapshot_point.hpp). Each push reads the word.
struct alignas(kWriterLine) SnapshotPointShm {
  AtomicShm<std::uint64_t> word;         // {epoch : 40, state : 2}
  AtomicShm<std::uint64_t> since_ns;     // now_ns(): when the snapshot point under way was begun
  AtomicShm<std::uint64_t> patience_ns;  // how long its drain may take
  AtomicShm<std::uint64_t> forced;       // epoch that a waiter has opened because its patience was over
  AtomicShm<std::uint64_t> given_up;     // last epoch whose snapshotter did not wait for all earlier pushes
  AtomicShm<std::uint64_t> at_step;      // sync: 1 + the step whose decision is to have the word's epoch; 0: none
  std::uint8_t pad0[80];
  AtomicShm<std::uint32_t> futex;  // where pushes wait for the snapshot point to open
  std::uint8_t pad1[124];
};

enum class JobEnd : std::uint32_t { kNotYet = 0, kAllLeft = 1, kLingerOver = 2, kAsked = 3 };

struct alignas(kWriterLine) JobStateShm {
  BarrierShm barriers[kBarriers];
  AtomicShm<std::uint32_t> activity;      // futex: a declaration, an initialisation, a join, a leave or a change
  AtomicShm<std::uint32_t> ended;         // JobEnd: why the ps has ended the job; workers finish their step and leave
  AtomicShm<std::uint32_t> keep;          // 1: the last ps task leaves the segments in place
  AtomicShm<std::uint32_t> servers;       // how many ps have served the job: its creator, and each ps that took it over
  AtomicShm<std::uint64_t> live_version;  // counts changes of the settings
  AtomicShm<std::uint32_t> short_quorum;  // number of contributors of the last decision if below the quorum, else 0
  std::uint8_t pad1[100];
  AtomicShm<std::uint32_t> clocks;  // futex: an ssp clock has advanced
  std::uint8_t pad2[124];
  AtomicShm<std::uint64_t> event_tickets[2];  // tickets handed out so far: life, decisions (events.hpp)
  std::uint8_t pad3[112];
  LiveShm live[kLiveRecords];
  AtomicShm<std::uint32_t> task_pids[kMaxShards];  // of the processes that hold the task bytes
  SnapshotPointShm snapshot_point;
  std::uint64_t key_hash[2];  // the multipliers of the job's update::KeyHash; nobody is shown them
  std::uint8_t reserved[368];
};

// One event of a ring (events.hpp).
struct alignas(kWriterLine) EventShm {
  AtomicShm<std::uint64_t> sequence;  // ticket + 1 when complete; kEventBuilding | ticket + 1 while being written
  AtomicShm<std::uint64_t> unix_ns;
  AtomicShm<std::uint32_t> kind, rank;
  AtomicShm<std::uint64_t> step, first, second;  // the meaning depends on `kind`
  AtomicShm<std::uint64_t> ranks[kMaxRanks / 64];
  std::uint8_t reserved[48];
};

// The set of ranks whose gradients contribute to a step (barrier.B3).
struct RankSetShm {
  AtomicShm<std::uint64_t> bits[kMaxRanks / 64];
};

struct alignas(kWriterLine) BarrierEntryShm {
  AtomicShm<std::uint64_t> active_from;  // first round that waits for this rank (barrier.B1)
  AtomicShm<std::uint64_t> published;    // round + 1 of the last arrival; 0: none
  AtomicShm<std::uint64_t> generation;   // of the gradient segment that holds that gradient
  AtomicShm<std::uint64_t> proposal;     // round + 1 for which `proposed` was written; 0: none
  RankSetShm proposed;
  AtomicShm<std::uint32_t> lr, clip_norm, momentum, beta1;  // bits of floats; of the round (barrier.B8)
  AtomicShm<std::uint64_t> included;  // round + 1 of a decision that includes it, perhaps unread by it (barrier.B11)
  AtomicShm<std::uint64_t> changed;   // reduce atomic: round + 1 of the adds or assigns in the segment (barrier.B13)
  std::uint8_t reserved[32];
};

enum class RankState : std::uint32_t { kNever = 0, kJoined = 1, kLeft = 2 };

// A worker's counters, for diagnostics only. counters.hpp has their labels.
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
  kMaxClockSkew,
  kStepExamples,
  kRestoredExamples,
  kCount_
};
inline constexpr std::uint32_t kCounters = static_cast<std::uint32_t>(Counter::kCount_);

// One rank. Only the owner of its lock byte writes it (locks.L4), except that deciders raise `included` of its
// barriers.
struct alignas(kWriterLine) WorkerShm {
  AtomicShm<std::uint32_t> state;  // RankState
  AtomicShm<std::uint32_t> pid;
  AtomicShm<std::uint64_t> holders;             // number of owners so far; names the gradient segment (locks.L5)
  AtomicShm<std::uint64_t> joined_ns, left_ns;  // now_ns()
  AtomicShm<std::uint32_t> waiting_for;         // WaitingFor; read by the inspector
  AtomicShm<std::uint32_t> guest;               // 1: the owner is a guest, which counts as no worker (guest.G1)
  AtomicShm<std::uint64_t> waiting_on;          // a step, a bound or a variable's position, depending on `waiting_for`
  AtomicShm<std::uint64_t> clock;               // ssp: {epoch : 16, entering : 1, steps : 47} (ssp_clock.hpp)
  AtomicShm<std::uint64_t>
      examples_offset;               // examples at global step s: this + s * Counter::kStepExamples, modulo 2^64
  AtomicShm<std::uint64_t> ticket;   // of a guest: its last change that is applied once (guest.G3)
  AtomicShm<std::uint64_t> attempt;  // how far that change has come: guest.G4, guest.G5
  AtomicShm<std::uint64_t> gpu;      // which GPU it uses, and how (gpu_note.hpp), read by the inspector; 0: none
  AtomicShm<std::uint64_t> gpu_uuid[2];
  AtomicShm<std::uint64_t> gpu_bytes;  // of host memory that it has registered with CUDA
  std::uint8_t pad1[16];
  BarrierEntryShm barriers[kBarriers];
  AtomicShm<std::uint64_t> counters[14];
  AtomicShm<std::uint64_t> pushing;  // epoch + 1 of the push under way; 0: none (snapshot_point.hpp)
  AtomicShm<std::uint64_t> push_ns;  // approximately the longest of its recent pushes
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
  kSnapshotPoint = 7,
  kOthersLeft = 8,
  kGpu = 9  // which has not answered for long
};

// VariableShm::flags
inline constexpr std::uint32_t kRowState = 2;  // each row's elements are followed by a float of state
inline constexpr std::uint32_t kReserve = 4;   // one more buffer for each chunk of `base` (snapshot.C6)

// A record of the directory. Immutable once the index names it, except for `init`, `reserve` and `factors`.
struct alignas(kWriterLine) VariableShm {
  AtomicShm<std::uint32_t> claim;  // lock byte + 1 of the task that fills or has filled the record; 0: free
  std::uint32_t dtype, rule, layout, flags;
  std::uint32_t axes;
  std::uint32_t shard;
  std::uint32_t buffer_class;       // log2 of a buffer's bytes (versioned)
  std::uint64_t extents[kMaxAxes];  // of the complete variable
  std::uint64_t elements;           // of this part, as all below; versioned: in floats that their bytes take
  std::uint64_t slots;              // optimizer slots per element; in-place: numbers of state beside it
  std::uint64_t piece_elements;     // elements of a chunk or block; the last one may be shorter
  std::uint64_t pieces;
  std::uint64_t first_chunk;          // number of chunk 0 in the shard (stamps, slot.V1)
  std::uint64_t words_offset;         // chunk words or block counters, 128 B each
  std::uint64_t data_offset;          // buffers or elements
  std::uint64_t free_buffers_offset;  // the class's free buffers, wherever its first variable put them
  std::uint64_t shard_end;            // bytes of the shard in use, this variable included
  std::uint64_t gradient_offset;      // in gradient segments
  std::uint64_t gradient_end;
  char name[128];
  std::uint32_t part, parts;        // 0 of 1: not partitioned
  std::uint64_t part_begin;         // its first element in the complete variable
  std::uint64_t whole_elements;     // of all parts together
  std::uint32_t base;               // of accumulators and reserves: position + 1 of the record they belong to; else 0
  std::uint32_t partition_by;       // ps_shm::PartitionBy; of partitioned variables
  std::uint64_t row_elements;       // product of all extents but the first
  std::uint64_t row_bytes;          // in-place: distance from one row to the next
  std::uint64_t row_counts_offset;  // in-place: u64 per rank and block, how often the rank pushed rows of the block
  std::uint32_t lr_scale, regularize;  // bits of the floats of VariableSpec
  AtomicShm<std::uint64_t> init;         // 0: not begun; make_init_claim: being initialised; kInitialised
  AtomicShm<std::uint64_t> reserve;      // versioned: number of the first buffer of its reserve; 0: none (snapshot.C6)
  AtomicShm<std::uint64_t> factors;      // {regularize : 32, lr_scale : 32}, which are in force (directory.hpp)
  std::uint8_t pad1[112];
};
// False for a scalar. A part of one row of one element has row counts, although it lies in its counter's word as a
// scalar does.
constexpr bool has_row_counts(const VariableShm& variable) noexcept {
  return variable.row_bytes != 0 && variable.axes != 0;  // only in-place variables have `row_bytes`
}
// Distance from one rank's counters to the next rank's, in counters. Each rank's counters have cache lines of their
// own.
constexpr std::uint64_t row_counts_stride(const VariableShm& variable) noexcept {
  return (variable.pieces + 15) / 16 * 16;
}
inline constexpr std::uint64_t kInitialised = ~std::uint64_t{0};

// BarrierEntryShm::generation: {attempt : 32, owner's number : 32}. A second attempt is made only if another user's
// leftover has the name.
inline constexpr std::uint64_t kHolderMask = 0xffffffff;

// {owner's number : 48, lock byte + 1 : 16}. The owner's number is needed because a successor in the same rank and a
// worker of another rank may both take a dead worker's initialisation over, and only one of them may win.
constexpr std::uint64_t make_init_claim(std::uint64_t holder, std::uint32_t byte) noexcept {
  return holder << 16 | (byte + 1);
}

// A chunk's word, alone on its line: {version : 40, buffer : 24} (slot.V1). In-place: how often the block was pushed;
// for a variable of one element, {pushes : 32, the element : 32}, so that one exchange changes both.
struct alignas(kWriterLine) PieceWordShm {
  AtomicShm<std::uint64_t> word;
  std::uint8_t pad0[56];
  AtomicShm<std::uint32_t> wanted;      // whose turn it is (versioned_slot.hpp); only a hint
  AtomicShm<std::uint32_t> lost_swaps;  // by pushes, roughly; diagnostic only; counted by the loser
  std::uint8_t pad1[56];
};

// Precedes each buffer. Its fields are valid only under the stamp's check (slot.V4).
struct alignas(kCacheLine) BufferHeaderShm {
  AtomicShm<std::uint64_t> stamp;           // {chunk : 24, version : 40}, or kBuilding
  AtomicShm<std::uint64_t> included_steps;  // sync steps that the values contain: steps 0 to this - 1;
                                            // of accumulators: the step that is being summed + 1;
                                            // async, ssp: the highest ticket that they contain (guest.G3)
  AtomicShm<std::uint64_t> writer_step;     // global step of the last update
  AtomicShm<std::uint32_t> writer;          // rank of the last update
  AtomicShm<std::uint32_t> pad0;
  RankSetShm contributors;  // of accumulators: the ranks included (barrier.B9); else preimage_of(), skipped_of()
};

// The record of one free buffer. There are kFreeBuffersPerClass of them for each lane, shard and class (slot.V5).
struct FreeBufferShm {
  AtomicShm<std::uint64_t> record;      // {valid : 1, in flight : 1, buffer : 24}; 0: its initial buffer, unused
  AtomicShm<std::uint64_t> note_chunk;  // while in flight: the chunk's number in the shard
  AtomicShm<std::uint64_t> note_word;   // while in flight: the word that the swap expects
  AtomicShm<std::uint64_t> note_gain;   // while in flight: the buffer that the rank gains if the swap succeeds
};

struct alignas(kWriterLine) FreeBufferTableShm {
  FreeBufferShm free_buffers[kClasses][kFreeBuffersPerClass];
};

// Describes the shared data. Plain fields, complete before the segment has a name.
struct alignas(kWriterLine) SharedDataShm {
  std::uint64_t bytes;  // from kSharedDataOffset on
  std::uint64_t content_bytes;
  char content[1008];  // says what the data is; truncated at the end if it is longer
};

// The bridge's record. One process writes.
struct alignas(kWriterLine) BridgeShm {
  AtomicShm<std::uint64_t> writes;  // of the text; the newest is text[writes % 2] (bridge.S1). 0: there is none
  AtomicShm<std::uint64_t> cursor;  // (bridge.S6) of the outer step: 2k: parts before part k are done; 2k + 1: scratch
                                    // has the results of part k
  std::uint64_t blocks;             // of kBridgeBlock floats
  std::uint64_t wire_bytes;         // of a block of the sum
  std::uint64_t momentum;           // 1: the segment has the momentum
  std::uint64_t text_bytes[2];
  std::uint64_t tables;  // a hash of the tables' sizes; 0: there are none
  std::uint64_t reserved[8];
};

inline constexpr std::size_t kStateOffset = 2048;
inline constexpr std::size_t kIndexOffset = 4096;
inline constexpr std::size_t kSettingsOffset = kIndexOffset + 4 * kMaxVariables;
inline constexpr std::size_t kEventsOffset = kSettingsOffset + sizeof(SettingsShm);
inline constexpr std::size_t kWorkersOffset = kEventsOffset + sizeof(EventShm) * (kLifeEvents + kDecisions);
inline constexpr std::size_t kFreeBuffersOffset = 512;
inline constexpr std::size_t kPushedOffset = 512;
inline constexpr std::size_t kNormOffset = kPushedOffset + 8 * kMaxVariables;
inline constexpr std::uint64_t kNoNorm = ~std::uint64_t{0};  // as the norm: not requested; no sum has these bits
inline constexpr std::size_t kGradientsOffset = 3 * kLargestPage;
inline constexpr std::size_t kBridgeRecordOffset = 512, kBridgeTextOffset = 4096;
// Of each of the two: room for the most boxes (1000, _options.py) and tables (kMaxTables), with the longest names and
// numbers.
inline constexpr std::size_t kBridgeTextBytes = 512 << 10;
inline constexpr std::size_t kBridgeBlock = 1024;          // floats
inline constexpr std::size_t kBridgePart = 64;             // blocks that the outer step computes at a time
inline constexpr std::size_t kSharedRecordOffset = 512;
inline constexpr std::size_t kSharedDataOffset = 4096;

// Lock bytes of the control segment (locks.L1). A byte's task is alive while the byte is held.
inline constexpr std::uint32_t kTaskByte = 0;                         // + ps task
inline constexpr std::uint32_t kRankByte = kMaxShards;                // + rank
inline constexpr std::uint32_t kRemoverByte = kRankByte + kMaxRanks;  // held only with the whole range (names.N2)
inline constexpr std::uint32_t kSetterByte = kRemoverByte + 1;        // changes the runtime settings (settings.S1)
inline constexpr std::uint32_t kLoaderByte = kSetterByte + 1;         // loads the shared data (data.D1)
inline constexpr std::uint32_t kSnapshotByte = kLoaderByte + 1;       // takes a snapshot (snapshot.C8)
inline constexpr std::uint32_t kLockBytes = kSnapshotByte + 1;

// layout_fields.hpp lists every field and pins its offset; these are the facts that the code relies on.
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
static_assert(sizeof(FreeBufferTableShm) % kWriterLine == 0, "two ranks' spare records would share a writer's line");
static_assert(kStateOffset >= sizeof(HeaderShm) && kIndexOffset >= kStateOffset + sizeof(JobStateShm) &&
                  kSharedRecordOffset + sizeof(SharedDataShm) <= kSharedDataOffset &&
                  kNormOffset + 8 <= kGradientsOffset,
              "two areas of a segment would overlap");

}  // namespace ps_shm::shm
