// What snapshots cost those who push: how long a push waits for a cut, and how much of its rate a trainer loses beside a
// process that copies a snapshot, against one that copies as many private bytes.
//
//     snapshots [--variables 256] [--mib 4] [--rounds 20]     a Markdown table; twice the model in /dev/shm, and some
//
// A push is one variable's, with SGD. The time that a process waited for a core (/proc/self/schedstat) is taken off.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "processes.hpp"
#include "ps/job_view.hpp"
#include "ps/server.hpp"
#include "ps/worker.hpp"
#include "report.hpp"
#include "shm/clock.hpp"

namespace {

using namespace ps;
using bench::SharedBytes;

struct Options {
  std::uint32_t variables = 256, mib = 4, rounds = 20;
  std::uint64_t elements() const { return std::uint64_t{mib} * (1 << 20) / sizeof(float); }
};

std::string name_of(std::uint32_t number) { return fmt::format("v{}", number); }

// Nanoseconds that this process was ready to run and did not.
std::uint64_t waited_ns() {
  std::ifstream file("/proc/self/schedstat");
  std::uint64_t ran = 0, waited = 0;
  file >> ran >> waited;
  return waited;
}

void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

struct Push {
  std::uint64_t begin, end, ns;  // ns: without waiting for a core
};

constexpr std::size_t kMostPushes = 1 << 20;
struct Log {
  std::atomic<std::uint64_t> pushes;
  Push all[kMostPushes];
};
struct Shared {
  std::atomic<bool> stop;
  std::atomic<std::uint32_t> ready;
};

pid_t start(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  try {
    body();
  } catch (const std::exception& error) {
    fmt::print(stderr, "snapshots: {}\n", error.what());
    _exit(1);
  }
  _exit(0);
}

// What stands for making a gradient: arithmetic on what a core's first cache holds.
class Computing {
 public:
  // So long that `share` of the time is that, with pushes of `push_ns` between.
  Computing(double share, std::uint64_t push_ns) {
    const std::uint64_t begin = shm::now_ns();
    run(1000);
    const double unit_ns = double(shm::now_ns() - begin) / 1000;
    units_ = static_cast<std::uint64_t>(double(push_ns) * share / (1 - share) / unit_ns);
  }
  void run() { run(units_); }

 private:
  void run(std::uint64_t units) {
    for (std::uint64_t unit = 0; unit < units; ++unit) {
      for (float& value : values_) value = value * 0.999F + 0.001F;
      asm volatile("" ::"r"(values_.data()) : "memory");
    }
  }
  std::uint64_t units_ = 0;
  std::vector<float> values_ = std::vector<float>(4096, 1.0F);
};

// Pushes one variable after the other until it is told to stop, and notes how long each push took. `computing`: the share
// of its time that it computes in between.
void push_until_stopped(const std::string& job, const Options& options, std::uint32_t rank, int core, Shared& shared,
                        Log& log, double computing = 0) {
  pin(core);
  WorkerOptions worker_options;
  worker_options.job = job;
  worker_options.rank = rank;
  Worker worker(worker_options);
  std::vector<Variable> variables;
  for (std::uint32_t i = 0; i < options.variables; ++i)
    variables.push_back(
        worker.variable(VariableSpec{.name = name_of(i), .shape = {options.elements()}},
                        [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); }));
  const bench::PrivateFloats gradient(options.elements(), 1e-6F);
  for (const Variable& variable : variables) worker.push(variable, {gradient.data(), gradient.size()});  // first touch
  const std::uint64_t first = shm::now_ns();
  for (const Variable& variable : variables) worker.push(variable, {gradient.data(), gradient.size()});
  Computing between(computing, (shm::now_ns() - first) / variables.size());
  ++shared.ready;
  for (std::uint64_t i = rank * options.variables / 2; !shared.stop; ++i) {
    const std::uint64_t waited = waited_ns(), begin = shm::now_ns();
    worker.push(variables[i % options.variables], {gradient.data(), gradient.size()});
    const std::uint64_t end = shm::now_ns(), waits = waited_ns() - waited;
    const std::uint64_t number = log.pushes;
    if (number == kMostPushes) break;
    log.all[number] = {begin, end, end - begin - std::min(waits, end - begin)};
    log.pushes = number + 1;
    between.run();
  }
}

double percentile(std::vector<std::uint64_t> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return double(values[std::min(values.size() - 1, std::size_t(share * double(values.size())))]);
}

struct Span {
  std::uint64_t begin, end;
};

// Of the pushes that overlap one of the spans, or of those that overlap none.
std::vector<std::uint64_t> times_of(const Log& log, const std::vector<Span>& spans, bool overlaps) {
  std::vector<std::uint64_t> times;
  for (std::uint64_t i = 0; i < log.pushes; ++i) {
    const Push& push = log.all[i];
    const bool is_in = std::any_of(spans.begin(), spans.end(),
                                   [&](const Span& span) { return push.begin < span.end && push.end > span.begin; });
    if (is_in == overlaps) times.push_back(push.ns);
  }
  return times;
}

void print_times(const char* what, const std::vector<std::uint64_t>& times) {
  fmt::print("| {} | {} | {:.3f} | {:.3f} | {:.3f} |\n", what, times.size(), percentile(times, 0.5) * 1e-6,
             percentile(times, 0.99) * 1e-6, percentile(times, 1) * 1e-6);
}

struct Job {
  std::string name = fmt::format("bench-snapshots-{}", getpid());
  SharedBytes shared_bytes{sizeof(Shared)};
  Shared& shared = *shared_bytes.as<Shared>();
  std::vector<pid_t> pids;

  explicit Job(std::uint32_t workers) {
    JobConfig config;
    config.job = name;
    config.workers = workers;
    config.max_workers = 4;
    config.optimizer.learning_rate = 0.01F;
    config.linger_seconds = 0;
    std::fflush(stdout);
    pids.push_back(start([&] {
      Server server(config);
      ++shared.ready;
      server.serve(
          {.stop_requested = [&] { return shared.stop.load(); }, .stop_at_once = {}, .notice = {}, .every_second = {}});
    }));
    wait_ready(1);
  }
  ~Job() {
    shared.stop = true;
    for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  void wait_ready(std::uint32_t number) const {
    for (const std::uint64_t until = shm::now_ns() + 120'000'000'000; shared.ready < number;) {
      if (shm::now_ns() > until) throw std::runtime_error("the job does not begin");
      usleep(1000);
    }
  }
};

std::uint64_t copy_all(const Snapshot& snapshot, const Options& options, const bench::PrivateFloats& room) {
  for (std::uint32_t i = 0; i < options.variables; ++i) snapshot.copy(name_of(i), {room.data(), options.elements()});
  return options.variables * options.elements() * sizeof(float);
}

// How long pushes of two workers take: with nothing else, while a cut is made, and while a snapshot is copied.
void measure_delays(const Options& options) {
  Job job(2);
  SharedBytes logs(2 * sizeof(Log));
  Log* const log = logs.as<Log>();
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    job.pids.push_back(start(
        [&, rank] { push_until_stopped(job.name, options, rank, static_cast<int>(rank), job.shared, log[rank]); }));
  job.wait_ready(3);
  const bench::PrivateFloats room(options.elements());
  JobView view(job.name);
  std::vector<Span> cuts, copies;
  double first = 0;
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    usleep(200'000);
    const std::uint64_t begin = shm::now_ns();
    const Snapshot snapshot = view.snapshot();
    const std::uint64_t taken = shm::now_ns();
    if (!snapshot.split().empty()) throw std::runtime_error("a cut was split");
    if (round == 0)
      first = double(taken - begin) * 1e-6;
    else
      cuts.push_back({begin, taken});
    copy_all(snapshot, options, room);
    copies.push_back({round == 0 ? begin : taken, shm::now_ns()});
  }
  job.shared.stop = true;
  for (const pid_t pid : job.pids) waitpid(pid, nullptr, 0);
  job.pids.clear();
  std::vector<Span> any = cuts;
  any.insert(any.end(), copies.begin(), copies.end());
  std::vector<std::uint64_t> alone, at_cut, copying;
  for (int rank = 0; rank < 2; ++rank) {
    const auto add = [&](std::vector<std::uint64_t>& to, const std::vector<std::uint64_t>& times) {
      to.insert(to.end(), times.begin(), times.end());
    };
    add(alone, times_of(log[rank], any, false));
    add(at_cut, times_of(log[rank], cuts, true));
    add(copying, times_of(log[rank], copies, true));
  }
  fmt::print("\n| pushes of {} MiB, two workers | number | p50, ms | p99, ms | max, ms |\n|---|---|---|---|---|\n",
             options.mib);
  print_times("no snapshot", alone);
  print_times("while a cut is made", at_cut);
  print_times("while a snapshot is copied", copying);
  std::vector<std::uint64_t> taking;
  for (const Span& cut : cuts) taking.push_back(cut.end - cut.begin);
  fmt::print(
      "\nTaking a snapshot: {:.3f} ms (median), {:.3f} ms at most; the first one, with its reserves, {:.1f} ms.\n",
      percentile(taking, 0.5) * 1e-6, percentile(taking, 1) * 1e-6, first);
}

// One trainer on core 0, that computes for so much of its time; on core 1 nothing, a copier of private bytes, or one of
// snapshots, in turns.
void measure_losses(const Options& options, double computing) {
  Job job(1);
  SharedBytes logs(sizeof(Log));
  Log* const log = logs.as<Log>();
  job.pids.push_back(start([&] { push_until_stopped(job.name, options, 0, 0, job.shared, *log, computing); }));
  job.wait_ready(2);
  pin(1);
  JobView view(job.name);
  const bench::PrivateFloats room(options.elements()), from(options.elements() * std::min(options.variables, 64U));
  std::vector<std::vector<double>> rates(3), copied(3);
  for (std::uint32_t round = 0; round < options.rounds; ++round)
    for (std::size_t kind = 0; kind < 3; ++kind) {
      const std::uint64_t before = log->pushes, begin = shm::now_ns();
      std::uint64_t bytes = 0;
      const auto is_over = [&] { return shm::now_ns() - begin > 1'000'000'000; };
      if (kind == 0) usleep(1'000'000);
      while (kind == 1 && !is_over())
        for (std::uint64_t at = 0; at < from.size() && !is_over(); at += options.elements()) {
          std::memcpy(room.data(), from.data() + at, options.elements() * sizeof(float));
          bytes += options.elements() * sizeof(float);
        }
      while (kind == 2 && !is_over()) bytes += copy_all(view.snapshot(), options, room);
      const double seconds = double(shm::now_ns() - begin) * 1e-9;
      rates[kind].push_back(double(log->pushes - before) / seconds);
      copied[kind].push_back(double(bytes) / seconds);
    }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  fmt::print("\nA trainer that computes for {:.0f} % of its time:\n\n", computing * 100);
  fmt::print("| on the other core | pushes a second | of alone | copied, GB/s |\n|---|---|---|---|\n");
  const char* const names[] = {"nothing", "a copier of private bytes", "a copier of snapshots"};
  for (std::size_t kind = 0; kind < 3; ++kind)
    fmt::print("| {} | {:.0f} | {:.3f} | {:.2f} |\n", names[kind], median(rates[kind]),
               median(rates[kind]) / median(rates[0]), median(copied[kind]) * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string argument = argv[i];
    const auto value = static_cast<std::uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (argument == "--variables") options.variables = value;
    if (argument == "--mib") options.mib = value;
    if (argument == "--rounds") options.rounds = value;
  }
  if (!bench::may_report("snapshots")) return 1;
  try {
    fmt::print("{} variables of {} MiB, medians of {} rounds\n", options.variables, options.mib, options.rounds);
    measure_delays(options);
    for (const double computing : {0.0, 0.9}) measure_losses(options, computing);
  } catch (const std::exception& error) {
    fmt::print(stderr, "snapshots: {}\n", error.what());
    return 1;
  }
  return 0;
}
