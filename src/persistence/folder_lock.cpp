#include "persistence/folder_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "config/error_code.hpp"
#include "persistence/tensor_files.hpp"
#include "ps_shm/errors.hpp"

namespace ps_shm::persistence {

namespace fs = std::filesystem;

FolderLock lock_folder(shm::OpenFile& file, const std::string& path) {
  if (!file.open(path.c_str(), O_RDONLY | O_DIRECTORY)) return FolderLock::kFailed;
  if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0) return FolderLock::kHeld;
  return errno == EWOULDBLOCK ? FolderLock::kInUse : FolderLock::kFailed;
}

void claim_folder(shm::OpenFile& file, const std::string& path, const char* contents) {
  check_writable_folder(path);
  switch (lock_folder(file, path)) {
    case FolderLock::kHeld:
      break;
    case FolderLock::kInUse:
      throw Error(fmt::format("another process writes {} to {}: end it, or choose another folder", contents, path),
                  ErrorCode::kAlreadyExists);
    case FolderLock::kFailed:
      throw Error(fmt::format("cannot keep {} in {}: {}", contents, path, std::strerror(errno)),
                  config::code_of(errno));
  }
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(kHiddenName)) continue;
    shm::OpenFile hidden;
    std::error_code ignored;  // a leftover does no harm
    if (lock_folder(hidden, entry->path().string()) == FolderLock::kHeld) fs::remove_all(entry->path(), ignored);
  }
}

}  // namespace ps_shm::persistence
