// Gathers rows of an in-place variable directly from mapped host memory while workers push to them.
//
// A group of lanes copies a row; a block has several groups. Each element is read by one access of system scope, so it
// is untorn: a value by its four bytes, the pair from which FTRL computes a value by eight (a vector access counts as
// one access for each of its members; PTX ISA, memory consistency model). Two elements are not ordered, as in the CPU's
// own pull of rows. A row out of range is not read; its number is reported.
#include "launch.cuh"
#include "row_ids.cuh"
#include "system_memory.cuh"
#include "table_values.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kMaxLanes = 32;

struct Place {
  RowPart part;
  std::uint64_t offset;  // of the row, in the shard
};

__device__ inline Place place_of(const RowTable& table, std::uint64_t row) {
  std::uint32_t number = 0;
  std::uint64_t local = 0;
  if (table.is_dealt != 0) {
    number = static_cast<std::uint32_t>(row % table.part_count);
    local = row / table.part_count;
  } else {
    std::uint32_t end = table.part_count;  // the last part that begins at or before the row is in [number, end)
    while (end - number > 1) {
      const std::uint32_t middle = (number + end) / 2;
      if (table.parts[middle].first_row <= row)
        number = middle;
      else
        end = middle;
    }
    local = row - table.parts[number].first_row;
  }
  const RowPart part = table.parts[number];
  return {part, part.offset + local * table.row_floats * sizeof(float)};
}

// Calls take(place of the row, its destination) for each row in range, by a group of lanes.
template <class Take>
__device__ inline void for_each_row(const RowTable& table, const RowIds& ids, float* out, std::uint64_t* outside,
                                    Take&& take) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.y;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.y + threadIdx.y; i < ids.count; i += stride) {
    const std::uint64_t row = row_id(ids, i);
    if (row < table.rows)
      take(place_of(table, row), out + i * table.elements);
    else if (threadIdx.x == 0)
      store_relaxed_system(outside, row);
  }
}

// For rows that consist of aligned vectors.
template <unsigned kRecord, bool kIsFtrl>
__global__ void __launch_bounds__(kThreads)
    pull_vectors(RowTable table, RowIds ids, float* out, std::uint64_t* outside, bool is_whole) {
  constexpr std::uint32_t kElements = 4 / kRecord;  // per vector
  for_each_row(table, ids, out, outside, [&](const Place& place, float* to) {
    for (std::uint32_t e = threadIdx.x * kElements; e < table.elements; e += blockDim.x * kElements)
      take_vector<kRecord, kIsFtrl>(
          address_of(place.part.regions, place.offset + std::uint64_t{e} * kRecord * sizeof(float), table.region_bits),
          to + e, table.elements - e, is_whole, table);
  });
}

// For all other rows: one element at a time.
template <bool kIsFtrl>
__global__ void __launch_bounds__(kThreads)
    pull_elements(RowTable table, RowIds ids, float* out, std::uint64_t* outside) {
  for_each_row(table, ids, out, outside, [&](const Place& place, float* to) {
    for (std::uint32_t e = threadIdx.x; e < table.elements; e += blockDim.x) {
      const std::uint64_t offset = place.offset + std::uint64_t{e} * table.record_floats * sizeof(float);
      const void* const from = address_of(place.part.regions, offset, table.region_bits);
      if constexpr (kIsFtrl)
        to[e] = ftrl_value(load_relaxed_system(static_cast<const std::uint64_t*>(from)), table);
      else
        to[e] = load_relaxed_system(static_cast<const float*>(from));
    }
  });
}

const Loadable loadable[] = {Loadable{pull_vectors<1, false>}, Loadable{pull_vectors<2, false>},
                             Loadable{pull_vectors<2, true>},  Loadable{pull_vectors<4, false>},
                             Loadable{pull_elements<false>},   Loadable{pull_elements<true>}};

}  // namespace

cudaError_t pull_rows(const RowTable& table, const RowIds& ids, float* out, std::uint64_t* outside,
                      cudaStream_t stream) {
  if (ids.count == 0) return cudaSuccess;
  const bool is_ftrl = table.value == RowValue::kFtrl;
  const std::uint32_t record = table.record_floats;
  if (is_ftrl && record != 2) return cudaErrorInvalidValue;
  // A row's last vector may contain bytes that belong to none of its elements, but no bytes of another row.
  const bool by_vectors = table.row_floats % 4 == 0 && (record == 1 || record == 2 || record == 4);
  const std::uint32_t per_lane = by_vectors ? 4 / record : 1;
  unsigned lanes = 1;
  while (lanes < kMaxLanes && lanes * per_lane < table.elements) lanes *= 2;
  const dim3 block(lanes, kThreads / lanes);
  const unsigned blocks = blocks_for(ids.count, block.y);
  if (!by_vectors)
    return launch(is_ftrl ? pull_elements<true> : pull_elements<false>, blocks, block, stream, table, ids, out,
                  outside);
  const bool is_whole = table.elements % 4 == 0 && reinterpret_cast<std::size_t>(out) % sizeof(float4) == 0;
  auto* const kernel = record == 1   ? pull_vectors<1, false>
                       : record == 4 ? pull_vectors<4, false>
                       : is_ftrl     ? pull_vectors<2, true>
                                     : pull_vectors<2, false>;
  return launch(kernel, blocks, block, stream, table, ids, out, outside, is_whole);
}

}  // namespace ps_shm::kernels
