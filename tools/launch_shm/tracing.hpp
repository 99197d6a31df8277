// --trace of launch_shm: merges the workers' traces into one file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ps_shm::tools {

class Traces {
 public:
  explicit Traces(std::string path);  // throws Error if it cannot be written

  // The file for one more process of so many workers, which adds .0, .1 and so on if they are several.
  std::string add(std::uint32_t first_rank, std::uint32_t workers);
  // A worker could not write its file.
  void lose() noexcept { is_one_lost_ = true; }

  // Merges the files and removes them. Requires: their workers have ended. Throws Error, and leaves no file then.
  void merge() const;

 private:
  std::string path_;
  std::vector<std::string> parts_;
  bool is_one_lost_ = false;

  void write() const;
};

}  // namespace ps_shm::tools
