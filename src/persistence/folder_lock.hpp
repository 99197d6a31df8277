// Folders that one process at a time writes to, and what it leaves there if it is killed.
#pragma once

#include <string>

#include "shm/base/open_file.hpp"

namespace ps_shm::persistence {

// Begins the name of an entry that is incomplete or being removed.
inline constexpr const char* kHiddenName = ".partial-";

// Opens a folder and locks it, against processes that lock it in the same way. The lock ends with this process, and with
// the object; a forked child does not have it.
enum class FolderLock { kHeld, kInUse, kFailed };  // kFailed: errno says why
FolderLock lock_folder(shm::OpenFile& file, const std::string& path);

// Creates the folder if there is none, locks it, and removes the incomplete folders that killed processes have left in
// it: those that nobody has locked. `contents` is for messages, such as "checkpoints".
//
// Throws Error if another process has it, or if it cannot be written.
void claim_folder(shm::OpenFile& file, const std::string& path, const char* contents);

}  // namespace ps_shm::persistence
