// A folder with the recordings of a job: `worker-RANK.LIFE` for each process that has owned a rank; lives count from
// 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ps_shm::record {

std::string file_of(const std::string& folder, std::uint32_t rank, std::uint32_t life);

// A file mapped for reading; the bytes are valid as long as the object.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws Error; an empty file has no bytes
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

struct Life {
  std::uint32_t rank, life;
};

// All recordings in the folder, ordered by rank and life. The lives of a rank are 1, 2, ... Throws Error if there is
// no such folder, or if a recording is missing.
std::vector<Life> lives_in(const std::string& folder);

}  // namespace ps_shm::record
