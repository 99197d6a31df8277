// The bytes of a publication: a bundle of tensors in immutable generations, and the words through which publisher and
// subscribers coordinate (publication.hpp has the protocol).
//
// /ps_shm_publication.NAME   of fixed size; created by its first publisher, complete before it has a name
//
//   0        +---------------------+  written by                          read by
//            | HeaderShm           |  creator                             all
//   512      | BundleShm           |  creator                             all          the numbers T, N, K; bytes of a row
//   640      | NewestShm           |  publisher                           all          which generation is the newest
//   65536    | WaitersShm          |  waiting and waking processes        all          } the only pages that
//   65664    | SubscriberShm[N]    |  owner of the rank                   publisher    } subscribers can write
//            +---------------------+  65536-aligned
//            | RoundShm            |  leader                              writers      } only if a generation
//            | WriterShm[W]        |  the writer                          leader       } has several writers
//            +---------------------+  4096-aligned
//            | TensorShm[T]        |  creator                             all          name, dtype, shape, offset
//            | RecordShm, u16[T]   |  publisher                           all          K of them: each tensor's slot
//            +---------------------+  65536-aligned
//            | rows of slots       |  publisher                           all          K rows, 65536-aligned; row k is
//            +---------------------+                                                   slot k of each tensor, 128-aligned
//
// A generation is a record. A tensor that a generation does not change keeps its slot in the next record. Publishing
// therefore costs only the bytes that change, and each tensor is contiguous. At most K - 1 records in use name at most
// K - 1 slots of a tensor, so one of its K slots is free. A tensor without elements has no bytes, and slot 0 in each record.
//
// The file always has its full length, but slots take memory only when they are first written (publication.P14). Row 0
// has its memory from the start.
//
// Lock bytes are those of a job (layout.hpp): task 0's for the publisher, task w + 1's for writer w, rank r's for
// subscriber r, and the remover's. With several writers the publisher is the leader: the writer that holds its byte.
//
// A publisher that dies between two stores leaves a record that `newest` does not name and that nobody uses. A
// subscriber leaves leases. Each takes a record until the rank is used again or a publisher needs the record
// (publication.P2).
#pragma once

#include <cstddef>
#include <cstdint>

#include "shm/segment/layout.hpp"

namespace ps_shm::shm {

inline constexpr std::uint32_t kMaxTensors = 262144;  // the largest mixtures of experts have some 100,000
inline constexpr std::uint32_t kMaxSubscribers = kMaxRanks;
inline constexpr std::uint32_t kLeases = 2;  // for each subscriber: one to use while the next one is taken
inline constexpr std::uint32_t kMaxWriters = kMaxShards - 2;
inline constexpr std::uint32_t kPinnableRows = 64;  // the first ones, which are used first
inline constexpr std::uint32_t kMinRecords = 2;
inline constexpr std::uint32_t kMaxRecords = kMaxSubscribers * kLeases + 2;

// Plain fields, complete before the segment has a name.
struct alignas(kWriterLine) BundleShm {
  std::uint32_t tensors, subscribers, records, writers;
  std::uint64_t row_bytes;  // from one row of slots to the next
  std::uint64_t plan;       // with several writers: a hash of the slices of all of them
  std::uint8_t reserved[96];
};

// All of it is stored by the publisher alone.
struct alignas(kWriterLine) NewestShm {
  AtomicShm<std::uint64_t> newest;         // {generation : 48, record : 16}; 0: nothing yet (publication.P8)
  AtomicShm<std::uint32_t> ended;          // 1: the publisher has ended the publication (publication.P10)
  AtomicShm<std::uint32_t> pid;            // diagnostic only, as all below
  AtomicShm<std::uint64_t> publishers;     // number of owners of the publisher's byte so far
  AtomicShm<std::uint64_t> busy;           // publications that found every record leased
  AtomicShm<std::uint64_t> written_bytes;  // of tensors, by all publications
  std::uint8_t reserved[88];
};

struct alignas(kWriterLine) WaitersShm {
  AtomicShm<std::uint32_t> futex;            // where subscribers wait for a generation (waiting.W1)
  AtomicShm<std::uint32_t> acknowledgement;  // where the publisher waits for subscribers (waiting.W1)
  std::uint8_t reserved[120];
};

// One subscriber. Only the owner of its lock byte writes it (locks.L4).
struct alignas(kWriterLine) SubscriberShm {
  AtomicShm<std::uint64_t> leases[kLeases];  // record + 1; 0: none (publication.P4)
  AtomicShm<std::uint32_t> pid;              // 0: not used yet, or it has left; diagnostic only
  AtomicShm<std::uint32_t> pad0;
  AtomicShm<std::uint64_t> joined_ns;     // now_ns(); diagnostic only
  AtomicShm<std::uint64_t> acknowledged;  // the generation that it uses; 0: it has not said so (publication.P15)
  AtomicShm<std::uint64_t> pinned;        // rows whose memory it has pinned, as bits (publication.P16)
  std::uint8_t reserved[80];
};

// The generation that several writers fill. Only the leader stores the first two words.
struct alignas(kWriterLine) RoundShm {
  AtomicShm<std::uint64_t> round;    // {attempt : 47, open : 1, record : 16}; 0: none yet (round.R1)
  AtomicShm<std::uint64_t> step;     // of the generation
  AtomicShm<std::uint32_t> leader;   // where the leader waits for the writers (waiting.W1)
  AtomicShm<std::uint32_t> writers;  // where writers wait for the leader (waiting.W1)
  std::uint8_t reserved[104];
};

// One writer of several. Only the owner of its lock byte writes it.
struct alignas(kWriterLine) WriterShm {
  AtomicShm<std::uint64_t> done;  // the last attempt that it has written (round.R3)
  AtomicShm<std::uint32_t> pid;   // 0: not used yet, or it has left; diagnostic only
  AtomicShm<std::uint32_t> pad0;
  std::uint8_t reserved[112];
};

// Plain fields, complete before the segment has a name.
struct alignas(kWriterLine) TensorShm {
  std::uint64_t offset;  // of slot 0, which is in row 0
  std::uint64_t bytes;
  std::uint32_t dtype, axes;
  std::uint64_t extents[kMaxAxes];
  char name[128];
  std::uint8_t reserved[40];
};

// Followed by the slot numbers. A reader without a lease checks the stamp before and after it reads the rest.
struct alignas(kWriterLine) RecordShm {
  AtomicShm<std::uint64_t> stamp;    // its generation; 0: none, or it is being written (publication.P7)
  AtomicShm<std::uint64_t> step;     // the step that the publisher gave
  AtomicShm<std::uint64_t> unix_ns;  // when it was published
  AtomicShm<std::uint64_t> changed;  // number of tensors that it does not share with the previous generation
  AtomicShm<std::uint64_t> partial;  // 1: its publisher says that it has a part of an unfinished push
  std::uint8_t reserved[88];
};

inline constexpr std::uint64_t kGenerationBits = 48;
constexpr std::uint64_t make_newest(std::uint64_t generation, std::uint32_t record) noexcept {
  return generation << 16 | record;
}
constexpr std::uint64_t generation_of(std::uint64_t newest) noexcept { return newest >> 16; }
constexpr std::uint32_t record_of(std::uint64_t newest) noexcept { return static_cast<std::uint32_t>(newest & 0xffff); }

constexpr std::uint64_t make_round(std::uint64_t attempt, bool is_open, std::uint32_t record) noexcept {
  return attempt << 17 | std::uint64_t{is_open} << 16 | record;
}
constexpr std::uint64_t attempt_of(std::uint64_t round) noexcept { return round >> 17; }
constexpr bool is_open(std::uint64_t round) noexcept { return (round >> 16 & 1) != 0; }

inline constexpr std::size_t kBundleOffset = 512;
inline constexpr std::size_t kNewestOffset = kBundleOffset + sizeof(BundleShm);
inline constexpr std::size_t kWaitersOffset = kLargestPage;
inline constexpr std::size_t kSubscribersOffset = kWaitersOffset + sizeof(WaitersShm);

inline constexpr std::uint32_t kPublisherByte = kTaskByte;
inline constexpr std::uint32_t kWriterByte = kTaskByte + 1;  // + writer
inline constexpr std::uint32_t kSubscriberByte = kRankByte;  // + subscriber

// Where everything lies in a bundle. It all follows from these four numbers and the sizes of the tensors.
struct BundlePlaces {
  std::size_t round, tensors, records, record_stride, slots;

  constexpr BundlePlaces(std::uint32_t tensor_count, std::uint32_t subscriber_count, std::uint32_t record_count,
                         std::uint32_t writer_count) noexcept
      : round(round_up(kSubscribersOffset + subscriber_count * sizeof(SubscriberShm), kLargestPage)),
        tensors(writer_count == 0 ? round
                                  : round_up(round + sizeof(RoundShm) + writer_count * sizeof(WriterShm), kPage)),
        records(tensors + tensor_count * sizeof(TensorShm)),
        record_stride(sizeof(RecordShm) + round_up(tensor_count * sizeof(std::uint16_t), kWriterLine)),
        slots(round_up(records + record_count * record_stride, kLargestPage)) {}

  static constexpr std::size_t slot_bytes(std::size_t tensor_bytes) noexcept {
    return round_up(tensor_bytes, kWriterLine);
  }
};

// layout_fields.hpp lists every field and pins its offset; these are the facts that the code relies on.
static_assert(sizeof(BundleShm) == 128 && sizeof(NewestShm) == 128 && sizeof(WaitersShm) == 128 &&
                  sizeof(SubscriberShm) == 128 && sizeof(RoundShm) == 128 && sizeof(WriterShm) == 128 &&
                  sizeof(TensorShm) == 256 && sizeof(RecordShm) == 128,
              "the picture above is out of date");
static_assert(kBundleOffset >= sizeof(HeaderShm) && kNewestOffset + sizeof(NewestShm) <= kWaitersOffset,
              "two areas of a segment would overlap, or subscribers could write what is the publisher's");
static_assert(kMaxRecords < 0xffff, "a record would not fit into the word that names the newest");
static_assert(kWriterByte + kMaxWriters <= kRankByte, "a writer's byte would be a subscriber's");

}  // namespace ps_shm::shm
