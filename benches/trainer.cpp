#include "trainer.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/base/clock.hpp"

namespace ps_shm::bench {
namespace {

// Nanoseconds that this process was ready to run and did not.
std::uint64_t waited_ns() {
  std::ifstream file("/proc/self/schedstat");
  std::uint64_t ran = 0, waited = 0;
  file >> ran >> waited;
  return waited;
}

// What stands for making a gradient: arithmetic on what a core's first cache holds.
class Computing {
 public:
  // So long that `share` of the time is that, with pushes of `push_ns` between.
  Computing(double share, double push_ns) {
    double unit_ns = 1e9;  // the least of some: nobody was in between
    for (int attempt = 0; attempt < 20; ++attempt) {
      const std::uint64_t begin = shm::now_ns();
      run(100);
      unit_ns = std::min(unit_ns, double(shm::now_ns() - begin) / 100);
    }
    units_ = static_cast<std::uint64_t>(push_ns * share / (1 - share) / unit_ns);
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

}  // namespace

std::string variable_name(std::uint32_t number) { return fmt::format("v{}", number); }

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  sched_setaffinity(0, sizeof set, &set);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() / 2] + values[(values.size() - 1) / 2]) / 2;
}

TrainedJob::TrainedJob(const Model& model, std::uint32_t workers)
    : model_(model), name_(fmt::format("bench-{}-{}", program_invocation_short_name, getpid())), parent_(getpid()) {
  JobConfig config;
  config.job = name_;
  config.workers = workers;
  config.max_workers = 4;
  config.optimizer.lr = 0.01F;
  config.linger = Seconds(0);
  start([&] {
    Server server(config);
    ++shared_.ready;
    server.serve({.stop_requested = [&] { return must_stop(); }, .stop_at_once = {}, .log = {}, .every_second = {}});
  });
}

TrainedJob::~TrainedJob() { stop(); }

void TrainedJob::stop() {
  shared_.stop = true;
  for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  pids_.clear();
}

bool TrainedJob::must_stop() const noexcept { return shared_.stop || getppid() != parent_; }

void TrainedJob::pause(bool is_paused) noexcept { shared_.pause = is_paused; }

void TrainedJob::add_trainer(std::uint32_t rank, int core, PushLog& log, double computing) {
  start([&, rank, core, computing] { push_until_stopped(rank, core, log, computing); });
}

// Returns when the process says that it is ready.
void TrainedJob::start(const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("cannot fork");
  if (pid == 0) try {
      body();
      _exit(0);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}: {}\n", program_invocation_short_name, error.what());
      _exit(1);
    }
  pids_.push_back(pid);
  for (const std::uint64_t until = shm::now_ns() + 120'000'000'000; shared_.ready < pids_.size();) {
    if (shm::now_ns() > until) throw std::runtime_error("the job does not begin");
    usleep(1000);
  }
}

void TrainedJob::push_until_stopped(std::uint32_t rank, int core, PushLog& log, double computing) {
  pin_to(core);
  WorkerOptions worker_options;
  worker_options.job = name_;
  worker_options.rank = rank;
  Worker worker(worker_options);
  std::vector<Variable> variables;
  for (std::uint32_t i = 0; i < model_.variables; ++i)
    variables.push_back(
        worker.variable(VariableSpec{.name = variable_name(i), .shape = {model_.elements()}},
                        [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0F); }));
  const PrivateFloats gradient(model_.elements(), 1e-6F);
  const auto push_ns = [&](const Variable& variable) {
    const std::uint64_t begin = shm::now_ns();
    worker.push(variable, {gradient.data(), gradient.size()});
    return double(shm::now_ns() - begin);
  };
  for (const Variable& variable : variables) push_ns(variable);  // first touch
  std::vector<double> times;
  for (const Variable& variable : variables) times.push_back(push_ns(variable));
  Computing between(computing, median_of(std::move(times)));
  ++shared_.ready;
  for (std::uint64_t i = rank * model_.variables / 2; !must_stop(); ++i) {
    if (shared_.pause) {
      usleep(1000);
      continue;
    }
    const std::uint64_t waited = waited_ns(), begin = shm::now_ns();
    worker.push(variables[i % model_.variables], {gradient.data(), gradient.size()});
    const std::uint64_t end = shm::now_ns(), waited_now = waited_ns(), waits = waited_now - waited;
    const std::uint64_t number = log.pushes;
    if (number == kMostPushes) break;
    log.all[number] = {begin, end, end - begin - std::min(waits, end - begin), waited_now};
    log.pushes = number + 1;
    between.run();
  }
}

}  // namespace ps_shm::bench
