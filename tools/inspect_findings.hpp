// What is wrong with jobs and with the machine for them, in sentences, each with what to do.
#pragma once

#include <string>

#include "inspect.hpp"

namespace ps::inspect {

// Adds {"kind", "job", "what", "todo"} to a list.
void add_finding(Json& findings, const char* kind, const std::string& job, std::string what, std::string todo);

// Of the jobs that `examined` (examine()) lists. Looks twice, some tenths of a second apart, where workers are alive.
void find_job_faults(const Json& examined, Json& findings);

// Of the machine, and of jobs whose segments were removed under them; of the job `only`, unless that is empty.
void find_machine_faults(const std::string& only, const Json& examined, Json& findings);

}  // namespace ps::inspect
