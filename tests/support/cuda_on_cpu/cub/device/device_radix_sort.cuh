// CUB's radix sort of pairs, to the extent that kernels/ uses it. It uses its temporary storage to the last byte, so
// that too small a size is noticed. As in CUB, up to a tile of items is sorted by another kernel than more.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value>
  static cudaError_t SortPairs(void* temp_storage, std::size_t& bytes, const Key* keys, Key* keys_out,
                               const Value* values, Value* values_out, int count, int first_bit, int end_bit,
                               cudaStream_t stream) {
    const auto items = static_cast<std::size_t>(count);
    const std::size_t needs = items * sizeof(Key) + 1;
    if (temp_storage == nullptr) {
      bytes = needs;
      return cudaSuccess;
    }
    if (bytes < needs) return cudaErrorInvalidValue;
    constexpr std::size_t kTile = 256 * 19;
    static const char of_one_tile{}, of_several{};  // for the kernels
    const auto sort_all = [=] {
      std::memset(temp_storage, 0xff, needs);
      const auto digits_of = [&](Key key) {
        const int width = end_bit - first_bit;
        return width >= static_cast<int>(8 * sizeof(Key)) ? key : key >> first_bit & ((Key{1} << width) - 1);
      };
      std::vector<std::size_t> order(items);
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](std::size_t a, std::size_t b) { return digits_of(keys[a]) < digits_of(keys[b]); });
      for (std::size_t i = 0; i < items; ++i) {
        keys_out[i] = keys[order[i]];
        values_out[i] = values[order[i]];
      }
    };
    return ps_shm::on_cpu::enqueue(stream, sort_all, items <= kTile ? &of_one_tile : &of_several);
  }
};

}  // namespace cub
