// --trace of launch_shm: the workers' traces, put together in one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ps::tools {

class Traces {
 public:
  explicit Traces(std::string path);  // throws Error: it can't be written

  // The file of another worker.
  std::string add(std::uint32_t rank);
  // Puts them together and removes them. Requires: their workers have ended. Throws Error.
  void merge() const;

 private:
  std::string path_;
  std::vector<std::string> parts_;
};

}  // namespace ps::tools
