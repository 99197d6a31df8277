// A temporary folder of a test, which is removed with the object.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::test {

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Folder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

  // Both return the file's path. The name may contain folders.
  std::string write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream file(path(name), std::ios::binary);
    file << content;
    file.close();
    REQUIRE(file.good());
    return path(name);
  }
  std::string write_gz(const std::string& name, std::string_view content) const {
    const gzFile file = gzopen(path(name).c_str(), "wb");
    REQUIRE(file != nullptr);
    REQUIRE(gzwrite(file, content.data(), static_cast<unsigned>(content.size())) == static_cast<int>(content.size()));
    REQUIRE(gzclose(file) == Z_OK);
    return path(name);
  }

  // The sorted names of its entries.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "ps-test-XXXXXX";
};

}  // namespace ps_shm::test
