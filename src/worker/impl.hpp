// What a Worker object holds, and the larger steps of its life; each has a file of its own.
#pragma once

#include <unistd.h>

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "ps/worker.hpp"
#include "shm/barrier.hpp"
#include "shm/counters.hpp"
#include "shm/directory.hpp"
#include "shm/live_settings.hpp"
#include "shm/ssp_clock.hpp"
#include "worker/gradients.hpp"
#include "worker/threads.hpp"
#include "worker/variable_state.hpp"

namespace ps::device {
class ShardMemory;
}

namespace ps {

struct Worker::Impl {
  WorkerOptions options;
  shm::JobSegments job;
  JobConfig config;
  std::uint32_t rank;
  shm::WorkerShm& entry;
  shm::Directory directory{job};
  Threads threads;
  shm::Barrier steps{job, rank, 0}, meetings{job, rank, 1};
  shm::SspClock clock{job, rank};
  GradientSegments gradients{job, rank};
  shm::Live live;                          // as this worker goes by them; looked at anew at the end of each step
  std::deque<Variable::State> variables;   // a deque: handles point into it
  std::optional<std::uint64_t> pulled_in;  // sync: the step under way at the first pull since the last step()
  bool has_pushed = false;                 // sync: since the last step(); the step it was for
  std::uint64_t pushed_for = 0;
  std::vector<Variable::State*> pushed_states;  // sync, with clip_norm: what counts for this step's global norm
  std::uint64_t rate_step = 0;                  // the scheduled rate of rows is known of this step
  float rate_base = 0.0F, rate_now = 0.0F;
  pid_t owner = getpid();
  bool has_settled = true;  // what the rank's last holder had in flight
  bool has_left = false;
  bool has_gpu_link = false;
  std::weak_ptr<device::ShardMemory> gpu_shards;  // registered with CUDA, where anybody has done so

  Impl(WorkerOptions given, shm::JobSegments attached, std::uint32_t taken);

  shm::AtomicShm<std::uint64_t>& count(shm::Counter which) noexcept { return shm::counter(entry, which); }
  bool is_sync() const noexcept { return config.mode == Mode::kSync; }
  bool is_summed() const noexcept { return config.reduce == Reduce::kAtomic; }

  // Waits for the job and takes a rank of it (joining.cpp).
  static std::pair<shm::JobSegments, std::uint32_t> join(const WorkerOptions& options);
  // What a dead predecessor of the rank has left half done.
  void take_over();

  // declaring.cpp
  std::uint64_t slots_of(const VariableSpec& spec) const;
  Variable::State& state_at(const std::vector<std::uint32_t>& positions);
  std::vector<std::uint32_t> wait_declared(const std::string& name, double wait_seconds);
  void wait_initialised(Variable::State& state, const Initializer* initialize, double deadline_seconds);
  void initialise(Variable::State& state, const Initializer& initialize);

  // sharing.cpp
  void try_load(const std::string& key, const SharedLoader& load);

  // pushing.cpp
  void push(std::span<const Variable> handles, std::span<const std::span<const float>> gradients);
  void push(std::span<const Variable> handles, std::span<GradientSource* const> gradients);
  template <class Gradients>
  void push_from(std::span<const Variable> handles, const Gradients& gradients);
  PushContext push_context(std::uint64_t step) const noexcept;
  void record_observed(Variable::State& state) noexcept;
  void write_norm();

  // rows.cpp
  float row_rate() noexcept;
  template <class Id>
  void pull_rows(Variable::State& state, std::span<const Id> ids, std::span<float> out);
  template <class Id>
  void push_rows(Variable::State& state, std::span<const Id> ids, std::span<const float> gradients);

  // stepping.cpp
  void finish(shm::Barrier& barrier, std::uint64_t round, bool applies);
  void finish_sync_step();
  void drop();
  void wait_for_slowest();
  void refresh_live();
};

}  // namespace ps
