#include "publish/written_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ps_shm/errors.hpp"

namespace ps_shm {

void WrittenParts::clear() {
  is_whole_.assign(tensors_.size(), false);
  parts_.clear();
}

void WrittenParts::add(std::uint32_t tensor, std::size_t begin, std::size_t bytes) {
  const std::size_t size = tensors_[tensor].byte_count();
  if (is_whole_[tensor] || bytes == 0) return;
  if (bytes == size) return add_all(tensor);
  Parts& parts = parts_[tensor];
  std::size_t end = begin + bytes;
  auto next = parts.upper_bound(begin);
  if (next != parts.begin() && std::prev(next)->second >= begin) begin = (--next)->first;
  while (next != parts.end() && next->first <= end) {  // those that it overlaps or touches
    end = std::max(end, next->second);
    next = parts.erase(next);
  }
  parts.emplace_hint(next, begin, end);
  if (begin == 0 && end == size) add_all(tensor);
}

void WrittenParts::add_all(std::uint32_t tensor) {
  is_whole_[tensor] = true;
  parts_.erase(tensor);
}

void WrittenParts::require_whole(const std::string& what) const {
  if (parts_.empty()) return;
  const auto& [number, parts] = *parts_.begin();
  const TensorSpec& tensor = tensors_[number];
  std::size_t missing = tensor.byte_count();
  for (const auto& [begin, end] : parts) missing -= end - begin;
  const std::size_t element = bytes_of(tensor.dtype);
  throw Error(fmt::format("{}: tensor '{}' was written in part: {} of its {} elements are missing{}", what, tensor.name,
                          (missing + element - 1) / element, tensor.element_count(),
                          parts_.size() == 1 ? "" : fmt::format("; incomplete tensors in all: {}", parts_.size())));
}

}  // namespace ps_shm
