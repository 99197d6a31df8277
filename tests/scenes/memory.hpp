// The memory model of C++20 as a machine, without out-of-thin-air values: what a thread may read, and where a store may
// be placed in a word's history. A program without data races behaves on it as the standard specifies.
//
// Each word has a history of messages, in modification order. A message has a value and the view that its reader gets.
// A view holds, for each word, the oldest message that may still be read. A thread has three:
//   now       what it has seen: by reading, and by synchronizing with other threads
//   acquired  what relaxed reads have collected; an acquire fence adds it to `now`
//   released  `now` as of its last release fence; its relaxed stores carry it
// A load reads any message from `now` on (coherence). An acquire load adds the message's view to `now`. A store may be
// placed anywhere after `now`, not only at the end (2+2W); a release store carries `now`. An exchange reads a message
// and is placed directly after it, and nothing may be placed between the two later; it also carries the view of that
// message (release sequence, C++20). Sequentially consistent fences are ordered as they are executed: each adds to `now` what
// those before it had seen. Sequentially consistent loads and stores see, of their word, what earlier fences and
// operations of this kind have seen of it.
// Sequential memory has of each word its newest message alone, and no views.
// Not modelled: a load never reads a later store (LB), which the standard allows and some processors do. A sequentially
// consistent operation counts as later than all operations that it follows by reads alone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace ps_shm::test {

inline constexpr std::size_t kMaxWords = 128, kMaxThreads = 6;

inline bool acquires(std::memory_order order) noexcept {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}
inline bool releases(std::memory_order order) noexcept {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}

struct View {
  std::array<std::uint8_t, kMaxWords> at{};
  void join(const View& other) noexcept {
    for (std::size_t i = 0; i < kMaxWords; ++i) at[i] = std::max(at[i], other.at[i]);
  }
};

struct Message {
  std::uint64_t value;
  View view;
  bool is_exchange = false;  // with the message before it: nothing may be placed between
};

class Memory {
 public:
  struct Thread {
    View now, acquired, released;
    std::array<std::uint8_t, kMaxWords> repeats{};  // how often it has read the same old message of a word
  };

  // After this many reads of the same message in a row a thread reads a newer one, if there is one. This is fair, and
  // makes loops end.
  static constexpr std::uint8_t kMostRepeats = 4;

  void make_sequential() noexcept { is_sequential_ = true; }

  void reset(const std::vector<std::uint64_t>& first) {
    words_.resize(first.size());
    for (std::size_t word = 0; word < first.size(); ++word) start(word, first[word]);
    if (is_sequential_) return;
    threads_ = {};
    fenced_ = {}, ordered_ = {};
  }
  void start(std::size_t word, std::uint64_t first) {
    if (word >= kMaxWords) throw std::length_error("too many words");
    if (word >= words_.size()) words_.resize(word + 1);
    words_[word].clear();
    words_[word].push_back({first, {}});
  }

  // `choose(n)` picks one of n possibilities; 0 is the outcome if every store is visible at once.
  template <class Choose>
  std::uint64_t load(std::size_t thread, std::size_t word, std::memory_order order, Choose&& choose) {
    if (is_sequential_) return newest(word);
    const std::size_t least = oldest(thread, word, order);
    const std::size_t last = words_[word].size() - 1;
    const std::size_t at = last - choose(last - least + 1);
    read(thread, word, at, order);
    return words_[word][at].value;
  }

  template <class Choose>
  void store(std::size_t thread, std::size_t word, std::uint64_t value, std::memory_order order, Choose&& choose) {
    if (is_sequential_) return static_cast<void>(words_[word].back().value = value);
    const std::vector<Message>& history = words_[word];
    std::size_t places = 1;
    std::array<std::uint8_t, 256> place;
    place[0] = static_cast<std::uint8_t>(history.size());
    const std::size_t least = std::max<std::size_t>(threads_[thread].now.at[word], ordered(word, order));
    for (std::size_t at = history.size() - 1; at > least; --at)
      if (!history[at].is_exchange) place[places++] = static_cast<std::uint8_t>(at);
    write(thread, word, place[choose(places)], value, order, false);
  }

  // change(value, desired): whether it stores `desired`, given `value`.
  template <class Change, class Choose>
  bool exchange(std::size_t thread, std::size_t word, std::uint64_t& seen, std::memory_order order,
                std::memory_order failure, Change&& change, Choose&& choose) {
    if (is_sequential_) {
      std::uint64_t desired = 0;
      seen = newest(word);
      const bool stores = change(seen, desired);
      if (stores) words_[word].back().value = desired;
      return stores;
    }
    const std::vector<Message>& history = words_[word];
    std::size_t count = 0;
    std::array<std::uint8_t, 256> candidates;
    const std::size_t least = std::min(oldest(thread, word, order), oldest(thread, word, failure));
    std::uint64_t desired = 0;
    for (std::size_t at = history.size(); at-- > least;) {
      const bool is_taken = at + 1 < history.size() && history[at + 1].is_exchange;
      if (!is_taken || !change(history[at].value, desired)) candidates[count++] = static_cast<std::uint8_t>(at);
    }
    const std::size_t at = candidates[choose(count)];
    seen = history[at].value;
    const bool stores = change(seen, desired);
    read(thread, word, at, stores ? order : failure);
    if (!stores) return false;
    write(thread, word, at + 1, desired, order, true);
    return true;
  }

  void fence(std::size_t thread, std::memory_order order) {
    if (is_sequential_) return;
    Thread& self = threads_[thread];
    if (acquires(order)) self.now.join(self.acquired);
    if (order == std::memory_order_seq_cst) {
      self.now.join(fenced_);
      self.now.join(ordered_);
      fenced_ = self.now;
    }
    if (releases(order)) self.released = self.now;
  }

  // `later` starts after `earlier` has ended, and the kernel or a join orders the two.
  void follow(std::size_t later, std::size_t earlier) { threads_[later].now.join(threads_[earlier].now); }

  std::uint64_t newest(std::size_t word) const { return words_[word].back().value; }
  const std::vector<Message>& history(std::size_t word) const { return words_[word]; }
  std::size_t words() const noexcept { return words_.size(); }
  const Thread& thread(std::size_t number) const { return threads_[number]; }
  const View& fenced() const noexcept { return fenced_; }
  const View& ordered() const noexcept { return ordered_; }
  // The position in the word's history of the thread's last access.
  std::size_t place(std::size_t thread, std::size_t word) const { return threads_[thread].now.at[word]; }

 private:
  std::size_t ordered(std::size_t word, std::memory_order order) const {
    return order == std::memory_order_seq_cst ? std::max(fenced_.at[word], ordered_.at[word]) : 0;
  }

  std::size_t oldest(std::size_t thread, std::size_t word, std::memory_order order) const {
    const Thread& self = threads_[thread];
    std::size_t least = self.now.at[word];
    if (self.repeats[word] >= kMostRepeats && least + 1 < words_[word].size()) ++least;
    return std::max(least, ordered(word, order));
  }

  void read(std::size_t thread, std::size_t word, std::size_t at, std::memory_order order) {
    Thread& self = threads_[thread];
    const bool repeats = at == self.now.at[word] && at + 1 < words_[word].size();
    self.repeats[word] = repeats ? static_cast<std::uint8_t>(self.repeats[word] + 1) : std::uint8_t{0};
    self.now.at[word] = std::max(self.now.at[word], static_cast<std::uint8_t>(at));
    self.acquired.join(words_[word][at].view);
    if (acquires(order)) self.now.join(words_[word][at].view);
    if (order == std::memory_order_seq_cst) ordered_.at[word] = std::max(ordered_.at[word], self.now.at[word]);
  }

  void write(std::size_t thread, std::size_t word, std::size_t at, std::uint64_t value, std::memory_order order,
             bool is_exchange) {
    if (words_[word].size() >= 255) throw std::length_error("too many stores to a word");
    if (at < words_[word].size()) make_room(word, static_cast<std::uint8_t>(at));
    Thread& self = threads_[thread];
    self.now.at[word] = static_cast<std::uint8_t>(at);
    self.repeats[word] = 0;
    Message message{value, releases(order) ? self.now : self.released, is_exchange};
    if (is_exchange) message.view.join(words_[word][at - 1].view);
    message.view.at[word] = static_cast<std::uint8_t>(at);
    words_[word].insert(words_[word].begin() + static_cast<std::ptrdiff_t>(at), message);
    if (order == std::memory_order_seq_cst) ordered_.at[word] = std::max(ordered_.at[word], self.now.at[word]);
  }

  // Shifts all views of messages from `at` on by one.
  void make_room(std::size_t word, std::uint8_t at) {
    const auto move = [&](View& view) { view.at[word] += view.at[word] >= at; };
    for (std::vector<Message>& history : words_)
      for (Message& message : history) move(message.view);
    for (Thread& thread : threads_) move(thread.now), move(thread.acquired), move(thread.released);
    move(fenced_), move(ordered_);
  }

  std::vector<std::vector<Message>> words_;
  std::array<Thread, kMaxThreads> threads_;
  View fenced_, ordered_;
  bool is_sequential_ = false;
};

}  // namespace ps_shm::test
