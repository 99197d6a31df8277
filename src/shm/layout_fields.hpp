// Every field of every shared structure, once: the lists show that no byte is forgotten, and make the fingerprint.
//
// A field that is missing here, or stands at another place than in its structure, does not compile. One that moves in
// both, or changes its name or size, changes the fingerprint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "shm/bundle_layout.hpp"
#include "shm/layout.hpp"

namespace ps::shm {

struct LayoutField {
  std::string_view name;
  std::size_t offset, size;
};

template <class>
struct LayoutFields;  // `all`: the structure's fields, in its order

#define PS_FIELD(field) \
  { #field, offsetof(Struct, field), sizeof(Struct::field) }

template <>
struct LayoutFields<HeaderShm> {
  using Struct = HeaderShm;
  static constexpr LayoutField all[] = {PS_FIELD(magic),
                                        PS_FIELD(layout_version),
                                        PS_FIELD(kind),
                                        PS_FIELD(fingerprint),
                                        PS_FIELD(instance),
                                        PS_FIELD(initial_bytes),
                                        PS_FIELD(reserved_bytes),
                                        PS_FIELD(created_unix_ns),
                                        PS_FIELD(creator_pid),
                                        PS_FIELD(number),
                                        PS_FIELD(job),
                                        PS_FIELD(node),
                                        PS_FIELD(huge_pages),
                                        PS_FIELD(reserved)};
};

template <>
struct LayoutFields<SettingsShm> {
  using Struct = SettingsShm;
  static constexpr LayoutField all[] = {PS_FIELD(bytes), PS_FIELD(text)};
};

template <>
struct LayoutFields<LiveShm> {
  using Struct = LiveShm;
  static constexpr LayoutField all[] = {PS_FIELD(mode),          PS_FIELD(quorum),    PS_FIELD(staleness),
                                        PS_FIELD(learning_rate), PS_FIELD(clip_norm), PS_FIELD(workers),
                                        PS_FIELD(clock_epoch),   PS_FIELD(reserved)};
};

template <>
struct LayoutFields<BarrierShm> {
  using Struct = BarrierShm;
  static constexpr LayoutField all[] = {PS_FIELD(step), PS_FIELD(decision), PS_FIELD(futex), PS_FIELD(pad0)};
};

template <>
struct LayoutFields<CutShm> {
  using Struct = CutShm;
  static constexpr LayoutField all[] = {PS_FIELD(word),     PS_FIELD(since_ns), PS_FIELD(patience_ns), PS_FIELD(forced),
                                        PS_FIELD(given_up), PS_FIELD(pad0),     PS_FIELD(futex),       PS_FIELD(pad1)};
};

template <>
struct LayoutFields<JobStateShm> {
  using Struct = JobStateShm;
  static constexpr LayoutField all[] = {
      PS_FIELD(barriers), PS_FIELD(activity),     PS_FIELD(ended),         PS_FIELD(keep),
      PS_FIELD(servers),  PS_FIELD(live_version), PS_FIELD(short_quorum),  PS_FIELD(pad1),
      PS_FIELD(clocks),   PS_FIELD(pad2),         PS_FIELD(event_tickets), PS_FIELD(pad3),
      PS_FIELD(live),     PS_FIELD(task_pids),    PS_FIELD(cut),           PS_FIELD(reserved)};
};

template <>
struct LayoutFields<EventShm> {
  using Struct = EventShm;
  static constexpr LayoutField all[] = {PS_FIELD(sequence), PS_FIELD(unix_ns), PS_FIELD(kind),
                                        PS_FIELD(rank),     PS_FIELD(step),    PS_FIELD(first),
                                        PS_FIELD(second),   PS_FIELD(ranks),   PS_FIELD(reserved)};
};

template <>
struct LayoutFields<RankSetShm> {
  using Struct = RankSetShm;
  static constexpr LayoutField all[] = {PS_FIELD(bits)};
};

template <>
struct LayoutFields<BarrierEntryShm> {
  using Struct = BarrierEntryShm;
  static constexpr LayoutField all[] = {
      PS_FIELD(active_from),   PS_FIELD(published), PS_FIELD(generation), PS_FIELD(proposal), PS_FIELD(proposed),
      PS_FIELD(learning_rate), PS_FIELD(clip_norm), PS_FIELD(included),   PS_FIELD(changed),  PS_FIELD(reserved)};
};

template <>
struct LayoutFields<WorkerShm> {
  using Struct = WorkerShm;
  static constexpr LayoutField all[] = {
      PS_FIELD(state),       PS_FIELD(pid),      PS_FIELD(holders),    PS_FIELD(joined_ns), PS_FIELD(left_ns),
      PS_FIELD(waiting_for), PS_FIELD(pad0),     PS_FIELD(waiting_on), PS_FIELD(clock),     PS_FIELD(examples_offset),
      PS_FIELD(pad1),        PS_FIELD(barriers), PS_FIELD(counters),   PS_FIELD(pushing),   PS_FIELD(push_ns),
      PS_FIELD(staleness)};
};

template <>
struct LayoutFields<VariableShm> {
  using Struct = VariableShm;
  static constexpr LayoutField all[] = {PS_FIELD(claim),
                                        PS_FIELD(dtype),
                                        PS_FIELD(rule),
                                        PS_FIELD(layout),
                                        PS_FIELD(flags),
                                        PS_FIELD(axes),
                                        PS_FIELD(shard),
                                        PS_FIELD(buffer_class),
                                        PS_FIELD(extents),
                                        PS_FIELD(elements),
                                        PS_FIELD(slots),
                                        PS_FIELD(piece_elements),
                                        PS_FIELD(pieces),
                                        PS_FIELD(first_chunk),
                                        PS_FIELD(words_offset),
                                        PS_FIELD(data_offset),
                                        PS_FIELD(spares_offset),
                                        PS_FIELD(shard_end),
                                        PS_FIELD(gradient_offset),
                                        PS_FIELD(gradient_end),
                                        PS_FIELD(name),
                                        PS_FIELD(part),
                                        PS_FIELD(parts),
                                        PS_FIELD(part_begin),
                                        PS_FIELD(whole_elements),
                                        PS_FIELD(base),
                                        PS_FIELD(partition_by),
                                        PS_FIELD(row_elements),
                                        PS_FIELD(row_floats),
                                        PS_FIELD(row_counts_offset),
                                        PS_FIELD(init),
                                        PS_FIELD(reserve),
                                        PS_FIELD(pad1)};
};

template <>
struct LayoutFields<PieceWordShm> {
  using Struct = PieceWordShm;
  static constexpr LayoutField all[] = {PS_FIELD(word), PS_FIELD(pad0), PS_FIELD(wanted), PS_FIELD(lost_swaps),
                                        PS_FIELD(pad1)};
};

template <>
struct LayoutFields<BufferHeaderShm> {
  using Struct = BufferHeaderShm;
  static constexpr LayoutField all[] = {PS_FIELD(stamp),  PS_FIELD(included_steps), PS_FIELD(writer_step),
                                        PS_FIELD(writer), PS_FIELD(pad0),           PS_FIELD(contributors)};
};

template <>
struct LayoutFields<SpareShm> {
  using Struct = SpareShm;
  static constexpr LayoutField all[] = {PS_FIELD(record), PS_FIELD(note_chunk), PS_FIELD(note_word),
                                        PS_FIELD(note_gain)};
};

template <>
struct LayoutFields<SpareTableShm> {
  using Struct = SpareTableShm;
  static constexpr LayoutField all[] = {PS_FIELD(spares)};
};

template <>
struct LayoutFields<SharedDataShm> {
  using Struct = SharedDataShm;
  static constexpr LayoutField all[] = {PS_FIELD(bytes), PS_FIELD(key_bytes), PS_FIELD(key)};
};

template <>
struct LayoutFields<BundleShm> {
  using Struct = BundleShm;
  static constexpr LayoutField all[] = {PS_FIELD(tensors), PS_FIELD(subscribers), PS_FIELD(records), PS_FIELD(pad0),
                                        PS_FIELD(reserved)};
};

template <>
struct LayoutFields<NewestShm> {
  using Struct = NewestShm;
  static constexpr LayoutField all[] = {PS_FIELD(newest),     PS_FIELD(ended), PS_FIELD(pid),
                                        PS_FIELD(publishers), PS_FIELD(busy),  PS_FIELD(written_bytes),
                                        PS_FIELD(reserved)};
};

template <>
struct LayoutFields<WaitersShm> {
  using Struct = WaitersShm;
  static constexpr LayoutField all[] = {PS_FIELD(futex), PS_FIELD(reserved)};
};

template <>
struct LayoutFields<SubscriberShm> {
  using Struct = SubscriberShm;
  static constexpr LayoutField all[] = {PS_FIELD(leases), PS_FIELD(pid), PS_FIELD(pad0), PS_FIELD(joined_ns),
                                        PS_FIELD(reserved)};
};

template <>
struct LayoutFields<TensorShm> {
  using Struct = TensorShm;
  static constexpr LayoutField all[] = {PS_FIELD(offset), PS_FIELD(stride),  PS_FIELD(bytes), PS_FIELD(dtype),
                                        PS_FIELD(axes),   PS_FIELD(extents), PS_FIELD(name),  PS_FIELD(reserved)};
};

template <>
struct LayoutFields<RecordShm> {
  using Struct = RecordShm;
  static constexpr LayoutField all[] = {PS_FIELD(stamp), PS_FIELD(step), PS_FIELD(unix_ns), PS_FIELD(changed),
                                        PS_FIELD(reserved)};
};

#undef PS_FIELD

// Whether the list is all of the structure: each field begins where the one before ends, and the last one ends it.
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

// Two binaries with different fingerprints refuse each other's segments. tests/check_asserts.py finds a structure that
// is missing here.
consteval std::uint64_t layout_fingerprint() {
  LayoutHash hash;
  hash.mix_fields<HeaderShm, SettingsShm, LiveShm, BarrierShm, CutShm, JobStateShm, EventShm, RankSetShm,
                  BarrierEntryShm, WorkerShm, VariableShm, PieceWordShm, BufferHeaderShm, SpareShm, SpareTableShm,
                  SharedDataShm, BundleShm, NewestShm, WaitersShm, SubscriberShm, TensorShm, RecordShm>();
  const std::uint64_t facts[] = {kLayoutVersion,     kArithmeticVersion,
                                 kMaxRanks,          kMaxShards,
                                 kMaxVariables,      kMaxAxes,
                                 kMinClass,          kMaxClass,
                                 kSparesPerClass,    kBarriers,
                                 kLiveRecords,       kLifeEvents,
                                 kDecisions,         kCounters,
                                 kStalenessBuckets,  kSettingsOffset,
                                 kStateOffset,       kIndexOffset,
                                 kEventsOffset,      kRecordsAtOnce,
                                 kWorkersOffset,     kSparesOffset,
                                 kPushedOffset,      kNormOffset,
                                 kGradientsOffset,   kSharedRecordOffset,
                                 kSharedDataOffset,  kBundleOffset,
                                 kNewestOffset,      kWaitersOffset,
                                 kSubscribersOffset, kLeases};
  for (const std::uint64_t fact : facts) hash.mix(fact);
  return hash.value();
}
inline constexpr std::uint64_t kFingerprint = layout_fingerprint();

}  // namespace ps::shm
