// Reads a safetensors file. The header is checked before a byte after it is used.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::persistence {

struct StoredTensor {
  std::string dtype;  // the format's name: it has dtypes that ps_shm::DType lacks
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0, bytes = 0;  // position in the file
};

class TensorFile {
 public:
  // Throws Error, with the reason, if the file cannot be read or is not a valid safetensors file.
  explicit TensorFile(std::string path);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

  // Reads the tensor's elements as float32; also from float16 and bfloat16, and from float64, which is rounded.
  // Requires: out.size() is the number of elements. Throws Error if the dtype is another, or the file was truncated.
  void read(const StoredTensor& tensor, std::span<float> out) const;

  // Reads bytes [begin, begin + out.size()) of it. Throws Error if it has fewer, or the file was truncated.
  void read_part(const StoredTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const;

  // Reads its bytes unchanged. Requires: out.size() is their number. Throws Error if the file was truncated.
  void read(const StoredTensor& tensor, std::span<std::byte> out) const;

 private:
  void read_header();
  void read_bytes(void* out, std::uint64_t begin, std::uint64_t bytes) const;
  [[noreturn]] void fail(std::string_view why) const;

  std::string path_;
  int descriptor_ = -1;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Whether TensorFile::read() can read the dtype as floats.
bool is_float(std::string_view dtype) noexcept;

}  // namespace ps_shm::persistence
