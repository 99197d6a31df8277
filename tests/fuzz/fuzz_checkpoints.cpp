// Any bytes as a checkpoint.json: its contents make sense, and its files are in its folder, or it is an Error.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

#include "persistence/checkpoint_folder.hpp"
#include "ps_shm/checkpoint.hpp"
#include "ps_shm/errors.hpp"

namespace {

// One for the process, with the file that the corpus names.
const std::string& folder() {
  struct Folder {
    Folder() {
      if (mkdtemp(name.data()) == nullptr) abort();
    }
    ~Folder() { std::filesystem::remove_all(name); }
    std::string name = std::filesystem::temp_directory_path() / "fuzz-checkpoints-XXXXXX";
  };
  static const Folder kFolder;
  return kFolder.name;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int kFile = [] {  // in memory
    const int file = memfd_create("facts", MFD_CLOEXEC);
    std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", file), folder() + "/checkpoint.json");
    return file;
  }();
  if (ftruncate(kFile, 0) != 0 || pwrite(kFile, data, size, 0) != static_cast<ssize_t>(size)) abort();
  try {
    const ps_shm::persistence::CheckpointFacts facts = ps_shm::persistence::read_facts(folder());
    for (const ps_shm::persistence::StoredFile& file : facts.files)
      if (file.name.empty() || file.name.find('/') != std::string::npos || file.name[0] == '.') abort();
    const ps_shm::Checkpoint checkpoint(folder());
    for (const ps_shm::StoredVariable& variable : checkpoint.variables()) {
      float value = 0;
      checkpoint.read(variable.name, std::as_writable_bytes(std::span(&value, 1)));
    }
    checkpoint.verify();
  } catch (const ps_shm::Error&) {
  }
  return 0;
}
