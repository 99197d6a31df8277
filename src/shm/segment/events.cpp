#include "shm/segment/events.hpp"

#include <algorithm>
#include <span>

#include "shm/base/clock.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kBuildingEvent = std::uint64_t{1} << 63;

struct Ring {
  AtomicShm<std::uint64_t>& tickets;
  std::span<EventShm> places;
};

Ring ring_of(const JobSegments& job, bool decisions) noexcept {
  return {job.state().event_tickets[decisions],
          decisions ? std::span(&job.event(kLifeEvents), kDecisions) : std::span(&job.event(0), kLifeEvents)};
}

bool try_read(const EventShm& place, EventRecord& out) noexcept {
  const std::uint64_t sequence = place.sequence.load_acquire();  // (events.E5) pairs with events.E4
  if (sequence == 0 || (sequence & kBuildingEvent) != 0) return false;
  out.kind = static_cast<EventKind>(place.kind.load_relaxed());  // relaxed, as all below: the sequence is checked
  out.rank = place.rank.load_relaxed();
  out.step = place.step.load_relaxed();
  out.first = place.first.load_relaxed();
  out.second = place.second.load_relaxed();
  for (std::size_t i = 0; i < out.ranks.bits.size(); ++i) out.ranks.bits[i] = place.ranks[i].load_relaxed();
  out.unix_ns = place.unix_ns.load_relaxed();
  fence_acquire();  // (events.E5) pairs with events.E2
  return place.sequence.load_relaxed() == sequence;
}

}  // namespace

void record_event(JobSegments& job, const EventRecord& event) noexcept {
  constexpr int kTickets = 8;  // not so many adjacent writers will have died while writing
  const Ring ring = ring_of(job, event.kind == EventKind::kDecided);
  for (int attempt = 0; attempt < kTickets; ++attempt) {
    const std::uint64_t ticket = ring.tickets.fetch_add_acq_rel(1);  // (events.E1)
    fault_point(FaultPoint::kEventTicket);
    EventShm& place = ring.places[ticket % ring.places.size()];
    std::uint64_t sequence = place.sequence.load_acquire();  // (events.E2) pairs with events.E4
    if ((sequence & kBuildingEvent) != 0 || sequence > ticket ||
        !place.sequence.try_exchange_acq_rel(sequence, kBuildingEvent | (ticket + 1)))  // (events.E2)
      continue;
    fault_point(FaultPoint::kEventBuilding);
    fence_release();  // (events.E2) pairs with events.E5: a reader of a field of this event finds the sequence changed
    place.kind.store_relaxed(static_cast<std::uint32_t>(event.kind));
    place.rank.store_relaxed(event.rank);  // (events.E3) relaxed, as all fields: events.E4 carries them
    place.step.store_relaxed(event.step);
    place.first.store_relaxed(event.first);
    place.second.store_relaxed(event.second);
    for (std::size_t i = 0; i < event.ranks.bits.size(); ++i) place.ranks[i].store_relaxed(event.ranks.bits[i]);
    place.unix_ns.store_relaxed(unix_now_ns());
    fault_point(FaultPoint::kEventWritten);
    place.sequence.store_release(ticket + 1);  // (events.E4)
    return;
  }
}

std::vector<EventRecord> read_events(const JobSegments& job) {
  std::vector<EventRecord> events;
  for (const bool decisions : {false, true})
    for (const EventShm& place : ring_of(job, decisions).places)
      if (EventRecord event; try_read(place, event)) events.push_back(event);
  std::stable_sort(events.begin(), events.end(),
                   [](const EventRecord& a, const EventRecord& b) { return a.unix_ns < b.unix_ns; });
  return events;
}

}  // namespace ps_shm::shm
