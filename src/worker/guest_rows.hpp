// The rows of a table by key, as a bridge to other boxes reads and changes them (docs/protocols.md, bridge.T1 to
// bridge.T8). Its owner is a guest of the job.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ps_shm/table.hpp"

namespace ps_shm {

// Rows one after the other, and of each the key and the mark.
struct MarkedRows {
  std::vector<std::uint64_t> keys;
  std::vector<float> values;
  std::vector<std::uint32_t> marks;
};

class PS_SHM_HIDDEN GuestRows {
 public:
  static constexpr std::uint32_t kMaxTicket = 0x7fffffff;
  // (bridge.T2) The mark of a row that has been given what the ticket stands for, and of one that is being given it.
  static constexpr std::uint32_t done(std::uint32_t ticket) noexcept { return 2 * ticket; }
  static constexpr std::uint32_t doing(std::uint32_t ticket) noexcept { return 2 * ticket + 1; }

  // Requires: the table is a guest's. Throws Error if its rows are not of float32.
  explicit GuestRows(const Table& table);

  std::uint64_t row_size() const noexcept;

  // Appends copies of the rows that were made or pushed since the call that returned `since`; 0: of all rows. Returns
  // what to ask with next time. What happens meanwhile is in it, or in the next one, or in both.
  //
  // Throws: Error with kExhausted after 2^32 dumps, kDamaged; std::bad_alloc.
  // Progress: lock-free; looks at every row.
  std::uint32_t changed_since(std::uint32_t since, MarkedRows& to);

  // Copies the rows of these keys. found[i] is 0 if keys[i] has no row; its values and its mark are left alone then.
  //
  // Throws: Error with kDamaged. Progress: lock-free.
  void read(std::span<const std::uint64_t> keys, std::span<float> values, std::span<std::uint32_t> marks,
            std::span<std::uint8_t> found);

  enum class How : std::uint8_t {
    kAdd,  // what the row lacks of `values`, by the base that it has: `bases`, or if its mark is 0, its initial values
    kReset  // `values`, and the optimizer's state of a row that was just made with them
  };
  struct Given {
    std::uint64_t in_doubt = 0;  // rows in which an earlier guest was killed; they were assigned `values`
    std::uint64_t absent = 0;    // keys without a row, for which there is no space
  };
  // Changes the row of each key, once for each ticket, and marks it. A key without a row gets one with `values`, as long as
  // there is space: no row is evicted for it.
  //
  // Requires: 0 < ticket <= kMaxTicket; no key is repeated; values and bases have row_size() floats for each.
  // Throws: Error with kDamaged. Progress: lock-free.
  Given give(std::uint32_t ticket, How how, std::span<const std::uint64_t> keys, std::span<const float> values,
             std::span<const float> bases);

 private:
  template <class Body>
  void for_batches(std::span<const std::uint64_t> keys, Body&& body);

  TableState& state_;
};

}  // namespace ps_shm
