// Files with the values of a job: safetensors, and NumPy's .npy. A file appears when it is complete: it is written
// under another name, synced and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/bundle_spec.hpp"
#include "ps_shm/types.hpp"

namespace ps_shm::persistence {

struct Tensor {
  std::string name;
  DType dtype;
  std::vector<std::uint64_t> shape;
  // Copies bytes [begin, begin + out.size()) of its elements. Called for consecutive blocks, in order.
  std::function<void(std::uint64_t begin, std::span<std::byte> out)> read;

  std::uint64_t bytes() const noexcept;
};

// The dtype's name in safetensors files.
const char* safetensors_name(DType dtype);

// A `read` for elements in memory that stays valid.
std::function<void(std::uint64_t begin, std::span<std::byte> out)> reader_of(std::span<const std::byte> bytes);

// Where the tensors of a safetensors file lie. They follow each other without gaps, which some readers require, ordered
// by the largest power of two (at most 128) that divides their size. So each begins at a multiple of that power, counted
// from the beginning of the data, and thereby of the size of its elements.
class SafetensorsLayout {
 public:
  // Throws Error if the name of a tensor is reserved by the format.
  explicit SafetensorsLayout(std::vector<TensorSpec> tensors);

  // What precedes the data: its length, and JSON text, padded so that the data begin at a multiple of `alignment`.
  std::string header(const std::map<std::string, std::string>& metadata, std::size_t alignment) const;

  const std::vector<std::uint32_t>& order() const noexcept { return order_; }  // the tensors' numbers as they lie
  std::uint64_t begin(std::uint32_t tensor) const { return begins_[tensor]; }  // from the beginning of the data
  std::uint64_t bytes() const noexcept { return bytes_; }                      // of all tensors

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<std::uint32_t> order_;
  std::vector<std::uint64_t> begins_;
  std::uint64_t bytes_ = 0;
};

// Size and hash of a file that was written.
struct FileFacts {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3
};

// Writes all tensors to one file, in the format of huggingface/safetensors, whose tools show `metadata`. Throws Error
// that names the file and says why it cannot be written, or names a tensor whose name is reserved by the format.
FileFacts write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                            const std::map<std::string, std::string>& metadata);

// Writes a safetensors file of one tensor, of which the first extent is found out as it is written. Throws Error as
// write_safetensors(). Nothing of the file stays unless it is finished.
class GrowingTensor {
 public:
  // `rest`: the other extents.
  GrowingTensor(const std::string& path, std::string name, DType dtype, std::vector<std::uint64_t> rest,
                std::map<std::string, std::string> metadata);
  ~GrowingTensor();
  GrowingTensor(const GrowingTensor&) = delete;
  GrowingTensor& operator=(const GrowingTensor&) = delete;

  void append(std::span<const std::byte> bytes);
  FileFacts finish();

 private:
  std::string header(std::uint64_t extent) const;

  struct Open;
  std::unique_ptr<Open> open_;
  std::string path_;
  TensorSpec spec_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t bytes_ = 0;
};

// Reads the file. Throws Error if it cannot be read.
FileFacts facts_of(const std::string& path);

// NumPy's format, version 1.0. NumPy has no bfloat16: it is stored as elements of two bytes. Throws Error: as above.
void write_npy(const std::string& path, const Tensor& tensor);

// Throws Error unless a file could be written there. To be called before hours are spent on its contents.
void check_writable(const std::string& path);
// The same for a folder that is to hold several files, which is made if there is none.
void check_writable_folder(const std::string& path);

// Makes renames in a folder survive a power failure, if the file system can. Throws Error if that fails.
void sync_folder(const std::string& path);

// Writes a text file, such as an index of other files. Throws Error: as above.
FileFacts write_text(const std::string& path, const std::string& text);

}  // namespace ps_shm::persistence
