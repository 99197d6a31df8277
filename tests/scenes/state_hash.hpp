// A hash of the part of a memory that can still be read, and of the threads that can read it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "scenes/memory.hpp"
#include "scenes/modelled_words.hpp"

namespace ps_shm::test {

inline void mix(std::uint64_t& hash, std::uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U + 0x632be59bd9b4e019U;
  hash ^= hash >> 32;
}

class StateHash {
 public:
  // Of a word that is not contended only the newest value counts, and so it does of all where memory is sequential.
  StateHash(const Memory& memory, const ModelledWords& words, bool is_sequential) : memory_(memory) {
    least_.fill(255);
    for (std::size_t word = 0; word < words.size(); ++word) {
      if (words[word].is_contended() && !is_sequential)
        contended_[count_++] = word;
      else
        mix(hash, memory.newest(word));
    }
  }

  // Called first, for each thread that continues. `reads_all`: it has not started, and gets its view later.
  void goes_on(std::size_t thread, bool reads_all) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::size_t word = contended_[i];
      least_[word] = reads_all ? std::uint8_t{0} : std::min(least_[word], memory_.thread(thread).now.at[word]);
    }
  }

  void add_memory() noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      auto& least = least_[contended_[i]];
      least = std::min(least, static_cast<std::uint8_t>(memory_.history(contended_[i]).size() - 1));
    }
    for (std::size_t i = 0; i < count_; ++i) {
      const auto& history = memory_.history(contended_[i]);
      mix(hash, history.size() - least_[contended_[i]]);
      for (std::size_t at = least_[contended_[i]]; at < history.size(); ++at) {
        mix(hash, history[at].value * 2 + history[at].is_exchange);
        add_view(history[at].view);
      }
    }
    add_view(memory_.fenced());
    add_view(memory_.ordered());
  }

  void add_thread(std::size_t number) noexcept {
    const Memory::Thread& thread = memory_.thread(number);
    add_view(thread.now), add_view(thread.acquired), add_view(thread.released);
    for (std::size_t i = 0; i < count_; ++i)
      if (thread.repeats[contended_[i]] != 0) mix(hash, i << 8 | thread.repeats[contended_[i]]);
  }

  std::uint64_t hash = 0;

 private:
  // Messages that every thread has seen do not count.
  void add_view(const View& view) noexcept {
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uint8_t at = view.at[contended_[i]], least = least_[contended_[i]];
      if (at > least) mix(hash, i << 8 | static_cast<std::uint8_t>(at - least));
    }
    mix(hash, ~std::uint64_t{0});
  }

  const Memory& memory_;
  std::array<std::uint8_t, kMaxWords> least_;
  std::array<std::size_t, kMaxWords> contended_;
  std::size_t count_ = 0;
};

}  // namespace ps_shm::test
