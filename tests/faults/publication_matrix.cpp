// The kill matrix of publications: for every fault point of a publisher or a subscriber, a process of a real
// publication is killed or stopped there. Afterwards
//   - the other processes have made progress: readers beside a struck publisher get the generations of the next
//     publisher, and a publisher beside a struck reader continues to publish,
//   - no reader has seen a generation that is torn, that changes during its lease, or that is older than one before,
//   - every process ends with exit code 0, and nothing of the publication is left in /dev/shm.
// The points of rounds are those of a publication with three writers: its leader or another one is struck, and the three
// publish again once the struck one has a successor or goes on.
//
//   publication_matrix [--full] [--seed N] [--only TEXT]
//
// It also kills a process before the k-th store to a shared word, whatever that store is: for every k with --full.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "faults/named_cases.hpp"
#include "faults/struck_job.hpp"
#include "support/test_bundle.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;

struct Control {
  std::atomic<bool> finish, publisher_ends, reader_leaves;
  std::atomic<std::uint64_t> published, reads[8];  // by reader, in the order in which they were started
  char message[512];
};

struct Strike {
  std::optional<FaultPoint> point{};
  Action action = Action::kKill;
  int passes = 1;
  std::uint64_t store = 0;  // or before this store; 0: none

  void arm_it() const {
    if (point) arm(*point, action, passes);
    if (store != 0) arm_store(store);
  }
};

enum class Victim { kPublisher, kReader, kLeader, kWriter };

class Publication {
 public:
  explicit Publication(std::uint64_t seed) : random_(seed) {
    void* memory = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Failed{"no memory"};
    control_ = new (memory) Control{};
    spec_ = bundle_of(name_);
    spec_.records = random_() % 2 == 0 ? 4 : enough_records(spec_.subscribers);
  }
  ~Publication() {
    for (const auto& [pid, title] : running_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    munmap(control_, sizeof(Control));
  }
  Publication(const Publication&) = delete;
  Publication& operator=(const Publication&) = delete;

  void strike(const FaultPointRow& row, Action action) {
    const std::string protocol = row.protocol;
    Strike strike{.point = row.point, .action = action};
    if (protocol == "publish" || protocol == "lease") strike.passes = int(1 + random_() % 40);
    if (row.actor == FaultActor::kSubscriber) return strike_reader(strike, protocol == "unsubscribe");
    if (protocol.starts_with("round") || protocol.starts_with("writer")) return strike_writer(strike, protocol);
    if (protocol == "publication-remove") {
      strike_remover(strike, true);
      strike_remover(strike, false);
    } else {
      strike_publisher(strike, protocol);
    }
  }

  // The life of a process ends before its `store`-th store. Returns false if it has fewer stores.
  bool run_until_store(std::uint64_t store, Victim role) {
    const Strike strike{.store = store};
    const bool is_reader = role == Victim::kReader;
    if (role == Victim::kLeader || role == Victim::kWriter) share_out();
    start_reader();
    if (is_reader) start_publisher();
    if (role == Victim::kWriter) start_creator();
    const std::uint32_t number = role == Victim::kWriter ? 1 : 0;
    const pid_t victim = is_reader                    ? start_reader(strike)
                         : role == Victim::kPublisher ? start_publisher(strike)
                                                      : start_writer(number, strike);
    for (std::uint32_t other = 1; other < spec_.writers; ++other)
      if (other != number) start_writer(other);
    const auto goes_on = [&] { return is_reader ? control_->reads[1].load() : control_->published.load(); };
    int status = 0;
    const auto has_ended = [&] { return waitpid(victim, &status, WNOHANG) == victim; };
    if (!wait_for([&] { return has_ended() || goes_on() > 30; })) throw Failed{"nothing goes on" + said()};
    bool was_killed = running_.contains(victim) && WIFSIGNALED(status);
    if (!was_killed) {
      (is_reader ? control_->reader_leaves : control_->publisher_ends) = true;
      if (!wait_for(has_ended)) throw Failed{"it does not end" + said()};
      was_killed = WIFSIGNALED(status);
      control_->publisher_ends = false, control_->reader_leaves = false;
    }
    running_.erase(victim);
    if (is_reader) {
      --readers_;
      start_reader();
    } else if (role == Victim::kPublisher) {
      start_publisher();
    } else {
      start_writer(number);
    }
    finish();
    return was_killed;
  }

 private:
  void strike_publisher(const Strike& strike, const std::string& protocol) {
    start_reader();
    start_reader();
    if (protocol == "publication-take") {
      const pid_t first = start_publisher();
      wait_progress();
      end_by(first, SIGKILL);
    }
    const pid_t victim = start_publisher(strike);
    const bool ends = protocol == "publication-end";
    if (ends) {
      wait_progress();
      control_->publisher_ends = true;
    }
    wait_struck(victim, strike);
    control_->publisher_ends = false;
    if (strike.action == Action::kStop) {
      kill(victim, SIGCONT);
      if (ends) wait_ended(victim);
    }
    if (strike.action == Action::kKill || ends) start_publisher();
    finish();
  }

  void strike_reader(const Strike& strike, bool leaves) {
    start_publisher();
    start_reader();
    const pid_t victim = start_reader(strike);
    if (leaves) {
      wait_progress();
      control_->reader_leaves = true;
    }
    wait_struck(victim, strike);
    control_->reader_leaves = false;
    readers_ = 1;  // the number of readers whose progress counts
    wait_progress();
    if (strike.action == Action::kStop) {
      kill(victim, SIGCONT);
      leaves ? wait_ended(victim) : void(++readers_);
    }
    start_reader();
    finish();
  }

  void strike_writer(Strike strike, const std::string& protocol) {
    share_out();
    start_reader();
    start_reader();
    const bool is_round = protocol.starts_with("round"), leaves = protocol == "writer-leave",
               takes = protocol == "round-take";
    const std::uint32_t victim_number = protocol == "round-lead"              ? 0
                                        : protocol == "round-follow" || takes ? 1
                                                                              : std::uint32_t(random_() % 2);
    if (is_round && !takes) strike.passes = int(1 + random_() % 20);
    std::optional<pid_t> leader;
    if (victim_number != 0) leader = start_creator();
    const pid_t victim = start_writer(victim_number, strike);
    if (takes) {  // the other one is left to lead
      kill(*leader, SIGKILL);
      waitpid(*leader, nullptr, 0);
      running_.erase(*leader);
    } else {
      if (victim_number == 0 && is_round && !wait_for([&] { return name_.exists(); })) throw Failed{"no publication"};
      for (std::uint32_t other = 1; other < spec_.writers; ++other)
        if (other != victim_number) start_writer(other);
    }
    if (leaves) {
      wait_progress();
      control_->publisher_ends = true;
    }
    wait_struck(victim, strike);
    control_->publisher_ends = false;
    if (strike.action == Action::kStop) {
      kill(victim, SIGCONT);
      if (leaves) wait_ended(victim);
    }
    if (takes) start_writer(0), start_writer(2);
    if (strike.action == Action::kKill || leaves) start_writer(victim_number);
    finish();
  }

  // The last process to leave removes the publication: its publisher, or a reader.
  void strike_remover(const Strike& strike, bool is_publisher) {
    const pid_t publisher = start_publisher(is_publisher ? strike : Strike{});
    pid_t victim = publisher;
    if (is_publisher) {
      if (!wait_for([&] { return control_->published > 10; })) throw Failed{"nothing is published" + said()};
      control_->publisher_ends = true;
    } else {
      victim = start_reader(strike);
      wait_progress();
      control_->publisher_ends = true;
      wait_ended(publisher);
      control_->reader_leaves = true;
    }
    wait_struck(victim, strike);
    control_->publisher_ends = false, control_->reader_leaves = false;
    readers_ = 0, started_ = 0;
    start_reader();
    if (strike.action == Action::kStop) {
      // the publication is already removed, and the stopped process blocks no other
      if (*strike.point == FaultPoint::kBundleUnlinked) {
        start_publisher();
        wait_progress();
      }
      kill(victim, SIGCONT);
      wait_ended(victim);
    }
    if (publishers_ == 0) start_publisher();
    finish();
    control_->finish = false, control_->published = 0;
    readers_ = 0, started_ = 0;
  }

  // ---- processes

  template <class Body>
  pid_t spawn(const std::string& title, Body&& body) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      try {
        body();
      } catch (const std::exception& error) {
        std::snprintf(control_->message, sizeof control_->message, "%s: %s", title.c_str(), error.what());
        _exit(1);
      } catch (const Failed& failure) {
        std::snprintf(control_->message, sizeof control_->message, "%s: %s", title.c_str(), failure.what.c_str());
        _exit(1);
      }
      _exit(0);
    }
    running_[pid] = title;
    return pid;
  }

  pid_t start_publisher(const Strike& strike = {}) {
    ++publishers_;
    return spawn("publisher", [this, strike] {
      strike.arm_it();
      Publisher publisher(spec_, {.wait = Seconds(kPatience)});
      for (std::uint64_t round = 0; !control_->finish && !control_->publisher_ends; ++round) {
        if (const auto number = round % 2 == 1 ? publish_next_in_parts(publisher) : publish_next(publisher))
          control_->published = *number;
        if (round % 3 == 2) publisher.trim();
        usleep(100);  // so that readers get some of them; no result depends on it
      }
    });
  }

  // Three writers, each with a third of each tensor.
  void share_out() {
    spec_.writers = 3;
    plan_.assign(spec_.writers, {});
    for (std::uint32_t tensor = 0; tensor < spec_.tensors.size(); ++tensor)
      for (std::uint32_t writer = 0; writer < spec_.writers; ++writer) {
        const std::uint64_t elements = spec_.tensors[tensor].element_count(), begin = elements * writer / spec_.writers;
        plan_[writer].push_back({tensor, {begin}, {elements * (writer + 1) / spec_.writers - begin}});
      }
  }
  // Writer 0, once the publication is there: it leads.
  pid_t start_creator() {
    const pid_t pid = start_writer(0);
    if (!wait_for([&] { return name_.exists(); })) throw Failed{"no publication" + said()};
    return pid;
  }
  pid_t start_writer(std::uint32_t number, const Strike& strike = {}) {
    return spawn(fmt::format("writer {}", number), [this, number, strike] {
      strike.arm_it();
      Publisher publisher(spec_, {.wait = Seconds(kPatience), .plan = plan_, .writer = number});
      const bool may_leave = strike.point || strike.store != 0;
      while (!control_->finish && !(may_leave && control_->publisher_ends)) try {
          const std::uint64_t next = publisher.generation() + 1;
          const auto write = [&](std::uint32_t slice, Publisher::SliceOutput& out) {
            std::vector<std::byte> bytes(8 * plan_[number][slice].extent[0]);
            fill_words(bytes, word_of(next, slice));
            out.write(bytes);
          };
          const std::uint64_t made = publisher.publish_slices(write, 10 * next, Seconds(0.2));
          if (made != next) throw Failed{fmt::format("generation {} for step {}", made, next)};
          control_->published = made;
          if (made % 3 == 2) publisher.trim();
        } catch (const Timeout&) {
          // Others have published this step already, or a successor is awaited.
        }
    });
  }

  // Of several writers, each writes its part of each tensor.
  bool is_right(const Generation& generation) const {
    if (spec_.writers == 0) return is_whole(generation);
    for (std::uint32_t tensor = 0; tensor < generation.tensor_count(); ++tensor)
      if (!are_all(generation.tensor(tensor), word_of(generation.number(), tensor))) return false;
    return generation.step() == 10 * generation.number();
  }

  pid_t start_reader(const Strike& strike = {}) {
    const std::size_t number = started_++;
    ++readers_;
    return spawn("reader", [this, strike, number] {
      strike.arm_it();
      Subscriber subscriber(name_.text(), {.wait = Seconds(kPatience)});
      std::optional<Generation> held;
      std::uint64_t last = 0;
      const bool may_leave = strike.point || strike.store != 0;
      while (!control_->finish && !(may_leave && control_->reader_leaves && held)) {
        try {
          Generation next = subscriber.read(last, Seconds(0.05));
          if (next.number() <= last) throw Failed{"an older generation after a newer one"};
          if (!is_right(next)) throw Failed{fmt::format("generation {} is not whole", next.number())};
          if (held && !is_right(*held)) throw Failed{fmt::format("generation {} has changed", held->number())};
          last = next.number();
          subscriber.acknowledge(last);
          subscriber.pin(next, row_of(subscriber, next));
          if (last % 4 == 0) subscriber.unpin_all();
          held = std::move(next);
          ++control_->reads[number];
        } catch (const Timeout&) {
        } catch (const PublisherGone&) {
          usleep(200);  // the next publisher will start
        }
      }
    });
  }

  std::string said() const { return control_->message[0] == 0 ? "" : fmt::format(" ({})", control_->message); }

  void end_by(pid_t pid, int signal) {
    kill(pid, signal);
    waitpid(pid, nullptr, 0);
    running_.erase(pid);
    --publishers_;
  }

  void wait_struck(pid_t pid, const Strike& strike) {
    int status = 0;
    if (!wait_for([&] { return waitpid(pid, &status, WNOHANG | WUNTRACED) == pid; }))
      throw Failed{"the point is not reached" + said()};
    if (strike.action == Action::kKill && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      publishers_ -= running_[pid] == "publisher";
      running_.erase(pid);
      return;
    }
    if (strike.action == Action::kStop && WIFSTOPPED(status)) return;
    throw Failed{fmt::format("it ended by itself, status {}{}", status, said())};
  }

  void wait_ended(pid_t pid) {
    int status = 0;
    if (!wait_for([&] { return waitpid(pid, &status, WNOHANG) == pid; }))
      throw Failed{fmt::format("a {} does not end{}", running_[pid], said())};
    publishers_ -= running_[pid] == "publisher";
    running_.erase(pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw Failed{fmt::format("status {}{}", status, said())};
  }

  // Some more generations are published, and the live readers get some of them.
  void wait_progress() {
    constexpr std::uint64_t kMore = 10;
    std::vector<std::uint64_t> before;
    for (std::size_t number = 0; number < started_; ++number) before.push_back(control_->reads[number]);
    const std::uint64_t published = control_->published;
    const auto count = [&] {
      std::size_t fine = 0;
      for (std::size_t number = 0; number < started_; ++number)
        fine += control_->reads[number] >= before[number] + kMore;
      return fine;
    };
    const auto has_failed = [&] { return control_->message[0] != 0; };
    if (!wait_for([&] { return has_failed() || (control_->published >= published + kMore && count() >= readers_); }) ||
        has_failed())
      throw Failed{fmt::format("{} generations more, {} of {} readers go on{}", control_->published - published, count(),
                               readers_, said())};
  }

  void finish() {
    wait_progress();
    control_->finish = true;
    while (!running_.empty()) wait_ended(running_.begin()->first);
    if (name_.exists()) throw Failed{"the publication is left over"};
  }

  std::mt19937_64 random_;
  PublicationName name_;
  BundleSpec spec_;
  WritePlan plan_;  // of several writers
  Control* control_;
  std::map<pid_t, std::string> running_;
  std::size_t started_ = 0, readers_ = 0;  // readers, and how many of them are alive
  int publishers_ = 0;                     // the number alive
};

}  // namespace

int main(int argc, char** argv) {
  NamedCases cases;
  if (!cases.take(argc, argv)) return 2;
  for (int round = 0; round < (cases.is_full() ? 20 : 2); ++round)
    for (const FaultPointRow& row : kFaultPointTable) {
      if (row.actor != FaultActor::kPublisher && row.actor != FaultActor::kSubscriber) continue;
      for (const Action action : {Action::kKill, Action::kStop})
        cases.run(fmt::format("{} at {}", action == Action::kKill ? "kill" : "stop", row.name),
                  [&] { Publication(cases.random()).strike(row, action); });
    }
  for (const Victim role : {Victim::kPublisher, Victim::kReader, Victim::kLeader, Victim::kWriter}) {
    constexpr const char* kNames[] = {"publisher", "reader", "leader", "writer"};
    std::uint64_t last = ~std::uint64_t{0};  // in a whole life, once known
    const auto strike = [&](std::uint64_t store) {
      cases.run(fmt::format("kill {} before store {}", kNames[int(role)], store), [&] {
        if (!Publication(cases.random()).run_until_store(store, role)) last = store;
      });
    };
    if (cases.is_full())
      for (std::uint64_t store = 1; store < std::min<std::uint64_t>(last, 4000); ++store) strike(store);
    else
      for (int i = 0; i < 25; ++i) strike(1 + cases.random() % (i < 10 ? 12 : role == Victim::kPublisher ? 300 : 100));
  }
  return cases.end();
}
