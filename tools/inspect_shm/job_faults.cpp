// Findings about a single job: dead, stopped or starving processes, uninitialised variables, NaN values, tables by key.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/value_statistics.hpp"
#include "config/modes.hpp"
#include "inspect_shm/cells.hpp"
#include "inspect_shm/findings.hpp"
#include "inspect_shm/processes.hpp"
#include "inspection/tables.hpp"
#include "inspection/texts.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/base/process_state.hpp"
#include "shm/segment/directory.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/memory_policy.hpp"
#include "shm/segment/names.hpp"
#include "shm/table/table_segment.hpp"

namespace ps_shm::inspect {
namespace {

constexpr char kNotFiniteTodo[] =
    "resume from a checkpoint, with --on-nan stop or restore; doctor --nan-watch reports the next one";
constexpr auto kBetweenLooks = std::chrono::milliseconds(400);

template <class List>
std::string joined(const List& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "worker" : "workers", fmt::join(ranks, ", "));
}

// Two reads of one job; one read, if it is dead.
class JobFaults {
 public:
  JobFaults(std::string job, shm::JobSegments segments, Json& examined)
      : job_(std::move(job)),
        segments_(std::move(segments)),
        examined_(examined),
        view_(job_),
        info_(view_.info()),
        was_ended_(segments_.was_ended()) {
    for (const shm::LockHolder& holder : shm::lock_holders(segments_.control().descriptor()))
      for (std::uint32_t byte = holder.first; byte <= std::min(holder.last, shm::kLockBytes - 1); ++byte)
        holders_[byte] = holder.pid;
  }

  const std::string& job() const noexcept { return job_; }

  // Whether a second read is needed.
  bool look() {
    before_ = view_.workers();
    if (was_ended_)
      find_not_left();
    else
      find_dead(), uninitialised_before_ = uninitialised();
    find_stopped();
    find_quorum();
    find_forgotten();
    find_shards();
    find_odd_values();
    find_unregistered();
    find_odd_tables();
    find_full_tables();
    return !was_ended_ && (!uninitialised_before_.empty() || std::any_of(before_.begin(), before_.end(), is_alive));
  }

  // What a dead job leaves behind: its values, and what they lack. The other problems are those of living processes.
  void look_at_remains() {
    before_ = view_.workers();
    find_forgotten();
    find_odd_values();
    find_odd_tables();
  }

  void look_again() {
    find_starving(view_.workers());
    find_uninitialised();
  }

 private:
  static bool is_alive(const WorkerInfo& worker) { return worker.state == WorkerState::kAlive; }
  void add(const char* kind, std::string what, std::string todo) {
    add_finding(examined_, kind, job_, std::move(what), std::move(todo));
  }

  // As visible in this container; none: it is in another one.
  std::optional<std::uint32_t> process_at(std::uint32_t byte) const {
    const auto found = holders_.find(byte);
    return found == holders_.end() ? std::nullopt : std::optional(found->second);
  }
  bool is_stopped(std::uint32_t byte) const {
    const auto process = process_at(byte);
    return process && shm::is_stopped(*process);
  }

  void find_dead() {
    for (const WorkerInfo& worker : before_)
      if (worker.state == WorkerState::kDead)
        add("dead-worker",
            fmt::format("worker {} (process {}) has died, after {} steps", worker.rank, worker.pid, worker.steps),
            fmt::format("start a replacement: worker_shm --job {} --rank {}; or launch with --restart-workers", job_,
                        worker.rank));
    for (std::size_t task = 0; task < info_.tasks.size(); ++task)
      if (!info_.tasks[task].is_alive)
        add("dead-ps",
            info_.tasks.size() == 1
                ? fmt::format("its ps (process {}) has died; its workers continue, but further deaths go unnoticed",
                              info_.tasks[task].pid)
                : fmt::format("ps task {} (process {}) has died", task, info_.tasks[task].pid),
            fmt::format("take it over: ps_shm --job {} --adopt{}", job_,
                        info_.tasks.size() == 1 ? "" : fmt::format(" --task {}", task)));
  }

  // Of a job that was ended: workers that a ps no longer waits for. Neither a ps nor a replacement can join them.
  void find_not_left() {
    if (std::all_of(info_.tasks.begin(), info_.tasks.end(), [](const TaskInfo& task) { return task.is_alive; })) return;
    std::vector<std::uint32_t> visible;
    for (const WorkerInfo& worker : before_)
      if (const auto process = process_at(shm::kRankByte + worker.rank); process && is_alive(worker))
        visible.push_back(*process);
    const std::string living =
        std::any_of(before_.begin(), before_.end(), is_alive) ? shm::who_has(segments_) : std::string();
    if (living.empty()) return;
    add("not-left", fmt::format("its ps has ended the job, and {} not left it yet", living),
        fmt::format("wait, or end what is left of it{}; if the job is still there then, inspect_shm rm --job {} "
                    "removes it",
                    visible.empty() ? "" : fmt::format(" (kill -9 {})", fmt::join(visible, " ")), job_));
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
                          : fmt::format("; {} wait{} for it", joined(waiting), waiting.size() == 1 ? "s" : "")),
          fmt::format("kill -CONT {0} resumes it; kill -9 {0} ends it{1}", pid,
                      was_ended_ ? "" : ", and the others continue without it"));
    }
    for (std::uint32_t task = 0; task < info_.tasks.size(); ++task)
      if (info_.tasks[task].is_alive && is_stopped(shm::kTaskByte + task)) {
        const std::uint32_t pid = *process_at(shm::kTaskByte + task);
        add("stopped-ps",
            fmt::format("its ps (process {}) is stopped: {}", pid,
                        was_ended_ ? "it has ended the job, and does not remove it"
                                   : "deaths and the end of the job go unnoticed"),
            fmt::format("kill -CONT {0} resumes it; after kill -9 {0}, {1}", pid,
                        was_ended_ ? fmt::format("inspect_shm rm --job {} removes the job", job_)
                                   : fmt::format("ps_shm --job {} --adopt takes the job over", job_)));
      }
  }

  void find_quorum() {
    const auto alive = static_cast<std::uint32_t>(std::count_if(before_.begin(), before_.end(), is_alive));
    const bool is_over = info_.finished || was_ended_;
    if (!traits_of(info_.live.mode).has_quorum || is_over || alive == 0 || info_.live.quorum <= alive) return;
    const bool have_all_come = before_.size() >= info_.config.workers;
    if (!have_all_come && segments_.state().short_quorum.load_relaxed() == 0) return;  // relaxed: diagnostic only
    add("unmet-quorum",
        fmt::format("its quorum of {} cannot be met: {} alive; steps complete with fewer gradients than requested",
                    info_.live.quorum, alive == 1 ? "one worker is" : fmt::format("{} workers are", alive)),
        fmt::format("start more workers, or inspect_shm set --job {} quorum={}", job_, alive));
  }

  void find_forgotten() {
    for (const WorkerInfo& worker : before_)
      if (const std::string what = forgotten_text(worker.rank, worker.steps, worker.dropped); !what.empty())
        add("forgotten-worker", what + "; if it has data of its own, the model lacks what only it has seen",
            "if workers have data of their own, raise the quorum or --stale-limit, or choose --mode async "
            "without one");
  }

  // Workers that made no progress between the two reads, while others made much.
  void find_starving(const std::vector<WorkerInfo>& now) {
    constexpr std::uint64_t kMany = 20;
    std::map<std::uint32_t, std::uint64_t> steps;  // of live workers
    std::uint64_t most = 0;
    for (const WorkerInfo& worker : now)
      for (const WorkerInfo& old : before_)
        if (old.rank == worker.rank && old.owners == worker.owners && is_alive(old) && is_alive(worker)) {
          const std::uint64_t done = worker.steps + worker.dropped - old.steps - old.dropped;
          steps[worker.rank] = done;
          most = std::max(most, done);
        }
    if (most < kMany) return;
    for (const WorkerInfo& worker : now) {
      const auto found = steps.find(worker.rank);
      const bool has_silent_gpu = worker.waiting_for == "gpu";
      if (found == steps.end() || found->second != 0 || (!worker.waiting_for.empty() && !has_silent_gpu) ||
          is_stopped(shm::kRankByte + worker.rank))
        continue;
      const auto old =
          std::find_if(before_.begin(), before_.end(), [&](const WorkerInfo& w) { return w.rank == worker.rank; });
      const auto process = process_at(shm::kRankByte + worker.rank);
      const char state = process ? shm::process_state(*process) : '\0';
      const std::uint64_t retries = worker.push_retries - old->push_retries;
      std::string why = "its own work, or its data, is slow";
      std::string todo = "examine that process with a profiler, or with py-spy";
      if (has_silent_gpu)
        why = "its GPU has not answered for more than 10 s",
        todo = "look for messages of the driver (dmesg | grep Xid), and run it with --enqueue kernels";
      else if (retries > kMany)
        why = fmt::format("it lost {} compare-and-swaps to other workers meanwhile", retries),
        todo = "give it a core of its own, or use larger batches, so that pushes are less frequent";
      else if (state == 'R')
        why = "it is runnable, but gets no core, or its computation takes long",
        todo = "start no more workers than there are cores; check nice values and CPU limits";
      else if (state == 'D')
        why = "it waits for a disk or a device", todo = "check the disk or device that holds its data";
      add("starving-worker",
          fmt::format("worker {} (process {}) completed no step in {} ms, in which another worker completed {}: {}",
                      worker.rank, worker.pid, kBetweenLooks.count(), most, why),
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
      if (uninitialised_before_.count(name) == 0) continue;  // it is new
      std::vector<std::uint32_t> waiting;
      for (const WorkerInfo& worker : view_.workers())
        if (is_alive(worker) && worker.waiting_for.find(fmt::format("variable {} ", name)) == 0)
          waiting.push_back(worker.rank);
      const auto byte = static_cast<std::uint32_t>(claim & 0xffff);  // + 1
      const bool is_busy = byte > shm::kRankByte && segments_.locks().is_held_by_other(byte - 1);
      const std::string who = is_busy ? fmt::format("worker {} has started to initialise it, and has not finished",
                                                    byte - 1 - shm::kRankByte)
                                      : "no worker is initialising it";
      add("uninitialised-variable",
          fmt::format("variable {} has no values yet: {}{}", name, who,
                      waiting.empty()
                          ? ""
                          : fmt::format("; {} wait{} for it", joined(waiting), waiting.size() == 1 ? "s" : "")),
          is_busy ? fmt::format("check what worker {} is doing", byte - 1 - shm::kRankByte)
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
          "start the job with --placement greedy, or --placement partition, which divides large variables");
    for (std::uint32_t shard = 0; shard < info_.tasks.size(); ++shard) {
      const int node = info_.tasks[shard].node;
      if (node < 0) continue;
      const std::uint64_t used =
          std::min<std::uint64_t>(info_.tasks[shard].used_bytes, segments_.shard(shard).usable_bytes());
      const double others =
          shm::share_on_other_nodes(segments_.shard_data(shard), used, static_cast<std::uint32_t>(node));
      if (others > 0.1)
        add("wrong-node", fmt::format("{:.0f} % of shard {}'s memory is not on its node {}", 100 * others, shard, node),
            fmt::format("free memory on node {} (numactl --hardware shows it), and restart the job", node));
    }
  }

  void find_odd_values() {
    constexpr std::uint64_t kMost = 1 << 20;  // takes some milliseconds
    for (const VariableInfo& variable : view_.variables()) {
      if (!variable.initialised) continue;
      const ValueStatistics found = statistics_of(view_, variable, kMost);
      if (found.nans + found.infinites == 0) continue;
      add("not-finite",
          fmt::format("variable {} has {} NaN and {} infinities in {} values{}", variable.name, found.nans,
                      found.infinites, found.sampled, found.is_sampled() ? " that were sampled" : ""),
          kNotFiniteTodo);
    }
  }

  void find_odd_tables() {
    const char* const todo =
        "save what can be read of it with inspect_shm dump, and end the job: a table lives as long as it";
    try {
      for (const TableView& table : open_tables(segments_)) {
        const std::string name(shm::text_of(table.front().checked->name));
        if (const TableCensus rows = view_.count_rows(name); !rows.faults.empty())
          add("damaged-table",
              fmt::format("table {} is damaged: {}{}", name, rows.faults.front(),
                          rows.faults.size() == 1 ? "" : fmt::format("; and {} more", rows.faults.size() - 1)),
              todo);
        if (const OddRows found = find_odd_rows(segments_, table, 0); found.odd != 0)
          add("not-finite",
              fmt::format("table {} has NaN or infinities in {} of {} rows, first in key {}, element {}", name,
                          found.odd, found.sampled, found.key, found.element),
              kNotFiniteTodo);
      }
    } catch (const Error& error) {
      add("damaged-table", error.what(), todo);
    }
  }

  // Tables that have no room for new keys because /dev/shm has none, with fewer rows than they may have.
  void find_full_tables() {
    const std::uint64_t free = shm::shm_free_bytes();
    std::set<std::string> full;
    for (const shm::Segment& part : shm::find_tables(segments_)) {
      shm::TableShm checked = {};
      if (!shm::is_table(part, segments_, checked)) continue;
      const shm::TableShm& record = shm::table_record(part);
      const std::uint64_t next = record.rows_next.load_acquire();      // (table.A1)
      const std::uint64_t backed = record.rows_backed.load_acquire();  // (table.A1)
      const std::uint64_t end = std::min(next + shm::kRowsAtOnce, checked.max_rows);
      if (next >= end || end <= backed) continue;
      if ((shm::rows_to_back(end, checked.max_rows, checked.row_bytes) - backed) * checked.row_bytes > free)
        full.emplace(shm::text_of(checked.name));
    }
    if (full.empty()) return;
    for (const TableInfo& table : view_.tables()) {
      const TableStatistics& counts = table.statistics;
      const bool refuses = table.spec.evict == Evict::kNone;
      const std::uint64_t times = refuses ? counts.refused : counts.evicted - std::min(counts.evicted, counts.expired);
      if (full.count(table.spec.name) == 0 || times == 0) continue;
      add("full-table",
          fmt::format("table {} has {} of at most {} rows, and /dev/shm has no memory for more ({} are free), so {}",
                      table.spec.name, counts.rows, counts.max_rows, bytes_as_text(free),
                      refuses ? fmt::format("it has dropped {} pushes of new keys", times)
                              : fmt::format("it has evicted {} rows to make room for others", times)),
          fmt::format("give /dev/shm more memory (mount -o remount,size=SIZE /dev/shm; docker run --shm-size=SIZE), or "
                      "declare the table with dtype bfloat16, or with as many rows as fit (max_rows, --max-rows){}",
                      refuses ? "; if it evicts instead of refusing (--evict lfu), new keys still get rows" : ""));
    }
  }

  // For live owners of ranks: events before the last one joined are of predecessors.
  void find_unregistered() {
    std::map<std::uint32_t, bool> ranks;
    for (const Event& event : view_.events())
      if (event.rank && (event.kind == "joined" || event.kind == "unregistered"))
        ranks[*event.rank] = event.kind == "unregistered";
    for (const WorkerInfo& worker : before_)
      if (is_alive(worker) && ranks[worker.rank])
        add("unregistered-gpu",
            fmt::format("worker {} (process {}) has a GPU that copies through the host, which is slower: CUDA refused "
                        "to register the shards' memory",
                        worker.rank, worker.pid),
            "the worker's first lines on stderr contain the driver's reason; often it is a limit on locked memory, of "
            "the "
            "container or of ulimit -l");
  }

  const std::string job_;
  shm::JobSegments segments_;
  Json& examined_;
  const JobView view_;
  const JobInfo info_;
  const bool was_ended_;                            // read after info_: a ps that ends the job is alive meanwhile
  std::map<std::uint32_t, std::uint32_t> holders_;  // of lock bytes, as processes visible here
  std::vector<WorkerInfo> before_;
  std::map<std::string, std::uint64_t> uninitialised_before_;
};

}  // namespace

void find_job_faults(Json& examined) {
  std::vector<std::unique_ptr<JobFaults>> jobs;
  bool has_living = false;
  const auto guarded = [&](const std::string& job, bool is_dead, const auto& look) {
    try {
      look();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kNotFound) return;  // it is gone meanwhile
      add_finding(examined, "damaged-job", job, error.what(),
                  fmt::format("{}inspect_shm rm --force --job {}", is_dead ? "" : "end its processes, then ", job));
    }
  };
  for (const Json& row : examined["jobs"]) {
    const std::string job = row["job"], state = row["state"];
    const bool is_dead = state == "dead";
    if (!is_dead && state != "live" && state != "orphaned") continue;  // its values cannot be read
    guarded(job, is_dead, [&] {
      shm::AttachOutcome outcome;
      auto segments = shm::JobSegments::try_attach(job, shm::Access::kReadOnly, outcome, shm::kTrustAnybody);
      if (!segments) return;  // it is gone meanwhile
      auto faults = std::make_unique<JobFaults>(job, std::move(*segments), examined);
      if (is_dead)
        faults->look_at_remains();
      else if (faults->look())
        jobs.push_back(std::move(faults)), has_living = true;
    });
  }
  if (!has_living) return;
  std::this_thread::sleep_for(kBetweenLooks);
  for (const auto& faults : jobs) guarded(faults->job(), false, [&] { faults->look_again(); });
}

}  // namespace ps_shm::inspect
