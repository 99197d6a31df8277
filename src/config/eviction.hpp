// The ways to make space for new keys in a full table by key, one row each: what a use of a table's row notes in it, and
// which rows go first.
#pragma once

#include <cstdint>
#include <iterator>

#include "ps_shm/table_spec.hpp"

namespace ps_shm {

struct EvictionTraits {
  Evict evict;
  const char* name;
  bool makes_space;  // rows are evicted; otherwise new keys get none
  bool notes_time;   // a row is as old as its last use; otherwise as its making
  bool counts_uses;  // rows with the fewest uses go first; otherwise the oldest ones
};

// clang-format off
inline constexpr EvictionTraits kEvictions[] = {
  // evict          name    space  time   uses
    {Evict::kLru,  "lru",   true,  true,  false},
    {Evict::kLfu,  "lfu",   true,  true,  true},
    {Evict::kAge,  "age",   true,  false, false},
    {Evict::kNone, "none",  false, true,  false},
};
// clang-format on
static_assert(
    [] {
      for (std::uint32_t i = 0; i < std::size(kEvictions); ++i)
        if (static_cast<std::uint32_t>(kEvictions[i].evict) != i + 1) return false;
      return true;
    }(),
    "rows are found by their number, which counts from 1");

// How the options describe them.
inline constexpr char kEvictionsInWords[] =
    "the least frequently or the least recently pushed one, or the oldest; none: new features get no row";

// The row of that number, as stored in the segments; or nullptr.
constexpr const EvictionTraits* find_eviction(std::uint32_t number) noexcept {
  return number - 1 < std::size(kEvictions) ? &kEvictions[number - 1] : nullptr;
}

// For values that checks reject: they have no row and no property.
inline constexpr EvictionTraits kUnknownEviction{Evict{}, "unknown", false, false, false};

constexpr const EvictionTraits& traits_of(Evict evict) noexcept {
  const EvictionTraits* row = find_eviction(static_cast<std::uint32_t>(evict));
  return row != nullptr ? *row : kUnknownEviction;
}

}  // namespace ps_shm
