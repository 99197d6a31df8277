// Row ids of either width.
#pragma once

#include "rows.hpp"

namespace ps_shm::kernels {

__device__ inline std::uint64_t row_id(const RowIds& ids, std::size_t i) {
  return ids.is_wide != 0 ? static_cast<const std::uint64_t*>(ids.values)[i]
                          : static_cast<const std::uint32_t*>(ids.values)[i];
}

}  // namespace ps_shm::kernels
