// A job of some equal variables, and trainers that push to it until they are told to stop: what snapshots and checkpoints
// are measured beside.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "processes.hpp"

namespace ps_shm::bench {

struct Model {
  std::uint32_t variables = 256, mib = 4;
  std::uint64_t elements() const noexcept { return std::uint64_t{mib} * (1 << 20) / sizeof(float); }  // of a variable
  std::uint64_t bytes() const noexcept { return variables * elements() * sizeof(float); }             // of all
};

std::string variable_name(std::uint32_t number);

struct Push {
  std::uint64_t begin, end, ns;  // ns: without waiting for a core
  std::uint64_t waited_ns;       // for a core, since the trainer began
};

constexpr std::size_t kMostPushes = 1 << 20;
struct PushLog {
  std::atomic<std::uint64_t> pushes;
  Push all[kMostPushes];
};

void pin_to(int core);

// A server in a process of its own, and what it shares with trainers. All end with this object.
class TrainedJob {
 public:
  TrainedJob(const Model& model, std::uint32_t workers);
  ~TrainedJob();
  TrainedJob(const TrainedJob&) = delete;
  TrainedJob& operator=(const TrainedJob&) = delete;

  const std::string& name() const noexcept { return name_; }

  // A process on that core that pushes one variable after the other, with SGD, and notes how long each push took.
  // `computing`: the share of its time that it computes in between. Returns once it pushes.
  void add_trainer(std::uint32_t rank, int core, PushLog& log, double computing = 0);

  // Trainers wait between two pushes, or go on.
  void pause(bool is_paused) noexcept;

  void stop();  // and waits for all of them

 private:
  struct Shared {
    std::atomic<bool> stop, pause;
    std::atomic<std::uint32_t> ready;
  };
  void start(const std::function<void()>& body);
  bool must_stop() const noexcept;  // also where the process that measures is gone
  void push_until_stopped(std::uint32_t rank, int core, PushLog& log, double computing);

  Model model_;
  std::string name_;
  pid_t parent_;
  SharedBytes shared_bytes_{sizeof(Shared)};
  Shared& shared_ = *shared_bytes_.as<Shared>();
  std::vector<pid_t> pids_;
};

double median_of(std::vector<double> values);

}  // namespace ps_shm::bench
