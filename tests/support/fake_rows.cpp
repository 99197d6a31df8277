// The kernels of rows as plain loops.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "shm/atomic.hpp"
#include "support/fake_cuda.hpp"

namespace ps::test {

using namespace device;

namespace {

template <class T>
shm::AtomicShm<T>& shared(std::byte* place) {
  return *reinterpret_cast<shm::AtomicShm<T>*>(place);
}

std::uint64_t id_at(FakeCuda& cuda, const kernels::RowIds& ids, std::uint64_t i) {
  return ids.is_wide != 0 ? *cuda.in(static_cast<const std::uint64_t*>(ids.values) + i, 1)
                          : *cuda.in(static_cast<const std::uint32_t*>(ids.values) + i, 1);
}

void report(FakeCuda& cuda, std::uint64_t* outside, std::uint64_t row) {
  shared<std::uint64_t>(cuda.at(outside, sizeof row, true)).store_relaxed(row);
}

float ftrl_value(std::uint64_t pair, const kernels::RowTable& table) {
  const auto z = std::bit_cast<float>(static_cast<std::uint32_t>(pair));
  const auto n = std::bit_cast<float>(static_cast<std::uint32_t>(pair >> 32));
  const float left = std::fabs(z) - table.l1;
  if (!(left > 0)) return std::isnan(left) ? left : 0.0F;
  return -std::copysign(left, z) / ((table.beta + std::sqrt(n)) * table.inverse_rate + table.l2);
}

// The device's address of an element's record.
std::uint64_t record_address(FakeCuda& cuda, const kernels::RowTable& table, std::uint64_t row, std::uint64_t element) {
  const kernels::RowPart* parts = cuda.in(table.parts, table.part_count);
  const kernels::RowPart* part = parts + row % table.part_count;
  std::uint64_t local = row / table.part_count;
  if (table.is_dealt == 0) {
    part = parts + table.part_count - 1;
    while (part->first_row > row) --part;
    local = row - part->first_row;
  }
  const std::uint64_t offset =
      part->offset + (local * table.row_floats + element * table.record_floats) * sizeof(float);
  const std::uint64_t in_region = offset & ((std::uint64_t{1} << table.region_bits) - 1);
  return *cuda.in(part->regions + (offset >> table.region_bits), 1) + in_region;
}

}  // namespace

CudaError FakeKernels::pull_rows(const kernels::RowTable& table, const kernels::RowIds& ids, float* out,
                                 std::uint64_t* outside, Stream stream) {
  return run("pull_rows", stream, [=, this] {
    for (std::uint64_t i = 0; i < ids.count; ++i) {
      const std::uint64_t row = id_at(cuda_, ids, i);
      if (row >= table.rows) {
        report(cuda_, outside, row);
        continue;
      }
      float* to = cuda_.out(out + i * table.elements, table.elements);
      // Where the row lies together on the device, it is looked up at once.
      const std::uint64_t last = table.elements - 1, record_bytes = table.record_floats * sizeof(float);
      const std::uint64_t begin = record_address(cuda_, table, row, 0);
      const bool is_together = record_address(cuda_, table, row, last) == begin + last * record_bytes;
      const std::size_t read = table.value == kernels::RowValue::kFtrl ? 2 * sizeof(float) : sizeof(float);
      std::byte* const whole =
          is_together ? cuda_.at(reinterpret_cast<void*>(begin), last * record_bytes + read, false) : nullptr;
      for (std::uint64_t e = 0; e <= last; ++e) {
        std::byte* const from =
            is_together ? whole + e * record_bytes
                        : cuda_.at(reinterpret_cast<void*>(record_address(cuda_, table, row, e)), read, false);
        to[e] = table.value == kernels::RowValue::kFtrl
                    ? ftrl_value(shared<std::uint64_t>(from).load_relaxed(), table)
                    : std::bit_cast<float>(shared<std::uint32_t>(from).load_relaxed());
      }
      cuda_.note_moved(table.row_floats * sizeof(float), false);
    }
  });
}

// What a sort would need, to the byte, so that less than that shows.
CudaError FakeKernels::sort_rows_room(std::uint64_t most, std::size_t& bytes) {
  if (const CudaError error = cuda_.enter("sort_rows_room")) return error;
  bytes = most * sizeof(std::uint64_t) + 1;
  return kSuccess;
}

CudaError FakeKernels::sort_rows(const kernels::RowIds& ids, std::uint64_t rows, const kernels::RowSort& to,
                                 std::uint64_t* outside, Stream stream) {
  if (ids.count > to.most) return kInvalidValue;
  return run("sort_rows", stream, [=, this] {
    std::vector<std::uint64_t> all(ids.count);
    std::vector<std::uint32_t> order(ids.count);
    for (std::uint64_t i = 0; i < ids.count; ++i)
      if ((all[i] = id_at(cuda_, ids, i)) >= rows) report(cuda_, outside, all[i]);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return all[a] < all[b]; });
    static_cast<void>(cuda_.at(to.room, to.room_bytes, true));
    static_cast<void>(cuda_.out(to.given_places, ids.count));
    std::uint64_t* given = cuda_.out(to.given, ids.count);
    std::uint64_t* sorted = cuda_.out(to.sorted, ids.count);
    std::uint32_t* places = cuda_.out(to.places, ids.count);
    std::uint32_t* begins = cuda_.out(to.begins, ids.count);
    std::uint32_t distinct = 0;
    for (std::uint32_t i = 0; i < ids.count; ++i) {
      sorted[i] = all[order[i]];
      places[i] = order[i];
      if (i != 0 && sorted[i] == sorted[i - 1]) continue;
      given[distinct] = sorted[i];
      begins[distinct++] = i;
    }
    *cuda_.out(to.distinct, 1) = distinct;
  });
}

CudaError FakeKernels::send_rows(const kernels::RowSort& rows, std::uint64_t count, const float* gradients,
                                 std::uint32_t elements, std::uint32_t piece_rows, std::uint64_t* ids, float* sums,
                                 std::uint32_t* arrived, Stream stream) {
  if (count > rows.most || piece_rows == 0) return kInvalidValue;
  return run("send_rows", stream, [=, this] {
    const std::uint32_t distinct = *cuda_.in(rows.distinct, 1);
    const std::uint64_t pieces = (count + piece_rows - 1) / piece_rows;
    for (std::uint64_t piece = 0; piece < pieces; ++piece) {
      if (cuda_.before_send) cuda_.before_send(piece);
      const std::uint64_t begin = std::min<std::uint64_t>(piece * piece_rows, distinct);
      const std::uint64_t end = std::min<std::uint64_t>(begin + piece_rows, distinct);
      for (std::uint64_t row = begin; row < end; ++row) {
        const std::uint64_t from = *cuda_.in(rows.begins + row, 1);
        const std::uint64_t until = row + 1 < distinct ? *cuda_.in(rows.begins + row + 1, 1) : count;
        float* sum = cuda_.out(sums + row * elements, elements);
        std::fill_n(sum, elements, 0.0F);
        for (std::uint64_t k = from; k < until; ++k) {
          const float* gradient =
              cuda_.in(gradients + std::uint64_t{*cuda_.in(rows.places + k, 1)} * elements, elements);
          for (std::uint32_t e = 0; e < elements; ++e) sum[e] += gradient[e];
        }
        *cuda_.out(ids + row, 1) = *cuda_.in(rows.given + row, 1);
        cuda_.note_moved(elements * sizeof(float) + sizeof(std::uint64_t), true);
      }
      shared<std::uint32_t>(cuda_.at(arrived + piece, sizeof(std::uint32_t), true))
          .store_release(1 + static_cast<std::uint32_t>(end - begin));
    }
  });
}

}  // namespace ps::test
