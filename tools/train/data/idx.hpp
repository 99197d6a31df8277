// Reads IDX files, the format of MNIST: big-endian sizes, then unsigned bytes; plain or gzip, from disk or memory.
//
// Nothing in a file is trusted. Invariants:
//  1. Memory grows with the bytes actually read, never with what a header claims.
//  2. A reader returns a complete, consistent array or throws ps_shm::Error: one line with the file, the byte offset
//     (in the uncompressed content) and what was expected there.
//  3. A gzip file is read to its end, so its checksum has been verified. As gzip(1) does, zlib ignores what follows it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/data/loading.hpp"

namespace ps_shm::train {

inline constexpr std::uint32_t kIdxImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
inline constexpr std::uint32_t kIdxLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
inline constexpr std::size_t kIdxImagesHeaderBytes = 16;
inline constexpr std::size_t kIdxLabelsHeaderBytes = 8;

// The largest of the MNIST family, EMNIST by class, has 547 MB of pixels.
inline constexpr std::uint64_t kIdxMaxPayloadBytes = std::uint64_t{1} << 30;

struct IdxImages {
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::uint8_t> pixels;  // count x rows x columns
};

// Reads an image file; gzip is detected by content, not by name. `loading` may throw Interrupted.
IdxImages read_idx_images(const std::string& path, Loading* loading = nullptr);

// Reads a label file in the same way.
std::vector<std::uint8_t> read_idx_labels(const std::string& path, Loading* loading = nullptr);

// The same from bytes in memory, which are never gzip; `name` stands for the path in error messages.
IdxImages parse_idx_images(std::span<const unsigned char> bytes, const std::string& name);
std::vector<std::uint8_t> parse_idx_labels(std::span<const unsigned char> bytes, const std::string& name);

}  // namespace ps_shm::train
