// Files that keep a job's values: safetensors, and NumPy's .npy. A file appears when it is complete: it is written under
// another name, synced and renamed.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::span<const std::byte> bytes;  // of its elements
};

// One file with all of them, as huggingface/safetensors describes the format; `metadata` is shown by its tools.
// Throws Error: names the file and why it cannot be written, or the tensor whose name the format keeps for itself.
void write_safetensors(const std::string& path, const std::vector<Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata);

// NumPy's format, version 1.0; bfloat16, which NumPy has not, as elements of two bytes. Throws Error: as above.
void write_npy(const std::string& path, const Tensor& tensor);

// Throws Error unless a file could be written there, before hours are spent on what is to be in it.
void check_writable(const std::string& path);

// A text file, such as an index of others. Throws Error: as above.
void write_text(const std::string& path, const std::string& text);

}  // namespace ps::keep
