// Where the file NOTICE is, which names the authors and the licences of what the programs contain.
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/version.hpp"

namespace ps_shm::tools {
namespace {

namespace fs = std::filesystem;

// In the metadata of the Python package that has been installed together with the program; empty if there is none.
fs::path in_package(const fs::path& prefix) {
  std::error_code failed;
  for (fs::directory_iterator python(prefix / "lib", failed), end; !failed && python != end; python.increment(failed)) {
    if (!python->path().filename().string().starts_with("python")) continue;
    std::error_code absent;
    for (fs::directory_iterator entry(python->path() / "site-packages", absent); !absent && entry != end;
         entry.increment(absent)) {
      const std::string name = entry->path().filename().string();
      const fs::path notice = entry->path() / "licenses/NOTICE";
      std::error_code ignored;
      if (name.starts_with("ps_shm-") && name.ends_with(".dist-info") && fs::exists(notice, ignored)) return notice;
    }
  }
  return {};
}

}  // namespace

std::string notice_place() {
  std::error_code failed;
  const fs::path prefix = fs::read_symlink("/proc/self/exe", failed).parent_path().parent_path();
  const fs::path shared = prefix / "share/doc/ps-shm/NOTICE";
  if (fs::exists(shared, failed)) return shared.string();
  const fs::path package = in_package(prefix);
  return package.empty() ? "the file NOTICE of the sources" : package.string();
}

}  // namespace ps_shm::tools
