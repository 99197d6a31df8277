// Any bytes as ratings, or in the format detected from the content (fuzz_sparse.hpp).
#include "fuzz/fuzz_sparse.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Format = ps_shm::train::SparseSourceOptions::Format;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ps_shm::fuzz::read_all_ways(text, Format::kRatings);
  ps_shm::fuzz::read_all_ways(text, Format::kByContent);
  return 0;
}
