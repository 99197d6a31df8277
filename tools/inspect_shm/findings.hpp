// Problems of jobs, and of the machine that they run on, as sentences, each with a remedy.
#pragma once

#include <string>

#include "inspect_shm/inspect.hpp"

namespace ps_shm::inspect {

// Adds {"kind", "job", "what", "todo"} to examined["advice"] if that kind costs only speed or is a risk, otherwise to
// examined["findings"].
void add_finding(Json& examined, const char* kind, const std::string& job, std::string what, std::string todo);

// For the jobs that `examined` (examine()) lists. Reads live jobs twice, some tenths of a second apart, and of dead
// ones the values.
void find_job_faults(Json& examined);

// For the machine, and for jobs whose segments were removed while in use; only for job `only`, unless it is empty.
void find_machine_faults(const std::string& only, Json& examined);

}  // namespace ps_shm::inspect
