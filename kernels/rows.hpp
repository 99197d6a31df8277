// What the kernels of rows are told: plain data that both compilers read. All addresses are the device's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ps::kernels {

// Row numbers as a caller has them. A negative one of a signed type is a large one here, beyond any table.
struct RowIds {
  const void* values;  // std::uint64_t or std::uint32_t
  std::uint32_t is_wide;
  std::uint32_t pad;
  std::uint64_t count;
};

// Rows of a table that lie together in one shard.
struct RowPart {
  const std::uint64_t* regions;  // where the regions of its shard begin
  std::uint64_t offset;          // of its first row, in the shard; a multiple of 16
  std::uint64_t first_row;       // of the table; where rows are dealt out: the part's number
};

// How the rows of a variable lie: `elements` records one behind the other, each an element's value with the state that
// lies beside it.
enum class RowValue : std::uint32_t {
  kFirst = 1,  // the record's first float is the value
  kFtrl = 2    // the record is {z, n}, of which the value is a function
};
struct RowTable {
  const RowPart* parts;  // by first_row
  std::uint32_t part_count;
  std::uint32_t is_dealt;     // row r is row r / part_count of part r % part_count
  std::uint32_t region_bits;  // a shard is registered in regions of so many address bits
  std::uint32_t elements;     // of a row
  std::uint32_t record_floats;
  RowValue value;
  std::uint64_t row_floats;  // from one row to the next
  std::uint64_t rows;
  float l1, l2, beta,
      inverse_rate;  // kFtrl; w = 0 where |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2)
};

// A push has at most so many rows, repeated ones counted.
inline constexpr std::uint64_t kMaxSortedRows = (std::uint64_t{1} << 31) - 1;

// The rows of a push, sorted: the order of their sums.
struct RowSort {
  std::uint64_t *given, *sorted;         // row numbers, of `most` each; afterwards `given` holds each one once
  std::uint32_t *given_places, *places;  // places in the push, by row and among equal rows ascending
  std::uint32_t* begins;                 // where each row's places begin
  std::uint32_t* distinct;               // {1}: how many rows there are
  std::byte* room;                       // what the sort needs besides
  std::size_t room_bytes;
  std::uint64_t most;
};

}  // namespace ps::kernels
