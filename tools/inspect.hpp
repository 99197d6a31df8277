// What inspect_shm finds out, as JSON, and the same as text. Everything but change_settings(), remove() and a repair
// maps read-only.
//
// All functions throw Error with one line that says what to do.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ps/errors.hpp"

namespace ps::inspect {

using Json = nlohmann::ordered_json;

// The job meant by somebody who named none: the only one there is.
std::string only_job();

// Every job of this machine, whatever its state or version.
Json list_jobs();
std::string jobs_as_text(const Json& jobs);

// Settings, segments and step state.
Json show_job(const std::string& job);
std::string job_as_text(const Json& shown);

Json list_variables(const std::string& job);
std::string variables_as_text(const Json& listed);

Json list_workers(const std::string& job);
std::string workers_as_text(const Json& listed);

// What has happened, oldest first; of one kind, if that is not empty.
Json list_events(const std::string& job, const std::string& kind);
std::string events_as_text(const Json& listed);

// A KEY=VALUE that can't be read.
class BadUsage : public Error {
  using Error::Error;
};

// Changes a running job's settings (ps/job_control.hpp), each given as KEY=VALUE.
Json change_settings(const std::string& job, const std::vector<std::string>& changes);
std::string changes_as_text(const Json& changes);

// Statistics and the first `limit` values (0: all) of the variables of these names; of all, where there is no name.
Json dump_values(const std::string& job, const std::vector<std::string>& names, std::uint64_t limit);
std::string values_as_text(const Json& dumped);

// What this machine offers to jobs, its GPUs too, and every job there is, or `only` that one: its last state, whether it
// can be reclaimed. `repair`: reclaims those that can; never one that is alive or was kept on purpose.
Json examine(const std::string& only, bool repair);
std::string examination_as_text(const Json& examined);

// Removes the segments of a job that nobody holds a lock of. `force`: also where its control segment is damaged, of
// another version or missing, and all names that begin as the job's do.
Json remove(const std::string& job, bool force);
std::string removal_as_text(const Json& removed);

}  // namespace ps::inspect
