// What a job is: the vocabulary of modes, layouts and types, and the settings that its ps fixes when it creates the job.
#pragma once

#include <cstdint>
#include <string>

#include "ps/schedule.hpp"

namespace ps {

// The numbers of these enumerations stand in the segments: never renumber.
enum class DType : std::uint32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kBFloat16 = 3,
  kInt64 = 4
};  // float32 can be stored today
enum class Mode : std::uint32_t { kAsync = 1, kSync = 3 };
enum class Layout : std::uint32_t { kVersioned = 1, kInplace = 2 };
enum class Adds : std::uint32_t { kExact = 1, kRacy = 2 };
enum class UpdateRule : std::uint32_t {
  kAdd = 1,  // value += delta; in sync mode the sum over the contributors
  kSgd = 2,  // value -= learning rate * (gradient + l2 * value); in sync mode the mean over the contributors
};

const char* to_string(DType dtype) noexcept;
const char* to_string(Mode mode) noexcept;
const char* to_string(Layout layout) noexcept;
const char* to_string(Adds adds) noexcept;
const char* to_string(UpdateRule rule) noexcept;

// A job has at most this many ranks (and so workers at one time).
inline constexpr std::uint32_t kMaxWorkers = 256;

struct JobConfig {
  std::string job;                     // 1 to 64 of [A-Za-z0-9_-], beginning with a letter or digit
  std::uint32_t workers = 1;           // how many workers the job starts with; the first sync step waits for them
  std::uint32_t max_workers = 0;       // how many may be there at one time; 0: max(16, 2 * workers)
  Mode mode = Mode::kAsync;            //
  Layout layout = Layout::kVersioned;  // of variables whose specification does not choose one
  Adds adds = Adds::kExact;            // how in-place variables are added to
  std::uint64_t steps = 0;             // the job is finished when the global step gets here; 0: no limit
  float learning_rate = 0.1F;          // at step 0
  Schedule schedule;                   // what multiplies it later
  float l2 = 0.0F;                     // for variables with `regularize`, under optimizers
  std::uint64_t seed = 1;              // of initial values and data order
  double linger_seconds = 30.0;        // how long the ps stays after the last worker has left
  double step_timeout_seconds = 0.0;   // sync: deadline of a wait for peers that are alive; 0: none
};

// Throws Error unless `config` can be run; says which setting is at fault.
void check(const JobConfig& config);

// Throws Error unless `name` may name a job: it becomes part of a file name.
void check_job_name(const std::string& name);

}  // namespace ps
