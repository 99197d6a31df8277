// One of a crowd of processes that use a job at the same time, for test_storm.py, which kills and stops them:
//
//   crowd ROLE JOB PUBLICATION RECORD PLACE
//
//   count      adds 1 to its element of `counts`, and acknowledges each addition
//   pair       pushes 1 to `plus` and -1 to `minus` as one group
//   pull       pulls `plus` and `minus` as one state
//   snapshot   takes snapshots as a worker
//   view       takes snapshots from outside of the job
//   subscribe  reads the generations that the ps publishes
//   keep       pushes 1 to its rows of table `kept`, which has room, and acknowledges each push; lets rows expire, of
//              which none is too old
//   churn      pushes 1 to some keys of table `churned`, which has too few rows and a short ttl, and pulls others;
//              evicts keys and lets rows expire
//   dump       keeps copies of both tables by their dumps, and compares them with the tables at the end, when nobody
//              pushes any more
//   guest      as a guest, adds 1 to `given` once for each ticket; the next one begins with the ticket of a killed one
//   write      as one of two writers of PUBLICATION-w, numbered by PLACE, publishes the number of the step
//   collect    reads these generations
//   alone      the worker of the job JOB-s, whose variables are single-writer: adds 1 to `own`, and acknowledges each
//              addition
//
// It ends when its standard input does. RECORD is a file of 64-bit counters, eight for each PLACE: acknowledged
// additions, states read, and states that were wrong. Whatever a role reads of pairs has plus = -minus, and all elements
// of each are equal; a row of `kept` has at least what was acknowledged.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"

namespace {

using namespace ps_shm;

constexpr std::size_t kElements = 5000, kPlaces = 64, kRowSize = 8, kKeys = 200;

struct Record {
  std::atomic<std::uint64_t> acknowledged, states, violations, unused[5];
};

struct Me {
  std::string job, publication;
  std::size_t place;
  Record* record;
};

bool is_over() {
  pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return poll(&input, 1, 0) != 0;
}

// Between two attempts of something that another process has to do first; nothing depends on how long it is.
void wait_a_moment() { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

void check(const Me& me, std::span<const float> plus, std::span<const float> minus, const char* what) {
  ++me.record->states;
  for (std::size_t i = 0; i < kElements; ++i)
    if (plus[i] != plus[0] || minus[i] != -plus[0]) {
      ++me.record->violations;
      std::fprintf(stderr, "%s: element %zu: plus %g, minus %g, plus of element 0: %g\n", what, i, double(plus[i]),
                   double(minus[i]), double(plus[0]));
      return;
    }
}

void check(const Me& me, const Snapshot& snapshot, const char* what) {
  if (!snapshot.partial_ranks().empty()) return;  // it says that it is none
  std::vector<float> plus(kElements), minus(kElements);
  snapshot.copy("plus", plus);
  snapshot.copy("minus", minus);
  check(me, plus, minus, what);
}

struct Member {
  explicit Member(const Me& me) : worker(WorkerOptions{.job = me.job, .log = [](const std::string&) {}}) {}
  Variable declare(const char* name, std::uint64_t elements, DType dtype = DType::kFloat32) {
    return worker.variable({.name = name, .shape = {elements}, .rule = UpdateRule::kAdd, .dtype = dtype},
                           [](std::span<float>) {});
  }
  Worker worker;
  Variable counts = declare("counts", kPlaces, DType::kInt64);
  std::array<Variable, 2> pair{declare("plus", kElements), declare("minus", kElements)};
};

void count(const Me& me) {
  Member member(me);
  std::vector<std::int64_t> one(kPlaces);
  one[me.place] = 1;
  for (int i = 1; !is_over(); ++i) {
    member.worker.add(member.counts, std::as_bytes(std::span(one)));
    ++me.record->acknowledged;
    if (i % 64 == 0) member.worker.step();
  }
}

void push_pairs(const Me& me) {
  Member member(me);
  const std::vector<float> plus(kElements, 1.0F), minus(kElements, -1.0F);
  while (!is_over()) {
    {
      const PushGroup group = member.worker.group_pushes();
      member.worker.push(member.pair[0], plus);
      member.worker.push(member.pair[1], minus);
    }
    member.worker.step();
  }
}

void pull(const Me& me) {
  Member member(me);
  std::vector<float> plus(kElements), minus(kElements);
  const std::array<std::span<float>, 2> outs{plus, minus};
  while (!is_over()) {
    try {
      member.worker.pull_all(member.pair, outs);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;  // a worker is stopped within a push
      continue;
    }
    check(me, plus, minus, "pull_all");
  }
}

void snapshot(const Me& me) {
  Member member(me);
  while (!is_over()) try {
      check(me, member.worker.snapshot({.wait = Seconds(2)}), "a worker's snapshot");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;  // a stopped process has one
    }
}

void view(const Me& me) {
  Member(me).worker.leave();  // the variables are declared
  const JobView job(me.job);
  while (!is_over()) try {
      check(me, job.snapshot({.wait = Seconds(2)}), "a snapshot from outside");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
}

void subscribe(const Me& me) {
  Subscriber subscriber(me.publication);
  const std::uint32_t plus = subscriber.find("plus"), minus = subscriber.find("minus");
  for (std::uint64_t number = 0; !is_over();) try {
      const Generation generation = subscriber.read(number, Seconds(0.5));
      number = generation.number();
      check(me, generation.values<float>(plus), generation.values<float>(minus), "a generation");
    } catch (const Timeout&) {
    } catch (const PublisherGone&) {  // until the next ps takes it over
      wait_a_moment();
    }
}

void fail(const Me& me, const std::string& what) {
  ++me.record->violations;
  std::fprintf(stderr, "%s\n", what.c_str());
}

Table declare_table(Worker& worker, bool is_kept) {
  TableSpec spec{.name = "kept", .row_size = kRowSize, .max_rows = 100'000, .rule = UpdateRule::kAdd};
  spec.ttl = 3600, spec.initial_range = 0;
  if (!is_kept) spec.name = "churned", spec.max_rows = 1000, spec.ttl = 0.5;
  return worker.table(spec);
}

void keep(const Me& me) {
  Member member(me);
  Table table = declare_table(member.worker, true);
  std::vector<std::uint64_t> keys(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) keys[i] = me.place << 32 | i;
  std::vector<float> ones(kKeys * kRowSize, 1.0F), rows(kKeys * kRowSize);
  for (int i = 1; !is_over(); ++i) {
    table.push(keys, ones);
    const std::uint64_t acknowledged = ++me.record->acknowledged;
    if (i % 16 == 0) table.expire();
    table.pull(keys, rows);
    ++me.record->states;
    for (const float one : rows)
      if (one < float(acknowledged))
        return fail(me, "kept: a row has " + std::to_string(one) + " of " + std::to_string(acknowledged) + " pushes");
  }
}

void churn(const Me& me) {
  Member member(me);
  Table table = declare_table(member.worker, false);
  std::mt19937_64 random(static_cast<std::uint64_t>(getpid()));
  std::vector<std::uint64_t> keys(kKeys);
  const std::vector<float> ones(kKeys * kRowSize, 1.0F);
  std::vector<float> rows(kKeys * kRowSize);
  std::array<bool, kKeys> found{};
  for (int i = 1; !is_over(); ++i) {
    for (std::uint64_t& key : keys) key = random() % 5000;
    table.push(keys, ones);
    for (std::uint64_t& key : keys) key = random() % 5000;
    table.pull(keys, rows);
    ++me.record->states;
    for (const float one : rows)
      if (one < 0 || one != std::floor(one)) return fail(me, "churned: a row has " + std::to_string(one));
    table.contains(keys, found);
    if (i % 8 == 0) table.evict(std::span(keys).first(20));
    if (i % 32 == 0) table.expire();
  }
}

// What the dumps of a table have told.
struct Copy {
  std::map<std::uint64_t, std::vector<float>> rows;
  std::uint64_t version = 0;

  void follow(Table& table) {
    std::map<std::uint64_t, std::vector<float>> changed;
    const TableDump dump = table.dump(
        version, [&](const TableRow& row) { changed[row.key].assign(row.values.begin(), row.values.end()); },
        [&](std::uint64_t key) { rows.erase(key); });
    if (dump.is_full) rows.clear();
    for (auto& [key, values] : changed) rows[key] = std::move(values);
    version = dump.version;
  }
};

void dump(const Me& me) {
  Member member(me);
  for (std::array<Copy, 2> copies;;) {
    const bool is_last = is_over();
    for (const bool is_kept : {false, true}) {
      Table table = declare_table(member.worker, is_kept);
      copies[is_kept].follow(table);
      ++me.record->states;
      Copy all;
      if (is_last) all.follow(table);
      // A row that was made and not updated, by one who was killed, may be missing.
      if (is_last) std::erase_if(all.rows, [](const auto& row) { return row.second == std::vector<float>(kRowSize); });
      if (is_last) std::erase_if(copies[is_kept].rows, [](const auto& row) {
        return row.second == std::vector<float>(kRowSize);
      });
      if (is_last && all.rows != copies[is_kept].rows)
        fail(me, table.name() + ": the dumps have " + std::to_string(copies[is_kept].rows.size()) + " rows, the table " +
                     std::to_string(all.rows.size()));
    }
    if (is_last) return;
  }
}

void give(const Me& me) {
  Worker guest(WorkerOptions{.job = me.job, .guest = true, .log = [](const std::string&) {}});
  const std::array<Variable, 1> given{guest.variable(
      {.name = "given", .shape = {kElements}, .rule = UpdateRule::kAdd, .dtype = DType::kInt64}, [](std::span<float>) {})};
  const std::vector<std::int64_t> ones(kElements, 1);
  const std::array<std::span<const std::byte>, 1> deltas{std::as_bytes(std::span(ones))};
  while (!is_over()) {
    guest.add_once(me.record->acknowledged + 1, given, deltas);
    ++me.record->acknowledged;
  }
}

void write(const Me& me) {
  const std::uint32_t number = me.place % 2;
  Publisher publisher({.name = me.publication + "-w", .tensors = {{.name = "w", .shape = {2 * kElements}}}, .writers = 2},
                      {.plan = {{{0, {0}, {kElements}}}, {{0, {kElements}, {kElements}}}}, .writer = number});
  while (!is_over()) {
    const std::uint64_t step = publisher.step() + 1;
    const std::vector<float> values(kElements, static_cast<float>(step));
    try {
      publisher.publish_slices([&](std::uint32_t, Publisher::SliceOutput& out) { out.write_floats(values); }, step, Seconds(0.2));
      ++me.record->acknowledged;
    } catch (const Timeout&) {  // the other writer is dead, stopped, or at the next step
    }
  }
}

void collect(const Me& me) {
  Subscriber subscriber(me.publication + "-w", {.wait = Seconds(60)});
  for (std::uint64_t number = 0; !is_over();) try {
      const Generation generation = subscriber.read(number, Seconds(0.5));
      number = generation.number();
      ++me.record->states;
      for (const float one : generation.values<float>(0))
        if (one != static_cast<float>(generation.step()))
          return fail(me, "a generation of step " + std::to_string(generation.step()) + " has " + std::to_string(one));
    } catch (const Timeout&) {
    } catch (const PublisherGone&) {  // until a writer is there again
      wait_a_moment();
    }
}

void push_alone(const Me& me) {
  Worker worker(WorkerOptions{.job = me.job + "-s", .log = [](const std::string&) {}});
  const Variable own = worker.variable({.name = "own", .shape = {20 * kElements}, .rule = UpdateRule::kAdd},
                                       [](std::span<float>) {});
  const std::vector<float> ones(20 * kElements, 1.0F);
  std::vector<float> values(20 * kElements);
  for (int i = 1; !is_over(); ++i) {
    worker.push(own, ones);
    const std::uint64_t acknowledged = ++me.record->acknowledged;
    if (i % 16 != 0) continue;
    worker.step();
    worker.pull(own, values);
    ++me.record->states;
    for (const float one : values)
      if (one < float(acknowledged)) return fail(me, "own: " + std::to_string(one) + " of " + std::to_string(acknowledged));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) return 2;
  const std::string role = argv[1];
  const int file = open(argv[4], O_RDWR | O_CLOEXEC);
  void* const record = mmap(nullptr, kPlaces * sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || record == MAP_FAILED) return 2;
  const std::size_t place = std::strtoul(argv[5], nullptr, 10);
  const Me me{.job = argv[2], .publication = argv[3], .place = place, .record = static_cast<Record*>(record) + place};
  for (const auto& [name, play] : std::initializer_list<std::pair<const char*, void (*)(const Me&)>>{
           {"count", count}, {"pair", push_pairs}, {"pull", pull}, {"snapshot", snapshot}, {"view", view},
           {"subscribe", subscribe}, {"keep", keep}, {"churn", churn}, {"dump", dump}, {"guest", give}, {"write", write},
           {"collect", collect}, {"alone", push_alone}})
    if (role == name) {
      play(me);
      return 0;
    }
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "crowd: %s %s: %s\n", argv[1], argv[5], error.what());
  return 1;
}
