// A job of real processes, one of which is to be struck (killed or stopped) at a chosen point: starts them, waits for
// them, and checks the invariants of the job afterwards. A violation is thrown as Failed.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "faults/cases.hpp"
#include "faults/strike.hpp"
#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/base/process_state.hpp"
#include "shm/segment/job_segments.hpp"

namespace ps_shm::test {

inline constexpr std::uint32_t kWorkers = 3;
inline constexpr std::uint64_t kElements = 3000;  // several chunks in each of two parts
inline constexpr Seconds kStepTimeout{0.2};

// A job, its processes, and the outcome for each of them.
class StruckJob {
 public:
  StruckJob(const Case& given, std::uint64_t seed) : case_(given), random_(seed) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Failed{"no memory"};
    shared_ = new (memory) Shared{};
    g_strikes = &shared_->strikes;
    static int number = 0;
    config_.job = fmt::format("test-{}-kill-{}", getpid(), number++);
    config_.workers = kWorkers;
    config_.ps_tasks = 2;
    config_.chunk_bytes = 1024;
    config_.placement = Placement::kPartition;
    config_.optimizer.rule = UpdateRule::kAdd;
    // leaves time for the process that revives it
    config_.linger = Seconds(case_.row->actor == FaultActor::kReviver ? kPatience : 0.1);
    config_.layout = case_.layout;
    config_.mode = case_.is_sync() ? Mode::kSync : case_.kind == Kind::kSsp ? Mode::kSsp : Mode::kAsync;
    config_.staleness = 3;
    if (std::strcmp(case_.row->protocol, "age") == 0) config_.stale_limit = 1;
    if (case_.kind == Kind::kBackup) config_.quorum = kWorkers - 1;
    if (case_.kind == Kind::kSummed) config_.reduce = Reduce::kAtomic;
    if (case_.kind != Kind::kSsp) config_.staleness = 0;
    if (goes_on_without_stopped() && case_.is_sync()) config_.step_timeout = kStepTimeout;
  }

  ~StruckJob() {
    for (const auto& [pid, title] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const std::string& name : shm::list_segments(shm::control_name(config_.job))) shm::unlink_segment(name);
    g_strikes = nullptr;
    munmap(shared_, sizeof(Shared));
  }
  StruckJob(const StruckJob&) = delete;
  StruckJob& operator=(const StruckJob&) = delete;

 protected:
  // ---- processes

  template <class Body>
  pid_t spawn(const std::string& title, Body&& body) {
    const pid_t pid = fork();
    if (pid != 0) {
      running_[pid] = title;
      return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 0;
    try {
      body();
    } catch (const JobFinished&) {
    } catch (const std::exception& error) {
      if (shared_->message[0] == '\0')
        strncpy(shared_->message, fmt::format("{}: {}", title, error.what()).c_str(), sizeof shared_->message - 1);
      code = 1;
    }
    _exit(code);
  }

  pid_t start_ps(std::optional<FaultPoint> strike_at = {}, bool adopt = false) {
    return spawn("ps", [this, strike_at, adopt] {
      if (strike_at) arm(*strike_at, case_.action, 1);
      ServerOptions options;
      options.adopt = adopt;
      options.stop_requested = [this] { return shared_->quit_ps.load(); };
      Server server(config_, options);
      server.serve({.stop_requested = options.stop_requested, .stop_at_once = {}, .log = {}, .every_second = {}});
    });
  }

  struct Orders {
    std::optional<FaultPoint> strike_at = {};
    std::uint64_t strike_at_store = 0;
    Action action = Action::kKill;
    int passes = 1;
    bool is_slow = false;                            // late in every step
    std::uint64_t leaves_after = 0;                  // 0: when asked to
    bool leaves_with_others = false, stays = false;  // until the ps ends the job
  };

  // A worker that in each step adds one to all elements and rows, by a push or bypassing the optimizer, and assigns a
  // variable.
  pid_t start_worker(std::uint32_t rank, const Orders& orders) {
    if (orders.strike_at || orders.strike_at_store != 0) struck_.insert(accounts_);
    Account& account = shared_->accounts[accounts_++];
    return spawn(fmt::format("worker {}", rank), [this, rank, orders, &account] {
      if (orders.strike_at) arm(*orders.strike_at, orders.action, orders.passes);
      if (orders.strike_at_store != 0) arm_store(orders.strike_at_store);
      WorkerOptions options;
      options.job = config_.job;
      options.rank = rank;
      options.log = [](const std::string&) {};
      Worker worker(options);
      ++shared_->joined;
      check_shared(worker);
      const std::vector<VariableSpec> specs = {{.name = "many", .shape = {kElements}, .layout = {}},
                                               {.name = "one", .shape = {1}, .layout = {}},
                                               {.name = "given", .shape = {kElements}, .layout = {}}};
      const std::vector<Variable> variables =
          worker.variables(specs, [](std::size_t, std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
      const std::vector<float> ones(kElements, 1.0F);
      const std::vector<std::span<const float>> deltas = {ones, std::span(ones).first(1)};
      const std::span<const Variable> summed = std::span(variables).first(deltas.size());
      const auto push_rows = declare_rows(worker, rank, ones);
      std::vector<float> values(kElements);
      // The first step fails if a worker joins later than the step's time-out. On a busy machine joining may take that
      // long.
      if (config_.step_timeout && !wait_for([this] { return shared_->joined >= kWorkers; }))
        throw Error("the others do not join");
      for (std::uint64_t step = 0; orders.leaves_after == 0 || step < orders.leaves_after; ++step) {
        if ((shared_->finish && !orders.stays) || worker.finished() ||
            (orders.leaves_with_others && shared_->others_quit))
          break;
        for (const std::size_t which : {0, 2}) {
          worker.pull(variables[which], values);
          if (is_torn(values) || (which == 2 && sees_half(worker, summed, values))) account.tore = true;
        }
        account.begun.fetch_add(1);
        if (orders.is_slow) usleep(2000);  // makes it late in most steps; the case waits until it was late once
        // So that a strike soon after the first element may fall among rows or not.
        const bool are_rows_first = orders.passes % 2 != 0;
        if (are_rows_first) push_rows();
        if (step % 2 == 0)
          worker.push(summed, deltas);
        else
          for (const PushGroup one = worker.group_pushes(); std::size_t i : {0, 1}) worker.add(summed[i], deltas[i]);
        worker.assign(variables[2], std::vector<float>(kElements, float(step)),
                      step % 3 ? Slots::kKeep : Slots::kReset);
        if (!are_rows_first) push_rows();
        worker.step();
        account.acknowledged.fetch_add(1);
      }
      worker.leave();
    });
  }

  // A process that takes snapshots until it is told to end, and checks that each is one state of all variables: it
  // contains each push completely or not at all, except at most one push of each struck worker.
  pid_t start_snapshotter(std::optional<FaultPoint> strike_at, std::uint32_t struck_pushes) {
    return spawn("snapshotter", [this, strike_at, struck_pushes] {
      if (strike_at) arm(*strike_at, case_.action, 1);
      std::optional<JobView> view;
      while (!shared_->finish && !view)
        if (std::optional<JobView> found = JobView::try_open(config_.job)) view.emplace(std::move(*found));
      const SnapshotOptions options{.patience = Seconds(0.05)};
      while (!shared_->finish) {
        try {
          look_at(view->snapshot(options), struck_pushes);
        } catch (const Error& error) {
          if (!shared_->finish && view->info().served) throw;  // otherwise the job may be gone
        }
        usleep(500);  // leaves the others time between two snapshots; no result depends on it
      }
    });
  }

  void look_at(const Snapshot& snapshot, std::uint32_t struck_pushes) {
    // On a slow machine a push of any worker may take longer than the snapshot waits. Such a snapshot proves nothing.
    const std::uint32_t stopped = case_.action == Action::kKill ? 0 : struck_pushes;
    if (snapshot.partial_ranks().size() > stopped) return;
    std::vector<float> all;
    for (const auto& [name, elements] : std::map<std::string, std::uint64_t>{{"many", kElements}, {"one", 1}}) {
      const std::vector<std::string> names = snapshot.variables();
      if (std::find(names.begin(), names.end(), name) == names.end()) return;
      const std::size_t before = all.size();
      all.resize(before + elements);
      snapshot.copy(name, std::span(all).subspan(before));
      if (name == "many" && is_torn({all.begin(), all.end()})) throw Error("a snapshot is torn");
    }
    const auto [least, most] = std::minmax_element(all.begin(), all.end());
    if (*most - *least > static_cast<float>(struck_pushes))
      throw Error(fmt::format("a snapshot has {} to {} pushes", *least, *most));
    ++shared_->snapshots;
  }

  // Adds one to every element of all rows: with row numbers in ascending order, or in another order, which makes the
  // library combine them first. Versioned variables have no rows.
  std::function<void()> declare_rows(Worker& worker, std::uint32_t rank, const std::vector<float>& ones) const {
    if (case_.layout != Layout::kInplace) return [] {};
    constexpr std::uint64_t kRows = 101;
    const std::uint64_t width = case_.kind == Kind::kSsp ? 1 : 3;  // rows of one element have a code path of their own
    const Variable rows = worker.variable({.name = "rows", .shape = {kRows, width}, .layout = {}},
                                          [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
    std::vector<std::uint32_t> ids(kRows);
    std::iota(ids.begin(), ids.end(), 0U);
    if (rank % 2 != 0) std::reverse(ids.begin(), ids.end());
    return
        [&worker, rows, ids = std::move(ids), gradients = std::span(ones).first(kRows * width), adds = true]() mutable {
          if (adds = !adds; adds)
            worker.add_rows(rows, ids, gradients);
          else
            worker.push_rows(rows, ids, gradients);
        };
  }

  // The data that the workers share is complete, whichever process loaded it or died while loading.
  static void check_shared(Worker& worker) {
    constexpr std::size_t kBytes = 20'000;
    const SharedBytes shared = worker.shared_data("bytes", [](const auto& room) {
      const std::span<std::byte> bytes = room(kBytes);
      std::fill(bytes.begin(), bytes.end(), std::byte{7});
    });
    if (shared.bytes.size() != kBytes || std::count(shared.bytes.begin(), shared.bytes.end(), std::byte{7}) != kBytes)
      throw Error("the shared data is not whole");
  }

  // All elements of a chunk have received the same additions. In-place elements are independent of each other.
  bool is_torn(const std::vector<float>& values) const {
    if (case_.layout == Layout::kInplace) return false;
    constexpr std::uint64_t kPart = kElements / 2;  // two shards
    const std::uint64_t chunk = 240;                // checked against the directory in check_values()
    for (std::uint64_t part = 0; part < kElements; part += kPart)
      for (std::uint64_t begin = 0; begin < kPart; begin += chunk) {
        const auto first = values.begin() + std::ptrdiff_t(part + begin);
        const auto last = values.begin() + std::ptrdiff_t(part + std::min(begin + chunk, kPart));
        if (std::any_of(first, last, [&](float value) { return value != *first; })) return true;
      }
    return false;
  }

  // A worker that pulls all variables at once never sees a partial sync step, whichever process dies.
  bool sees_half(Worker& worker, std::span<const Variable> summed, std::span<float> values) const {
    if (case_.kind != Kind::kSync && case_.kind != Kind::kBackup) return false;
    // pull_all() takes a snapshot where a step is always in progress, and would make the reserves first.
    if (case_.row->actor == FaultActor::kSnapshotter) return false;
    float one = 0;
    const std::vector<std::span<float>> outs = {values, {&one, 1}};
    try {
      worker.pull_all(summed, outs);
    } catch (const Error&) {
      return false;  // a step was in progress all the time
    }
    return std::any_of(values.begin(), values.end(), [&](float value) { return value != one; });
  }

  // ---- waiting for them

  // The state of a hanging process according to /proc: its state, the kernel function that it sleeps in, and its system
  // call.
  static std::string whereabouts(pid_t pid) {
    std::string text = fmt::format("; state {}", shm::process_state(static_cast<std::uint32_t>(pid)));
    for (const char* name : {"wchan", "syscall"}) {
      std::ifstream file(fmt::format("/proc/{}/{}", pid, name));
      std::string line;
      if (std::getline(file, line)) text += fmt::format(", {} {}", name, line);
    }
    return text;
  }

  void wait_struck(pid_t pid) {
    int status = 0;
    const bool came = wait_for([&] { return waitpid(pid, &status, WNOHANG | WUNTRACED) == pid; });
    if (!came)
      throw Failed{fmt::format("{} never got there{}; {} strikes, {} snapshots, {} steps{}", running_[pid],
                               whereabouts(pid), shared_->strikes.load(), shared_->snapshots.load(), acknowledged(),
                               said())};
    if (case_.action == Action::kStop && WIFSTOPPED(status)) return;
    const std::string title = running_[pid];
    running_.erase(pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return;
    throw Failed{fmt::format("{} ended before it got there{}", title, said())};
  }

  void wait_ended(pid_t pid) {
    int status = 0;
    if (!wait_for([&] { return waitpid(pid, &status, WNOHANG) == pid; }))
      throw Failed{fmt::format("{} does not end", running_[pid])};
    const std::string title = running_[pid];
    running_.erase(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
      throw Failed{fmt::format("{} ended with status {:#x}{}", title, status, said())};
  }

  void wait_all_ended() {
    while (!running_.empty()) wait_ended(running_.begin()->first);
  }

  std::string said() const { return shared_->message[0] != '\0' ? std::string(": ") + shared_->message : ""; }

  std::uint64_t acknowledged() const {
    std::uint64_t sum = 0;
    for (const Account& account : shared_->accounts) sum += account.acknowledged.load();
    return sum;
  }

  void wait_progress(const char* who, std::uint64_t steps = 20) {
    const std::uint64_t before = acknowledged();
    if (!wait_for([&] { return acknowledged() >= before + steps; }))
      throw Failed{fmt::format("{} does not go on: {} steps in all{}", who, acknowledged() - before, said())};
  }

  // A worker that starts after all others have left finds no job any more, and waits for the next one. So all processes
  // that have not been struck are at work before any is told to leave.
  void wait_at_work() {
    for (std::size_t i = 0; i < accounts_; ++i)
      if (!struck_.contains(i) && !wait_for([&] { return shared_->accounts[i].acknowledged.load() != 0; }))
        throw Failed{fmt::format("worker process {} does not begin{}", i, said())};
  }

  // ---- invariants

  void open_view() {
    if (!wait_for([&] {
          try {
            if (std::optional<JobView> found = view_ ? std::nullopt : JobView::try_open(config_.job))
              view_.emplace(std::move(*found));
          } catch (const Error&) {
          }
          return view_.has_value();
        }))
      throw Failed{"the job cannot be looked at"};
  }

  void check_values() {
    std::uint64_t begun = 0, dropped = 0;
    for (const Account& account : shared_->accounts) {
      begun += account.begun.load();
      if (account.tore) throw Failed{"a worker pulled a torn chunk"};
    }
    for (const WorkerInfo& worker : view_->workers()) dropped += worker.dropped;
    const std::uint64_t least = acknowledged() - std::min(acknowledged(), dropped);
    for (const VariableInfo& variable : view_->variables()) {
      if (!variable.initialised) continue;
      const std::vector<float> values = view_->values(variable.name);
      if (variable.name == "many" && case_.layout == Layout::kVersioned)
        for (const PartInfo& part : variable.parts)
          if (part.chunk_elements != 240) throw Failed{fmt::format("chunks of {}", part.chunk_elements)};
      if (variable.name != "one" && variable.name != "rows" && is_torn(values)) throw Failed{"a chunk is torn"};
      if (variable.name == "given") continue;
      for (const float value : values)
        if (value < float(least) || value > float(begun))
          throw Failed{fmt::format("{} is {}: acknowledged {} (dropped {}), begun {}", variable.name, value,
                                   acknowledged(), dropped, begun)};
    }
    const BufferCount buffers = view_->buffers();
    if (buffers.lost != 0 || buffers.shared != 0)
      throw Failed{fmt::format("{} buffers lost, {} shared, {} in doubt of {}", buffers.lost, buffers.shared,
                               buffers.in_doubt, buffers.buffers)};
    if (buffers.in_doubt > deaths_in_flight_)
      throw Failed{fmt::format("{} free buffers are still in doubt", buffers.in_doubt)};
  }

  void check_nothing_left() {
    const std::vector<std::string> left = shm::list_segments(shm::control_name(config_.job));
    if (!left.empty()) throw Failed{fmt::format("/dev/shm still has {}", fmt::join(left, ", "))};
  }

  // All processes end, and all invariants hold.
  void finish() {
    wait_at_work();
    open_view();
    // A ps that starts after all workers have left would create a new job.
    if (!wait_for([&] { return view_->info().served; })) throw Failed{"the job has no ps"};
    shared_->finish = true;
    wait_all_ended();
    check_values();
    check_nothing_left();
  }

  // Whether the other workers continue beside a worker that is stopped there. They wait for a worker that has not
  // joined, declared and initialized yet, and in ssp for its clock, and report that they wait.
  bool goes_on_without_stopped() const {
    static const std::set<std::string> kWorking = {"free-buffer", "push", "announce", "step", "arrive",
                                                   "decide",      "help", "apply",    "open", "leave"};
    return case_.action == Action::kStop && kWorking.count(case_.row->protocol) != 0 && case_.kind != Kind::kSsp &&
           case_.row->way != FaultWay::kShort;
  }

  void start_others(std::uint32_t but, const Orders& orders) {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
      if (rank != but) start_worker(rank, orders);
  }

  pid_t start_job(std::optional<FaultPoint> strike_ps_at = {}) {
    const pid_t ps = start_ps(strike_ps_at);
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) start_worker(rank, {});
    return ps;
  }

  Case case_;
  std::mt19937_64 random_;
  JobConfig config_;
  Shared* shared_;
  std::map<pid_t, std::string> running_;
  std::optional<JobView> view_;
  std::size_t accounts_ = 0;
  std::set<std::size_t> struck_;
  std::uint64_t deaths_in_flight_ = 0;
};

}  // namespace ps_shm::test
