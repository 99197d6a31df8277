// Lists every field of every shared structure once. The lists show that no byte is forgotten, and make the
// fingerprint.
//
// A field that is missing here, or is out of order, does not compile. A field that moves in both places, or changes
// its name or size, changes the fingerprint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "shm/segment/bundle_layout.hpp"
#include "shm/segment/layout.hpp"
#include "shm/segment/table_layout.hpp"

namespace ps_shm::shm {

struct LayoutField {
  std::string_view name;
  std::size_t offset, size;
};

template <class>
struct LayoutFields;  // `all`: the structure's fields, in order

#define PS_SHM_FIELD(field) \
  { #field, offsetof(Struct, field), sizeof(Struct::field) }

template <>
struct LayoutFields<HeaderShm> {
  using Struct = HeaderShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(magic),
                                        PS_SHM_FIELD(layout_version),
                                        PS_SHM_FIELD(kind),
                                        PS_SHM_FIELD(fingerprint),
                                        PS_SHM_FIELD(instance),
                                        PS_SHM_FIELD(initial_bytes),
                                        PS_SHM_FIELD(reserved_bytes),
                                        PS_SHM_FIELD(created_unix_ns),
                                        PS_SHM_FIELD(creator_pid),
                                        PS_SHM_FIELD(number),
                                        PS_SHM_FIELD(job),
                                        PS_SHM_FIELD(node),
                                        PS_SHM_FIELD(huge_pages),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<SettingsShm> {
  using Struct = SettingsShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(bytes), PS_SHM_FIELD(text)};
};

template <>
struct LayoutFields<LiveShm> {
  using Struct = LiveShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(words), PS_SHM_FIELD(clock_epoch), PS_SHM_FIELD(pad0)};
};

template <>
struct LayoutFields<BarrierShm> {
  using Struct = BarrierShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(step), PS_SHM_FIELD(decision), PS_SHM_FIELD(futex),
                                        PS_SHM_FIELD(pad0)};
};

template <>
struct LayoutFields<SnapshotPointShm> {
  using Struct = SnapshotPointShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(word),   PS_SHM_FIELD(since_ns), PS_SHM_FIELD(patience_ns),
                                        PS_SHM_FIELD(forced), PS_SHM_FIELD(given_up), PS_SHM_FIELD(at_step),
                                        PS_SHM_FIELD(pad0),   PS_SHM_FIELD(futex),    PS_SHM_FIELD(pad1)};
};

template <>
struct LayoutFields<JobStateShm> {
  using Struct = JobStateShm;
  static constexpr LayoutField all[] = {
      PS_SHM_FIELD(barriers), PS_SHM_FIELD(activity),     PS_SHM_FIELD(ended),          PS_SHM_FIELD(keep),
      PS_SHM_FIELD(servers),  PS_SHM_FIELD(live_version), PS_SHM_FIELD(short_quorum),   PS_SHM_FIELD(pad1),
      PS_SHM_FIELD(clocks),   PS_SHM_FIELD(pad2),         PS_SHM_FIELD(event_tickets),  PS_SHM_FIELD(pad3),
      PS_SHM_FIELD(live),     PS_SHM_FIELD(task_pids),    PS_SHM_FIELD(snapshot_point), PS_SHM_FIELD(key_hash),
      PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<EventShm> {
  using Struct = EventShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(sequence), PS_SHM_FIELD(unix_ns), PS_SHM_FIELD(kind),
                                        PS_SHM_FIELD(rank),     PS_SHM_FIELD(step),    PS_SHM_FIELD(first),
                                        PS_SHM_FIELD(second),   PS_SHM_FIELD(ranks),   PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<RankSetShm> {
  using Struct = RankSetShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(bits)};
};

template <>
struct LayoutFields<BarrierEntryShm> {
  using Struct = BarrierEntryShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(active_from), PS_SHM_FIELD(published), PS_SHM_FIELD(generation),
                                        PS_SHM_FIELD(proposal),    PS_SHM_FIELD(proposed),  PS_SHM_FIELD(lr),
                                        PS_SHM_FIELD(clip_norm),   PS_SHM_FIELD(momentum),  PS_SHM_FIELD(beta1),
                                        PS_SHM_FIELD(included),    PS_SHM_FIELD(changed),   PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<WorkerShm> {
  using Struct = WorkerShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(state),     PS_SHM_FIELD(pid),
                                        PS_SHM_FIELD(holders),   PS_SHM_FIELD(joined_ns),
                                        PS_SHM_FIELD(left_ns),   PS_SHM_FIELD(waiting_for),
                                        PS_SHM_FIELD(guest),     PS_SHM_FIELD(waiting_on),
                                        PS_SHM_FIELD(clock),     PS_SHM_FIELD(examples_offset),
                                        PS_SHM_FIELD(ticket),    PS_SHM_FIELD(attempt),
                                        PS_SHM_FIELD(gpu),       PS_SHM_FIELD(gpu_uuid),
                                        PS_SHM_FIELD(gpu_bytes), PS_SHM_FIELD(pad1),
                                        PS_SHM_FIELD(barriers),  PS_SHM_FIELD(counters),
                                        PS_SHM_FIELD(pushing),   PS_SHM_FIELD(push_ns),
                                        PS_SHM_FIELD(staleness)};
};

template <>
struct LayoutFields<VariableShm> {
  using Struct = VariableShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(claim),
                                        PS_SHM_FIELD(dtype),
                                        PS_SHM_FIELD(rule),
                                        PS_SHM_FIELD(layout),
                                        PS_SHM_FIELD(flags),
                                        PS_SHM_FIELD(axes),
                                        PS_SHM_FIELD(shard),
                                        PS_SHM_FIELD(buffer_class),
                                        PS_SHM_FIELD(extents),
                                        PS_SHM_FIELD(elements),
                                        PS_SHM_FIELD(slots),
                                        PS_SHM_FIELD(piece_elements),
                                        PS_SHM_FIELD(pieces),
                                        PS_SHM_FIELD(first_chunk),
                                        PS_SHM_FIELD(words_offset),
                                        PS_SHM_FIELD(data_offset),
                                        PS_SHM_FIELD(free_buffers_offset),
                                        PS_SHM_FIELD(shard_end),
                                        PS_SHM_FIELD(gradient_offset),
                                        PS_SHM_FIELD(gradient_end),
                                        PS_SHM_FIELD(name),
                                        PS_SHM_FIELD(part),
                                        PS_SHM_FIELD(parts),
                                        PS_SHM_FIELD(part_begin),
                                        PS_SHM_FIELD(whole_elements),
                                        PS_SHM_FIELD(base),
                                        PS_SHM_FIELD(partition_by),
                                        PS_SHM_FIELD(row_elements),
                                        PS_SHM_FIELD(row_bytes),
                                        PS_SHM_FIELD(row_counts_offset),
                                        PS_SHM_FIELD(lr_scale),
                                        PS_SHM_FIELD(regularize),
                                        PS_SHM_FIELD(init),
                                        PS_SHM_FIELD(reserve),
                                        PS_SHM_FIELD(factors),
                                        PS_SHM_FIELD(pad1)};
};

template <>
struct LayoutFields<PieceWordShm> {
  using Struct = PieceWordShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(word), PS_SHM_FIELD(pad0), PS_SHM_FIELD(wanted),
                                        PS_SHM_FIELD(lost_swaps), PS_SHM_FIELD(pad1)};
};

template <>
struct LayoutFields<BufferHeaderShm> {
  using Struct = BufferHeaderShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(stamp),  PS_SHM_FIELD(included_steps), PS_SHM_FIELD(writer_step),
                                        PS_SHM_FIELD(writer), PS_SHM_FIELD(pad0),           PS_SHM_FIELD(contributors)};
};

template <>
struct LayoutFields<FreeBufferShm> {
  using Struct = FreeBufferShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(record), PS_SHM_FIELD(note_chunk), PS_SHM_FIELD(note_word),
                                        PS_SHM_FIELD(note_gain)};
};

template <>
struct LayoutFields<TableRowShm> {
  using Struct = TableRowShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(key), PS_SHM_FIELD(word), PS_SHM_FIELD(used),
                                        PS_SHM_FIELD(changed), PS_SHM_FIELD(pushes), PS_SHM_FIELD(mark)};
};

template <>
struct LayoutFields<TableLaneShm> {
  using Struct = TableLaneShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(pins),   PS_SHM_FIELD(inserting), PS_SHM_FIELD(counters),
                                        PS_SHM_FIELD(listed), PS_SHM_FIELD(lost),      PS_SHM_FIELD(pad0)};
};

template <>
struct LayoutFields<EvictedShm> {
  using Struct = EvictedShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(key), PS_SHM_FIELD(epoch), PS_SHM_FIELD(pad0)};
};

template <>
struct LayoutFields<TableShm> {
  using Struct = TableShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(name),           PS_SHM_FIELD(rule),
                                        PS_SHM_FIELD(slots),          PS_SHM_FIELD(has_row_state),
                                        PS_SHM_FIELD(lanes),          PS_SHM_FIELD(part),
                                        PS_SHM_FIELD(parts),          PS_SHM_FIELD(row_elements),
                                        PS_SHM_FIELD(row_floats),     PS_SHM_FIELD(row_bytes),
                                        PS_SHM_FIELD(max_rows),       PS_SHM_FIELD(max_bits),
                                        PS_SHM_FIELD(sightings),      PS_SHM_FIELD(sightings_offset),
                                        PS_SHM_FIELD(buckets_offset), PS_SHM_FIELD(rows_offset),
                                        PS_SHM_FIELD(bytes),          PS_SHM_FIELD(lr_scale),
                                        PS_SHM_FIELD(regularize),     PS_SHM_FIELD(admit_after),
                                        PS_SHM_FIELD(evict),          PS_SHM_FIELD(touch_on_pull),
                                        PS_SHM_FIELD(initial_range),  PS_SHM_FIELD(dtype),
                                        PS_SHM_FIELD(pad0),           PS_SHM_FIELD(ttl_ns),
                                        PS_SHM_FIELD(seed),           PS_SHM_FIELD(listed_at_most),
                                        PS_SHM_FIELD(evicted_offset), PS_SHM_FIELD(key_hash),
                                        PS_SHM_FIELD(pad1),
                                        PS_SHM_FIELD(bits),           PS_SHM_FIELD(lanes_used),
                                        PS_SHM_FIELD(dump_epoch),     PS_SHM_FIELD(told),
                                        PS_SHM_FIELD(pad2),
                                        PS_SHM_FIELD(rows_next),      PS_SHM_FIELD(rows_backed),
                                        PS_SHM_FIELD(buckets_made),   PS_SHM_FIELD(pad3),
                                        PS_SHM_FIELD(hand),           PS_SHM_FIELD(pad4)};
};

template <>
struct LayoutFields<FreeBufferTableShm> {
  using Struct = FreeBufferTableShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(free_buffers)};
};

template <>
struct LayoutFields<SharedDataShm> {
  using Struct = SharedDataShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(bytes), PS_SHM_FIELD(content_bytes), PS_SHM_FIELD(content)};
};

template <>
struct LayoutFields<BridgeShm> {
  using Struct = BridgeShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(writes),     PS_SHM_FIELD(cursor),   PS_SHM_FIELD(blocks),
                                        PS_SHM_FIELD(wire_bytes), PS_SHM_FIELD(momentum), PS_SHM_FIELD(text_bytes), PS_SHM_FIELD(tables),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<BundleShm> {
  using Struct = BundleShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(tensors), PS_SHM_FIELD(subscribers), PS_SHM_FIELD(records),
                                        PS_SHM_FIELD(writers), PS_SHM_FIELD(row_bytes),   PS_SHM_FIELD(plan),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<NewestShm> {
  using Struct = NewestShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(newest),     PS_SHM_FIELD(ended), PS_SHM_FIELD(pid),
                                        PS_SHM_FIELD(publishers), PS_SHM_FIELD(busy),  PS_SHM_FIELD(written_bytes),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<WaitersShm> {
  using Struct = WaitersShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(futex), PS_SHM_FIELD(acknowledgement), PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<SubscriberShm> {
  using Struct = SubscriberShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(leases),    PS_SHM_FIELD(pid),          PS_SHM_FIELD(pad0),
                                        PS_SHM_FIELD(joined_ns), PS_SHM_FIELD(acknowledged), PS_SHM_FIELD(pinned),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<RoundShm> {
  using Struct = RoundShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(round), PS_SHM_FIELD(step), PS_SHM_FIELD(leader),
                                        PS_SHM_FIELD(writers), PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<WriterShm> {
  using Struct = WriterShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(done), PS_SHM_FIELD(pid), PS_SHM_FIELD(pad0),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<TensorShm> {
  using Struct = TensorShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(offset),  PS_SHM_FIELD(bytes),   PS_SHM_FIELD(dtype),
                                        PS_SHM_FIELD(axes),    PS_SHM_FIELD(extents), PS_SHM_FIELD(name),
                                        PS_SHM_FIELD(reserved)};
};

template <>
struct LayoutFields<RecordShm> {
  using Struct = RecordShm;
  static constexpr LayoutField all[] = {PS_SHM_FIELD(stamp),   PS_SHM_FIELD(step),    PS_SHM_FIELD(unix_ns),
                                        PS_SHM_FIELD(changed), PS_SHM_FIELD(partial), PS_SHM_FIELD(reserved)};
};

#undef PS_SHM_FIELD

// Whether the list covers the structure: each field begins where the previous one ends, and the last one ends the
// structure.
template <class Struct>
constexpr bool has_all_fields() {
  std::size_t end = 0;
  for (const LayoutField& field : LayoutFields<Struct>::all) {
    if (field.offset != end) return false;
    end += field.size;
  }
  return end == sizeof(Struct);
}

// FNV-1a, 64 bits.
class LayoutHash {
 public:
  constexpr void mix(std::uint64_t fact) noexcept { value_ = (value_ ^ fact) * 1099511628211ULL; }

  template <class... Structs>
  constexpr void mix_fields() {
    (mix_fields_of<Structs>(), ...);
  }

  constexpr std::uint64_t value() const noexcept { return value_; }

 private:
  template <class Struct>
  constexpr void mix_fields_of() {
    static_assert(has_all_fields<Struct>(), "a field is missing in the list above, or two of them have changed places");
    static_assert(std::is_standard_layout_v<Struct>, "offsets would differ between compilers");
    mix(sizeof(Struct));
    for (const LayoutField& field : LayoutFields<Struct>::all) {
      for (const char letter : field.name) mix(static_cast<unsigned char>(letter));
      mix(field.offset);
      mix(field.size);
    }
  }

  std::uint64_t value_ = 14695981039346656037ULL;
};

// Two binaries with different fingerprints refuse each other's segments. tests/checks/check_asserts.py reports a
// structure that is missing here.
consteval std::uint64_t layout_fingerprint() {
  LayoutHash hash;
  hash.mix_fields<HeaderShm, SettingsShm, LiveShm, BarrierShm, SnapshotPointShm, JobStateShm, EventShm, RankSetShm,
                  BarrierEntryShm, WorkerShm, VariableShm, PieceWordShm, BufferHeaderShm, FreeBufferShm,
                  FreeBufferTableShm, SharedDataShm, BridgeShm, BundleShm, NewestShm, WaitersShm, SubscriberShm,
                  RoundShm, WriterShm, TensorShm, RecordShm, TableRowShm, TableLaneShm, TableShm, EvictedShm>();
  const std::uint64_t facts[] = {kLayoutVersion,
                                 kArithmeticVersion,
                                 kMaxRanks,
                                 kMaxShards,
                                 kMaxVariables,
                                 kMaxAxes,
                                 kMinClass,
                                 kMaxClass,
                                 kFreeBuffersPerClass,
                                 kBarriers,
                                 kLiveRecords,
                                 kLiveWords,
                                 kLifeEvents,
                                 kDecisions,
                                 kCounters,
                                 kStalenessBuckets,
                                 kSettingsOffset,
                                 kStateOffset,
                                 kIndexOffset,
                                 kEventsOffset,
                                 kRecordsAtOnce,
                                 kWorkersOffset,
                                 kFreeBuffersOffset,
                                 kPushedOffset,
                                 kNormOffset,
                                 kGradientsOffset,
                                 kSharedRecordOffset,
                                 kSharedDataOffset,
                                 kBridgeRecordOffset,
                                 kBridgeTextOffset,
                                 kBridgeTextBytes,
                                 kBridgeBlock,
                                 kBridgePart,
                                 kBundleOffset,
                                 kNewestOffset,
                                 kWaitersOffset,
                                 kSubscribersOffset,
                                 kLeases,
                                 kMaxTensors};
  for (const std::uint64_t fact : facts) hash.mix(fact);
  return hash.value();
}
inline constexpr std::uint64_t kFingerprint = layout_fingerprint();

}  // namespace ps_shm::shm
