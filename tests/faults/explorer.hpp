// Runs a few fibers of real protocol code through all their interleavings, in one thread.
//
// The explorer switches away from a fiber before each access to a watched word (the hook of fault_points.hpp); all code
// between two such points is one step. The search is depth-first over the choices of the next fiber. It backtracks by
// running again from the start: it restores the remembered bytes and takes the same choices. A state that was visited
// before is not explored again. A state consists of
//   1. the remembered bytes (shared memory, and what the test itself keeps), and
//   2. per fiber, a hash of everything that it has read at its points, and whether it has ended or died. Code without
//      any other input is a function of what it has read, so the hash represents its stack and its position.
// Hence the rules for a test:
//   - Memory that fibers exchange is remembered; a word that one fiber writes and another one uses is watched. Words
//     that only one fiber uses, or to which all fibers write the same value, need no watch: they order nothing.
//   - A value that a fiber reads elsewhere than at a watched word is in remembered bytes afterwards (a copied chunk),
//     or is reported by saw().
// Only sequentially consistent interleavings are explored: reordering by a processor or a compiler is not found here.
#pragma once

#include <fmt/format.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shm/base/fault_points.hpp"

namespace ps_shm::test {

// The kind of a watched word, which determines what a fiber learns from an access.
enum class Watch : std::uint8_t { kNot, kWord, kFloat, kExchanged };  // kExchanged: a store also returns the old value

struct FiberOptions {
  bool may_die = false;     // may be abandoned at each of its points; then it must own nothing (heap, locks)
  std::uint32_t after = 0;  // starts once the fibers of these bits have ended or died
  bool must_end = false;    // owns something: runs to its end when the search abandons an execution
  // Number of reads without a store by any fiber after which this fiber counts as polling: it continues only after
  // another store, or if no other fiber can run. 0: never.
  std::uint64_t patience = 0;
};

struct Explored {
  std::uint64_t executions = 0, states = 0, ends = 0, longest = 0;
  std::string failure;   // the first failure; empty: none
  std::string schedule;  // led to the failure: per step the letter of its fiber; a small letter is a death
};

class Explorer {
 public:
  // `watched`: the range of memory that watched words may lie in.
  explicit Explorer(std::span<std::byte> watched) : base_(watched.data()), cells_(watched.size() / 4, Watch::kNot) {
    getcontext(&blank_);
  }
  Explorer(const Explorer&) = delete;
  Explorer& operator=(const Explorer&) = delete;

  // Requires: the size is a multiple of 4.
  template <class T>
  void remember(T* first, std::size_t count = 1) {
    regions_.push_back({reinterpret_cast<std::byte*>(first), count * sizeof(T), {}});
  }
  void watch(const void* word, Watch what) { cells_[cell(word)] = what; }
  void add(std::function<void()> body, const FiberOptions& options = {}) {
    fibers_.push_back({std::move(body), options, std::make_unique<std::byte[]>(kStackBytes)});
  }
  void at_end(std::function<void()> check) { check_ = std::move(check); }

  // Explores visited states again: many more executions, but no additional states.
  void follow_all() { follows_all_ = true; }

  // Explores all interleavings, or stops at the first that fails. Must not be called from two threads.
  Explored explore() {
    for (Region& region : regions_) region.first.assign(region.begin, region.begin + region.bytes);
    running_ = this;
    shm::g_fault_hooks.before_access = [](const void* word, bool stores) { running_->before_access(word, stores); };
    do {
      execute();
    } while (found_.failure.empty() && step_back());
    restore();
    shm::g_fault_hooks.before_access = nullptr;
    found_.states = visited_.size();
    return found_;
  }

  // ---- for fibers and checks

  void fail(const std::string& what) {
    if (is_leaving_ || !found_.failure.empty()) return;
    found_.failure = what;
    for (std::size_t i = 0; i < depth_; ++i)
      found_.schedule += static_cast<char>(path_[i].choice < fibers_.size() ? 'A' + path_[i].choice
                                                                            : 'a' + path_[i].choice - fibers_.size());
  }

  // The current fiber has read `value` outside of watched words.
  void saw(std::uint64_t value) noexcept { mix(fibers_[current_].history, value); }

  // The future of the current fiber depends only on remembered bytes and `value`, whatever it has read so far.
  void forget(std::uint64_t value = 0) noexcept {
    fibers_[current_].history = 1;
    saw(value);
  }

  // A point without an access.
  void point() {
    if (current_ == kNone || is_leaving_) return;
    switch_away();
    saw(0);
  }

 private:
  static constexpr std::size_t kStackBytes = 128 << 10;
  static constexpr std::size_t kNone = ~std::size_t{0};
  static constexpr std::size_t kTooLong = 100000;  // steps: far beyond the longest execution

  struct Region {
    std::byte* begin;
    std::size_t bytes;
    std::vector<std::byte> first;
  };
  struct Fiber {
    std::function<void()> body;
    FiberOptions options;
    std::unique_ptr<std::byte[]> stack;
    ucontext_t context = {};
    std::uint64_t history = 0;
    bool has_begun = false, has_passed = false, has_ended = false, is_dead = false;
    // Consecutive reads without a store by any fiber, and the store count at which they began.
    std::uint64_t reads = 0, reads_since = 0;

    bool is_over() const noexcept { return has_ended || is_dead; }
  };
  // A choice that was taken, and the remaining alternatives: bit i for fiber i, bit count + i for its death.
  struct Choice {
    std::uint32_t choice, open;
  };

  // A set of hashes with open addressing. Among a million states a collision has a probability of 3e-8.
  class HashSet {
   public:
    std::size_t size() const noexcept { return count_; }
    bool insert(std::uint64_t hash) {
      hash |= hash == 0;
      if (2 * ++count_ > slots_.size()) grow();
      if (place(hash)) return true;
      --count_;
      return false;
    }

   private:
    bool place(std::uint64_t hash) {
      for (std::size_t at = hash;; ++at) {
        std::uint64_t& slot = slots_[at & (slots_.size() - 1)];
        if (slot == hash) return false;
        if (slot == 0) return slot = hash, true;
      }
    }
    void grow() {
      const std::vector<std::uint64_t> old = std::exchange(slots_, std::vector<std::uint64_t>(2 * slots_.size()));
      for (const std::uint64_t hash : old)
        if (hash != 0) place(hash);
    }
    std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(1 << 12);
    std::size_t count_ = 0;
  };

  static void mix(std::uint64_t& hash, std::uint64_t value) noexcept {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15U + 0x632be59bd9b4e019U;  // odd; the sum keeps 0 from staying 0
    hash ^= hash >> 32;
  }

  std::size_t cell(const void* word) const noexcept {
    return static_cast<std::size_t>(static_cast<const std::byte*>(word) - base_) / 4;
  }

  // ---- one execution

  void restore() {
    for (const Region& region : regions_) std::memcpy(region.begin, region.first.data(), region.bytes);
  }

  void execute() {
    ++found_.executions;
    restore();
    depth_ = 0, stores_ = 0, is_leaving_ = false;
    for (Fiber& fiber : fibers_) {
      fiber.history = 0, fiber.reads = 0, fiber.reads_since = 0;
      fiber.has_begun = fiber.has_passed = fiber.has_ended = fiber.is_dead = false;
    }
    if (const std::size_t next = choose_next(); next != kNone) go_to(next, main_);
    leave();
  }

  // Fibers that own something run to their end, after all others, as they may wait for them.
  void leave() {
    is_leaving_ = true;
    bool owns = false;
    for (const Fiber& fiber : fibers_) owns = owns || (fiber.options.must_end && fiber.has_begun && !fiber.is_over());
    for (const bool owner : {false, true})
      for (std::size_t i = 0; i < fibers_.size() && owns && depth_ < kTooLong; ++i)
        if (fibers_[i].has_begun && !fibers_[i].is_over() && fibers_[i].options.must_end == owner) go_to(i, main_);
    current_ = kNone;
  }

  void go_to(std::size_t next, ucontext_t& from) {
    current_ = next;
    if (next != kNone && !std::exchange(fibers_[next].has_begun, true)) {
      Fiber& fiber = fibers_[next];
      fiber.context = blank_;
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(
          &fiber.context, [] { running_->run_body(); }, 0);
    }
    swapcontext(&from, next == kNone ? &main_ : &fibers_[next].context);
  }

  void run_body() {
    Fiber& fiber = fibers_[current_];
    fiber.body();
    fiber.has_ended = true;
    go_to(is_leaving_ ? kNone : choose_next(), fiber.context);
  }

  void before_access(const void* word, bool stores) {
    if (current_ == kNone || is_leaving_ || cell(word) >= cells_.size()) return;
    const Watch what = cells_[cell(word)];
    if (what == Watch::kNot) return;
    switch_away();
    // The access itself happens now: it finds the values of this moment.
    Fiber& fiber = fibers_[current_];
    std::uint64_t value = 0;
    if (!stores || what == Watch::kExchanged) std::memcpy(&value, word, what == Watch::kFloat ? 4 : 8);
    mix(fiber.history, value);
    if (stores)
      ++stores_;
    else if (std::exchange(fiber.reads_since, stores_) != stores_)
      fiber.reads = 1;
    else
      ++fiber.reads;
  }

  // The first step runs from the start of the fiber through its first point to the second one.
  void switch_away() {
    if (!std::exchange(fibers_[current_].has_passed, true)) return;
    const std::size_t self = current_, next = choose_next();
    if (next != self) go_to(next, fibers_[self].context);
  }

  // ---- the search

  // Returns the fiber that takes the next step, or kNone once the execution is over.
  std::size_t choose_next() {
    for (;;) {
      if (depth_ == path_.size() && !extend_path()) return kNone;
      const std::size_t choice = path_[depth_].choice;
      if (fibers_[choice % fibers_.size()].is_over())
        return fail("the choices of an earlier execution led elsewhere: something decides that is not remembered"),
               kNone;
      ++depth_;
      if (choice < fibers_.size()) return choice;
      fibers_[choice - fibers_.size()].is_dead = true;
    }
  }

  bool extend_path() {
    if (!found_.failure.empty()) return false;
    const bool is_new = visited_.insert(state());
    if (!is_new && !follows_all_) return false;
    const std::uint32_t open = choices();
    found_.longest = std::max<std::uint64_t>(found_.longest, depth_);
    if (open == 0) {
      found_.ends += is_new;
      current_ = kNone;
      check_();
      return false;
    }
    if (depth_ >= kTooLong) return fail("goes on for ever"), false;
    // Continues with the running fiber first, as that needs no switch.
    const bool stays = current_ < fibers_.size() && (open >> current_ & 1) != 0;
    const auto first = static_cast<std::uint32_t>(stays ? current_ : std::size_t(std::countr_zero(open)));
    path_.push_back({first, open & ~(1U << first)});
    return true;
  }

  // Switches to the next alternative of the last choice that has one. Returns false once the search is complete.
  bool step_back() {
    while (!path_.empty() && path_.back().open == 0) path_.pop_back();
    if (path_.empty()) return false;
    Choice& last = path_.back();
    last.choice = static_cast<std::uint32_t>(std::countr_zero(last.open));
    last.open &= last.open - 1;
    return true;
  }

  std::uint32_t choices() const {
    std::uint32_t over = 0, can_go = 0, polls = 0, deaths = 0;
    for (std::size_t i = 0; i < fibers_.size(); ++i) over |= fibers_[i].is_over() ? 1U << i : 0;
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      const Fiber& fiber = fibers_[i];
      if (fiber.is_over() || (fiber.options.after & ~over) != 0) continue;
      const bool is_idle =
          fiber.options.patience != 0 && fiber.reads > fiber.options.patience && fiber.reads_since == stores_;
      (is_idle ? polls : can_go) |= 1U << i;
      if (fiber.options.may_die) deaths |= 1U << (fibers_.size() + i);
    }
    return (can_go != 0 ? can_go : polls) | deaths;
  }

  std::uint64_t state() const noexcept {
    std::uint64_t hash = 0, place = 0;  // a sum, so that the multiplications are independent of each other
    for (const Region& region : regions_)
      for (std::size_t at = 0; at < region.bytes; at += 8) {
        std::uint64_t value = 0, part = ++place;
        std::memcpy(&value, region.begin + at, at + 8 <= region.bytes ? 8 : 4);
        mix(part, value);
        mix(part, place);
        hash += part;
      }
    for (const Fiber& fiber : fibers_) {
      mix(hash, fiber.is_over() ? 0 : fiber.history);
      mix(hash, (fiber.has_ended ? 1U : 0U) + (fiber.is_dead ? 2U : 0U));
    }
    return hash;
  }

  static inline Explorer* running_ = nullptr;

  std::byte* base_;
  std::vector<Watch> cells_;
  std::vector<Region> regions_;
  std::vector<Fiber> fibers_;
  std::function<void()> check_ = [] {};
  ucontext_t main_ = {}, blank_ = {};
  std::size_t current_ = kNone;
  bool is_leaving_ = false, follows_all_ = false;
  std::uint64_t stores_ = 0;

  std::vector<Choice> path_;  // of this execution; the next execution differs from it at its end
  std::size_t depth_ = 0;
  HashSet visited_;
  Explored found_;
};

}  // namespace ps_shm::test
