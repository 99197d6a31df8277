// Files that keep a job's values: safetensors, and NumPy's .npy. A file appears when it is complete: it is written under
// another name, synced and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ps/types.hpp"

namespace ps::keep {

struct Tensor {
  std::string name;
  DType dtype;
  std::vector<std::uint64_t> shape;
  // Copies bytes [begin, begin + out.size()) of its elements. Called in their order, once for each piece.
  std::function<void(std::uint64_t begin, std::span<std::byte> out)> read;

  std::uint64_t bytes() const noexcept;
};

// What safetensors files call it.
const char* safetensors_name(DType dtype);

// Of elements that lie somewhere and stay there.
std::function<void(std::uint64_t begin, std::span<std::byte> out)> reader_of(std::span<const std::byte> bytes);

// What a file is once it is written.
struct FileFacts {
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  // XXH3
};

// One file with all of them, as huggingface/safetensors describes the format; `metadata` is shown by its tools.
// Throws Error: names the file and why it cannot be written, or the tensor whose name the format keeps for itself.
FileFacts write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                            const std::map<std::string, std::string>& metadata);

// Of a file that is there. Throws Error: it cannot be read.
FileFacts facts_of(const std::string& path);

// NumPy's format, version 1.0; bfloat16, which NumPy has not, as elements of two bytes. Throws Error: as above.
void write_npy(const std::string& path, const Tensor& tensor);

// Throws Error unless a file could be written there, before hours are spent on what is to be in it.
void check_writable(const std::string& path);

// Makes what was renamed in a folder last through a loss of power, where the file system can.
void sync_folder(const std::string& path) noexcept;

// A text file, such as an index of others. Throws Error: as above.
FileFacts write_text(const std::string& path, const std::string& text);

}  // namespace ps::keep
