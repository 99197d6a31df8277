// A safetensors file that is read. What its header says is checked before a byte behind it is used.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ps::keep {

struct StoredTensor {
  std::string dtype;  // as the format calls it: it has some that ps::DType has not
  std::vector<std::uint64_t> shape;
  std::uint64_t elements = 0;
  std::uint64_t begin = 0, bytes = 0;  // where it lies in the file
};

class TensorFile {
 public:
  // Throws Error: the file cannot be read, or is no safetensors file, with the reason.
  explicit TensorFile(std::string path);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const noexcept { return path_; }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string>& metadata() const noexcept { return metadata_; }

  // The tensor's numbers as float32; of float16 and bfloat16, too, and of float64, which is rounded.
  // Requires: out.size() is its elements. Throws Error: another dtype, or the file has been cut off since.
  void read(const StoredTensor& tensor, std::span<float> out) const;

  // Its bytes as they are. Requires: out.size() is their number. Throws Error: the file has been cut off since.
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

// Whether TensorFile::read() takes it.
bool is_float(std::string_view dtype) noexcept;

}  // namespace ps::keep
