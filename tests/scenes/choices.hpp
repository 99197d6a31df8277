// The choices of successive executions: exhaustively in depth-first order, at random, or those of a schedule.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ps_shm::test {

class Choices {
 public:
  void clear() noexcept { path_.clear(), depth_ = 0; }
  void begin_execution() noexcept { depth_ = 0; }
  // Draws choices at random from now on; 0: no longer.
  void randomise(std::uint64_t seed) noexcept { random_ = seed; }
  bool is_random() const noexcept { return random_ != 0; }
  // Whether the choices that follow are still open.
  bool is_new() const noexcept { return depth_ >= path_.size(); }
  std::size_t depth() const noexcept { return depth_; }

  // Chooses one of `count` possibilities; 0 first. `is_rare`: a random choice takes others than 0 less often. Returns
  // false if an earlier execution had another number of possibilities here.
  bool choose(std::size_t count, bool is_rare, std::size_t& taken) {
    taken = 0;
    if (count <= 1) return true;
    if (depth_ == path_.size()) {
      std::uint32_t first = 0;
      if (random_ != 0 && (next_random() & 3) < (is_rare ? 1U : 2U))
        first = static_cast<std::uint32_t>(next_random() % count);
      path_.push_back({first, static_cast<std::uint32_t>(count)});
    }
    Choice& choice = path_[depth_++];
    if (choice.count == 0) choice.count = static_cast<std::uint32_t>(count);  // read from a schedule
    const bool is_same = choice.count == count && choice.taken < count;
    taken = is_same ? choice.taken : 0;
    return is_same;
  }

  // Switches to the next alternative of the last choice that has one. Returns false once the search is complete.
  bool step_back() {
    while (!path_.empty() && path_.back().taken + 1 >= path_.back().count) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().taken;
    return true;
  }

  // The choices of this execution so far: numbers, and "3x7" for seven times 3.
  std::string schedule() const {
    std::string text;
    for (std::size_t at = 0, end; at < depth_; at = end) {
      for (end = at; end < depth_ && path_[end].taken == path_[at].taken;) ++end;
      text += fmt::format("{}{}", at == 0 ? "" : " ", path_[at].taken);
      if (end - at > 1) text += fmt::format("x{}", end - at);
    }
    return text;
  }
  void follow(std::string_view schedule) {
    clear();
    for (std::size_t at = 0; at < schedule.size(); ++at) {
      std::size_t digits = 0, times = 1;
      const auto number = static_cast<std::uint32_t>(std::stoul(std::string(schedule.substr(at)), &digits));
      at += digits;
      if (at < schedule.size() && schedule[at] == 'x') {
        times = std::stoul(std::string(schedule.substr(++at)), &digits);
        at += digits;
      }
      path_.insert(path_.end(), times, {number, 0});
    }
  }

 private:
  struct Choice {
    std::uint32_t taken, count;
  };
  std::uint64_t next_random() noexcept {  // xorshift64*
    random_ ^= random_ >> 12, random_ ^= random_ << 25, random_ ^= random_ >> 27;
    return random_ * 0x2545f4914f6cdd1dU >> 33;
  }

  std::vector<Choice> path_;  // the next execution differs at its end
  std::size_t depth_ = 0;
  std::uint64_t random_ = 0;
};

}  // namespace ps_shm::test
