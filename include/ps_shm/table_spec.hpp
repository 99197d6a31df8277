/// @file
/// The declaration of a table by key: its rows, how many there may be, and which of them stay. And a row as it is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/export.hpp"
#include "ps_shm/optimizer.hpp"
#include "ps_shm/types.hpp"

namespace PS_SHM_API ps_shm {

// The numbers of these enumerations are stored in shared memory: never renumber them.

/// Which rows make room for new keys in a full table. They are chosen from samples of 256 rows; times are known to a
/// quarter of a second.
enum class Evict : std::uint32_t {
  kLru = 1,   ///< those that were not pushed for the longest time
  kLfu = 2,   ///< those that were pushed least often; uses that are long ago count less
  kAge = 3,   ///< those that were made first
  kNone = 4,  ///< none: a push of a key without a row is counted as refused
};

/// As settings have it: lru, lfu, age or none.
/// @progress wait-free.
PS_SHM_API const char* to_string(Evict evict) noexcept;

/// The declaration of a table. All workers of a job must declare a table alike.
struct TableSpec {
  std::string name{};          ///< as of a variable; tables and variables have separate names
  std::uint64_t row_size = 1;  ///< elements in a row
  /// float32, or bfloat16, in which rows take half the memory. Values are given and returned in float32. Each push
  /// computes in float32 and rounds the new values stochastically, so that the expected values are exact; assignments
  /// are rounded to nearest. Per-element state of the optimizer is bfloat16, too, per-row state float32. The random
  /// bits depend only on the job's seed, the table's name, the key, the element, and how often the row was pushed.
  DType dtype = DType::kFloat32;
  std::uint64_t max_rows = 0;        ///< of the table, at least 64 for each part; memory is taken as rows come
  std::optional<UpdateRule> rule{};  ///< unset: the rule of the job's optimizer
  Evict evict = Evict::kLfu;         ///< which rows make room in a full table
  double ttl = 0;  ///< seconds: rows that were not used for so long are evicted (by kAge: that are older); 0: none; at
                   ///< most 30 days
  /// The number of the push with which a key gets its row, at most 255; earlier pushes are dropped. The counts are
  /// approximate: two keys may share one, and each is halved about once while max_rows rows are made.
  std::uint32_t admit_after = 1;
  bool touch_on_pull = false;  ///< whether a pull counts as a use
  /// A key without a row has these values: uniform in [-initial_range, initial_range), a function of (seed, key,
  /// element) alone.
  float initial_range = 0.05F;
  std::uint64_t seed = 0;   ///< of the initial values
  float regularize = 0.0F;  ///< multiplies the job's l2, l1 and weight_decay for this table; 0: they do not apply
  float lr_scale = 1.0F;    ///< multiplies the job's learning rate for this table
};

/// A copy of a row.
struct TableRow {
  std::uint64_t key = 0;        ///< whose row it is
  std::vector<float> values{};  ///< TableSpec::row_size floats
  std::vector<float> state{};   ///< of the optimizer, Table::state_size() floats, as Table::slots() orders them
};

}  // namespace ps_shm
