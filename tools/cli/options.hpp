// The command lines of worker_shm and launch_shm, as ps_options.hpp has that of ps_shm: every option, its environment
// variable and its checks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/ps_options.hpp"
#include "config/interval.hpp"
#include "device/probe.hpp"
#include "ps_shm/gpu.hpp"
#include "ps_shm/hooks.hpp"
#include "ps_shm/job_config.hpp"
#include "train/data/sparse/sparse_data.hpp"
#include "train/log/straggler.hpp"
#include "train/loop/gpu_place.hpp"
#include "train/loop/sparse_trainer.hpp"

namespace ps_shm::tools {

// Additional settings of sparse models and their data.
struct SparseSettings {
  std::string test_data;             // a file; empty: a fraction of the data is held out
  std::optional<double> test_share;  // none: kDefaultTestShare, or 0 if there is test data
  train::SparseSourceOptions::Format format = train::SparseSourceOptions::Format::kByContent;
  train::FirstIndex first_index = train::FirstIndex::kByContent;
  std::uint32_t hash_bits = 0;
  std::string cache;
  bool share_data = false;
  std::optional<std::uint32_t> factors;  // none: the model's default
  std::optional<float> factor_l2;        // none: the optimizer's l2
  bool bias = false;
  std::uint64_t combine = 1;
  bool keyed = false;         // take the data by keys, with the rows in a table by key
  train::TableOptions table;  // that one

  bool operator==(const SparseSettings&) const = default;
};

// Which training examples a worker draws from.
enum class ShardData { kNone, kByLabel };

// Settings that all workers of a job share.
struct TrainingSettings {
  std::string model = "mlp";
  std::string data;  // parse() fills in the model's default if none is given
  SparseSettings sparse;
  std::uint64_t epochs = 0;    // instead of steps, if there is no ps; 0: not given
  std::string epoch_schedule;  // a learning-rate schedule that contains epoch: and is not resolved yet; empty: none
  std::uint64_t batch = 0;     // 0: train::default_batch
  ShardData shard_data = ShardData::kNone;
  std::uint64_t steps = 0;        // count: adds of each worker; without a ps: global steps; 0: default
  std::uint64_t size = 1;         // count: elements of `var`
  double interval_seconds = 0.0;  // count: pause after each add
  WaitLimit wait_job = Seconds(60);
  std::uint64_t push_every = 1;
  std::optional<float> local_lr;
  train::Enqueue enqueue = train::Enqueue::kAhead;  // on a GPU
  DType dtype = DType::kFloat32;                    // of a dense model's variables, or of the rows by key
  std::string init_from;                            // a safetensors file; empty: none
  std::string init_match;                           // a regular expression for names of variables; empty: all

  OnNan on_nan = OnNan::kStop;

  bool learns() const;  // whether the model has a loss and gradients; true for a program
  bool is_sparse() const;

  bool operator==(const TrainingSettings&) const = default;
};

struct WorkerSettings {
  TrainingSettings training;
  CheckpointSettings checkpoint;  // for --standalone; with --on-nan restore the folder of the job's checkpoints
  JobConfig alone;                // `job` names the job; the rest is for --standalone, which has no ps
  std::optional<std::uint32_t> rank;
  std::uint32_t workers_per_process = 1;  // this process has that many, as threads, of consecutive ranks from `rank` on
  std::string rank_variable;              // of a launcher's environment, from which `rank` comes
  std::optional<std::uint64_t> seed;
  std::optional<std::uint32_t> threads;  // none: one; 0, as many as the job allows, where it may compute on a GPU
  train::Delay delay;
  device::DeviceChoice device;
  Wire wire = Wire::kFloat32;
  SummarySettings summary;
  bool evaluate = false;  // evaluate instead of training
  config::Interval every = {.seconds = 10};
  std::string publication;                         // empty: the job's name
  std::string record, replay, replay_coordinator;  // as in WorkerOptions
  std::string trace;                               // a file; empty: none
  bool standalone = false, together = false, json = false, quiet = false;

  bool operator==(const WorkerSettings&) const = default;
};

struct LaunchSettings {
  LaunchSettings() { ps.job.workers = 3; }

  PsSettings ps;
  TrainingSettings training;
  train::Delay delay;
  std::map<std::uint32_t, train::Delay> delay_of_rank;  // overrides the above
  device::DeviceChoice device;
  std::map<std::uint32_t, device::DeviceChoice> device_of_rank;
  Wire wire = Wire::kFloat32;
  std::map<std::uint32_t, Wire> wire_of_rank;
  std::uint64_t curve_points = 0;          // 0: no curve
  config::Interval evaluate_every;         // not given: no evaluation
  std::string save;                        // a file; empty: none
  std::string report;                      // a file; empty: none
  std::string record;                      // a folder; empty: no recording
  std::string replay;                      // the folder of a recording; empty: none
  std::string trace;                       // a file; empty: none
  std::vector<std::string> command;        // as typed, with the program's name
  std::vector<std::string> job_arguments;  // as given on the command line: a recording stores them for its replay
  std::vector<std::string> program;        // runs instead of worker_shm: a program and its arguments; empty: worker_shm
  std::string bridge;                      // empty: none; HOST:PORT[,...]/BOXES and options of ps_shm.bridge
  std::uint32_t workers_per_process = 1;   // at most; 0: as many as share a GPU
  std::uint32_t worker_processes = 0;      // completed() sets it to the number of processes of the initial workers
  bool restart_workers = false, replace = false;
  bool one_worker_per_gpu = false;  // --device cuda or auto, and no --workers
  bool default_threads = false;     // no --threads
  bool default_chunks = false;      // no --chunk-bytes
  bool json = false, verbose = false;
};

inline constexpr std::uint64_t kDefaultCountSteps = 1000;
inline constexpr std::uint64_t kDefaultSparseEpochs = 10;
inline constexpr double kDefaultTestShare = 0.1;

// The environment variables of all options of all programs.
std::vector<std::string> option_variables();

// As for ps_shm.
std::optional<int> parse(int argc, char** argv, WorkerSettings& settings);
std::optional<int> parse(int argc, char** argv, LaunchSettings& settings);

}  // namespace ps_shm::tools
