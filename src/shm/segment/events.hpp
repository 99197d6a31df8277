// Two rings of events: the life of the job (joins, deaths, changed settings) and the decisions of sync steps.
// Diagnostic only.
//
//   write   events.E1 ticket = tickets++                       the ring entry is the ticket modulo the ring's length
//           events.E2 sequence: an older, complete one -> building | ticket + 1, acq_rel; fence release. If that fails,
//                     or the entry is still being built: the next ticket. A writer that died here makes the ring
//                     one entry shorter
//           events.E3 the fields, relaxed
//           events.E4 sequence = ticket + 1, release
//   read    events.E5 sequence, acquire; the fields; fence acquire; the same sequence again
//                     pairs with events.E2, events.E4
// Progress: writing is wait-free (a writer gives up after some tickets), and so is reading.
#pragma once

#include <cstdint>
#include <vector>

#include "shm/segment/job_segments.hpp"
#include "shm/segment/rank_set.hpp"

namespace ps_shm::shm {

enum class EventKind : std::uint32_t {
  kJoined = 1,         // rank; first: pid
  kLeft = 2,           // rank
  kDied = 3,           // rank; first: pid
  kInitialised = 4,    // rank; first: position of the variable
  kSet = 5,            // rank: the config::LiveKey; first, second: its words before and after
  kShortQuorum = 6,    // first: alive, second: quorum
  kEnded = 7,          // first: the JobEnd
  kDecided = 8,        // rank: the proposer; ranks: the contributors
  kTaskDied = 9,       // rank: the ps task; first: pid
  kLeftOut = 10,       // rank: the one left out; first: the rank that had waited long enough
  kAdopted = 11,       // first: pid of the ps; second: how many have served the job now
  kUnregistered = 12,  // rank: the worker's GPU copies through the host, as CUDA has refused to register the shards
};

struct EventRecord {
  EventKind kind = EventKind::kJoined;
  std::uint32_t rank = 0;
  std::uint64_t step = 0, first = 0, second = 0;
  RankSet ranks{};
  std::uint64_t unix_ns = 0;  // filled when it is recorded
};

void record_event(JobSegments& job, const EventRecord& event) noexcept;

// Complete events of both rings in the order of their times.
std::vector<EventRecord> read_events(const JobSegments& job);

}  // namespace ps_shm::shm
