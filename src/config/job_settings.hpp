// The tables of a job's settings, and what follows from them: the settings as text in the control segment, and those
// that a running job's can be changed to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "config/setting.hpp"
#include "ps/job_config.hpp"

namespace ps::config {

const Settings<JobConfig>& job_settings();  // with its optimizer's
const Settings<Optimizer>& optimizer_settings();

// How many ranks a job with these settings has: max_workers, or what stands for it.
std::uint32_t ranks_of(const JobConfig& config) noexcept;

// What was left open is filled in: max_workers, and of the optimizer learning_rate and weight_decay.
JobConfig resolved(JobConfig config);

// How many workers a launcher keeps, as the option of three settings says it: N, or LO..HI.
std::string workers_text(const JobConfig& config);

// The live ones among the settings, and the settings with these in their place.
LiveSettings live_of(const JobConfig& config) noexcept;
JobConfig with_live(JobConfig config, const LiveSettings& live);

// A line NAME=VALUE for each stored setting, in the order of the table. Of resolved settings nothing is lost but what is
// not stored. Throws Error where a value cannot be written.
std::string encode(const JobConfig& config);

// Throws Error unless `text` is such lines: names the setting that is not as it should be. Bounds are ps::check's
// business.
JobConfig decode(std::string_view text);

// A hash (FNV-1a) of the stored settings' names and forms: programs that differ in it cannot read each other's.
std::uint64_t hash_of_stored() noexcept;

}  // namespace ps::config
