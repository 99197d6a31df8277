// What /proc shows about the processes of jobs, as far as they are visible to this user and container.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace ps_shm::inspect {

// For jobs whose segments were removed while processes use them: these processes, by job name. Processes that map
// them read-only are not included.
std::map<std::string, std::set<std::uint32_t>> processes_without_names();

// Whether systemd-logind removes a user's shared memory at the last logout: if logind runs, RemoveIPC is not
// "no", and the user is neither a system user nor lingering.
bool logind_removes_of(std::uint32_t user);

// The owner of a file in /dev/shm; none: there is no such file.
std::optional<std::uint32_t> user_of(const std::string& segment);
std::string user_name(std::uint32_t user);

}  // namespace ps_shm::inspect
