// The command lines of ps_shm, worker_shm and launch_shm: every option, its environment variable and its checks.
//
// An option --lr-schedule that is not given is looked for as PS_LR_SCHEDULE; an empty variable counts as none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/interval.hpp"
#include "device/probe.hpp"
#include "ps/gpu.hpp"
#include "ps/hooks.hpp"
#include "ps/job_config.hpp"
#include "train/sparse/sparse_data.hpp"
#include "train/straggler.hpp"

namespace ps::tools {

// What a ps publishes of its job.
struct PublishSettings {
  std::string name;  // of the publication; empty: none
  config::Interval every = {.steps = 100};
  bool averages = false;  // moving averages, of variables that have one

  bool operator==(const PublishSettings&) const = default;
};

// Where a run is kept, and when.
struct CheckpointSettings {
  std::string dir;  // empty: nowhere
  config::Interval every{.seconds = 600};
  std::uint64_t keep = 5;  // the newest
  bool keep_best = false;
  std::uint64_t max_file_bytes = 5'000'000'000;
  bool fresh = false;

  bool operator==(const CheckpointSettings&) const = default;
};

// What is written for TensorBoard.
struct SummarySettings {
  std::string dir;  // empty: nothing
  config::Interval every = {.seconds = 10};

  bool operator==(const SummarySettings&) const = default;
};

struct PsSettings {
  JobConfig job;
  CheckpointSettings checkpoint;
  PublishSettings publish;
  SummarySettings summary;
  std::optional<std::uint32_t> task;  // of job.tasks; none: all of them in one process
  double wait_job_seconds = 60.0;     // a task other than 0: for task 0
  bool keep_segments = false;
  bool adopt = false;

  bool operator==(const PsSettings&) const = default;
};

// What sparse models and their data have beyond that.
struct SparseSettings {
  std::string test_data;             // a file; empty: a share of the data is held out
  std::optional<double> test_share;  // none: kDefaultTestShare, or 0 where there is test data
  train::SparseSourceOptions::Format format = train::SparseSourceOptions::Format::kByContent;
  train::FirstIndex first_index = train::FirstIndex::kByContent;
  std::uint32_t hash_bits = 0;
  std::string cache;
  bool share_data = false;
  std::optional<std::uint32_t> factors;  // none: the model's usual
  std::optional<float> factor_l2;        // none: the optimizer's l2
  bool bias = false;
  std::uint64_t combine = 1;

  bool operator==(const SparseSettings&) const = default;
};

// What the workers of a job have in common.
struct TrainingSettings {
  std::string model = "mlp";
  std::string data;  // parse() puts the model's usual here where none is given
  SparseSettings sparse;
  std::uint64_t epochs = 0;       // instead of steps, where no ps says it; 0: not
  std::string epoch_schedule;     // a learning-rate schedule with epoch: in it, still to be resolved; empty: none
  std::uint64_t batch = 0;        // 0: train::default_batch
  std::uint64_t steps = 0;        // count: adds of each worker; where no ps says it: global steps; 0: default
  std::uint64_t size = 1;         // count: elements of `var`
  double interval_seconds = 0.0;  // count: wait after each add
  double wait_job_seconds = 60.0;
  std::uint64_t push_every = 1;
  std::optional<float> local_learning_rate;
  bool no_stream_waits = false;  // on a GPU
  std::string init_from;         // a safetensors file; empty: none
  std::string init_match;        // a regular expression for names of variables; empty: all

  OnNan on_nan = OnNan::kWarn;

  bool is_count() const { return model == "count"; }
  bool is_sparse() const;

  bool operator==(const TrainingSettings&) const = default;
};

struct WorkerSettings {
  TrainingSettings training;
  CheckpointSettings checkpoint;  // of --standalone; with --on-nan restore the folder of the job's
  JobConfig alone;                // `job` names the job; the rest is for --standalone, which has no ps to ask
  std::optional<std::uint32_t> rank;
  std::optional<std::uint64_t> seed;
  std::uint32_t threads = 1;
  train::Delay delay;
  device::DeviceChoice device;
  Wire wire = Wire::kFloat32;
  SummarySettings summary;
  bool evaluate = false;  // instead of training
  config::Interval every = {.seconds = 10};
  std::string publication;  // empty: of the job's name
  std::string record, replay, replay_board;  // of WorkerOptions
  std::string trace;                         // a file; empty: none
  bool standalone = false, together = false, json = false, quiet = false;

  bool operator==(const WorkerSettings&) const = default;
};

struct LaunchSettings {
  LaunchSettings() { ps.job.workers = 3; }

  PsSettings ps;
  TrainingSettings training;
  train::Delay delay;
  std::map<std::uint32_t, train::Delay> delay_of_rank;  // instead of the above
  device::DeviceChoice device;
  std::map<std::uint32_t, device::DeviceChoice> device_of_rank;
  Wire wire = Wire::kFloat32;
  std::map<std::uint32_t, Wire> wire_of_rank;
  std::uint64_t curve_points = 0;    // 0: no curve
  config::Interval evaluate_every;   // not given: nobody evaluates
  std::string save;                  // a file; empty: none
  std::string record;                // a folder; empty: none is made
  std::string replay;                // one to go by; empty: none
  std::string trace;                 // a file; empty: none
  std::vector<std::string> job_arguments;  // as they were given: what a replay of the record gives again
  std::vector<std::string> program;  // in the place of worker_shm: a program and its arguments; empty: worker_shm
  bool restart_workers = false, replace = false;
  bool json = false, verbose = false;
};

inline constexpr std::uint64_t kDefaultCountSteps = 1000;
inline constexpr std::uint64_t kDefaultSparseEpochs = 10;
inline constexpr double kDefaultTestShare = 0.1;

std::string to_string(Wire wire);  // float32, bf16

// The environment variables that stand for options of any of the programs.
std::vector<std::string> option_variables();

// Each fills `settings`, or returns the exit code with which the program shall end now: 0 after --help, 2 after one
// line on stderr about a wrong usage.
std::optional<int> parse(int argc, char** argv, PsSettings& settings);
std::optional<int> parse(int argc, char** argv, WorkerSettings& settings);
std::optional<int> parse(int argc, char** argv, LaunchSettings& settings);

inline constexpr int kFailed = 1, kWrongUsage = 2, kInterrupted = 130;

}  // namespace ps::tools
