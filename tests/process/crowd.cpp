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
//
// It ends when its standard input does. RECORD is a file of 64-bit counters, eight for each PLACE: acknowledged
// additions, states read, and states that showed a part of a group. Whatever a role reads has plus = -minus, and all
// elements of each are equal.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/subscriber.hpp"
#include "ps_shm/worker.hpp"

namespace {

using namespace ps_shm;

constexpr std::size_t kElements = 5000, kPlaces = 64;

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
      check(me, member.worker.snapshot({.wait_seconds = 2}), "a worker's snapshot");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;  // a stopped process has one
    }
}

void view(const Me& me) {
  Member(me).worker.leave();  // the variables are declared
  const JobView job(me.job);
  while (!is_over()) try {
      check(me, job.snapshot({.wait_seconds = 2}), "a snapshot from outside");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable) throw;
    }
}

void subscribe(const Me& me) {
  Subscriber subscriber(me.publication);
  const std::uint32_t plus = subscriber.find("plus"), minus = subscriber.find("minus");
  for (std::uint64_t number = 0; !is_over();) try {
      const Generation generation = subscriber.read(number, 0.5);
      number = generation.number();
      check(me, generation.values<float>(plus), generation.values<float>(minus), "a generation");
    } catch (const Timeout&) {
    } catch (const PublisherGone&) {  // until the next ps takes it over
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
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
           {"subscribe", subscribe}})
    if (role == name) {
      play(me);
      return 0;
    }
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "crowd: %s %s: %s\n", argv[1], argv[5], error.what());
  return 1;
}
