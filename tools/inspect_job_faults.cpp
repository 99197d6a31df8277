// What is wrong with single jobs: who is dead, stopped or starving, what nobody does, values that are no numbers.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inspect_findings.hpp"
#include "inspect_processes.hpp"
#include "ps/errors.hpp"
#include "ps/job_view.hpp"
#include "shm/directory.hpp"
#include "shm/job_segments.hpp"
#include "shm/memory_policy.hpp"
#include "shm/validation.hpp"
#include "value_statistics.hpp"

namespace ps::inspect {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(400);

template <class List>
std::string joined(const List& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "worker" : "workers", fmt::join(ranks, ", "));
}

// Two looks at one job.
class JobFaults {
 public:
  JobFaults(std::string job, shm::JobSegments segments, Json& findings)
      : job_(std::move(job)), segments_(std::move(segments)), findings_(findings), view_(job_), info_(view_.info()) {
    for (const shm::LockHolder& holder : shm::lock_holders(segments_.control().descriptor()))
      for (std::uint32_t byte = holder.first; byte <= std::min(holder.last, shm::kLockBytes - 1); ++byte)
        holders_[byte] = holder.pid;
  }

  const std::string& job() const noexcept { return job_; }

  // Whether there is something for a second look.
  bool look() {
    before_ = view_.workers();
    uninitialised_before_ = uninitialised();
    find_dead();
    find_stopped();
    find_quorum();
    find_shards();
    find_odd_values();
    find_unregistered();
    return !uninitialised_before_.empty() || std::any_of(before_.begin(), before_.end(), is_alive);
  }

  void look_again() {
    find_starving(view_.workers());
    find_uninitialised();
  }

 private:
  static bool is_alive(const WorkerInfo& worker) { return worker.state == WorkerState::kAlive; }
  void add(const char* kind, std::string what, std::string todo) {
    add_finding(findings_, kind, job_, std::move(what), std::move(todo));
  }

  // As this container sees it; none: it is in another one.
  std::optional<std::uint32_t> process_at(std::uint32_t byte) const {
    const auto found = holders_.find(byte);
    return found == holders_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_stopped(std::uint32_t byte) const {
    const auto process = process_at(byte);
    const char state = process ? process_state(*process) : '\0';
    return state == 'T' || state == 't';
  }

  void find_dead() {
    for (const WorkerInfo& worker : before_)
      if (worker.state == WorkerState::kDead)
        add("dead-worker",
            fmt::format("worker {} (process {}) has died, after {} steps", worker.rank, worker.pid, worker.steps),
            fmt::format("start another in its place: worker_shm --job {} --rank {}; or launch with --restart-workers",
                        job_, worker.rank));
    for (std::size_t task = 0; task < info_.tasks.size(); ++task)
      if (!info_.tasks[task].is_alive)
        add("dead-ps",
            info_.tasks.size() == 1
                ? fmt::format("its ps (process {}) has died; its workers go on, and nobody notices the next death",
                              info_.tasks[task].pid)
                : fmt::format("ps task {} (process {}) has died", task, info_.tasks[task].pid),
            fmt::format("take it over: ps_shm --job {} --adopt{}", job_,
                        info_.tasks.size() == 1 ? "" : fmt::format(" --task {}", task)));
  }

  void find_stopped() {
    for (const WorkerInfo& worker : before_) {
      if (!is_alive(worker) || !is_stopped(shm::kRankByte + worker.rank)) continue;
      const std::uint32_t pid = *process_at(shm::kRankByte + worker.rank);
      std::vector<std::uint32_t> waiting;
      for (const WorkerInfo& other : before_)
        if (is_alive(other) && !other.waiting_for.empty() && !is_stopped(shm::kRankByte + other.rank))
          waiting.push_back(other.rank);
      add("stopped-worker",
          fmt::format("worker {} (process {}) is stopped, by a signal or a debugger{}", worker.rank, pid,
                      waiting.empty()
                          ? ""
                          : fmt::format("; meanwhile {} wait{}", joined(waiting), waiting.size() == 1 ? "s" : "")),
          fmt::format("kill -CONT {0} lets it go on; kill -9 {0} ends it, and the others go on without it", pid));
    }
    for (std::uint32_t task = 0; task < info_.tasks.size(); ++task)
      if (info_.tasks[task].is_alive && is_stopped(shm::kTaskByte + task)) {
        const std::uint32_t pid = *process_at(shm::kTaskByte + task);
        add("stopped-ps", fmt::format("its ps (process {}) is stopped: nobody notices a death, or the job's end", pid),
            fmt::format("kill -CONT {0} lets it go on; after kill -9 {0}, ps_shm --job {1} --adopt takes the job over",
                        pid, job_));
      }
  }

  void find_quorum() {
    const auto alive = static_cast<std::uint32_t>(std::count_if(before_.begin(), before_.end(), is_alive));
    if (info_.live.mode != Mode::kSync || info_.finished || alive == 0 || info_.live.quorum <= alive) return;
    const bool have_all_come = before_.size() >= info_.config.workers;
    if (!have_all_come && segments_.state().short_quorum.load_relaxed() == 0) return;  // relaxed: a figure for people
    add("unmet-quorum",
        fmt::format("its quorum of {} can't be met: {} alive; steps close with fewer gradients than were asked for",
                    info_.live.quorum, alive == 1 ? "one worker is" : fmt::format("{} workers are", alive)),
        fmt::format("start more workers, or inspect_shm set --job {} quorum={}", job_, alive));
  }

  // Who has done nothing between the looks, while others did a lot.
  void find_starving(const std::vector<WorkerInfo>& now) {
    constexpr std::uint64_t kMany = 20;
    std::map<std::uint32_t, std::uint64_t> steps;  // of the living
    std::uint64_t most = 0;
    for (const WorkerInfo& worker : now)
      for (const WorkerInfo& old : before_)
        if (old.rank == worker.rank && old.holders == worker.holders && is_alive(old) && is_alive(worker)) {
          steps[worker.rank] = worker.steps - old.steps;
          most = std::max(most, worker.steps - old.steps);
        }
    if (most < kMany) return;
    for (const WorkerInfo& worker : now) {
      const auto found = steps.find(worker.rank);
      if (found == steps.end() || found->second != 0 || !worker.waiting_for.empty() ||
          is_stopped(shm::kRankByte + worker.rank))
        continue;
      const auto old =
          std::find_if(before_.begin(), before_.end(), [&](const WorkerInfo& w) { return w.rank == worker.rank; });
      const auto process = process_at(shm::kRankByte + worker.rank);
      const char state = process ? process_state(*process) : '\0';
      const std::uint64_t retries = worker.push_retries - old->push_retries;
      std::string why = "its own work, or its data, is slow";
      std::string todo = "look at what it does: a profiler, or py-spy, on that process";
      if (retries > kMany)
        why = fmt::format("it has lost {} swaps to others meanwhile", retries),
        todo = "give it a core of its own, or use larger batches, so that pushes come less often";
      else if (state == 'R')
        why = "it is ready to run, and gets no core or computes for long",
        todo = "start no more workers than there are cores; look at nice values and CPU limits";
      else if (state == 'D')
        why = "it waits for a disk or a device", todo = "look at the disk or device that its data is on";
      add("starving-worker",
          fmt::format("worker {} (process {}) has done no step in {} ms, in which another one did {}: {}", worker.rank,
                      worker.pid, kBetweenLooks.count(), most, why),
          todo);
    }
  }

  std::map<std::string, std::uint64_t> uninitialised() {
    std::map<std::string, std::uint64_t> all;
    for (const shm::CheckedRecord& record : shm::copy_records(segments_))
      if (record->base == 0 && record->init.load_relaxed() != shm::kInitialised)  // relaxed: a copy's
        all.emplace(shm::text_of(record->name), record->init.load_relaxed());
    return all;
  }

  void find_uninitialised() {
    for (const auto& [name, claim] : uninitialised()) {
      if (uninitialised_before_.count(name) == 0) continue;  // it has just come
      std::vector<std::uint32_t> waiting;
      for (const WorkerInfo& worker : view_.workers())
        if (is_alive(worker) && worker.waiting_for.find(fmt::format("variable {} ", name)) == 0)
          waiting.push_back(worker.rank);
      const auto byte = static_cast<std::uint32_t>(claim & 0xffff);  // + 1
      const bool is_busy = byte > shm::kRankByte && segments_.locks().is_held_by_other(byte - 1);
      const std::string who =
          is_busy ? fmt::format("worker {} has begun to, and has not finished", byte - 1 - shm::kRankByte)
                  : "nobody is about to";
      add("uninitialised-variable",
          fmt::format("variable {} has no values yet: {}{}", name, who,
                      waiting.empty()
                          ? ""
                          : fmt::format("; {} wait{} for it", joined(waiting), waiting.size() == 1 ? "s" : "")),
          is_busy ? fmt::format("look at what worker {} does", byte - 1 - shm::kRankByte)
                  : "let a worker declare it with its initial values");
    }
  }

  void find_shards() {
    constexpr std::uint64_t kWorthIt = 1 << 20;
    std::vector<std::uint64_t> bytes(info_.tasks.size());
    for (const VariableInfo& variable : view_.variables())
      for (const PartInfo& part : variable.parts) bytes.at(part.shard) += part.bytes + part.slot_bytes;
    std::uint64_t sum = 0;
    for (const std::uint64_t one : bytes) sum += one;
    const auto largest = std::max_element(bytes.begin(), bytes.end());
    if (bytes.size() > 1 && *largest >= kWorthIt && 2 * *largest * bytes.size() > 3 * sum)
      add("unbalanced-shards",
          fmt::format("shard {} has {:.0f} % of the values' bytes, of {} shards", largest - bytes.begin(),
                      100 * double(*largest) / double(sum), bytes.size()),
          "start the job with --placement greedy, or --placement partition, which cuts large variables");
    for (std::uint32_t shard = 0; shard < info_.tasks.size(); ++shard) {
      const int node = info_.tasks[shard].node;
      if (node < 0) continue;
      const std::uint64_t used =
          std::min<std::uint64_t>(info_.tasks[shard].used_bytes, segments_.shard(shard).usable_bytes());
      const double others =
          shm::share_on_other_nodes(segments_.shard_data(shard), used, static_cast<std::uint32_t>(node));
      if (others > 0.1)
        add("wrong-node", fmt::format("{:.0f} % of shard {}'s memory is not on its node {}", 100 * others, shard, node),
            fmt::format("make room on node {} (numactl --hardware shows it), and start the job anew", node));
    }
  }

  void find_odd_values() {
    constexpr std::uint64_t kMost = 1 << 20;  // some milliseconds
    for (const VariableInfo& variable : view_.variables()) {
      if (!variable.initialised) continue;
      const ValueStatistics found = statistics_of(view_, variable, kMost);
      if (found.nans + found.infinites == 0) continue;
      add("not-finite",
          fmt::format("variable {} has {} NaN and {} infinities in {} values{}", variable.name, found.nans,
                      found.infinites, found.looked_at, found.is_sampled() ? " that were looked at" : ""),
          "go on from a checkpoint, with --on-nan stop or restore; doctor --nan-watch says who brings the next one");
    }
  }

  // Of ranks' holders that are alive: what came before the last one joined is of others.
  void find_unregistered() {
    std::map<std::uint32_t, bool> ranks;
    for (const Event& event : view_.events())
      if (event.rank && (event.kind == "joined" || event.kind == "unregistered"))
        ranks[*event.rank] = event.kind == "unregistered";
    for (const WorkerInfo& worker : before_)
      if (is_alive(worker) && ranks[worker.rank])
        add("unregistered-gpu",
            fmt::format(
                "worker {} (process {}) has a GPU that copies through the host, which is slower: CUDA has refused "
                "to register the shards' memory",
                worker.rank, worker.pid),
            "the worker's first lines on stderr have the driver's reason; often it is a limit on locked memory, of the "
            "container or by ulimit -l");
  }

  const std::string job_;
  shm::JobSegments segments_;
  Json& findings_;
  const JobView view_;
  const JobInfo info_;
  std::map<std::uint32_t, std::uint32_t> holders_;  // of lock bytes, as processes that are seen here
  std::vector<WorkerInfo> before_;
  std::map<std::string, std::uint64_t> uninitialised_before_;
};

}  // namespace

void find_job_faults(const Json& examined, Json& findings) {
  std::vector<std::unique_ptr<JobFaults>> jobs;
  bool has_living = false;
  const auto guarded = [&](const std::string& job, const auto& look) {
    try {
      look();
    } catch (const Error& error) {
      add_finding(findings, "damaged-job", job, error.what(),
                  fmt::format("end its processes, then inspect_shm rm --force --job {}", job));
    }
  };
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"], state = row["state"];
    if (state != "live" && state != "orphaned") continue;
    guarded(job, [&] {
      shm::AttachOutcome outcome;
      auto segments = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
      if (!segments) return;  // it has gone meanwhile
      auto faults = std::make_unique<JobFaults>(job, std::move(*segments), findings);
      if (faults->look()) jobs.push_back(std::move(faults)), has_living = true;
    });
  }
  if (!has_living) return;
  std::this_thread::sleep_for(kBetweenLooks);
  for (const auto& faults : jobs) guarded(faults->job(), [&] { faults->look_again(); });
}

}  // namespace ps::inspect
