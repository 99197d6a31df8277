// A folder with the records of one job: `worker-RANK.LIFE` for each process that has had a rank, counted from 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ps::record {

std::string file_of(const std::string& folder, std::uint32_t rank, std::uint32_t life);

// A file, mapped to be read; its bytes stay as long as this.
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

// Of all records of the folder, by rank and life; the lives of a rank are 1, 2, ... Throws Error: there is no such folder,
// or one is missing.
std::vector<Life> lives_in(const std::string& folder);

}  // namespace ps::record
