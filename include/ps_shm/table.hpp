/// @file
/// Tables by key: rows that are found by a 64-bit key and made when they are first pushed, in bounded memory.
/// @code
///   ps_shm::Table items = worker.table({.name = "items", .row_size = 16, .max_rows = 1'000'000});
///   items.pull(keys, rows);
///   compute_gradients(rows, gradients);
///   items.push(keys, gradients);
/// @endcode
/// All workers of a job share its tables, whichever of them makes a row. A worker that is killed at any moment blocks
/// nobody, and takes no row with it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/table_spec.hpp"
#include "ps_shm/table_statistics.hpp"

namespace PS_SHM_API ps_shm {

/// What became of the keys of a push: updated, unadmitted or refused. Zeros: a dropped step (JobConfig::stale_limit).
struct PushedKeys {
  std::uint64_t updated = 0;     ///< their rows have the gradient
  std::uint64_t made = 0;        ///< of these: they had no row before
  std::uint64_t unadmitted = 0;  ///< not pushed often enough yet (TableSpec::admit_after)
  std::uint64_t refused = 0;     ///< there is no room
};

/// What Table::dump() says of a dump.
struct TableDump {
  std::uint64_t version = 0;  ///< to ask with next time
  bool is_full = false;       ///< whether it has all rows, instead of the changes since the version that was given
};

struct TableState;

/// A worker's handle of a table. It is cheap to copy, and valid as long as its Worker, whose thread alone uses it.
class Table {
 public:
  const std::string& name() const noexcept;  ///< the name that it was declared with
  std::uint64_t row_size() const noexcept;   ///< floats in a row

  /// Copies the row of keys[i] to out[i * row_size()] and the floats after it; a key without a row reads its initial
  /// values. Keys may be in any order and may repeat. found[i], if given, says whether keys[i] has a row. Each row is
  /// the key's throughout; each element is whole, two elements may be from different moments. Returns how many keys
  /// have a row. create: afterwards makes rows with the initial values for the keys that have none, as a push would:
  /// each counts once for admit_after, and is not made if it is not admitted or there is no room.
  ///
  /// @throws Error if a size does not fit; kInvalidState in a forked child; kDamaged.
  /// @progress lock-free. A row is copied again only if it has been evicted, or linked anew, meanwhile.
  std::uint64_t pull(std::span<const std::uint64_t> keys, std::span<float> out, std::span<bool> found = {},
                     bool create = false);

  /// Applies the gradient that begins at gradients[i * row_size()] to the row of keys[i], by the table's rule, and
  /// makes rows as the TableSpec says. Gradients of repeated keys are summed first. Each admitted key's row gets its
  /// gradient exactly once. If the row is evicted at the same moment, the gradient is applied before the eviction, or
  /// to a new row. clip_norm limits the norm of all gradients of the call. A worker that is killed in it may have
  /// updated some rows, and some elements of a row.
  ///
  /// @throws Error as pull(). Nothing has been applied then, except with kDamaged.
  /// @progress lock-free.
  PushedKeys push(std::span<const std::uint64_t> keys, std::span<const float> gradients);

  /// Sets the row of keys[i] to the values that begin at values[i * row_size()]. The optimizer's state becomes what
  /// begins at state[i * state_size()], as dump() gives it; without `state` it is reset. (For ftrl, whose values are a
  /// function of its state, the state is solved for where it gives others.) Makes rows without regard to admit_after.
  /// If a key repeats, its last values stay.
  ///
  /// @throws_and_progress as push().
  PushedKeys assign(std::span<const std::uint64_t> keys, std::span<const float> values,
                    std::span<const float> state = {});

  /// Whether the keys have rows: found[i] is of keys[i]. Returns how many do.
  ///
  /// @throws_and_progress as pull().
  std::uint64_t contains(std::span<const std::uint64_t> keys, std::span<bool> found);

  /// Prefetches the memory of these keys' rows, for a pull and a push of them soon.
  ///
  /// @progress wait-free.
  void prefetch(std::span<const std::uint64_t> keys) const noexcept;

  /// Takes these keys' rows away, as an eviction, but for rows that are being pushed. Returns how many.
  ///
  /// @throws_and_progress as push().
  std::uint64_t evict(std::span<const std::uint64_t> keys);

  /// Evicts rows that are older than ttl now, and frees what killed workers have left; both happen anyway when
  /// rows are made. Returns how many it evicted.
  ///
  /// @throws_and_progress as push(); looks at every row.
  std::uint64_t expire();

  /// Dumps the table: first evicted(key) for each key that has lost its row since the dump that returned the version
  /// `since`, then row(row) for each row that was made or changed since. With `since` 0 that is every row, and no key.
  /// Either function may be empty. Does not hold up pushes. Each row is its key's throughout; rows are of different
  /// moments. What happens during the dump is in it, or in the next one, or in both.
  /// @code
  ///   TableDump base = table.dump(0, store);  // later, as often as you like:
  ///   TableDump next = table.dump(base.version, store, remove);
  /// @endcode
  /// A dump and all later ones, applied in their order, keys before rows, give the table once nobody pushes. (A key
  /// that a killed worker has given a row, and not updated, may be missing: its row has the initial values.) Any number
  /// of processes may dump, each from versions of its own. Each worker remembers the last max_rows / 16 keys that each
  /// of its threads has evicted, at least 256 and at most 2^18, of each part of the table. If a dump needs older ones,
  /// or `since` is not a version of this table, it is a full one: is_full, and the keys without a row in it have none.
  ///
  /// @throws as push(), and what `row` and `evicted` throw; kExhausted after 2^32 dumps.
  /// @progress lock-free; looks at every row.
  TableDump dump(std::uint64_t since, const std::function<void(const TableRow& row)>& row,
                 const std::function<void(std::uint64_t key)>& evicted = {});

  /// The names of the optimizer's slots, as VariableInfo::slots has them. In TableRow::state there are row_size()
  /// floats for each of them, one slot after the other, but only one float for a slot that belongs to rows
  /// (rowwise_adagrad).
  ///
  /// @throws std::bad_alloc.
  std::vector<std::string> slots() const;
  std::uint64_t state_size() const noexcept;  ///< floats of state in a row

  /// @throws Error with kInvalidState in a forked child.
  /// @progress wait-free.
  TableStatistics statistics() const;

 private:
  friend class Worker;
  friend class GuestRows;
  explicit Table(TableState* state) noexcept : state_(state) {}
  TableState* state_;
};

}  // namespace ps_shm
