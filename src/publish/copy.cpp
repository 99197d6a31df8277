#include "publish/copy.hpp"

#include <fmt/format.h>

#include <cstring>

#include "ps_shm/errors.hpp"
#include "shm/base/streaming.hpp"

namespace ps_shm {
namespace {

constexpr std::size_t kLargeGeneration = 32 << 20, kLargePart = 64 << 10;  // measured by benches/publication

}  // namespace

void require_bytes(const TensorSpec& tensor, std::size_t bytes, std::size_t begin) {
  const std::size_t size = tensor.byte_count();
  if (begin > size || bytes > size - begin)
    throw Error(
        fmt::format("tensor '{}' has {} bytes: {} bytes from byte {} on do not fit", tensor.name, size, bytes, begin));
}

void require_floats(const TensorSpec& tensor, std::size_t count, std::size_t begin) {
  if (tensor.dtype != DType::kBFloat16 && tensor.dtype != DType::kFloat32)
    throw Error(fmt::format("tensor '{}' has elements of {}: only float32 and bfloat16 can be written from floats",
                            tensor.name, to_string(tensor.dtype)));
  const std::size_t size = tensor.element_count();
  if (begin > size || count > size - begin)
    throw Error(fmt::format("tensor '{}' has {} elements: {} elements from element {} on do not fit", tensor.name, size,
                            count, begin));
}

void copy_tensor(std::byte* to, const std::byte* from, std::size_t bytes, std::size_t generation_bytes) noexcept {
  if (generation_bytes >= kLargeGeneration && bytes >= kLargePart)
    shm::stream_copy(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

}  // namespace ps_shm
