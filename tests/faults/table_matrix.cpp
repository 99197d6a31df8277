// The kill matrix of tables by key: for every fault point of a table, a worker of a real job is killed or stopped there,
// while others make, push, pull and evict the same rows. Each case draws what its tables are: their type, parts, and how
// one of them admits and evicts rows. Afterwards
//   - the other workers have made progress,
//   - no row was another key's: a pulled value consists of pushes of that very key, and of no more than were begun,
//   - each acknowledged push of the table that evicts nothing is in its row, exactly once,
//   - each acknowledged push of the table that evicts is in a row that is there or in one that was evicted, exactly once,
//   - a copy of each table that one process has kept by dumps all the time is the table,
//   - the lists are sorted and have no key twice, and no row is lost once the sweep has passed it,
//   - every process ends with exit code 0, and nothing of the job is left in /dev/shm.
//
//   table_matrix [--full] [--seed N] [--only TEXT]
//
// It also kills or stops workers before the k-th store to a shared word, whatever that store is: for every k with --full.
// In a storm 1000 workers die one after the other while they make a row or update one, and then some die or stop wherever
// they are.
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "faults/named_cases.hpp"
#include "faults/table_case.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/table/census.hpp"
#include "shm/table/table_segment.hpp"
#include "support/table_job.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;

class Tables {
 public:
  explicit Tables(std::uint64_t seed) : random_(seed) {
    void* memory = mmap(nullptr, sizeof(TableControl), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Failed{"no memory"};
    control_ = new (memory) TableControl{};
    config_.job = unique_job_name();
    config_.layout = Layout::kInplace;
    config_.max_workers = 8;
    holds_ = Rows::drawn(random_);
    config_.placement = Placement::kPartition;
    config_.threads = 1 + random_() % 2;
  }
  ~Tables() {
    for (const auto& [pid, title] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    munmap(control_, sizeof(TableControl));
  }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  void strike(const FaultPointRow& row, Action action) {
    const std::string protocol = row.protocol;
    TableStrike strike{.point = row.point, .action = action};
    // What happens a few times in the life of a table, and only to who comes first.
    const bool is_first = protocol == "table-create" || row.way != FaultWay::kAlone;
    const bool meets_others = row.way == FaultWay::kContended;
    // Buckets are linked once: others could leave none to a worker that begins late.
    const bool begins_alone = protocol == "table-bucket" || (is_first && !meets_others);
    if (meets_others) holds_.evict_most();
    if (!is_first && protocol != "table-lane") strike.passes = int(1 + random_() % 60);
    start_ps();
    if (row.way == FaultWay::kSuccessor) {  // somebody who has left something
      const FaultPoint where = random_() % 2 == 0 ? FaultPoint::kRowClaimed : FaultPoint::kRowReady;
      wait_struck(start_worker(2, {.point = where, .passes = int(1 + random_() % 60)}), Action::kKill);
    }
    if (!begins_alone) start_worker(1), start_worker(2), start_keeper();
    const pid_t victim = start_worker(0, strike);
    wait_struck(victim, action);
    if (begins_alone) start_worker(1), start_worker(2), start_keeper();
    wait_rounds(20);
    if (action == Action::kKill)
      start_worker(0);
    else
      kill(victim, SIGCONT);
    finish();
  }

  // A worker is struck before its `store`-th store. Returns false if it has fewer.
  bool run_until_store(std::uint64_t store, Action action) {
    start_ps();
    start_worker(1);
    start_keeper();
    const pid_t victim = start_worker(0, {.action = action, .store = store});
    const Life& life = control_->life[control_->lives - 1];
    int status = 0;
    const auto is_struck = [&] { return waitpid(victim, &status, WNOHANG | WUNTRACED) == victim; };
    if (!wait_for([&] { return is_struck() || life.rounds > 300; })) throw Failed{"nothing goes on" + said()};
    const bool was_killed = WIFSIGNALED(status), was_stopped = WIFSTOPPED(status);
    if (was_killed) {
      running_.erase(victim);
      start_worker(0);
    }
    if (was_stopped) {
      wait_rounds(20);
      kill(victim, SIGCONT);
    }
    finish();
    return was_killed || was_stopped;
  }

  // Workers are killed all the time, or stopped for a while, wherever they are.
  void storm(std::uint32_t kills) {
    start_ps();
    start_keeper();
    std::vector<pid_t> workers;
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) workers.push_back(start_worker(rank));
    for (std::uint32_t i = 0; i < kills; ++i) {
      wait_rounds(random_() % 8);
      pid_t& one = workers[random_() % kWorkers];
      const auto rank = std::uint32_t(&one - workers.data());
      const bool is_stopped = random_() % 2 == 0;
      if (is_stopped) {  // and then some of them are killed
        kill(one, SIGSTOP);
        wait_rounds(random_() % 16);
        kill(one, SIGCONT);
        if (random_() % 2 == 0) continue;
      }
      kill(one, SIGKILL);
      waitpid(one, nullptr, 0);
      running_.erase(one);
      one = start_worker(rank);
    }
    finish();
  }

  // The same, but each dies while it makes a row or updates one.
  void storm_of_inserts(std::uint32_t kills) {
    static constexpr FaultPoint kPoints[] = {
        FaultPoint::kRowNoted, FaultPoint::kRowClaimed, FaultPoint::kRowFilled,
        FaultPoint::kRowReady, FaultPoint::kRowLinked,  FaultPoint::kRowLive,
        FaultPoint::kRowDone,  FaultPoint::kRowPinned,  FaultPoint::kInplaceElement};
    const auto start_doomed = [&](std::uint32_t rank) {
      return start_worker(rank, {.point = kPoints[random_() % std::size(kPoints)], .passes = int(1 + random_() % 60)});
    };
    holds_.dtype = DType::kFloat32;  // there are more pushes than kExactPushes of each key
    holds_.evict_most();             // else few rows are made once there are all of the other table
    start_ps();
    start_keeper();
    std::vector<pid_t> workers;
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) workers.push_back(start_doomed(rank));
    for (std::uint32_t i = 0; i < kills; ++i) {
      int status = 0;
      std::uint32_t rank = 0;
      const auto has_died = [&] {
        for (rank = 0; rank < kWorkers; ++rank)
          if (waitpid(workers[rank], &status, WNOHANG) == workers[rank]) return true;
        return false;
      };
      if (!wait_for(has_died)) throw Failed{"nobody comes to make a row" + said()};
      running_.erase(workers[rank]);
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) throw Failed{"a worker ended by itself" + said()};
      workers[rank] = start_doomed(rank);
    }
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
      kill(workers[rank], SIGKILL);
      waitpid(workers[rank], nullptr, 0);
      running_.erase(workers[rank]);
      start_worker(rank);
    }
    finish();
  }

 private:
  template <class Body>
  pid_t spawn(const std::string& title, Body&& body) {
    const pid_t pid = fork();
    if (pid < 0) throw Failed{"fork"};
    if (pid == 0) {
      int code = 0;
      try {
        body();
      } catch (const std::exception& error) {
        std::snprintf(control_->message, sizeof control_->message, "%s: %s", title.c_str(), error.what());
        code = 1;
      }
      _exit(code);
    }
    running_[pid] = title;
    return pid;
  }

  void start_ps() {
    config_.partitions = holds_.parts;
    spawn("ps", [this] {
      ServerOptions options;
      options.stop_requested = [this] { return control_->quit_ps.load(); };
      Server server(config_, options);
      server.serve({.stop_requested = options.stop_requested, .stop_at_once = {}, .log = {}, .every_second = {}});
    });
  }

  void start_keeper() {
    keeper_ = spawn("keeper", [this] { keep(); });
  }

  pid_t start_worker(std::uint32_t rank, const TableStrike& strike = {}) {
    // A storm has more lives than accounts: of the same rank they follow each other.
    const std::uint32_t number = control_->lives < kLives ? control_->lives.load() : kLives - kWorkers + rank;
    if (control_->lives < kLives - kWorkers) ++control_->lives;
    Life& life = control_->life[std::min(number, kLives - 1)];
    const std::uint64_t seed = random_();
    std::atomic<bool>& has_joined = control_->has_joined[starts_++ % kStarts];
    has_joined = false;
    const pid_t pid = spawn(fmt::format("worker {}", rank), [this, rank, strike, seed, &life, &has_joined] {
      strike.arm_it(seed);
      WorkerOptions options;
      options.job = config_.job;
      options.rank = rank;
      options.threads = config_.threads;
      options.log = [](const std::string&) {};
      Worker worker(options);
      has_joined = true;
      Table kept = worker.table(holds_.kept()), few = worker.table(holds_.few());
      watch_evictions();
      TableCopy kept_copy, few_copy;
      std::mt19937_64 random(seed);
      const auto work = [&](Table& table, Pushes Life::*which, std::uint64_t from, std::uint64_t count, bool pushes) {
        Pushes& pushed = life.*which;
        // Of a push of a few keys it is known more often which of them were admitted.
        std::vector<std::uint64_t> numbers(1 + random() % (random() % 4 == 0 ? 3 : 40));
        for (std::uint64_t& number : numbers) number = from + random() % count;
        if (config_.threads > 1 && random() % 16 == 0) {  // so many that threads share them
          numbers.resize(count);
          std::iota(numbers.begin(), numbers.end(), from);
        }
        std::sort(numbers.begin(), numbers.end());
        numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
        if (pushes && holds_.are_rounded())
          std::erase_if(numbers, [&](std::uint64_t number) { return begun(which, number) >= kExactPushes; });
        std::vector<std::uint64_t> keys;
        for (const std::uint64_t number : numbers) keys.push_back(key_of(number));
        std::vector<float> rows;
        for (const std::uint64_t number : numbers) rows.insert(rows.end(), kWidth, holds_.gradient_of(number));
        if (pushes) {
          for (const std::uint64_t number : numbers) ++pushed.begun[number];
          const PushedKeys done = table.push(keys, rows);
          if (which == &Life::kept && done.updated != keys.size()) throw Error("a push was refused");
          if (done.updated == keys.size())
            for (const std::uint64_t number : numbers) ++pushed.acknowledged[number];
          return;
        }
        const bool makes_rows = which == &Life::few && random() % 4 == 0;
        table.pull(keys, rows, {}, makes_rows);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const std::uint64_t most = begun(which, numbers[i]);
          for (std::uint64_t e = 0; e < kWidth; ++e) {
            const float value = rows[i * kWidth + e];
            if (const double found = holds_.pushes_in(numbers[i], value); found < 0 || found > double(most))
              throw Error(fmt::format("key {} has the value {}: {} pushes of {} each were begun", numbers[i], value,
                                      most, holds_.gradient_of(numbers[i])));
          }
        }
      };
      for (std::uint64_t round = 0; !control_->finish || round < 3; ++round, ++life.rounds) {
        // At first all make the same rows in the same order, then each takes whatever rows.
        const std::uint64_t from = round < kKeys / 50 ? round * 50 : 0;
        work(kept, &Life::kept, from, round < kKeys / 50 ? 50 : kKeys, true);
        work(kept, &Life::kept, 0, kKeys, false);
        work(few, &Life::few, 0, holds_.hot_keys(), true);
        work(few, &Life::few, 0, holds_.hot_keys(), false);
        if (round % 4 == 0) {
          std::vector<std::uint64_t> keys;
          for (int i = 0; i < 8; ++i) keys.push_back(key_of(random() % holds_.hot_keys()));
          few.evict(keys);
        }
        few_copy.follow(few);
        if (round % 16 == 0) few.expire(), kept.expire(), kept_copy.follow(kept);
        if (control_->finish && round >= 3) break;
      }
    });
    joining_[pid] = &has_joined;
    return pid;
  }

  std::uint64_t begun(Pushes Life::*which, std::uint64_t number) const {
    std::uint64_t sum = 0;
    for (const Life& life : control_->life) sum += (life.*which).begun[number];
    return sum;
  }
  std::uint64_t rounds() const {
    std::uint64_t sum = 0;
    for (const Life& life : control_->life) sum += life.rounds;
    return sum;
  }
  // Waits until the workers have gone so many rounds further.
  void wait_rounds(std::uint64_t count) const {
    const std::uint64_t before = rounds();
    if (!wait_for([&] { return rounds() > before + count; })) throw Failed{"the others do not go on" + said()};
  }
  std::string said() const {
    return (control_->message[0] == 0 ? "" : std::string(": ") + control_->message) + " (" + holds_.text() + ")";
  }

  void wait_struck(pid_t victim, Action action) {
    int status = 0;
    const auto is_struck = [&] { return waitpid(victim, &status, WNOHANG | WUNTRACED) == victim; };
    if (!wait_for(is_struck)) throw Failed{"the point is not reached" + said()};
    const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (was_killed) running_.erase(victim);
    if (action == Action::kKill ? !was_killed : !WIFSTOPPED(status)) throw Failed{"it ended by itself" + said()};
  }
  void wait_ended(pid_t pid) {
    int status = 0;
    if (!wait_for([&] { return waitpid(pid, &status, WNOHANG) == pid; }))
      throw Failed{running_[pid] + " does not end" + said()};
    const std::string title = running_[pid];
    running_.erase(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw Failed{title + " failed" + said()};
  }

  void finish() {
    wait_rounds(40);
    // Nobody leaves before all have joined and somebody looks: the job would end.
    const auto have_joined = [&] {
      return std::all_of(running_.begin(), running_.end(),
                         [&](const auto& one) { return !joining_.contains(one.first) || *joining_[one.first]; });
    };
    if (!wait_for(have_joined)) throw Failed{"a worker does not join" + said()};
    const pid_t auditor = spawn("auditor", [this] { audit(); });
    wait_ended(auditor);
    wait_ended(keeper_);
    control_->quit_ps = true;
    while (!running_.empty()) wait_ended(running_.begin()->first);
    const std::vector<std::string> left = shm::list_segments(shm::control_name(config_.job));
    if (!left.empty()) throw Failed{fmt::format("{} is left over", left.front())};
  }

  // Waits until the workers have left.
  bool are_gone() const {
    shm::AttachOutcome outcome;
    auto job = shm::JobSegments::try_attach(config_.job, shm::Access::kReadOnly, outcome);
    if (!job) throw Error("the job has gone");
    return wait_for([&] {
      for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
        if (job->is_alive(rank)) return false;
      return true;
    });
  }

  // Keeps a copy of each table by dumps, and compares it with the table in the end.
  void keep() {
    WorkerOptions options;
    options.job = config_.job;
    options.rank = kWorkers + 1;
    options.log = [](const std::string&) {};
    Worker worker(options);
    Table kept = worker.table(holds_.kept()), few = worker.table(holds_.few());
    TableCopy kept_copy, few_copy;
    for (control_->keeps = true; !control_->finish;) kept_copy.follow(kept), few_copy.follow(few);
    // Rows that are too old may go until the auditor has looked for them.
    if (!are_gone() || !wait_for([&] { return control_->is_tidy.load(); })) throw Error("the workers do not leave");
    const auto compare = [](Table& table, TableCopy& copy) {
      copy.follow(table);
      TableCopy all;
      all.follow(table);
      // What a killed worker has made and not updated may be missing: it has the initial values, which are 0 here.
      std::erase_if(all.rows, [&](const auto& row) {
        return !copy.rows.contains(row.first) && row.second == std::vector<float>(row.second.size());
      });
      if (copy.rows != all.rows)
        throw Error(fmt::format("the copy of table {} has {} rows, the table has {}, and they are not the same",
                                table.name(), copy.rows.size(), all.rows.size()));
    };
    compare(kept, kept_copy), compare(few, few_copy);
  }

  void audit() {
    WorkerOptions options;
    options.job = config_.job;
    options.rank = kWorkers;
    options.log = [](const std::string&) {};
    Worker worker(options);
    Table kept = worker.table(holds_.kept()), few = worker.table(holds_.few());
    if (!wait_for([&] { return control_->keeps.load(); })) throw Error("the keeper does not begin");
    control_->finish = true;
    shm::AttachOutcome outcome;
    auto job = shm::JobSegments::try_attach(config_.job, shm::Access::kReadOnly, outcome);
    if (!job || !are_gone()) throw Error("the workers do not leave");
    TableStrike().arm_it(0);
    watch_evictions();
    kept.expire(), few.expire();  // the sweep passes each row
    control_->is_tidy = true;
    std::vector<shm::Segment> segments = shm::find_tables(*job);
    if (segments.size() != 2 * holds_.parts) throw Error(fmt::format("there are {} tables", segments.size()));
    for (const shm::Segment& segment : segments) {
      shm::TableShm checked = {};
      if (!shm::is_table(segment, *job, checked)) throw Error("it is not a table");
      const shm::PartCensus census = shm::take_census(segment, checked);
      const shm::TableShm& record = shm::table_record(segment);
      if (!census.faults.empty()) throw Error(fmt::format("{}: {}", record.name, census.faults.front()));
      if (census.claimed + census.unlinked + census.dead != 0 ||
          census.linked + census.free != record.rows_next.load_acquire())
        throw Error(fmt::format("{}: {} linked, {} free, {} claimed, {} unlinked, {} dead of {} rows", record.name,
                                census.linked, census.free, census.claimed, census.unlinked, census.dead,
                                record.rows_next.load_acquire()));
    }
    check(kept, &Life::kept, false);
    check(few, &Life::few, true);
    if (control_->has_strange_row) throw Error("a row was evicted that was not of pushes of its key");
  }

  void watch_evictions() const {
    EvictionWitness::begin(*control_, holds_);
    if (EvictionWitness::parts() != holds_.parts) throw Error("the table is not found in this process");
  }

  // Each push is in the row that is there, or in one that was evicted: what the evictors have noted. An evictor that was
  // killed just then may have taken the row or not.
  void check(Table& table, Pushes Life::*which, bool evicts) const {
    for (std::uint64_t number = 0; number < (evicts ? holds_.hot_keys() : kKeys); ++number) {
      std::uint64_t acknowledged = 0;
      for (const Life& life : control_->life) acknowledged += (life.*which).acknowledged[number];
      const std::uint64_t key = key_of(number);
      std::vector<float> row(kWidth);
      table.pull({&key, 1}, row);
      for (std::uint64_t e = 0; e < kWidth; ++e) {
        const double there = holds_.pushes_in(number, row[e]);
        std::uint64_t taken = 0, perhaps = 0;
        if (evicts) {
          taken = control_->taken[number][e];
          for (const Taking& one : control_->takings)
            if (one.number == number + 1) perhaps += one.pushes[e];
        }
        if (there < 0 || there + double(taken) > double(begun(which, number)) ||
            there + double(taken + perhaps) < double(acknowledged))
          throw Error(
              fmt::format("table {}, key {}: {} pushes acknowledged, {} begun, {} is there of {} each, and {} of "
                          "them were evicted, and perhaps {} more",
                          table.name(), number, acknowledged, begun(which, number), row[e], holds_.gradient_of(number),
                          taken, perhaps));
      }
    }
  }

  std::mt19937_64 random_;
  JobConfig config_;
  Rows holds_;
  TableControl* control_;
  std::map<pid_t, std::string> running_;
  pid_t keeper_ = 0;
  std::map<pid_t, std::atomic<bool>*> joining_;
  std::uint32_t starts_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  NamedCases cases;
  if (!cases.take(argc, argv)) return 2;
  for (int round = 0; round < (cases.is_full() ? 20 : 1); ++round)
    for (const FaultPointRow& row : kFaultPointTable)
      for (const Action action : {Action::kKill, Action::kStop})
        if (row.actor == FaultActor::kTableWorker || row.point == FaultPoint::kInplaceElement)
          cases.run(fmt::format("{} at {}", action == Action::kKill ? "kill" : "stop", row.name),
                    [&] { Tables(cases.random()).strike(row, action); });
  std::uint64_t last = ~std::uint64_t{0};
  const auto strike = [&](std::uint64_t store) {
    const Action action = cases.random() % 4 == 0 ? Action::kStop : Action::kKill;
    cases.run(fmt::format("{} before store {}", action == Action::kKill ? "kill" : "stop", store), [&] {
      if (!Tables(cases.random()).run_until_store(store, action)) last = store;
    });
  };
  if (cases.is_full())
    for (std::uint64_t store = 1; store < std::min<std::uint64_t>(last, 2000); ++store) strike(store);
  else
    for (int i = 0; i < 12; ++i) strike(1 + cases.random() % (i < 4 ? 60 : 3000));
  cases.run("storm of inserts", [&] { Tables(cases.random()).storm_of_inserts(1000); });
  cases.run("storm", [&] { Tables(cases.random()).storm(cases.is_full() ? 2000 : 60); });
  return cases.end();
}
