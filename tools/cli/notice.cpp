// Where the file NOTICE is, which names the authors and the licences of what the programs contain.
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/version.hpp"

namespace ps_shm::tools {
namespace {

namespace fs = std::filesystem;

// In the metadata of the Python package among these packages; empty if it is not there.
fs::path among(const fs::path& packages) {
  std::error_code failed;
  for (fs::directory_iterator entry(packages, failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    const fs::path notice = entry->path() / "licenses/NOTICE";
    std::error_code ignored;
    if (name.starts_with("ps_shm-") && name.ends_with(".dist-info") && fs::exists(notice, ignored)) return notice;
  }
  return {};
}

// The same for the package that has been installed together with the program: in PREFIX/bin, or, from a wheel that brings
// libraries, in a folder beside the package's own. There `prefix` is the folder of the packages.
fs::path in_package(const fs::path& prefix) {
  if (fs::path notice = among(prefix); !notice.empty()) return notice;
  std::error_code failed;
  for (fs::directory_iterator python(prefix / "lib", failed), end; !failed && python != end; python.increment(failed))
    if (python->path().filename().string().starts_with("python"))
      if (fs::path notice = among(python->path() / "site-packages"); !notice.empty()) return notice;
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
