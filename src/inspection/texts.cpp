#include "inspection/texts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "config/live_rows.hpp"
#include "shm/steps/ssp_clock.hpp"

namespace ps_shm {
namespace {

using namespace shm;
using States = std::vector<WorkerState>;

// Which workers a worker in round `round` of barrier `which` waits for; empty if none is missing.
std::string awaited(const JobSegments& job, std::uint32_t which, std::uint64_t round, const States& states) {
  std::vector<std::uint32_t> missing;
  std::uint32_t joined = 0;
  for (std::uint32_t rank = 0; rank < states.size(); ++rank) {
    joined += states[rank] != WorkerState::kNever;
    const BarrierEntryShm& entry = job.worker(rank).barriers[which];
    if (states[rank] == WorkerState::kAlive && entry.published.load_acquire() != round + 1 &&  // (barrier.A2)
        entry.active_from.load_acquire() <= round)                                             // (barrier.A2)
      missing.push_back(rank);
  }
  if (!missing.empty()) return fmt::format(": {} {}", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
  const std::uint32_t workers = job.config().workers;
  return round == job.first_round(which) && joined < workers ? fmt::format(": {} more to join", workers - joined)
                                                             : std::string();
}

// Which workers a worker with that ssp clock waits for.
std::string slower(const JobSegments& job, std::uint64_t clock, std::uint64_t bound, const States& states) {
  std::vector<std::string> slow;
  const std::uint64_t mine = SspClock::steps_of(clock);
  for (std::uint32_t rank = 0; rank < states.size(); ++rank) {
    const std::uint64_t other = job.worker(rank).clock.load_acquire(), theirs = SspClock::steps_of(other);  // (ssp.C4)
    if (states[rank] == WorkerState::kAlive && SspClock::epoch_of(other) == SspClock::epoch_of(clock) &&
        mine > theirs && mine - theirs > bound)
      slow.push_back(fmt::format("rank {} ({} steps behind)", rank, mine - theirs));
  }
  return fmt::format("{}", fmt::join(slow, ", "));
}

// Empty if there is none.
std::string name_at(const JobSegments& job, std::uint64_t position) {
  if (position >= kMaxVariables) return {};
  const std::uint32_t number = job.index(static_cast<std::uint32_t>(position)).load_acquire();  // (directory.D1)
  if (number == 0 || !job.has_records(number)) return {};
  const char* name = job.record(number - 1).name;
  return std::string(name, strnlen(name, sizeof VariableShm::name));
}

std::string change_text(const EventRecord& change) {
  std::string text = "something unknown";
  config::for_each_live([&](const auto& row) {
    if (static_cast<std::uint32_t>(row.key) != change.rank) return;
    LiveSettings before, after;
    config::set_from_word(before.*row.live, change.first);
    config::set_from_word(after.*row.live, change.second);
    text = fmt::format("{}: {} -> {}", row.name, config::show_live(row, before, 6), config::show_live(row, after, 6));
  });
  return text;
}

constexpr std::pair<EventKind, const char*> kEventNames[] = {
    {EventKind::kJoined, "joined"},   {EventKind::kLeft, "left"},
    {EventKind::kDied, "died"},       {EventKind::kInitialised, "initialised"},
    {EventKind::kSet, "set"},         {EventKind::kShortQuorum, "short-quorum"},
    {EventKind::kEnded, "ended"},     {EventKind::kDecided, "decided"},
    {EventKind::kTaskDied, "died"},   {EventKind::kLeftOut, "left-out"},
    {EventKind::kAdopted, "adopted"}, {EventKind::kUnregistered, "unregistered"},
};

std::string end_text(const EventRecord& record) {
  switch (static_cast<JobEnd>(record.first)) {
    case JobEnd::kAllLeft:
      return "all workers have left: the ps ended the job";
    case JobEnd::kLingerOver:
      return "no more workers joined: the ps ended the job";
    default:
      return "the ps was asked to end the job";
  }
}

}  // namespace

std::string waiting_text(const JobSegments& job, std::uint32_t rank, const std::vector<WorkerState>& states) {
  const WorkerShm& entry = job.worker(rank);
  const auto what = static_cast<WaitingFor>(entry.waiting_for.load_acquire());  // (waiting.W3)
  const std::uint64_t on = entry.waiting_on.load_relaxed();                     // relaxed: diagnostic only
  switch (what) {
    case WaitingFor::kNothing:
      return {};
    case WaitingFor::kInitialised: {
      const std::string name = name_at(job, on);
      return name.empty() ? "a variable to be initialised" : fmt::format("variable {} to be initialised", name);
    }
    case WaitingFor::kStep:
      return fmt::format("step {}{}", on, awaited(job, 0, on, states));
    case WaitingFor::kBarrier:
      return fmt::format("barrier {}{}", on, awaited(job, 1, on, states));
    case WaitingFor::kClock: {
      const std::string whom = slower(job, entry.clock.load_acquire(), on, states);  // (ssp.C4)
      return whom.empty() ? "the slowest to be within the bound" : whom;
    }
    case WaitingFor::kSnapshotPoint: {
      std::vector<std::uint32_t> pushing;
      for (std::uint32_t other = 0; other < job.ranks(); ++other) {
        const std::uint64_t epoch = job.worker(other).pushing.load_relaxed();  // relaxed: diagnostic only
        if (epoch != 0 && epoch <= on && states[other] == WorkerState::kAlive) pushing.push_back(other);
      }
      return fmt::format("snapshot {}{}", on,
                         pushing.empty() ? ""
                                         : fmt::format(", for the push of rank{} {}", pushing.size() == 1 ? "" : "s",
                                                       fmt::join(pushing, ", ")));
    }
    case WaitingFor::kData:
      return "the shared data to be loaded";
    case WaitingFor::kVariable:
      return "a variable to be declared";
    case WaitingFor::kOthersLeft:
      return "the other workers to leave";
    case WaitingFor::kGpu:
      return "gpu";
  }
  return "something unknown";
}

std::string forgotten_text(std::uint32_t rank, std::uint64_t used, std::uint64_t dropped) {
  const std::uint64_t all = used + dropped;
  if (10 * dropped <= 9 * all) return {};
  return fmt::format("worker {}: {} of its {} gradients were dropped", rank, dropped, all);
}

std::vector<std::string> event_kinds() {
  std::vector<std::string> kinds;
  for (const auto& [kind, name] : kEventNames)
    if (std::find(kinds.begin(), kinds.end(), name) == kinds.end()) kinds.emplace_back(name);
  return kinds;
}

Event describe_event(const JobSegments& job, const EventRecord& record) {
  Event event;
  event.unix_ns = record.unix_ns;
  event.step = record.step;
  for (const auto& [kind, name] : kEventNames)
    if (kind == record.kind) event.kind = name;
  const auto about_rank = [&](std::string text) {
    event.rank = record.rank;
    event.text = std::move(text);
  };
  switch (record.kind) {
    case EventKind::kJoined:
      about_rank(fmt::format("worker {} (process {}) joined", record.rank, record.first));
      break;
    case EventKind::kLeft:
      about_rank(fmt::format("worker {} left", record.rank));
      break;
    case EventKind::kDied:
      about_rank(fmt::format("worker {} (process {}) died", record.rank, record.first));
      break;
    case EventKind::kTaskDied:
      event.text = fmt::format("ps task {} (process {}) died", record.rank, record.first);
      break;
    case EventKind::kInitialised:
      about_rank(fmt::format("worker {} initialised variable {}", record.rank, name_at(job, record.first)));
      break;
    case EventKind::kSet:
      event.text = change_text(record);
      break;
    case EventKind::kShortQuorum:
      event.text = fmt::format("step {} closes with {} of the quorum of {}: no more are alive", record.step,
                               record.first, record.second);
      break;
    case EventKind::kLeftOut:
      about_rank(fmt::format("step {} goes on without worker {}: worker {} has waited long enough", record.step,
                             record.rank, record.first));
      break;
    case EventKind::kAdopted:
      event.text = fmt::format("process {} took the job over: ps number {}", record.first, record.second);
      break;
    case EventKind::kUnregistered:
      about_rank(
          fmt::format("worker {}'s GPU copies through the host: CUDA has refused to register the "
                      "shards' memory",
                      record.rank));
      break;
    case EventKind::kEnded:
      event.text = end_text(record);
      break;
    case EventKind::kDecided: {
      for (std::uint32_t rank = 0; rank < kMaxRanks; ++rank)
        if (record.ranks.contains(rank)) event.ranks.push_back(rank);
      about_rank(fmt::format("step {}: the gradients of {} {}", record.step, event.ranks.size() == 1 ? "rank" : "ranks",
                             fmt::join(event.ranks, ", ")));
      break;
    }
  }
  return event;
}

}  // namespace ps_shm
