// Replaces kernels/bulk_copies.cuh: copies of memory, and counters. Loads are made at once or as late as they may be
// (on_cpu::is_made_at_once()), stores always so late, so that a kernel that does not wait is noticed. What would hang a
// GPU, or let a copy go on without its block, ends the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "launch.cuh"

namespace ps_shm::kernels {

struct Arrival {
  std::uint64_t missing;  // bytes that were announced and have not come
  std::uint32_t parity;   // of the phase under way
  bool is_announced;
};

struct BulkLoad {
  std::byte* to;
  const std::byte* from;
  std::uint32_t bytes;
  Arrival* arrival;
};
struct BulkStore {
  std::byte* to;
  const std::byte* from;
  std::vector<std::byte> read;  // empty: `from` was not read yet
  std::uint32_t bytes;

  void read_shared() {
    if (read.empty()) read.assign(from, from + bytes);
  }
};
struct BulkCopies {
  std::deque<BulkLoad> loads;
  std::deque<BulkStore> stores;
};
inline BulkCopies& bulk_copies_of_block() {
  static thread_local BulkCopies copies;
  return copies;
}

inline std::byte* dynamic_shared() { return on_cpu::dynamic_shared(); }

inline void require_bulk_form(const void* a, const void* b, std::uint32_t bytes, int line) {
  const std::size_t all = reinterpret_cast<std::size_t>(a) | reinterpret_cast<std::size_t>(b) | bytes;
  if (all % 16 != 0 || bytes == 0) on_cpu::fault("a bulk copy whose addresses and size are not multiples of 16", line);
}

inline void initialize(Arrival* arrival, int line = __builtin_LINE()) {
  const BulkCopies& copies = bulk_copies_of_block();
  if (!copies.loads.empty() || !copies.stores.empty()) on_cpu::fault("the block before left copies under way", line);
  *arrival = {};
}
inline void fence_arrivals() {}

inline void load_now(const BulkLoad& load) {
  std::memcpy(load.to, load.from, load.bytes);
  load.arrival->missing -= load.bytes;
  if (load.arrival->missing != 0) return;
  load.arrival->parity ^= 1;
  load.arrival->is_announced = false;
}

inline void bulk_load(std::byte* to_shared, const std::byte* from_global, std::uint32_t bytes, Arrival* arrival,
                      int line = __builtin_LINE()) {
  require_bulk_form(to_shared, from_global, bytes, line);
  if (std::exchange(arrival->is_announced, true)) on_cpu::fault("a phase is announced twice", line);
  arrival->missing = bytes;
  const BulkLoad load{to_shared, from_global, bytes, arrival};
  if (on_cpu::is_made_at_once())
    load_now(load);
  else
    bulk_copies_of_block().loads.push_back(load);
}

inline void bulk_store(std::byte* to_global, const std::byte* from_shared, std::uint32_t bytes,
                       int line = __builtin_LINE()) {
  require_bulk_form(to_global, from_shared, bytes, line);
  bulk_copies_of_block().stores.push_back({to_global, from_shared, {}, bytes});
}

inline void wait_for(Arrival* arrival, std::uint32_t parity, int line = __builtin_LINE()) {
  std::deque<BulkLoad>& loads = bulk_copies_of_block().loads;
  const auto rest =
      std::stable_partition(loads.begin(), loads.end(), [&](const BulkLoad& load) { return load.arrival != arrival; });
  std::for_each(rest, loads.end(), load_now);
  loads.erase(rest, loads.end());
  if (arrival->parity == parity) on_cpu::fault("it waits for bytes that nobody loads", line);
}

template <int kNewest>
inline void wait_until_read() {
  std::deque<BulkStore>& stores = bulk_copies_of_block().stores;
  for (std::size_t i = 0; i + kNewest < stores.size(); ++i) stores[i].read_shared();
}

inline void wait_until_stored() {
  std::deque<BulkStore>& stores = bulk_copies_of_block().stores;
  for (BulkStore& store : stores) {
    store.read_shared();
    std::memcpy(store.to, store.read.data(), store.bytes);
  }
  stores.clear();
}

}  // namespace ps_shm::kernels
