// Named points between the stores of the protocols, at which tests kill or stop a process, and a hook at every access
// to a shared word, at which tests act or kill. Without PS_SHM_FAULT_POINTS (tests/faults) all of this compiles to
// nothing.
//
// tests/faults/fault_table.hpp says how each point is reached; the kill matrix visits all of them.
// tests/checks/check_fault_points.py reports pairs of stores without a fault point between them.
#pragma once

#include <cstdint>

namespace ps_shm::shm {

// In the order of the table in tests/faults/fault_table.hpp.
enum class FaultPoint : std::uint32_t {
  // clang-format off
  kCreateFilled, kCreateLocked, kCreateNamed, kCreateCleared, kShardMade, kShardNamed, kCreatePublished,
  kTaskTaken, kTaskNoted, kTaskServing,
  kAdoptLocked, kAdoptRevived, kAdoptTaken, kAdoptCounted,
  kEndDecided, kEndSaid, kEndRecorded, kEndAnnounced, kTaskReleased, kRemoveLocked, kRemovePart, kRemoveParts, kRemoveUnlinked,
  kJoinTaken, kJoinBarrier, kJoinWritten, kJoinCounted, kJoinStated, kJoinRecorded,
  kRecoveryNoted, kRecoveryTaken,
  kGradientMade, kGradientNamed, kGradientNoted, kGradientCleared,
  kDeclareMade, kDeclareClaimed, kDeclareFilled, kDeclarePlaced, kDeclareGrown, kDeclarePublished, kDeclareNext,
  kInitClaimed, kInitBuffer, kInitStamped, kInitChunk, kInitValues, kInitPart, kInitDone, kInitRecorded,
  kFreeBufferNoted, kFreeBufferInFlight, kPushBuilding, kPushComputed, kPushLabelled, kPushStamped, kPushSwapped,
  kPushNoted, kPushLost, kPushRecovered,
  kPushAnnounced, kPushOver, kReserveMade, kReserveNamed,
  kSnapshotReady, kSnapshotBegun, kSnapshotMoved, kSnapshotForced, kSnapshotGivenUp,
  kInplaceElement, kInplaceBlock, kInplaceCounted,
  kTableMade, kTableFilled, kTablePublished, kTableNamed, kLaneCleared, kLaneReady, kLaneUsed,
  kRowsBacked, kRowsTaken, kRowNoted, kClaimLost, kRowClaimed, kRowFilled, kRowReady, kRowLinked, kRowLive, kRowDone, kRowGivenBack,
  kBucketReady, kBucketLinked, kBucketLive, kBucketsBacked, kBucketsDoubled,
  kRowPinned, kRowRescued, kRowChanged, kRowSealed, kEvictionLost, kEvictionWritten, kEvictionListed, kDumpBegun, kRowSpared, kRowDead, kRowUnlinked, kRowFreed, kRowRecovered,
  kRowBeingGiven, kRowGiven,
  kAgeDecided, kAgeDropped, kStepCounted, kClockEntering, kClockEntered, kClockAdvanced,
  kGradientGrown, kGradientCopied, kGradientTagged, kNormWritten,
  kArrivePublished, kDecideNoted, kDecideSet, kDecideProposed, kDecideSwapped, kDecideAnnounced, kDecideRecorded,
  kDecideShort, kHelpRead, kHelpChunk, kOpenReady, kOpenSwapped, kDropped, kReturned,
  kLeaveGradient, kLeaveWritten, kLeaveStated, kLeaveRecorded, kLeaveAnnounced, kLeaveReleased,
  kSetLocked, kSetWritten, kSetMoved, kSetRecorded, kSetReleased,
  kDataTaken, kDataMade, kDataFilled, kDataPublished, kDataCleared, kDataNamed, kDataAnnounced, kDataReleased,
  kEventTicket, kEventBuilding, kEventWritten,
  kBundleMade, kBundleLocked, kBundlePublished, kBundleNamed, kPublisherTaken, kPublisherNoted,
  kPublishBuilding, kPublishAllocated, kPublishSlot, kPublishTensor, kPublishWritten, kPublishStamped, kPublishMoved,
  kPublishAnnounced, kPublicationTrimmed,
  kWriterTaken, kWriterNoted, kLeaderTaken, kLeaderClosed, kRoundReady, kRoundOpened, kRoundEntered, kRoundSlice,
  kRoundDone, kRoundComplete, kRoundCommitted, kRoundClosed, kWriterReleased,
  kPublisherEnded, kPublisherReleased, kBundleLockedAll, kBundleUnlinked,
  kSubscriberTaken, kSubscriberCleared, kSubscriberNoted, kLeaseNoted, kLeaseHeld, kLeaseReleased,
  kAcknowledged, kPinned, kUnpinned, kSubscriberLeft, kSubscriberReleased,
  kCount_
  // clang-format on
};

inline constexpr std::uint32_t kFaultPoints = static_cast<std::uint32_t>(FaultPoint::kCount_);

#if defined(PS_SHM_FAULT_POINTS)

inline constexpr bool kFaultPointsAreOn = true;

// Set by the test, in the process that is to be killed or stopped.
struct FaultHooks {
  void (*reached)(FaultPoint point) = nullptr;
  void (*before_access)(const void* word, bool stores) = nullptr;  // before a shared word is accessed, or within a copy
};
inline FaultHooks g_fault_hooks;

inline void fault_point(FaultPoint point) noexcept {
  if (g_fault_hooks.reached != nullptr) g_fault_hooks.reached(point);
}
inline void shared_access(const void* word, bool stores) noexcept {
  if (g_fault_hooks.before_access != nullptr) g_fault_hooks.before_access(word, stores);
}

#else

inline constexpr bool kFaultPointsAreOn = false;
constexpr void fault_point(FaultPoint) noexcept {}
constexpr void shared_access(const void*, bool) noexcept {}

#endif

}  // namespace ps_shm::shm
