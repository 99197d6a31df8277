// Any bytes as an IDX file, of images and of labels: an array that fits its header, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "ps_shm/errors.hpp"
#include "train/data/idx.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span bytes(data, size);
  try {
    const ps_shm::train::IdxImages images = ps_shm::train::parse_idx_images(bytes, "fuzz");
    if (images.pixels.size() != images.count * images.rows * images.columns) abort();
  } catch (const ps_shm::Error&) {
  }
  try {
    if (ps_shm::train::parse_idx_labels(bytes, "fuzz").size() + ps_shm::train::kIdxLabelsHeaderBytes != size) abort();
  } catch (const ps_shm::Error&) {
  }
  return 0;
}
