// Sorts the ids of a push, so that equal ids are adjacent: by CUB's radix sort, which is stable, and its selection of
// each id's first position. The order of a row's sum therefore depends on the push alone.
#include <thrust/iterator/counting_iterator.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "launch.cuh"
#include "row_ids.cuh"
#include "system_memory.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

__global__ void __launch_bounds__(kThreads)
    list_kernel(RowIds ids, std::uint64_t rows, std::uint64_t* numbers, std::uint32_t* places, std::uint64_t* outside) {
  for (std::size_t i = first_element(); i < ids.count; i += element_stride()) {
    const std::uint64_t row = row_id(ids, i);
    if (rows != 0 && row >= rows) store_relaxed_system(outside, row);
    numbers[i] = row;
    places[i] = static_cast<std::uint32_t>(i);
  }
}

const Loadable loadable{list_kernel};

// Each digit of 8 bits takes a pass over all ids. Bits above those of the table's last row are ignored; of keys (0 rows)
// all 64 count.
int bits_of(std::uint64_t rows) {
  int bits = 1;
  while (bits < 64 && (rows - 1) >> bits != 0) ++bits;
  return bits;
}

// Runs both steps, which share the temporary memory. Without it they only return the size that they need. CUB counts in
// 31 bits here.
cudaError_t sort(const RowSort& to, std::uint64_t count, int bits, std::size_t& temp_storage_bytes,
                 cudaStream_t stream) {
  const auto items = static_cast<int>(count);
  std::size_t for_sort = temp_storage_bytes, for_select = temp_storage_bytes;
  if (const cudaError_t error = cub::DeviceRadixSort::SortPairs(to.temp_storage, for_sort, to.given, to.sorted,
                                                                to.given_places, to.places, items, 0, bits, stream))
    return error;
  if (const cudaError_t error = cub::DeviceSelect::UniqueByKey(to.temp_storage, for_select, to.sorted,
                                                               thrust::counting_iterator<std::uint32_t>(0), to.given,
                                                               to.begins, to.distinct, items, stream))
    return error;
  if (to.temp_storage == nullptr) temp_storage_bytes = for_sort > for_select ? for_sort : for_select;
  return cudaSuccess;
}

}  // namespace

cudaError_t sort_rows_temp_bytes(std::uint64_t most, std::size_t& bytes) {
  if (most > kMaxSortedRows) return cudaErrorInvalidValue;
  std::size_t found = 0;
  const cudaError_t error = sort(RowSort{}, most, 64, found, nullptr);
  if (error == cudaSuccess) bytes = found;
  return error;
}

cudaError_t sort_rows(const RowIds& ids, std::uint64_t rows, const RowSort& to, std::uint64_t* outside,
                      cudaStream_t stream) {
  if (ids.count == 0) return cudaSuccess;
  if (ids.count > to.most || ids.count > kMaxSortedRows) return cudaErrorInvalidValue;
  if (const cudaError_t error = launch(list_kernel, blocks_for(ids.count, kThreads), kThreads, stream, ids, rows,
                                       to.given, to.given_places, outside))
    return error;
  std::size_t temp_storage_bytes = to.temp_storage_bytes;
  return sort(to, ids.count, bits_of(rows), temp_storage_bytes, stream);
}

}  // namespace ps_shm::kernels
