// The different rows that a few examples touch together, numbered in order of appearance. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ps_shm::train {

class RowSet {
 public:
  // Empties the set and reserves space for so many ids. Allocates only for a new maximum.
  void begin(std::size_t most) {
    ids_.clear();
    if (++round_ == 0 || places_.size() < 2 * most) {  // at most half full, so that searches are short
      places_.assign(std::bit_ceil(2 * most + 2), {});
      round_ = 1;
      ids_.reserve(most);
    }
  }

  // The number of the row. Requires: no more ids than announced by begin().
  std::uint32_t number_of(std::uint32_t id) {
    const std::size_t mask = places_.size() - 1;
    // Fibonacci hashing: neighbouring ids, which are common, get different places.
    for (std::size_t at = (id * std::uint64_t{0x9E3779B97F4A7C15}) >> 32;; ++at) {
      Place& place = places_[at & mask];
      if (place.round != round_) {
        place = {round_, id, static_cast<std::uint32_t>(ids_.size())};
        ids_.push_back(id);
        return place.number;
      }
      if (place.id == id) return place.number;
    }
  }

  std::span<const std::uint32_t> ids() const noexcept { return ids_; }

 private:
  struct Place {
    std::uint32_t round = 0;  // the round in which it was filled; of another round: empty
    std::uint32_t id = 0, number = 0;
  };

  std::uint32_t round_ = 0;
  std::vector<Place> places_;  // a power of two of them
  std::vector<std::uint32_t> ids_;
};

}  // namespace ps_shm::train
