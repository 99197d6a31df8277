// Runs a few fibers of real protocol code on a model of weak memory (memory.hpp), in one thread: all possible
// executions, or many random ones.
//
// All operations of AtomicShm and the fences of shm/base/atomic.hpp reach the explorer through
// shm/base/memory_model.hpp. An execution is determined by which fiber runs next, which message a load reads, and where
// in its history a store is placed. The explorer switches away from a fiber before each access to a contended word: one
// that several fibers use and one of them stores to. Such words are discovered during the search, which then starts
// over. Sequentially consistent fences, futexes and lock queries are points as well. After make_sequential() memory is
// sequentially consistent, and an execution is determined by which fiber runs next: all interleavings are explored. With
// switch_at_races() the words on which fibers race (races.hpp) are the contended ones.
//
// The search is depth-first and backtracks by running again from the start. A state that was visited before is not
// explored again. A state consists of the part of the memory that can still be read, the
// remembered bytes, and per fiber its views and a hash of everything that it has read. Rules for a test:
//   1. Data that fibers exchange lies in modelled words; anything else that a fiber keeps is remembered, or a function
//      of what it has read. A check within a fiber uses its own reads only, not the remembered bytes of another fiber.
//      A value that comes from elsewhere is reported by saw(), and where another fiber can change it, pause() is a point.
//   2. Fibers own nothing, as an execution may be abandoned half-way. at_start makes the objects that they use.
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
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "scenes/choices.hpp"
#include "scenes/fiber.hpp"
#include "scenes/memory.hpp"
#include "scenes/modelled_words.hpp"
#include "scenes/mutation.hpp"
#include "scenes/races.hpp"
#include "scenes/state_hash.hpp"
#include "shm/base/atomic.hpp"

namespace ps_shm::test {

class Explorer final : public shm::MemoryModel {
 public:
  Explorer() { getcontext(&blank_); }
  Explorer(const Explorer&) = delete;
  Explorer& operator=(const Explorer&) = delete;

  // Models the words in these bytes.
  template <class T>
  void model(T* first, std::size_t count = 1) {
    words_.add(Region::of(first, count));
  }
  template <class T>
  void alias(T* other, T* place) {
    words_.alias(other, place);
  }
  // The check at the end depends on whether a fiber has died before or after an access to this word, so each is a point
  // even if one fiber alone uses it.
  void share(const void* word) { words_.share(word); }
  // No other fiber reads these bytes.
  template <class T>
  void remember(T* first, std::size_t count = 1) {
    remembered_.push_back(Region::of(first, count));
  }
  // Each fiber has these bytes for itself: memory of the thread, which the fibers would share.
  template <class T>
  void keep_apart(T* first, std::size_t count = 1) {
    apart_.push_back(Region::of(first, count));
  }
  // Of all fibers together.
  void limit_deaths(std::uint64_t most) { fibers_.limit_deaths(most); }
  void name(const void* word, std::string name) { words_.name(word, std::move(name)); }
  void add(std::function<void()> body, const FiberOptions& options = {}) { fibers_.add(std::move(body), options); }
  void at_start(std::function<void()> make) { start_ = std::move(make); }
  // The check finds the newest values in the words themselves.
  void at_end(std::function<void()> check) { check_ = std::move(check); }

  // Treats memory as sequentially consistent: interleavings only.
  void make_sequential() { is_sequential_ = true, memory_.make_sequential(); }
  bool is_sequential() const noexcept { return is_sequential_; }
  // In sequential memory, switches at accesses to words on which fibers race, and lets a fiber die before stores alone: fewer
  // executions, of which each other one is a reordering. Checks then see the same if they are of the end, or of what a
  // fiber itself has read.
  void switch_at_races(bool only = true) { switches_at_races_ = only; }
  // Explores visited states again: many more executions, but no more states.
  void follow_all() { follows_all_ = true; }
  // Weakens the order at one location of the sources.
  void weaken(const Mutation& mutation) { mutation_ = mutation; }

  // Explores all executions, or at most `most` of them.
  Explored explore(std::uint64_t most = 10'000'000) {
    begin_search();
    for (bool goes_on = true; goes_on && found_.failure.empty() && found_.executions < most;) {
      execute();
      if (std::exchange(has_grown_, false)) {
        if (found_.failure.empty()) choices_.clear(), visited_.clear();
      } else if (found_.failure.empty()) {
        goes_on = choices_.step_back();
        found_.is_complete = !goes_on;
      }
    }
    return end_search();
  }

  // Runs this many random executions.
  Explored sample(std::uint64_t executions, std::uint64_t seed) {
    begin_search();
    choices_.randomise(seed * 2 + 1);
    while (found_.failure.empty() && found_.executions < executions) {
      choices_.clear();
      execute();
      // If a word has become contended, the schedule could not be repeated. The failure will occur again.
      if (std::exchange(has_grown_, false)) found_.failure.clear(), found_.schedule.clear();
    }
    choices_.randomise(0);
    return end_search();
  }

  // Runs one execution and reports it to `trace`.
  Explored replay(std::string_view schedule, std::vector<std::string>& trace) {
    begin_search();
    choices_.follow(schedule);
    trace_ = &trace;
    execute();
    trace_ = nullptr;
    return end_search();
  }

  // ---- for fibers and checks

  void fail(const std::string& what) {
    if (!found_.failure.empty()) return;
    found_.failure = what;
    found_.schedule = choices_.schedule();
  }
  // The current fiber has read `value` outside of modelled words.
  void saw(std::uint64_t value) { mix(fibers_[current_].history, value); }
  // The current fiber goes on in one of `count` ways.
  std::size_t pick(std::size_t count) {
    const std::size_t taken = choose(count, true);
    saw(taken);
    return taken;
  }
  // How often the current fiber has died, and how often in a row it has polled while nobody has stored anything.
  std::uint32_t deaths() const { return fibers_[current_].deaths; }
  std::uint64_t idle_polls() const { return fibers_[current_].idle_polls; }
  // A point without an access to a modelled word.
  void pause() {
    if (current_ == kNone) return;
    point();
    pass();
  }
  // The future of the current fiber depends only on remembered bytes, its views and `value`, whatever it has read so
  // far.
  void forget(std::uint64_t value = 0) {
    fibers_[current_].history = 1;
    mix(fibers_[current_].history, value);
  }

  // ---- the memory

  bool has(const void* word) const noexcept override { return current_ != kNone && words_.has(word); }
  bool has_fences() const noexcept override { return current_ != kNone; }

  std::uint64_t load(const void* place, std::size_t bytes, std::memory_order order, const shm::Site& site) override {
    const std::size_t word = come_to(place, bytes, false);
    order = weakened(mutation_, site, order, Operation::kLoad);
    const std::uint64_t value = memory_.load(current_, word, order, chooser());
    learn(value);
    tell(site, word, "reads", value);
    return value;
  }
  void store(const void* place, std::size_t bytes, std::uint64_t desired, std::memory_order order,
             const shm::Site& site) override {
    const std::size_t word = come_to(place, bytes, true);
    order = weakened(mutation_, site, order, Operation::kStore);
    memory_.store(current_, word, desired, order, chooser());
    note_store(word);
    pass();
    tell(site, word, "stores", desired);
  }
  std::uint64_t change(const void* place, std::size_t bytes, shm::Change how, std::uint64_t operand,
                       std::memory_order order, const shm::Site& site) override {
    const std::size_t word = come_to(place, bytes, true);
    order = weakened(mutation_, site, order, Operation::kExchange);
    const std::uint64_t mask = bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
    std::uint64_t seen = 0;
    const auto apply = [&](std::uint64_t value, std::uint64_t& desired) {
      desired = (how == shm::Change::kAdd  ? value + operand
                 : how == shm::Change::kOr ? value | operand
                                           : value & operand) &
                mask;
      return true;
    };
    memory_.exchange(current_, word, seen, order, order, apply, chooser());
    note_store(word);
    learn(seen);
    tell(site, word, "changes", seen);
    return seen;
  }
  bool compare_exchange(const void* place, std::size_t bytes, std::uint64_t& expected, std::uint64_t desired,
                        std::memory_order order, std::memory_order failure, const shm::Site& site) override {
    const std::size_t word = come_to(place, bytes, true);
    order = weakened(mutation_, site, order, Operation::kExchange);
    failure = weakened(mutation_, site, failure, Operation::kFailure);
    const std::uint64_t wanted = expected;
    const auto apply = [&](std::uint64_t value, std::uint64_t& out) { return out = desired, value == wanted; };
    const bool won = memory_.exchange(current_, word, expected, order, failure, apply, chooser());
    if (won) note_store(word);
    learn(expected);
    tell(site, word, won ? "exchanges" : "fails to exchange", won ? desired : expected);
    return won;
  }
  void fence(std::memory_order order, const shm::Site& site) override {
    if (order == std::memory_order_seq_cst && !is_at_races_) point();
    order = weakened(mutation_, site, order, Operation::kFence);
    if (order != std::memory_order_relaxed) memory_.fence(current_, order);
    pass();
    tell(site, kNone, order == std::memory_order_seq_cst ? "fences" : "half a fence", 0);
  }

  // A lock inside the kernel orders its check of the word and its wake.
  void sleep(const void* place, std::uint32_t seen) override {
    const std::size_t word = come_to(place, 4, false);
    memory_.fence(current_, std::memory_order_seq_cst);
    const std::uint64_t value = memory_.load(current_, word, std::memory_order_relaxed, chooser());
    learn(value);
    tell({}, word, value == seen ? "sleeps" : "does not sleep", value);
    if (value != seen) return;
    fibers_[current_].sleeps_on = word;
    switch_away();
  }
  void wake(const void* place) override {
    const std::size_t word = come_to(place, 4, false);
    memory_.fence(current_, std::memory_order_seq_cst);
    fibers_.wake(word);
    pass();
    tell({}, word, "wakes", 0);
  }

  // Polls between which nobody has stored anything are counted, as the task may give up after so many. In sequential memory
  // the first of them is in vain; on weak memory it may read newer messages than the one before.
  void poll(bool is_first, std::uint64_t state) override {
    const std::uint64_t most = is_sequential_ ? 1 : Memory::kMostRepeats;
    Fiber& fiber = fibers_[current_];
    fiber.poll(is_first, stores_, most);
    mix(fiber.history, state), mix(fiber.history, is_sequential_ ? fiber.idle_polls : std::min(fiber.idle_polls, most));
  }

  std::optional<bool> is_held(std::uint32_t byte) override {
    if (current_ == kNone || !fibers_.have(byte)) return std::nullopt;
    point();
    const bool is_held = fibers_.hold(byte);
    for (std::size_t i = 0; i < fibers_.size(); ++i)
      if (fibers_[i].options.byte == byte && !is_held) follow(current_, i);  // ordered by the kernel's lock
    learn(is_held);
    return is_held;
  }

 private:
  static constexpr std::size_t kNone = Fiber::kNone;
  static constexpr std::size_t kTooLong = 20000;  // choices: far beyond the longest execution

  // Makes the choices for the memory.
  struct Chooser {
    Explorer* explorer;
    std::size_t operator()(std::size_t count) const { return explorer->choose(count, true); }
  };
  Chooser chooser() { return {this}; }

  // ---- words

  std::size_t word_at(const void* place, std::size_t bytes) {
    const std::size_t known = words_.size(), number = words_.number_of(place, bytes);
    if (number == known) memory_.start(number, words_[number].first);
    return number;
  }

  // The current fiber is about to access that word.
  std::size_t come_to(const void* place, std::size_t bytes, bool stores) {
    const std::size_t number = word_at(place, bytes);
    ModelledWord& word = words_[number];
    const bool was_contended = word.is_contended();
    word.users |= 1U << current_;
    if (stores) word.writers |= 1U << current_;
    has_grown_ = has_grown_ || was_contended != word.is_contended();
    fibers_[current_].is_before_store = stores;
    const bool may_leave_it = fibers_[current_].options.may_die && stores;  // others find what a death leaves
    if (word.is_raced || (word.is_contended() && (!is_at_races_ || may_leave_it)))
      point(!word.is_raced && is_at_races_ && !fibers_.have_bytes());
    if (word.is_raced)
      races_.read(current_, number);
    else if (is_at_races_ && races_.access(current_, number, stores))
      word.is_raced = has_grown_ = true;
    return number;
  }
  void note_store(std::size_t word) {
    ++stores_;
    if (words_[word].is_raced) races_.store(current_, word);
  }

  void follow(std::size_t later, std::size_t earlier) {
    memory_.follow(later, earlier);
    races_.follow(later, earlier);
  }

  // The current fiber has advanced by a step without reading.
  void pass() { mix(fibers_[current_].history, 0); }
  void learn(std::uint64_t value) {
    Fiber& fiber = fibers_[current_];
    mix(fiber.history, value);
    if (std::exchange(fiber.reads_since, stores_) != stores_)
      fiber.reads = 1;
    else
      ++fiber.reads;
  }

  void tell(const shm::Site& site, std::size_t word, std::string_view what, std::uint64_t value) {
    if (trace_ == nullptr) return;
    const std::string name = word == kNone ? std::string() : words_.name_of(word);
    const std::string_view file = site.file_name();
    trace_->push_back(fmt::format("{} {} {} {:#x}  {}:{}", char('A' + current_), what, name, value,
                                  file.substr(file.rfind('/') + 1), site.line()));
  }

  // ---- one execution

  void begin_search() {
    found_ = {};
    choices_.clear(), visited_.clear();
    words_.note();
    for (Region& region : remembered_) region.note();
    is_at_races_ = switches_at_races_ && is_sequential_;
    shm::g_memory_model = this;
  }
  Explored end_search() {
    restore();
    shm::g_memory_model = nullptr;
    found_.states = visited_.size();
    return found_;
  }

  void restore() {
    words_.restore();
    for (const Region& region : remembered_) region.restore();
  }

  void execute() {
    ++found_.executions;
    restore();
    std::vector<std::uint64_t> first;
    for (std::size_t i = 0; i < words_.size(); ++i) first.push_back(words_[i].first);
    memory_.reset(first);
    choices_.begin_execution();
    races_.reset();
    fibers_.reset();
    stores_ = 0, current_ = kNone;
    start_();
    for (std::size_t next = choose_next(); next != kNone; next = std::exchange(anew_, kNone)) go_to(next, main_);
    current_ = kNone;
  }

  void go_to(std::size_t next, ucontext_t& from) {
    if (current_ != kNone) keep(apart_, fibers_[current_].apart);
    current_ = next;
    if (next != kNone && fibers_[next].has_begun) give(apart_, fibers_[next].apart);
    if (next != kNone && !std::exchange(fibers_[next].has_begun, true)) {
      Fiber& fiber = fibers_[next];
      for (std::size_t i = 0; i < fibers_.size(); ++i)
        if ((fiber.options.after >> i & 1) != 0) follow(next, i);
      fiber.context = blank_;
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = Fiber::kStackBytes;
      running_ = this;
      makecontext(
          &fiber.context, [] { running_->run_body(); }, 0);
    }
    swapcontext(&from, next == kNone ? &main_ : &fibers_[next].context);
  }

  void run_body() {
    Fiber& fiber = fibers_[current_];
    fiber.body();
    fiber.has_ended = true;
    go_to(choose_next(), fiber.context);
  }

  // The first step runs from the start of the fiber through its first point to the second one. `is_own`: only the fiber
  // itself goes on, or dies.
  void point(bool is_own = false) {
    if (std::exchange(fibers_[current_].has_passed, true)) switch_away(is_own);
  }
  void switch_away(bool is_own = false) {
    const std::size_t self = current_, next = choose_next(is_own);
    const bool begins_anew = next == self && !fibers_[self].has_begun;  // on the stack on which this runs
    if (begins_anew) anew_ = self;
    if (next != self || begins_anew) go_to(begins_anew ? kNone : next, fibers_[self].context);
  }

  // ---- the search

  // Returns the fiber that takes the next step, or none once the execution is over.
  std::size_t choose_next(bool is_own = false) {
    for (;; is_own = false) {
      if (!found_.failure.empty()) return kNone;
      const bool is_explored = choices_.is_new() && !choices_.is_random() && !visited_.insert(state(is_own)).second;
      if (is_explored && !follows_all_) return kNone;
      std::array<std::uint32_t, 2 * kMaxThreads> choices;
      const std::size_t count = fibers_.find_choices(choices, current_, stores_, is_own, is_at_races_);
      if (count == 0 && fibers_.wake_after_death()) continue;
      if (count == 0) return end_execution(is_explored), kNone;
      if (choices_.depth() >= kTooLong) return fail("goes on for ever"), kNone;
      const std::uint32_t choice = choices[choose(count, false)];
      if (choice < fibers_.size()) return choice;
      fibers_.die(choice - fibers_.size());
    }
  }

  void end_execution(bool is_explored) {
    found_.longest = std::max<std::uint64_t>(found_.longest, choices_.depth());
    current_ = kNone;
    if (fibers_.sleep()) return fail("sleeps, and nobody wakes it");
    found_.ends += !is_explored;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t value = memory_.newest(i);
      std::memcpy(const_cast<void*>(words_[i].place), &value, words_[i].bytes);
    }
    check_();
  }

  std::size_t choose(std::size_t count, bool is_about_memory) {
    std::size_t taken = 0;
    if (!choices_.choose(count, !is_about_memory, taken))
      fail("the choices of an earlier execution led elsewhere: something decides that is not remembered"), taken = 0;
    return taken;
  }

  std::uint64_t state(bool is_own) const {
    StateHash state(memory_, words_, is_sequential_);
    mix(state.hash, is_own ? current_ : kNone);
    for (std::size_t i = 0; i < fibers_.size(); ++i)
      if (!fibers_[i].is_over()) state.goes_on(i, !fibers_[i].has_begun && fibers_[i].options.after != 0);
    state.add_memory();
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      const Fiber& fiber = fibers_[i];
      mix(state.hash, (fiber.has_ended ? 1U : 0U) + (fiber.is_dead ? 2U : 0U) + (fiber.has_begun ? 4U : 0U) +
                          (fiber.has_looked ? 8U : 0U) + 16 * fiber.deaths);
      if (fiber.is_over() && !fibers_.is_followed(i)) continue;
      mix(state.hash, fiber.is_over() ? 0 : fiber.history);
      mix(state.hash, fiber.sleeps_on);
      state.add_thread(i);
      if (fiber.options.patience != 0) mix(state.hash, fiber.reads_since == stores_ ? fiber.reads : 0);
      mix(state.hash, fiber.is_idle(stores_) ? 1 : 0);
    }
    for (const Region& region : remembered_)
      for (std::size_t at = 0; at < region.bytes; at += 8) {
        std::uint64_t value = 0;
        std::memcpy(&value, region.begin + at, std::min<std::size_t>(8, region.bytes - at));
        mix(state.hash, value);
      }
    return state.hash;
  }
  static inline Explorer* running_ = nullptr;

  ModelledWords words_;
  std::vector<Region> remembered_, apart_;
  Memory memory_;
  Races races_;
  Fibers fibers_;
  std::function<void()> start_ = [] {}, check_ = [] {};
  ucontext_t main_ = {}, blank_ = {};
  std::size_t current_ = kNone, anew_ = kNone;
  bool is_sequential_ = false, switches_at_races_ = false, is_at_races_ = false, follows_all_ = false;
  bool has_grown_ = false;
  std::uint64_t stores_ = 0;
  Mutation mutation_;
  std::vector<std::string>* trace_ = nullptr;

  Choices choices_;
  std::unordered_set<std::uint64_t> visited_;
  Explored found_;
};

}  // namespace ps_shm::test
