// The kill matrix: for every fault point, in every role, mode and layout that reach it, a process is killed or stopped
// there in a job of real processes, and afterwards
//   - the others have gone on (a stopped worker in sync mode: once --step-timeout is over), within a bound of time,
//   - every process has ended with the code it should, within a bound of time,
//   - no chunk is torn, and each holds at least the pushes that were acknowledged and at most those that were begun,
//   - no buffer is lost or named twice, and /dev/shm has nothing of the job.
//
//   kill_matrix [--full] [--seed N] [--only TEXT | --store K] [--list]
//
// And again with a kill before the k-th store to a shared word of a worker's life, whatever that store is: all of them
// with --full, a random choice without.
//
// Without --full a pairwise cover: each two of {point, role, mode, layout, action} that go together are in some case;
// protocols that do not know the mode are covered in async and sync.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "faults/cases.hpp"
#include "ps/errors.hpp"
#include "ps/job_control.hpp"
#include "ps/job_view.hpp"
#include "ps/server.hpp"
#include "ps/worker.hpp"
#include "shm/job_segments.hpp"

namespace {

using namespace ps;
using namespace test;

constexpr double kPatience = 60.0;  // for what takes milliseconds: the machine may be busy, and a race must be lost
constexpr std::uint32_t kWorkers = 3;
constexpr std::uint64_t kElements = 3000;  // several chunks in each of two parts
constexpr double kStepTimeout = 0.2;

struct Failed {
  std::string what;
};

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// A virtual machine may be held for seconds, all its processes with it: so many looks are taken whatever the clock says.
template <class Fact>
bool wait_for(Fact&& fact, double seconds = kPatience) {
  constexpr double kLooksPerSecond = 1000;
  const double end = now() + seconds;
  for (double looks = 0; now() < end || looks < seconds * kLooksPerSecond; ++looks) {
    if (fact()) return true;
    usleep(200);
  }
  return fact();
}

// What the processes of a case tell each other, in a mapping that they share.
struct Account {
  std::atomic<std::uint64_t> begun, acknowledged;
  std::atomic<bool> tore;
};
struct Shared {
  std::atomic<bool> finish;   // workers leave
  std::atomic<bool> quit_ps;  // the ps is asked to end
  std::atomic<bool> others_quit;
  std::array<Account, 16> accounts;  // one for each worker process of the case
  char message[512];                 // of an exception
};

// Strikes this process when it reaches the point for the `passes`-th time.
FaultPoint g_point;
Action g_action;
int g_passes;

void arm(FaultPoint point, Action action, int passes) {
  g_point = point, g_action = action, g_passes = passes;
  shm::g_fault_hooks.reached = [](FaultPoint reached) {
    if (reached != g_point || --g_passes != 0) return;
    raise(g_action == Action::kKill ? SIGKILL : SIGSTOP);
  };
}

// Kills this process before its `number`-th store to a shared word.
std::uint64_t g_stores_left;

void arm_store(std::uint64_t number) {
  g_stores_left = number;
  shm::g_fault_hooks.before_access = [](const void*, bool stores) {
    if (stores && --g_stores_left == 0) raise(SIGKILL);
  };
}

// A job, its processes, and what has become of them.
class Trial {
 public:
  Trial(const Case& given, std::uint64_t seed) : case_(given), random_(seed) {
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Failed{"no memory"};
    shared_ = new (memory) Shared{};
    static int number = 0;
    config_.job = fmt::format("kill-{}-{}", getpid(), number++);
    config_.workers = kWorkers;
    config_.tasks = 2;
    config_.chunk_bytes = 1024;
    config_.placement = Placement::kPartition;
    config_.optimizer.rule = UpdateRule::kAdd;
    config_.linger_seconds = 0.1;
    config_.layout = case_.layout;
    config_.mode = case_.is_sync() ? Mode::kSync : case_.kind == Kind::kSsp ? Mode::kSsp : Mode::kAsync;
    config_.staleness = 3;
    if (case_.kind == Kind::kBackup) config_.quorum = kWorkers - 1;
    if (case_.kind == Kind::kSummed) config_.reduce = Reduce::kAtomic;
    if (case_.kind != Kind::kSsp) config_.staleness = 0;
    if (goes_on_without_stopped() && case_.is_sync()) config_.step_timeout_seconds = kStepTimeout;
  }

  ~Trial() {
    for (const auto& [pid, title] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const std::string& name : shm::list_segments(shm::control_name(config_.job))) shm::unlink_segment(name);
    munmap(shared_, sizeof(Shared));
  }

  void run() {
    switch (case_.row->actor) {
      case FaultActor::kCreator:
      case FaultActor::kTask:
        return strike_creator();
      case FaultActor::kAdopter:
        return strike_adopter();
      case FaultActor::kEnder:
        return strike_ender();
      case FaultActor::kRemover:
        return strike_remover();
      case FaultActor::kWorker:
        return strike_worker();
      case FaultActor::kSetter:
        return strike_setter();
    }
  }

  // The life of a worker, from joining to leaving, ends at its `store`-th store. False: it has fewer.
  bool run_until_store(std::uint64_t store, bool is_first) {
    start_ps();
    const Orders orders{.strike_at_store = store, .leaves_after = 3};
    if (!is_first) start_others(0, {});
    const pid_t victim = start_worker(0, orders);
    // Alone it gets no further than the first step in sync mode: the others come when it dies or waits there.
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

  pid_t start_ps(std::optional<FaultPoint> strike_at = {}) {
    return spawn("ps", [this, strike_at] {
      if (strike_at) arm(*strike_at, case_.action, 1);
      ServerOptions options;
      options.stop_requested = [this] { return shared_->quit_ps.load(); };
      Server server(config_, options);
      server.serve({.stop_requested = options.stop_requested, .stop_at_once = {}, .notice = {}, .every_second = {}});
    });
  }

  struct Orders {
    std::optional<FaultPoint> strike_at = {};
    std::uint64_t strike_at_store = 0;
    Action action = Action::kKill;
    int passes = 1;
    bool is_slow = false;            // late in every step
    std::uint64_t leaves_after = 0;  // 0: when told
    bool leaves_with_others = false;
  };

  // A worker that adds one to every element in each step.
  pid_t start_worker(std::uint32_t rank, const Orders& orders) {
    if (orders.strike_at || orders.strike_at_store != 0) struck_.insert(accounts_);
    Account& account = shared_->accounts[accounts_++];
    return spawn(fmt::format("worker {}", rank), [this, rank, orders, &account] {
      if (orders.strike_at) arm(*orders.strike_at, orders.action, orders.passes);
      if (orders.strike_at_store != 0) arm_store(orders.strike_at_store);
      WorkerOptions options;
      options.job = config_.job;
      options.rank = rank;
      options.notice = [](const std::string&) {};
      Worker worker(options);
      check_shared(worker);
      const std::vector<VariableSpec> specs = {{.name = "many", .shape = {kElements}, .layout = {}},
                                               {.name = "one", .shape = {1}, .layout = {}}};
      const std::vector<Variable> variables =
          worker.variables(specs, [](std::size_t, std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); });
      const std::vector<float> ones(kElements, 1.0F);
      const std::vector<std::span<const float>> deltas = {ones, std::span(ones).first(1)};
      std::vector<float> values(kElements);
      for (std::uint64_t step = 0; orders.leaves_after == 0 || step < orders.leaves_after; ++step) {
        if (shared_->finish || worker.finished() || (orders.leaves_with_others && shared_->others_quit)) break;
        worker.pull(variables[0], values);
        if (is_torn(values)) account.tore = true;
        account.begun.fetch_add(1);
        if (orders.is_slow) usleep(2000);
        worker.push(variables, deltas);
        worker.step();
        account.acknowledged.fetch_add(1);
      }
      worker.leave();
    });
  }

  // What the workers share is whole, whoever loaded it and whoever died over it.
  static void check_shared(Worker& worker) {
    constexpr std::size_t kBytes = 20'000;
    const SharedBytes shared = worker.shared("bytes", [](const auto& room) {
      const std::span<std::byte> bytes = room(kBytes);
      std::fill(bytes.begin(), bytes.end(), std::byte{7});
    });
    if (shared.bytes.size() != kBytes || std::count(shared.bytes.begin(), shared.bytes.end(), std::byte{7}) != kBytes)
      throw Error("the shared data is not whole");
  }

  // All elements of a chunk got the same additions. In-place elements are each by themselves.
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

  // ---- waiting for them

  void wait_struck(pid_t pid) {
    int status = 0;
    const bool came = wait_for([&] { return waitpid(pid, &status, WNOHANG | WUNTRACED) == pid; });
    if (!came) throw Failed{fmt::format("{} never got there", running_[pid])};
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

  // A worker that comes when all others have left finds no job any more, and waits for the next. So all that have not
  // been struck are waited for before anybody is told to leave.
  void wait_at_work() {
    for (std::size_t i = 0; i < accounts_; ++i)
      if (!struck_.contains(i) && !wait_for([&] { return shared_->accounts[i].acknowledged.load() != 0; }))
        throw Failed{fmt::format("worker process {} does not begin{}", i, said())};
  }

  // ---- what must hold

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
          if (part.piece_elements != 240) throw Failed{fmt::format("chunks of {}", part.piece_elements)};
      if (variable.name == "many" && is_torn(values)) throw Failed{"a chunk is torn"};
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
      throw Failed{fmt::format("{} spares are still in doubt", buffers.in_doubt)};
  }

  void check_nothing_left() {
    const std::vector<std::string> left = shm::list_segments(shm::control_name(config_.job));
    if (!left.empty()) throw Failed{fmt::format("/dev/shm still has {}", fmt::join(left, ", "))};
  }

  // ---- the scripts

  // Everybody ends, and all is well.
  void finish() {
    wait_at_work();
    open_view();
    // A ps that comes to a job when everybody has left would begin another one.
    if (!wait_for([&] { return view_->info().served; })) throw Failed{"the job has no ps"};
    shared_->finish = true;
    wait_all_ended();
    check_values();
    check_nothing_left();
  }

  void strike_creator() {
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) start_worker(rank, {});  // they wait
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

  // The ps is asked to end; the workers see that and leave, whether or not it lives on.
  void strike_ender() {
    const pid_t ps = start_job(case_.row->point);
    wait_at_work();
    open_view();
    shared_->quit_ps = true;
    wait_struck(ps);
    if (case_.action == Action::kStop) kill(ps, SIGCONT);
    wait_all_ended();
    check_values();
    reclaim();
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

  // What is left of the job does not keep another one of its name from beginning, which ends clean.
  void reclaim() {
    shared_->finish = false, shared_->quit_ps = false;
    for (Account& account : shared_->accounts) account.begun = 0, account.acknowledged = 0;
    for (std::size_t i = 0; i < accounts_; ++i) struck_.insert(i);  // they have ended
    view_.reset();
    start_job();
    finish();
  }

  void strike_setter() {
    start_job();
    wait_at_work();
    const auto set = [this](std::optional<FaultPoint> strike_at) {
      return spawn("setter", [this, strike_at] {
        if (strike_at) arm(*strike_at, case_.action, 1);
        JobControl control(config_.job);
        LiveSettings settings = control.current();
        settings.learning_rate *= 0.5F;
        control.change(settings);
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
  }

  // Whether the others do without a worker that is stopped there. Before it has joined, declared and initialised they
  // wait for that, in ssp for its clock, and say so.
  bool goes_on_without_stopped() const {
    static const std::set<std::string> kWorking = {"spare", "push",  "step", "arrive", "decide",
                                                   "help",  "apply", "open", "leave"};
    return case_.action == Action::kStop && kWorking.count(case_.row->protocol) != 0 && case_.kind != Kind::kSsp &&
           case_.row->way != FaultWay::kShort;
  }

  // In the loop, some rounds in; points that a worker passes once are struck at once.
  int choose_passes() {
    static const std::set<std::string> kLoop = {"spare", "push", "step", "arrive", "decide", "help", "apply", "open"};
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
      // Half of the dead are replaced. The first sync step needs everybody, dead or not.
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

  // Whether all the job's workers have joined, as its first step wants.
  bool view_has_enough() {
    open_view();
    return view_->workers().size() >= kWorkers;
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

// Kills a worker before each of its stores in turn, or before some of them. Returns how many cases failed.
int strike_stores(bool full, std::uint64_t only, std::mt19937_64& random) {
  constexpr int kSome = 12;
  static const FaultPointRow kAnyStore = {FaultPoint::kCount_, "a store", "any",
                                          FaultActor::kWorker, 0,         FaultWay::kAlone};
  int cases = 0, failed = 0;
  for (const Kind kind : {Kind::kAsync, Kind::kSsp, Kind::kSync, Kind::kBackup, Kind::kSummed})
    for (const bool is_first : {true, false}) {
      std::uint64_t stores = ~std::uint64_t{0};  // of a whole life, once known
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
  bool full = std::getenv("PS_TEST_FULL") != nullptr, list = false;
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
