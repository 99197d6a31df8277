// A job's settings as Python names them: those of the command line, with _ for -.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ps_shm/job_config.hpp"
#include "ps_shm/table_spec.hpp"
#include "ps_shm/types.hpp"

namespace ps_shm::python {

// Alters what `settings` names: numbers, words, True, or a dict for `place`. None stands for what is there.
// Raises TypeError for a setting that there is not; throws Error for a value that it cannot have, and for one of update
// rules that the job's has not.
void alter(JobConfig& config, const nanobind::dict& settings);
void alter(LiveSettings& live, const JobConfig& of, const nanobind::dict& settings);

// Throws Error where the job began with another value of one of these.
void check_given(const JobConfig& job, const nanobind::dict& settings);

nanobind::dict as_dict(const JobConfig& config);
nanobind::dict live_dict(const LiveSettings& live);

// A line for each runtime setting, as the part "Args" of a docstring has it.
std::string runtime_settings_help();

// The shape that a job's variable has. Throws Error where there is none.
std::vector<std::uint64_t> shape_in_job(const std::string& job, const std::string& variable);

}  // namespace ps_shm::python
