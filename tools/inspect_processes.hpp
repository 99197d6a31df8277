// What /proc says of the processes of jobs, as far as this user and this container see them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace ps::inspect {

// The state letter of ps(1), such as R, S, D or T; 0: there is no such process here.
char process_state(std::uint32_t pid);

// Of jobs whose segments have been removed while processes work with them: these processes, by the job's name. Who has
// them mapped read-only is none.
std::map<std::string, std::set<std::uint32_t>> processes_without_names();

// Whether systemd-logind removes a user's shared memory at the last logout. So it is where logind runs, RemoveIPC is not
// "no", and the user is no system user and does not linger.
bool logind_removes_of(std::uint32_t user);

// Whose file of /dev/shm it is; none: there is no such file.
std::optional<std::uint32_t> user_of(const std::string& segment);
std::string user_name(std::uint32_t user);

}  // namespace ps::inspect
