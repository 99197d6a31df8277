// The parameters of the row kernels: plain data that both compilers read. All addresses are device addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ps_shm::kernels {

// Row ids as the caller has them. A negative id of a signed type is a large one here, out of range for any table.
struct RowIds {
  const void* values;  // std::uint64_t or std::uint32_t
  std::uint32_t is_wide;
  std::uint32_t pad;
  std::uint64_t count;
};

// Rows of a table that are contiguous in one shard.
struct RowPart {
  const std::uint64_t* regions;  // start of each region of its shard
  std::uint64_t offset;          // of its first row, in the shard; a multiple of 16
  std::uint64_t first_row;       // its row number in the table; if is_dealt: the part's number
};

// How the value of an element is read. A row consists of `elements` contiguous records, each of which is an element's
// value with the state that lies beside it.
enum class RowValue : std::uint32_t {
  kFirst = 1,  // the record's first float is the value
  kFtrl = 2    // the record is {z, n}, from which the value is computed
};
struct RowTable {
  const RowPart* parts;  // by first_row
  std::uint32_t part_count;
  std::uint32_t is_dealt;     // row r of the table is row r / part_count of part r % part_count
  std::uint32_t region_bits;  // log2 of the size of the regions in which a shard is registered
  std::uint32_t elements;     // per row
  std::uint32_t record_floats;
  RowValue value;
  std::uint64_t row_floats;  // distance from one row to the next
  std::uint64_t rows;
  float l1, l2, beta,
      inverse_rate;  // kFtrl; w = 0 if |z| <= l1, else -(z - sign(z) l1) / ((beta + sqrt(n)) / rate + l2)
};

// A part of a table by key: the memory of it that is registered when a pull is launched. It grows.
struct KeyPart {
  const std::uint64_t *buckets, *rows;  // starts of the regions of either
  std::uint64_t row_count;              // rows that lie in these regions
  std::uint32_t bits;                   // log2 of the buckets that do
  std::uint32_t pad;
};

// A table by key. Its rows are as those of a RowTable, behind a head of 32 bytes each.
struct KeyTable {
  const KeyPart* parts;
  std::uint32_t part_count;
  std::uint32_t region_bits;
  std::uint32_t elements;
  std::uint32_t record_floats;
  RowValue value;
  float initial_range;    // of a key without a row
  std::uint64_t of_seed;  // what its initial values depend on beside the key
  std::uint64_t first_multiplier, second_multiplier;  // of the job's hash of keys
  std::uint64_t row_bytes;
  float l1, l2, beta, inverse_rate;  // kFtrl, as of a RowTable
};

// What a pull finds for a key.
inline constexpr std::uint32_t kAbsentRow = 0xffffffff, kUndecidedRow = 0xfffffffe;  // the CPU decides
struct KeyPlace {
  std::uint64_t word;  // the row's, before the copy
  std::uint32_t row;   // or one of the constants
  std::uint32_t part;
};

// Rows that the CPU has decided, for their places among those of a pull; on the device.
struct DecidedRows {
  const std::uint64_t* places;  // of row i of them among all rows
  const float* values;          // `elements` of each
  const bool* found;            // whether its key has a row
  std::uint64_t count;
  std::uint32_t elements;
  std::uint32_t pad;
};

// The maximum number of rows in a push, including repeated ones.
inline constexpr std::uint64_t kMaxSortedRows = (std::uint64_t{1} << 31) - 1;

// The rows of a push, sorted, which fixes the order of their sums.
struct RowSort {
  std::uint64_t *given, *sorted;         // ids, `most` each; afterwards `given` holds each distinct id once
  std::uint32_t *given_places, *places;  // positions in the push, by row and ascending within a row
  std::uint32_t* begins;                 // start of each row's positions
  std::uint32_t* distinct;               // {1}: the number of distinct rows
  std::byte* temp_storage;               // of the sort
  std::size_t temp_storage_bytes;
  std::uint64_t most;
};

}  // namespace ps_shm::kernels
