// Gathers rows of a table by key directly from mapped host memory while workers push, make and evict rows.
//
// Three kernels, so that no thread waits for another one: the first finds the rows, by one thread a key; the second copies
// them, by a group of lanes a row; the third looks whether they still are the keys'. It is the CPU's own protocol
// (docs/protocols.md, table.*), with accesses of system scope: a search that looks at its path decides that there is no row,
// and a row's word that is the same before and after the copy says that the copy is the key's. Nothing is written to the
// table. What a kernel cannot decide, the CPU does: a row that has moved, a path that has changed several times, a row or
// bucket in memory that is not registered, and a list that is damaged, which makes no loop run for ever.
#include "launch.cuh"
#include "row_ids.cuh"
#include "system_memory.cuh"
#include "table_values.cuh"
#include "transfer_launchers.hpp"

namespace ps_shm::kernels {
namespace {

constexpr unsigned kMaxLanes = 32;
constexpr int kMaxSteps = 64, kMaxSearches = 4;

// As in src/shm/segment/table_layout.hpp.
enum State : std::uint64_t { kNew = 1, kLive = 2, kSealed = 3 };
constexpr std::uint64_t kBucketKind = std::uint64_t{1} << 32, kEndOfList = 0xffffffff;
constexpr std::uint64_t kReferenceMask = (std::uint64_t{1} << 33) - 1;
constexpr std::uint64_t kHeadBytes = 32;  // of a row: its key, its word, and what only the CPU reads

__device__ inline std::uint64_t state_of(std::uint64_t word) { return word >> 33 & 7; }
__device__ inline std::uint64_t mixed(std::uint64_t key) {
  for (int i = 0; i < 2; ++i) key = (key ^ key >> 32) * 0xd6e8feb86659fd93;
  return key ^ key >> 32;
}

// The job's update::KeyHash.
__device__ inline std::uint64_t hash_of(const KeyTable& table, std::uint64_t key) {
  key = (key ^ key >> 32) * table.first_multiplier;
  key = (key ^ key >> 32) * table.second_multiplier;
  return key ^ key >> 32;
}

__device__ inline const std::uint64_t* bucket_at(const KeyTable& table, const KeyPart& part, std::uint64_t bucket) {
  return static_cast<const std::uint64_t*>(address_of(part.buckets, bucket * sizeof(std::uint64_t), table.region_bits));
}
__device__ inline const std::uint64_t* row_at(const KeyTable& table, const KeyPart& part, std::uint64_t row) {
  return static_cast<const std::uint64_t*>(address_of(part.rows, row * table.row_bytes, table.region_bits));
}
__device__ inline const std::uint64_t* word_at(const KeyTable& table, const KeyPart& part, std::uint64_t row) {
  return static_cast<const std::uint64_t*>(
      address_of(part.rows, row * table.row_bytes + sizeof(std::uint64_t), table.region_bits));
}

constexpr std::uint32_t kAgain = kUndecidedRow - 1;  // the path has changed

// One search from a bucket that is linked. Returns the row with its word, or one of the constants.
__device__ inline KeyPlace search(const KeyTable& table, const KeyPart& part, std::uint32_t number,
                                  const std::uint64_t* previous, std::uint64_t key, std::uint64_t order) {
  const auto outcome = [number](std::uint32_t row) { return KeyPlace{.word = 0, .row = row, .part = number}; };
  std::uint64_t word = load_acquire_system(previous);  // (table.F1)
  if (state_of(word) != kLive) return outcome(kUndecidedRow);
  for (int step = 0; step < kMaxSteps; ++step) {
    const std::uint64_t next = word & kReferenceMask;
    if (next == kEndOfList) return outcome(kAbsentRow);
    const std::uint64_t index = next & (kBucketKind - 1);  // 64 bits, as it is shifted by up to 32
    if ((next & kBucketKind) != 0) {
      if (__brevll(index) >= order) return outcome(kAbsentRow);    // (table.F3) a bucket is never unlinked
      if (index >> part.bits != 0) return outcome(kUndecidedRow);  // not registered
      // From a linked bucket a search may go on, however it came there.
      previous = bucket_at(table, part, index);
      word = load_acquire_system(previous);  // (table.F1)
      continue;
    }
    if (index >= part.row_count) return outcome(kUndecidedRow);  // not registered, or damaged
    const std::uint64_t* const there = word_at(table, part, index);
    const std::uint64_t its_word = load_acquire_system(there);  // (table.R1), (table.F1)
    const std::uint64_t its_key = load_relaxed_system(row_at(table, part, index));
    const std::uint64_t state = state_of(its_word);
    const KeyPlace found = {.word = its_word, .row = static_cast<std::uint32_t>(index), .part = number};
    // However it was found: its word says whose it is.
    if (its_key == key && (state == kLive || state == kSealed)) return found;
    fence_system();                                                     // (table.F1)
    if (load_relaxed_system(previous) != word) return outcome(kAgain);  // (table.F2)
    // The CPU unlinks a dead one, and finds the damage if it is free.
    if (state != kNew && state != kLive && state != kSealed) return outcome(kUndecidedRow);
    if (its_key == key) return found;
    const std::uint64_t its_order = hash_of(table, its_key) | 1;
    if (its_order > order || (its_order == order && its_key > key)) return outcome(kAbsentRow);
    previous = there, word = its_word;
  }
  return outcome(kUndecidedRow);
}

__device__ inline KeyPlace find(const KeyTable& table, std::uint64_t key) {
  const std::uint64_t hash = hash_of(table, key), order = hash | 1;
  const auto number = static_cast<std::uint32_t>((hash & 0xffffffff) * table.part_count >> 32);
  const KeyPart part = table.parts[number];
  auto bucket = static_cast<std::uint32_t>(__brevll(order) & ((std::uint64_t{1} << part.bits) - 1));
  // If nobody has linked the bucket yet, the one that it was split from leads to its rows, too.
  while (bucket != 0 && state_of(load_acquire_system(bucket_at(table, part, bucket))) != kLive)  // (table.G1)
    bucket &= ~(0x80000000U >> __clz(static_cast<int>(bucket)));
  for (int i = 0; i < kMaxSearches; ++i) {
    const KeyPlace found = search(table, part, number, bucket_at(table, part, bucket), key, order);
    if (found.row != kAgain) return found;
  }
  return {.word = 0, .row = kUndecidedRow, .part = number};
}

__global__ void __launch_bounds__(kThreads, 1)  // without the 1, registers are spilled for sm_120
    find_kernel(KeyTable table, RowIds keys, KeyPlace* places) {
  for (std::size_t i = first_element(); i < keys.count; i += element_stride()) places[i] = find(table, row_id(keys, i));
}

// As TableState::for_initial(), with the same roundings.
__device__ inline float initial_value(const KeyTable& table, std::uint64_t of_key, std::uint32_t element) {
  const auto bits = static_cast<std::uint32_t>(mixed(of_key + element) >> 40);
  const float unit = __fsub_rn(__fmul_rn(static_cast<float>(bits), 1.0F / (1 << 23)), 1.0F);
  return __fmul_rn(unit, table.initial_range);
}

template <class Take>
__device__ inline void for_each_place(const KeyTable& table, const RowIds& keys, const KeyPlace* places, float* out,
                                      Take&& take) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.y;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.y + threadIdx.y; i < keys.count; i += stride) {
    const KeyPlace place = places[i];
    float* const to = out + i * table.elements;
    if (place.row == kAbsentRow) {
      const std::uint64_t of_key = mixed(table.of_seed ^ row_id(keys, i));
      for (std::uint32_t e = threadIdx.x; e < table.elements; e += blockDim.x) to[e] = initial_value(table, of_key, e);
    } else if (place.row != kUndecidedRow) {
      take(table.parts[place.part].rows, place.row * table.row_bytes + kHeadBytes, to);
      fence_system();  // (table.R3) of each thread, behind its own loads
    }
  }
}

// (table.R2) Rows consist of aligned vectors, the last of which may have bytes that belong to none of their elements.
template <unsigned kRecord, bool kIsFtrl>
__global__ void __launch_bounds__(kThreads)
    copy_vectors(KeyTable table, RowIds keys, const KeyPlace* places, float* out, bool is_whole) {
  constexpr std::uint32_t kElements = 4 / kRecord;  // per vector
  for_each_place(table, keys, places, out, [&](const std::uint64_t* regions, std::uint64_t offset, float* to) {
    for (std::uint32_t e = threadIdx.x * kElements; e < table.elements; e += blockDim.x * kElements)
      take_vector<kRecord, kIsFtrl>(
          address_of(regions, offset + std::uint64_t{e} * kRecord * sizeof(float), table.region_bits), to + e,
          table.elements - e, is_whole, table);
  });
}

// (table.R2) For records of other sizes: one element at a time.
__global__ void __launch_bounds__(kThreads)
    copy_elements(KeyTable table, RowIds keys, const KeyPlace* places, float* out) {
  for_each_place(table, keys, places, out, [&](const std::uint64_t* regions, std::uint64_t offset, float* to) {
    for (std::uint32_t e = threadIdx.x; e < table.elements; e += blockDim.x)
      to[e] = load_relaxed_system(static_cast<const float*>(
          address_of(regions, offset + std::uint64_t{e} * table.record_floats * sizeof(float), table.region_bits)));
  });
}

__global__ void __launch_bounds__(kThreads)
    check_kernel(KeyTable table, std::size_t count, KeyPlace* places, bool* found, std::uint64_t* undecided) {
  for (std::size_t i = first_element(); i < count; i += element_stride()) {
    const KeyPlace place = places[i];
    bool is_decided = place.row != kUndecidedRow;
    if (is_decided && place.row != kAbsentRow &&
        load_relaxed_system(word_at(table, table.parts[place.part], place.row)) != place.word) {  // (table.R3)
      places[i].row = kUndecidedRow;
      is_decided = false;
    }
    if (!is_decided) store_relaxed_system(undecided, 1);
    if (found != nullptr) found[i] = is_decided && place.row != kAbsentRow;
  }
}

const Loadable loadable[] = {
    Loadable{find_kernel},           Loadable{copy_vectors<1, false>}, Loadable{copy_vectors<2, false>},
    Loadable{copy_vectors<2, true>}, Loadable{copy_vectors<4, false>}, Loadable{copy_elements},
    Loadable{check_kernel}};

}  // namespace

cudaError_t pull_keys(const KeyTable& table, const RowIds& keys, float* out, bool* found, KeyPlace* places,
                      std::uint64_t* undecided, cudaStream_t stream) {
  if (keys.count == 0) return cudaSuccess;
  const bool is_ftrl = table.value == RowValue::kFtrl;
  const std::uint32_t record = table.record_floats;
  if (is_ftrl && record != 2) return cudaErrorInvalidValue;
  const unsigned searching = blocks_for(keys.count, kThreads);
  if (const cudaError_t error = launch(find_kernel, searching, kThreads, stream, table, keys, places)) return error;
  const bool by_vectors = record == 1 || record == 2 || record == 4;
  const std::uint32_t per_lane = by_vectors ? 4 / record : 1;
  unsigned lanes = 1;
  while (lanes < kMaxLanes && lanes * per_lane < table.elements) lanes *= 2;
  const dim3 block(lanes, kThreads / lanes);
  const unsigned blocks = blocks_for(keys.count, block.y);
  const bool is_whole = table.elements % 4 == 0 && reinterpret_cast<std::size_t>(out) % sizeof(float4) == 0;
  auto* const kernel = record == 1   ? copy_vectors<1, false>
                       : record == 4 ? copy_vectors<4, false>
                       : is_ftrl     ? copy_vectors<2, true>
                                     : copy_vectors<2, false>;
  const cudaError_t error = by_vectors ? launch(kernel, blocks, block, stream, table, keys, places, out, is_whole)
                                       : launch(copy_elements, blocks, block, stream, table, keys, places, out);
  if (error != cudaSuccess) return error;
  return launch(check_kernel, searching, kThreads, stream, table, keys.count, places, found, undecided);
}

}  // namespace ps_shm::kernels
