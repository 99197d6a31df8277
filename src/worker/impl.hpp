// The members of a Worker object, and the larger steps of its life, each of which is implemented in a file of its own.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/directory.hpp"
#include "shm/steps/barrier.hpp"
#include "worker/core.hpp"
#include "worker/gradient_input.hpp"
#include "worker/step_mode.hpp"
#include "worker/table_state.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm::device {
class ShardMemory;
}

namespace ps_shm {

struct PS_SHM_HIDDEN Worker::Impl : WorkerCore {
  shm::Directory directory{job};
  shm::Barrier user_barrier{job, rank, 1};
  std::optional<std::uint64_t> arrived_in;                   // the round of a barrier() that threw
  std::unique_ptr<StepMode> mode;                            // from take_over() on
  std::vector<std::unique_ptr<VariableState>> variables;     // handles point to them
  std::unordered_map<std::uint32_t, VariableState*> states;  // the same, by the position of their first part
  std::vector<GradientInput> inputs;                         // of the push in progress
  std::vector<std::unique_ptr<TableState>> tables;           // likewise
  pid_t owner = getpid();
  std::uint64_t reported_step = job.steps_done();  // the global step of the last report()
  bool has_recovered = true;                       // whether the previous owner's buffers in flight were recovered
  bool has_left = false;
  bool has_gpu_link = false, has_closed_gate = false;  // of the link
  const std::shared_ptr<bool> is_taking_snapshot = std::make_shared<bool>(false);
  std::optional<Checkpoint> checkpoint;             // the one that the job started from, if this worker has opened it
  std::set<std::vector<std::string>> slots_missed;  // optimizer state that it lacks, as far as reported
  std::weak_ptr<device::ShardMemory> gpu_shards;    // the shards registered with CUDA, if any are

  using WorkerCore::WorkerCore;

  // Waits for the job and takes one of its ranks (joining.cpp).
  static std::pair<shm::JobSegments, std::uint32_t> join(const WorkerOptions& options);
  // Recovers what a dead previous owner of the rank has left unfinished.
  void take_over();

  // recording.cpp
  std::unique_ptr<record::Recording> make_recording();

  // declaring.cpp
  std::uint64_t slots_of(const VariableSpec& spec) const;
  VariableState& state_at(const std::vector<std::uint32_t>& positions);
  std::vector<std::uint32_t> wait_declared(const std::string& name, WaitLimit wait);
  void wait_initialised(VariableState& state, const Initializer* initialize, WaitLimit limit);
  void initialise(VariableState& state, const Initializer& initialize);
  const Checkpoint& begun_with();
  bool are_initialised(std::span<const VariableSpec> specs);
  std::optional<FirstState> restored(const VariableState& state, std::span<float> values);

  // sharing.cpp
  void try_load(const std::string& content, const SharedLoader& load);

  void note_pull() noexcept {
    if (notes_pulls) mode->note_pull();
  }

  void pull(VariableState& state, std::span<float> out);
  void pull_widened(VariableState& state, std::span<float> out);
  float pull_widened(VariableState& state);  // of one element

  // pulling.cpp
  std::optional<std::uint64_t> try_pull_all(std::span<const Variable> handles, std::span<const std::span<float>> outs);

  // pushing.cpp
  void push(const Variable& handle, float gradient);
  void push(const Variable& handle, std::span<const float> gradient);
  void push(std::span<const Variable> handles, std::span<const GradientInput> gradients);

  void change(VariableState& state, update::Change how, std::span<const float> values, Versions& versions);
  // `in_doubt`: as of add_once(); empty: none.
  std::uint64_t change_once(std::uint64_t ticket, std::span<const Variable> handles, update::Change how,
                            std::span<const std::span<const std::byte>> values,
                            std::span<const std::span<const std::byte>> in_doubt);

  // rows.cpp
  using Ids = std::span<const std::uint64_t>;
  void pull_rows(VariableState& state, Ids ids, std::span<float> out);
  void push_rows(VariableState& state, Ids ids, std::span<const float> gradients);
  void change_rows(VariableState& state, update::Change how, Ids ids, std::span<const float> values);
  // The same ids, until the next call: what works on rows exists for one width of ids.
  Ids widen(std::span<const std::uint32_t> ids);
  std::vector<std::uint64_t> wide_ids;
};

inline Worker::Impl& Worker::owned() const {
  impl_->job.refuse_inherited("worker");
  return *impl_;
}

}  // namespace ps_shm
