// The kill matrix: for every fault point, in every role, mode and layout that reach it, a process of a real job is
// killed or stopped there. Afterwards
//   - the other processes have made progress within a time limit (beside a stopped worker in sync mode: once
//     --step-timeout is over),
//   - every process has ended with the expected exit code within a time limit,
//   - no chunk is torn, and each contains at least the acknowledged pushes and at most those that were begun,
//   - no buffer is lost or named twice, and nothing of the job is left in /dev/shm.
//
//   kill_matrix [--full] [--seed N] [--only TEXT | --store K] [--list]
//
// The matrix also kills a worker before the k-th store to a shared word in its life, whatever that store is: for every
// k with --full, for a random selection otherwise.
//
// Without --full the matrix is a pairwise cover: every compatible pair of values of {point, role, mode, layout, action}
// is in some case; protocols that do not depend on the mode are covered in async and sync.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "faults/cases.hpp"
#include "faults/struck_job.hpp"
#include "ps_shm/job_control.hpp"

namespace {

using namespace ps_shm;
using namespace test;

// The runs of a case; in each, the case's actor is struck.
class Trial : StruckJob {
 public:
  using StruckJob::StruckJob;

  void run() {
    switch (case_.row->actor) {
      case FaultActor::kCreator:
      case FaultActor::kTask:
        return strike_creator();
      case FaultActor::kAdopter:
        return strike_adopter();
      case FaultActor::kReviver:
        return strike_reviver();
      case FaultActor::kEnder:
        return strike_ender();
      case FaultActor::kRemover:
        return strike_remover();
      case FaultActor::kWorker:
        return strike_worker();
      case FaultActor::kSetter:
        return strike_setter();
      case FaultActor::kSnapshotter:
        return strike_snapshotter();
      case FaultActor::kPublisher:
      case FaultActor::kSubscriber:
        return;  // publication_matrix.cpp
      case FaultActor::kTableWorker:
        return;  // table_matrix.cpp
      case FaultActor::kGuest:
        return;  // test_guests.cpp
    }
  }

  // The worker's life, from joining to leaving, ends at its `store`-th store. Returns false if it has fewer stores.
  bool run_until_store(std::uint64_t store, bool is_first) {
    start_ps();
    const Orders orders{.strike_at_store = store, .leaves_after = 3};
    if (!is_first) start_others(0, {});
    const pid_t victim = start_worker(0, orders);
    // In sync mode it gets no further than the first step alone: the others start once it dies or waits there.
    int status = 0;
    const auto has_ended = [&] { return waitpid(victim, &status, WNOHANG) == victim; };
    bool ended = is_first && wait_for(has_ended, 0.05);
    if (is_first) start_others(0, {});
    ended = ended || wait_for(has_ended);
    if (!ended) throw Failed{"the worker does not end" + said()};
    running_.erase(victim);
    const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!was_killed && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) throw Failed{"the worker failed" + said()};
    start_worker(0, {});
    wait_progress("the job");
    finish();
    return was_killed;
  }

 private:
  void strike_creator() {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) start_worker(rank, {});  // they wait for the job
    const pid_t ps = start_ps(case_.row->point);
    wait_struck(ps);
    if (case_.action == Action::kKill)
      start_ps();
    else
      kill(ps, SIGCONT);
    finish();
  }

  void strike_adopter() {
    const pid_t ps = start_job();
    wait_at_work();
    kill(ps, SIGKILL);
    waitpid(ps, nullptr, 0);
    running_.erase(ps);
    wait_progress("the job without its ps");
    const pid_t next = start_ps(case_.row->point);
    wait_struck(next);
    wait_progress("the job without its second ps");
    if (case_.action == Action::kKill)
      start_ps();
    else
      kill(next, SIGCONT);
    finish();
  }

  // The ps and all workers of an ended job have died; another ps and new workers resume the job.
  void strike_reviver() {
    const Action later = std::exchange(case_.action, Action::kKill);
    const pid_t ps = start_job(FaultPoint::kEndSaid);
    wait_at_work();
    for (const auto& [pid, title] : running_)
      if (pid != ps) kill(pid, SIGSTOP);  // so that none of them leaves
    shared_->quit_ps = true;
    wait_struck(ps);
    shared_->quit_ps = false;
    while (!running_.empty()) {
      const pid_t worker = running_.begin()->first;
      kill(worker, SIGKILL);
      wait_struck(worker);
    }
    for (std::size_t i = 0; i < accounts_; ++i) struck_.insert(i);
    case_.action = later;
    const pid_t next = start_ps(case_.row->point, true);
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) start_worker(rank, {});
    wait_struck(next);
    if (case_.action == Action::kKill)
      start_ps({}, true);
    else
      kill(next, SIGCONT);
    finish();
  }

  // The ps ends the job: in one case because it is asked to, in another because all workers have left. The workers
  // notice and leave, whether or not the ps survives. A worker that joins before the ps has ended the job trains until
  // then.
  void strike_ender() {
    for (std::atomic<bool>* wish : {&shared_->quit_ps, &shared_->finish}) {
      const pid_t ps = start_job(case_.row->point);
      wait_at_work();
      open_view();
      *wish = true;
      wait_struck(ps);
      const bool has_said = case_.row->point != FaultPoint::kEndDecided, was_asked = wish == &shared_->quit_ps;
      if (case_.action == Action::kStop) {
        if (!was_asked) {
          const pid_t late = start_worker(0, {.stays = true});
          has_said ? wait_ended(late) : wait_at_work();
        }
        kill(ps, SIGCONT);
      } else if (was_asked && !has_said) {  // it may have died before it received the request
        shared_->quit_ps = false;
        start_ps();
        if (!wait_for([&] { return view_->info().served; })) throw Failed{"the job has no ps"};
        shared_->finish = true;
      }
      wait_all_ended();
      check_values();
      if (case_.action == Action::kStop) check_nothing_left();
      forget();
    }
    start_job();
    finish();
  }

  void strike_remover() {
    const pid_t ps = start_job(case_.row->point);
    wait_at_work();
    open_view();
    shared_->finish = true;
    wait_struck(ps);
    if (case_.action == Action::kStop) kill(ps, SIGCONT);
    wait_all_ended();
    check_values();
    reclaim();
  }

  // The next job is independent of this one.
  void forget() {
    shared_->finish = false, shared_->quit_ps = false, shared_->joined = 0;
    for (Account& account : shared_->accounts) account.begun = 0, account.acknowledged = 0;
    for (std::size_t i = 0; i < accounts_; ++i) struck_.insert(i);  // they have ended
    view_.reset();
  }

  // Leftovers of the job do not prevent a new job of the same name, which ends cleanly.
  void reclaim() {
    forget();
    start_job();
    finish();
  }

  void strike_setter() {
    start_job();
    wait_at_work();
    const auto set = [this](std::optional<FaultPoint> strike_at) {
      return spawn("setter", [this, strike_at] {
        if (strike_at) arm(*strike_at, case_.action, 1);
        JobControl(config_.job).change([](LiveSettings& settings) { settings.lr *= 0.5F; });
      });
    };
    const pid_t setter = set(case_.row->point);
    wait_struck(setter);
    wait_progress("the job");
    if (case_.action == Action::kStop) {
      kill(setter, SIGCONT);
      wait_ended(setter);
    }
    wait_ended(set({}));
    finish();
    if (case_.action == Action::kKill) return;
    // The job ends while a setter is stopped, which is the last process to leave.
    forget();
    const pid_t ps = start_job();
    wait_at_work();
    const pid_t last = set(case_.row->point);
    wait_struck(last);
    shared_->finish = true;
    wait_ended(ps);
    kill(last, SIGCONT);
    wait_all_ended();
    check_nothing_left();
  }

  void strike_snapshotter() {
    start_job();
    wait_at_work();
    const pid_t snapshotter = start_snapshotter(case_.row->point, 0);
    wait_struck(snapshotter);
    wait_progress("the job beside a snapshot that does not come about");
    if (case_.action == Action::kStop)
      kill(snapshotter, SIGCONT);
    else
      start_snapshotter({}, 0);
    const std::uint64_t before = shared_->snapshots;
    if (!wait_for([&] { return shared_->snapshots >= before + 3; })) throw Failed{"no snapshot comes about" + said()};
    wait_progress("the job");
    finish();
  }

  // After some rounds of the loop; points that a worker passes only once are struck at once.
  int choose_passes() {
    static const std::set<std::string> kLoop = {"free-buffer", "push", "announce", "step", "arrive",
                                                "decide",      "help", "apply",    "open"};
    if (kLoop.count(case_.row->protocol) == 0 || case_.row->way != FaultWay::kAlone) return 1;
    return case_.row->point == FaultPoint::kClockEntering || case_.row->point == FaultPoint::kClockEntered
               ? 1
               : int(1 + random_() % 40);
  }

  void strike_worker() {
    const std::uint32_t rank = case_.role == Role::kChief ? 0 : 1;
    const bool is_leaving = std::strcmp(case_.row->protocol, "leave") == 0;
    Orders orders{.strike_at = case_.row->point, .action = case_.action, .passes = choose_passes()};
    orders.is_slow = case_.row->way == FaultWay::kLate;
    if (is_leaving) orders.leaves_after = 30;
    start_ps();
    if (random_() % 2 == 0) start_snapshotter({}, case_.row->way == FaultWay::kSuccessor ? 2 : 1);
    pid_t victim;
    if (case_.row->way == FaultWay::kFirst) {
      victim = start_worker(rank, orders);
      wait_struck(victim);
      start_others(rank, {});
    } else {
      start_others(rank, {.leaves_with_others = case_.row->way == FaultWay::kShort});
      if (case_.row->way == FaultWay::kSuccessor) {
        orders.strike_at = FaultPoint::kPushStamped, orders.action = Action::kKill;
        victim = start_worker(rank, orders);
        const Action later = case_.action;
        case_.action = Action::kKill;
        wait_struck(victim);
        case_.action = later;
        orders.strike_at = case_.row->point, orders.action = case_.action, orders.passes = 1;
      }
      victim = start_worker(rank, orders);
      if (case_.row->way == FaultWay::kShort) {
        wait_at_work();  // a worker that starts late would leave before its first step
        wait_progress("the job");
        shared_->others_quit = true;
      }
      wait_struck(victim);
      if (case_.row->way == FaultWay::kShort) {
        shared_->others_quit = false;
        start_others(rank, {});
      }
    }
    if (case_.action == Action::kKill) {
      // Half of the dead workers are replaced. The first sync step needs every rank, dead or not.
      const bool is_replaced = case_.role == Role::kChief || random_() % 2 == 0 || !view_has_enough();
      if (is_replaced)
        start_worker(rank, {});
      else
        ++deaths_in_flight_;
      wait_progress("the job");
    } else {
      if (goes_on_without_stopped()) wait_progress("the job without a stopped worker");
      kill(victim, SIGCONT);
      if (is_leaving) wait_ended(victim);
      wait_progress("the job");
    }
    finish();
  }

  // Whether all workers of the job have joined, as the first step requires.
  bool view_has_enough() {
    open_view();
    return view_->workers().size() >= kWorkers;
  }
};

// Kills a worker before each of its stores in turn, or before some of them. Returns the number of failed cases.
int strike_stores(bool full, std::uint64_t only, std::mt19937_64& random) {
  constexpr int kSome = 12;
  static const FaultPointRow kAnyStore = {FaultPoint::kCount_, "a store", "any",
                                          FaultActor::kWorker, 0,         FaultWay::kAlone};
  int cases = 0, failed = 0;
  for (const Kind kind : {Kind::kAsync, Kind::kSsp, Kind::kSync, Kind::kBackup, Kind::kSummed})
    for (const bool is_first : {true, false}) {
      std::uint64_t stores = ~std::uint64_t{0};  // in a whole life, once known
      const auto strike = [&](std::uint64_t store) {
        ++cases;
        try {
          if (!Trial({&kAnyStore, Role::kChief, kind, Layout::kVersioned, Action::kKill}, random())
                   .run_until_store(store, is_first))
            stores = store;
        } catch (const Failed& failure) {
          ++failed;
          fmt::print("FAILED kill chief before store {} ({}, {}): {}\n", store, kKindNames[int(kind)],
                     is_first ? "the first" : "among others", failure.what);
        }
        std::fflush(stdout);
      };
      if (only != 0)
        strike(only);
      else if (full)
        for (std::uint64_t store = 1; store < stores; ++store) strike(store);
      else
        for (int i = 0; i < kSome; ++i) strike(1 + random() % (is_first ? 900 : 400));
      fmt::print("before stores ({}, {}): {} cases so far\n", kKindNames[int(kind)],
                 is_first ? "the first" : "among others", cases);
    }
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  bool full = std::getenv("PS_SHM_TEST_FULL") != nullptr, list = false;
  std::uint64_t seed = std::random_device()();
  std::string only;
  std::uint64_t store = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string(); };
    if (argument == "--full")
      full = true;
    else if (argument == "--list")
      list = true;
    else if (argument == "--seed")
      seed = std::stoull(value());
    else if (argument == "--store")
      store = std::stoull(value()), only = "no point";
    else if (argument == "--only")
      only = value();
    else
      return fmt::print(stderr, "unknown argument {}\n", argument), 2;
  }
  std::mt19937_64 random(seed);
  std::vector<Case> cases = all_cases();
  if (!full && only.empty()) {
    std::erase_if(cases, is_like_others);
    cases = pairwise(cases, random);
  }
  std::erase_if(cases, [&](const Case& one) { return one.name().find(only) == std::string::npos; });
  fmt::print("{} cases, seed {}\n", cases.size(), seed);
  std::fflush(stdout);
  int failed = 0;
  const double began = now();
  for (const Case& one : cases) {
    if (list) {
      fmt::print("{}\n", one.name());
      continue;
    }
    const double start = now();
    try {
      Trial(one, random()).run();
    } catch (const Failed& failure) {
      ++failed;
      fmt::print("FAILED {}: {}\n", one.name(), failure.what);
    }
    if (now() - start > 5) fmt::print("slow: {}: {:.1f} s\n", one.name(), now() - start);
    std::fflush(stdout);
  }
  if ((only.empty() || store != 0) && !list) failed += strike_stores(full, store, random);
  fmt::print("{} failed, {:.0f} s\n", failed, now() - began);
  return failed != 0;
}
