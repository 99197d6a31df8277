// Which words fibers race on: two access such a word, one of them stores, and no other words order the two accesses.
//
// In sequential memory a switch at such words alone is enough. Between two of them a fiber accesses words that no other
// fiber accesses at the same time, so any execution is one in which it does so without a break, reordered. Races are
// found with vector clocks: a store to a word that fibers race on passes the clock of its fiber on to those that read
// it. A word on which a race is found is one of these from then on, and the search starts over.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "scenes/memory.hpp"

namespace ps_shm::test {

class Races {
 public:
  void reset() noexcept {
    words_.clear();
    for (std::size_t i = 0; i < kMaxThreads; ++i) clocks_[i] = {}, clocks_[i][i] = 1;
  }
  // All that `earlier` has done so far comes before what `later` does.
  void follow(std::size_t later, std::size_t earlier) noexcept {
    join(clocks_[later], clocks_[earlier]);
    ++clocks_[earlier][earlier];
  }

  // A word that fibers race on.
  void read(std::size_t fiber, std::size_t word) { join(clocks_[fiber], at(word).stored); }
  void store(std::size_t fiber, std::size_t word) {
    join(at(word).stored, clocks_[fiber]);
    ++clocks_[fiber][fiber];
  }
  // Any other word. Returns whether the access races with an earlier one.
  bool access(std::size_t fiber, std::size_t word, bool stores) {
    Word& accessed = at(word);
    const Clock& now = clocks_[fiber];
    const bool races = !is_before(accessed.stored, now) || (stores && !is_before(accessed.read, now));
    (stores ? accessed.stored : accessed.read)[fiber] = now[fiber];
    return races;
  }

 private:
  using Clock = std::array<std::uint32_t, kMaxThreads>;
  struct Word {
    Clock stored = {}, read = {};
  };

  Word& at(std::size_t word) {
    if (word >= words_.size()) words_.resize(word + 1);
    return words_[word];
  }
  static void join(Clock& clock, const Clock& other) noexcept {
    for (std::size_t i = 0; i < kMaxThreads; ++i) clock[i] = std::max(clock[i], other[i]);
  }
  static bool is_before(const Clock& clock, const Clock& other) noexcept {
    for (std::size_t i = 0; i < kMaxThreads; ++i)
      if (clock[i] > other[i]) return false;
    return true;
  }

  std::vector<Word> words_;
  std::array<Clock, kMaxThreads> clocks_ = {};
};

}  // namespace ps_shm::test
