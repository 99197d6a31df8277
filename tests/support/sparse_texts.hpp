// Sparse examples as plain values, and text files for tests of their readers.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "ps/errors.hpp"
#include "train/sparse/sparse_stream.hpp"

namespace ps::test {

struct PlainExample {
  float label;
  std::vector<std::uint32_t> ids;
  std::vector<float> values;
  bool operator==(const PlainExample&) const = default;
};

inline PlainExample plain(const train::SparseExample& example) {
  return {example.label, {example.ids.begin(), example.ids.end()}, {example.values.begin(), example.values.end()}};
}

inline std::vector<PlainExample> examples_of(const train::SparseData& data) {
  std::vector<PlainExample> all;
  train::for_each_example(data, {}, [&](const train::SparseExample& example) { all.push_back(plain(example)); });
  return all;
}

inline train::SparseData parse(std::string_view text, const train::SparseSourceOptions& options = {}) {
  return train::SparseData::parse(text, "data", options);
}

// The message of the Error that reading ends with; empty: none.
template <class Read>
std::string error_of(Read&& read) {
  try {
    read();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A folder that is gone with it.
class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "ps-sparse-test.XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) throw Error("cannot make a folder for the test");
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, std::string_view content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }
  std::string write_gz(const std::string& name, std::string_view content) const {
    gzFile file = gzopen(path(name).c_str(), "wb");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    return path(name);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    return names;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace ps::test
