// Every fault point with its name, its protocol, the kind of process that reaches it, and the conditions. The kill
// matrices iterate over this table.
#pragma once

#include <cstdint>

#include "shm/base/fault_points.hpp"

namespace ps_shm::test {

using shm::FaultPoint;
using shm::kFaultPoints;

// The kind of process that reaches a point.
enum class FaultActor : std::uint32_t {
  kCreator,  // a ps that creates the job
  kTask,     // a ps task that adds its shard, or takes over that of a dead task
  kAdopter,  // a ps that takes over a job
  kReviver,  // a ps that resumes a dead job that was ended
  kEnder,    // a ps that ends its job
  kRemover,  // a ps whose job has ended
  kWorker,
  kSetter,       // a process that changes runtime settings
  kPublisher,    // of a publication, which is not a job: publication_matrix.cpp
  kSubscriber,   // likewise
  kSnapshotter,  // a process that takes snapshots
  kTableWorker,  // a worker with a table by key: table_matrix.cpp
  kGuest         // a bridge to other boxes: test_guests.cpp, test_bridge_tables.py
};

// When a worker reaches it; a bit mask.
inline constexpr std::uint32_t kInAsync = 1, kInSsp = 2, kInSync = 4, kInBackup = 8;  // modes; sync with a quorum
inline constexpr std::uint32_t kInVersioned = 16, kInInplace = 32;                    // layouts
inline constexpr std::uint32_t kInAccumulated = 64;                                   // reduce=atomic as well
inline constexpr std::uint32_t kInSyncs = kInSync | kInBackup;
inline constexpr std::uint32_t kInAsyncs = kInAsync | kInSsp;
inline constexpr std::uint32_t kInBoth = kInVersioned | kInInplace;
inline constexpr std::uint32_t kInAll = kInAsyncs | kInSyncs | kInBoth;
inline constexpr std::uint32_t kInPublication = 0;  // not in a job
inline constexpr std::uint32_t kInTable = 0;        // in a job of its own

// The condition for reaching it.
enum class FaultWay : std::uint32_t {
  kAlone,      // reached whatever others do
  kFirst,      // the worker is the first one of the job
  kContended,  // others push the same chunk at the same moment
  kSuccessor,  // the last owner of the rank died in a push
  kLate,       // the step was completed without the worker
  kShort,      // fewer workers are alive than the quorum
  kByHand      // records that only a test writes
};

struct FaultPointRow {
  FaultPoint point;
  const char* name;
  const char* protocol;
  FaultActor actor;
  std::uint32_t in;
  FaultWay way;
};

// clang-format off
inline constexpr FaultPointRow kFaultPointTable[] = {
    {FaultPoint::kCreateFilled, "create-filled", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kCreateLocked, "create-locked", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kCreateNamed, "create-named", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kCreateCleared, "create-cleared", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kShardMade, "shard-made", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kShardNamed, "shard-named", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kCreatePublished, "create-published", "create", FaultActor::kCreator, kInAll, FaultWay::kAlone},
    {FaultPoint::kTaskTaken, "task-taken", "create", FaultActor::kTask,    kInAll, FaultWay::kAlone},
    {FaultPoint::kTaskNoted, "task-noted", "create", FaultActor::kTask,    kInAll, FaultWay::kAlone},
    {FaultPoint::kTaskServing, "task-serving", "create", FaultActor::kTask,    kInAll, FaultWay::kAlone},
    {FaultPoint::kAdoptLocked, "adopt-locked", "adopt", FaultActor::kReviver, kInAll, FaultWay::kAlone},
    {FaultPoint::kAdoptRevived, "adopt-revived", "adopt", FaultActor::kReviver, kInAll, FaultWay::kAlone},
    {FaultPoint::kAdoptTaken, "adopt-taken", "adopt", FaultActor::kAdopter, kInAll, FaultWay::kAlone},
    {FaultPoint::kAdoptCounted, "adopt-counted", "adopt", FaultActor::kAdopter, kInAll, FaultWay::kAlone},
    {FaultPoint::kEndDecided, "end-decided", "remove", FaultActor::kEnder,   kInAll, FaultWay::kAlone},
    {FaultPoint::kEndSaid, "end-said", "remove", FaultActor::kEnder,   kInAll, FaultWay::kAlone},
    {FaultPoint::kEndRecorded, "end-recorded", "remove", FaultActor::kEnder,   kInAll, FaultWay::kAlone},
    {FaultPoint::kEndAnnounced, "end-announced", "remove", FaultActor::kEnder,   kInAll, FaultWay::kAlone},
    {FaultPoint::kTaskReleased, "task-released", "remove", FaultActor::kRemover, kInAll, FaultWay::kAlone},
    {FaultPoint::kRemoveLocked, "remove-locked", "remove", FaultActor::kRemover, kInAll, FaultWay::kAlone},
    {FaultPoint::kRemovePart, "remove-part", "remove", FaultActor::kRemover, kInAll, FaultWay::kAlone},
    {FaultPoint::kRemoveParts, "remove-parts", "remove", FaultActor::kRemover, kInAll, FaultWay::kAlone},
    {FaultPoint::kRemoveUnlinked, "remove-unlinked", "remove", FaultActor::kRemover, kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinTaken, "join-taken", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinBarrier, "join-barrier", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinWritten, "join-written", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinCounted, "join-counted", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinStated, "join-stated", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kJoinRecorded, "join-recorded", "join", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kRecoveryNoted, "recovery-noted", "join", FaultActor::kWorker,  kInAll & ~kInInplace, FaultWay::kSuccessor},
    {FaultPoint::kRecoveryTaken, "recovery-taken", "join", FaultActor::kWorker,  kInAll & ~kInInplace, FaultWay::kByHand},
    {FaultPoint::kGradientMade, "gradient-made", "join", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kGradientNamed, "gradient-named", "join", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kGradientNoted, "gradient-noted", "join", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kGradientCleared, "gradient-cleared", "join", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDeclareMade, "declare-made", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclareClaimed, "declare-claimed", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclareFilled, "declare-filled", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclarePlaced, "declare-placed", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclareGrown, "declare-grown", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclarePublished, "declare-published", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kDeclareNext, "declare-next", "declare", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kInitClaimed, "init-claimed", "initialise", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kInitBuffer, "init-buffer", "initialise", FaultActor::kWorker,  kInAll & ~kInInplace, FaultWay::kFirst},
    {FaultPoint::kInitStamped, "init-stamped", "initialise", FaultActor::kWorker,  kInAll & ~kInInplace, FaultWay::kFirst},
    {FaultPoint::kInitChunk, "init-chunk", "initialise", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kInitValues, "init-values", "initialise", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kInitPart, "init-part", "initialise", FaultActor::kWorker,  kInAll | kInAccumulated, FaultWay::kFirst},
    {FaultPoint::kInitDone, "init-done", "initialise", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kInitRecorded, "init-recorded", "initialise", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kFreeBufferNoted, "free-buffer-noted", "free-buffer", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kFreeBufferInFlight, "free-buffer-in-flight", "free-buffer", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushBuilding, "push-building", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushComputed, "push-computed", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushLabelled, "push-labelled", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushStamped, "push-stamped", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushSwapped, "push-swapped", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushNoted, "push-noted", "free-buffer", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kPushLost, "push-lost", "push", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kContended},
    {FaultPoint::kPushRecovered, "push-recovered", "free-buffer", FaultActor::kWorker,  (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kContended},
    {FaultPoint::kPushAnnounced, "push-announced", "announce", FaultActor::kWorker,  kInAsyncs | kInBoth, FaultWay::kAlone},
    {FaultPoint::kPushOver, "push-over", "announce", FaultActor::kWorker,  kInAsyncs | kInBoth, FaultWay::kAlone},
    {FaultPoint::kReserveMade, "reserve-made", "snapshot", FaultActor::kSnapshotter, (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kReserveNamed, "reserve-named", "snapshot", FaultActor::kSnapshotter, (kInAll & ~kInInplace) | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kSnapshotReady, "snapshot-ready", "snapshot", FaultActor::kSnapshotter, kInAll | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kSnapshotBegun, "snapshot-begun", "snapshot", FaultActor::kSnapshotter, kInAll | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kSnapshotMoved, "snapshot-moved", "snapshot", FaultActor::kSnapshotter, kInAll | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kSnapshotForced, "snapshot-forced", "snapshot", FaultActor::kWorker, kInAsyncs | kInBoth, FaultWay::kByHand},
    {FaultPoint::kSnapshotGivenUp, "snapshot-given-up", "snapshot", FaultActor::kSnapshotter, kInAsyncs | kInBoth, FaultWay::kByHand},
    {FaultPoint::kInplaceElement, "inplace-element", "push", FaultActor::kWorker,  kInAsyncs | kInInplace, FaultWay::kAlone},
    {FaultPoint::kInplaceBlock, "inplace-block", "push", FaultActor::kWorker,  kInAsyncs | kInInplace, FaultWay::kAlone},
    {FaultPoint::kInplaceCounted, "inplace-counted", "push", FaultActor::kWorker,  kInAsyncs | kInInplace, FaultWay::kAlone},
    {FaultPoint::kTableMade, "table-made", "table-create", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kTableFilled, "table-filled", "table-create", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kTablePublished, "table-published", "table-create", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kTableNamed, "table-named", "table-create", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kLaneCleared, "lane-cleared", "table-lane", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kLaneReady, "lane-ready", "table-lane", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kLaneUsed, "lane-used", "table-lane", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowsBacked, "rows-backed", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kFirst},
    {FaultPoint::kRowsTaken, "rows-taken", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kFirst},
    {FaultPoint::kRowNoted, "row-noted", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kClaimLost, "claim-lost", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowClaimed, "row-claimed", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowFilled, "row-filled", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowReady, "row-ready", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowLinked, "row-linked", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowLive, "row-live", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowDone, "row-done", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowGivenBack, "row-given-back", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kContended},
    {FaultPoint::kBucketReady, "bucket-ready", "table-bucket", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kBucketLinked, "bucket-linked", "table-bucket", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kBucketLive, "bucket-live", "table-bucket", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kBucketsBacked, "buckets-backed", "table-bucket", FaultActor::kTableWorker, kInTable, FaultWay::kFirst},
    {FaultPoint::kBucketsDoubled, "buckets-doubled", "table-bucket", FaultActor::kTableWorker, kInTable, FaultWay::kFirst},
    {FaultPoint::kRowPinned, "row-pinned", "table-insert", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowRescued, "row-rescued", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kContended},
    {FaultPoint::kRowChanged, "row-changed", "table-dump", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowSealed, "row-sealed", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kEvictionLost, "eviction-lost", "table-dump", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kEvictionWritten, "eviction-written", "table-dump", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kEvictionListed, "eviction-listed", "table-dump", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kDumpBegun, "dump-begun", "table-dump", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowSpared, "row-spared", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kContended},
    {FaultPoint::kRowDead, "row-dead", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowUnlinked, "row-unlinked", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowFreed, "row-freed", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowRecovered, "row-recovered", "table-evict", FaultActor::kTableWorker, kInTable, FaultWay::kSuccessor},
    {FaultPoint::kRowBeingGiven, "row-being-given", "table-give", FaultActor::kGuest, kInTable, FaultWay::kAlone},
    {FaultPoint::kRowGiven, "row-given", "table-give", FaultActor::kGuest, kInTable, FaultWay::kAlone},
    {FaultPoint::kAgeDecided, "age-decided", "age", FaultActor::kWorker,  kInAsyncs | kInBoth, FaultWay::kAlone},
    {FaultPoint::kAgeDropped, "age-dropped", "age", FaultActor::kWorker,  kInAsyncs | kInBoth, FaultWay::kLate},
    {FaultPoint::kStepCounted, "step-counted", "step", FaultActor::kWorker,  kInAsyncs | kInBoth, FaultWay::kAlone},
    {FaultPoint::kClockEntering, "clock-entering", "step", FaultActor::kWorker,  kInSsp | kInBoth, FaultWay::kAlone},
    {FaultPoint::kClockEntered, "clock-entered", "step", FaultActor::kWorker,  kInSsp | kInBoth, FaultWay::kAlone},
    {FaultPoint::kClockAdvanced, "clock-advanced", "step", FaultActor::kWorker,  kInSsp | kInBoth, FaultWay::kAlone},
    {FaultPoint::kGradientGrown, "gradient-grown", "arrive", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kGradientCopied, "gradient-copied", "arrive", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kGradientTagged, "gradient-tagged", "arrive", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kNormWritten, "norm-written", "arrive", FaultActor::kWorker,  kInSyncs | kInVersioned, FaultWay::kAlone},
    {FaultPoint::kArrivePublished, "arrive-published", "arrive", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideNoted, "decide-noted", "decide", FaultActor::kWorker,  kInBackup | kInVersioned, FaultWay::kAlone},
    {FaultPoint::kDecideSet, "decide-set", "decide", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideProposed, "decide-proposed", "decide", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideSwapped, "decide-swapped", "decide", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideAnnounced, "decide-announced", "decide", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideRecorded, "decide-recorded", "decide", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDecideShort, "decide-short", "decide", FaultActor::kWorker,  kInBackup | kInVersioned, FaultWay::kShort},
    {FaultPoint::kHelpRead, "help-read", "help", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kHelpChunk, "help-chunk", "apply", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kOpenReady, "open-ready", "open", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kOpenSwapped, "open-swapped", "open", FaultActor::kWorker,  kInSyncs | kInVersioned | kInAccumulated, FaultWay::kAlone},
    {FaultPoint::kDropped, "dropped", "step", FaultActor::kWorker,  kInBackup | kInVersioned, FaultWay::kLate},
    {FaultPoint::kReturned, "returned", "step", FaultActor::kWorker,  kInBackup | kInVersioned, FaultWay::kLate},
    {FaultPoint::kLeaveGradient, "leave-gradient", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kLeaveWritten, "leave-written", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kLeaveStated, "leave-stated", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kLeaveRecorded, "leave-recorded", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kLeaveAnnounced, "leave-announced", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kLeaveReleased, "leave-released", "leave", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kSetLocked, "set-locked", "set", FaultActor::kSetter,  kInAll, FaultWay::kAlone},
    {FaultPoint::kSetWritten, "set-written", "set", FaultActor::kSetter,  kInAll, FaultWay::kAlone},
    {FaultPoint::kSetMoved, "set-moved", "set", FaultActor::kSetter,  kInAll, FaultWay::kAlone},
    {FaultPoint::kSetRecorded, "set-recorded", "set", FaultActor::kSetter,  kInAll, FaultWay::kAlone},
    {FaultPoint::kSetReleased, "set-released", "set", FaultActor::kSetter,  kInAll, FaultWay::kAlone},
    {FaultPoint::kDataTaken, "data-taken", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataMade, "data-made", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataFilled, "data-filled", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataPublished, "data-published", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataCleared, "data-cleared", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataNamed, "data-named", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataAnnounced, "data-announced", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kDataReleased, "data-released", "share", FaultActor::kWorker,  kInAll, FaultWay::kFirst},
    {FaultPoint::kEventTicket, "event-ticket", "event", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kEventBuilding, "event-building", "event", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kEventWritten, "event-written", "event", FaultActor::kWorker,  kInAll, FaultWay::kAlone},
    {FaultPoint::kBundleMade, "bundle-made", "publication-create", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kBundleLocked, "bundle-locked", "publication-create", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kBundlePublished, "bundle-published", "publication-create", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kBundleNamed, "bundle-named", "publication-create", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublisherTaken, "publisher-taken", "publication-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublisherNoted, "publisher-noted", "publication-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishBuilding, "publish-building", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishAllocated, "publish-allocated", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishSlot, "publish-slot", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishTensor, "publish-tensor", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishWritten, "publish-written", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishStamped, "publish-stamped", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishMoved, "publish-moved", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublishAnnounced, "publish-announced", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublicationTrimmed, "publication-trimmed", "publish", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kWriterTaken, "writer-taken", "writer-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kWriterNoted, "writer-noted", "writer-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kLeaderTaken, "leader-taken", "round-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kLeaderClosed, "leader-closed", "round-take", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundReady, "round-ready", "round-lead", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundOpened, "round-opened", "round-lead", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundEntered, "round-entered", "round-follow", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundSlice, "round-slice", "round-write", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundDone, "round-done", "round-write", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundComplete, "round-complete", "round-lead", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundCommitted, "round-committed", "round-lead", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kRoundClosed, "round-closed", "round-lead", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kWriterReleased, "writer-released", "writer-leave", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublisherEnded, "publisher-ended", "publication-end", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPublisherReleased, "publisher-released", "publication-end", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kBundleLockedAll, "bundle-locked-all", "publication-remove", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kBundleUnlinked, "bundle-unlinked", "publication-remove", FaultActor::kPublisher, kInPublication, FaultWay::kAlone},
    {FaultPoint::kSubscriberTaken, "subscriber-taken", "subscribe", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kSubscriberCleared, "subscriber-cleared", "subscribe", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kSubscriberNoted, "subscriber-noted", "subscribe", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kLeaseNoted, "lease-noted", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kLeaseHeld, "lease-held", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kLeaseReleased, "lease-released", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kAcknowledged, "acknowledged", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kPinned, "pinned", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kUnpinned, "unpinned", "lease", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kSubscriberLeft, "subscriber-left", "unsubscribe", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
    {FaultPoint::kSubscriberReleased, "subscriber-released", "unsubscribe", FaultActor::kSubscriber, kInPublication, FaultWay::kAlone},
};
// clang-format on
static_assert(sizeof kFaultPointTable / sizeof kFaultPointTable[0] == kFaultPoints, "a point without a row");

consteval bool is_table_in_order() {
  for (std::uint32_t i = 0; i < kFaultPoints; ++i)
    if (static_cast<std::uint32_t>(kFaultPointTable[i].point) != i) return false;
  return true;
}
static_assert(is_table_in_order());

}  // namespace ps_shm::test
