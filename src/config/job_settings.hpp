// The tables of a job's settings, and what is derived from them: the settings as text in the control segment, and the
// runtime settings, which can be changed while the job runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/setting.hpp"
#include "ps_shm/job_config.hpp"

namespace ps_shm::config {

const Settings<JobConfig>& job_settings();  // including its optimizer's
const Settings<Optimizer>& optimizer_settings();

// The number of ranks of a job with these settings: max_workers, or its default.
std::uint32_t ranks_of(const JobConfig& config) noexcept;

// Throws Error, naming `what`, unless the job can have variables of Layout::kSingleWriter.
void require_single_writer(const JobConfig& config, const std::string& what);

// The seed, or its default.
std::uint64_t seed_of(const JobConfig& config) noexcept;

// Fills in what is unset: max_workers, seed, and the optimizer's lr and weight_decay.
JobConfig resolved(JobConfig config);

// The number of workers that a launcher keeps, in the form of the option: N, or LO..HI.
std::string workers_text(const JobConfig& config);

// The runtime settings among the settings, and the settings with these replaced (live_rows.hpp).
LiveSettings live_of(const JobConfig& config) noexcept;
JobConfig with_live(JobConfig config, const LiveSettings& live);

// A line NAME=VALUE for each stored setting, in the order of the table. For resolved settings nothing is lost except
// what is not stored. Throws Error if a value cannot be written.
std::string encode(const JobConfig& config);

// Parses the result of encode(). Throws Error that names the setting that is not as expected. Bounds are checked by
// ps_shm::check().
JobConfig decode(std::string_view text);

// A hash (FNV-1a) of the names and forms of the stored settings: programs with different hashes cannot read each
// other's.
std::uint64_t hash_of_stored() noexcept;

}  // namespace ps_shm::config
