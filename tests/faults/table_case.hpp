// What a case of the kill matrix of tables by key is made of: the tables, what was pushed to them, what their evicted rows
// had, and where a worker is struck.
#pragma once

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "faults/strike.hpp"
#include "ps_shm/job_config.hpp"
#include "ps_shm/table_spec.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/segment/table_layout.hpp"
#include "support/table_job.hpp"

namespace ps_shm::test {

inline constexpr std::uint64_t kKeys = 1500;    // more than a table's first buckets
inline constexpr std::uint64_t kHotKeys = 100;  // for each part of the table that evicts, which has fewer rows
inline constexpr std::uint32_t kMostParts = 2;
inline constexpr std::uint64_t kWidth = 6;
inline constexpr std::uint32_t kWorkers = 3, kLives = 16, kStarts = 4096;
inline constexpr std::uint64_t kExactPushes =
    200;  // whose sum a number of bfloat16 holds, if they are of a power of two

struct Pushes {
  std::atomic<std::uint32_t> begun[kKeys], acknowledged[kKeys];
};
struct Life {  // of one worker process
  std::atomic<std::uint64_t> rounds;
  Pushes kept, few;
};
// The row that a thread is about to evict. A process that is killed from outside may have evicted it or not.
struct Taking {
  std::atomic<std::uint32_t> number;  // of the key, + 1; 0: none
  std::atomic<std::uint32_t> pushes[kWidth];
};
struct TableControl {
  std::atomic<bool> finish, quit_ps, keeps, is_tidy;
  std::atomic<std::uint32_t> lives;
  std::atomic<bool> has_joined[kStarts];  // by the order in which workers were started
  Life life[kLives];
  std::atomic<std::uint32_t> taken[kMostParts * kHotKeys][kWidth];  // pushes that evicted rows had, by key and element
  std::atomic<std::uint32_t> threads;                               // that have evicted something
  Taking takings[2 * kStarts];
  std::atomic<bool> has_strange_row;  // an evicted row was of no key, or had no pushes of its key
  char message[512];
};

inline std::uint64_t key_of(std::uint64_t number) { return shm::mixed(number); }

// What the tables of a case are, and hold.
struct Rows {
  DType dtype = DType::kFloat32;
  std::uint32_t parts = 1;
  // Of the table that evicts.
  Evict evict = Evict::kLru;
  std::uint32_t admit_after = 1;
  double ttl = 0;
  bool touch_on_pull = false;

  template <class Random>
  static Rows drawn(Random& random) {
    Rows rows;
    if (random() % 2 == 0) rows.dtype = DType::kBFloat16;
    rows.parts = 1 + std::uint32_t(random() % kMostParts);
    const bool refuses = random() % 4 == 0;
    constexpr Evict kWays[] = {Evict::kLru, Evict::kLfu, Evict::kAge};
    rows.evict = kWays[random() % 3];
    if (refuses) rows.evict = Evict::kNone;
    if (random() % 3 == 0) rows.admit_after = 2 + std::uint32_t(random() % 2);
    if (random() % 3 == 0) rows.ttl = 0.3;
    rows.touch_on_pull = random() % 2 == 0;
    return rows;
  }
  // For what happens only where rows are evicted all the time.
  void evict_most() { parts = 1, evict = evict == Evict::kNone ? Evict::kLru : evict, admit_after = 1; }
  std::string text() const {
    return fmt::format("{}, {} parts, evicts {}, admits after {}, ttl {}{}", to_string(dtype), parts, to_string(evict),
                       admit_after, ttl, touch_on_pull ? ", pulls count" : "");
  }

  bool are_rounded() const { return dtype == DType::kBFloat16; }
  std::uint64_t hot_keys() const { return parts * kHotKeys; }
  // What a push adds to each element of the key's row, so that a push of another key would show.
  float gradient_of(std::uint64_t number) const {
    return are_rounded() ? std::ldexp(1.0F, int(number % 41) - 20) : float(2 * number + 3);
  }
  // How many pushes an element of the key's row has; -1: it is no such element.
  double pushes_in(std::uint64_t number, float value) const {
    const double pushes = double(value) / double(gradient_of(number));
    return pushes >= 0 && pushes == std::floor(pushes) ? pushes : -1;
  }
  TableSpec spec(const char* name, std::uint64_t max_rows) const {
    return {.name = name,
            .row_size = kWidth,
            .dtype = dtype,
            .max_rows = max_rows,
            .rule = UpdateRule::kAdd,
            .evict = evict,
            .touch_on_pull = touch_on_pull,
            .initial_range = 0};
  }
  TableSpec kept() const { return spec("kept", 2 * kKeys); }
  TableSpec few() const {
    TableSpec few = spec("few", parts * 64);
    few.admit_after = admit_after, few.ttl = ttl;
    return few;
  }
};

// Notes what the rows of the table "few" had that this process evicts. A row whose word is the evictor's seal is not
// updated any more (table.E5), so what it has just before the exchange is what the eviction takes away.
class EvictionWitness {
 public:
  // Requires: this process has opened both tables, "kept" first.
  static void begin(TableControl& control, const Rows& rows) {
    control_ = &control, rows_ = &rows;
    numbers_.clear(), parts_.clear();
    for (std::uint64_t number = 0; number < rows.hot_keys(); ++number) numbers_[key_of(number)] = number;
    std::FILE* const maps = std::fopen("/proc/self/maps", "r");
    if (maps == nullptr) return;
    char line[512], mode[8], path[256];
    unsigned long first = 0, end = 0, offset = 0;
    while (std::fgets(line, sizeof line, maps) != nullptr) {
      if (std::sscanf(line, "%lx-%lx %7s %lx %*s %*s %255s", &first, &end, mode, &offset, path) != 5) continue;
      if (std::string(mode) != "rw-s" || offset != 0 || !std::string(path).starts_with("/dev/shm/") ||
          end - first < shm::kLanesOffset)
        continue;
      auto* const begin = reinterpret_cast<std::byte*>(first);
      const auto& header = *reinterpret_cast<const shm::HeaderShm*>(begin);
      if (header.kind == std::uint32_t(shm::SegmentKind::kTable) && header.number >> 16 == 1)
        parts_.push_back({begin, reinterpret_cast<const shm::TableShm*>(begin + shm::kTableOffset)});
    }
    std::fclose(maps);
  }
  static std::size_t parts() { return parts_.size(); }

  // What this process is about to do to a shared word.
  static void before_access(const void* word, bool stores) {
    if (control_ == nullptr) return;
    if (taking_ != nullptr && taking_->number != 0) taking_->number = 0;  // the exchange was another one, or it failed
    if (!stores) return;
    for (const Part& part : parts_) {
      const std::byte* const rows = part.begin + part.table->rows_offset;
      const auto at = std::size_t(static_cast<const std::byte*>(word) - rows);
      if (word < rows || at >= part.table->max_rows * part.table->row_bytes) continue;
      if (at % part.table->row_bytes == offsetof(shm::TableRowShm, word))
        look_at(*reinterpret_cast<const shm::TableRowShm*>(static_cast<const std::byte*>(word) -
                                                           offsetof(shm::TableRowShm, word)));
      return;
    }
  }
  static void reached(shm::FaultPoint point) {
    if (control_ == nullptr || taking_ == nullptr || taking_->number == 0) return;
    if (point == shm::FaultPoint::kRowDead && is_strange_) control_->has_strange_row = true;
    if (point == shm::FaultPoint::kRowDead)
      for (std::uint64_t e = 0; e < kWidth; ++e) control_->taken[taking_->number - 1][e] += taking_->pushes[e];
    taking_->number = 0;
  }

 private:
  struct Part {
    const std::byte* begin;
    const shm::TableShm* table;
  };

  static void look_at(const shm::TableRowShm& row) {
    if (shm::state_of(row.word.hint()) != shm::RowState::kSealed) return;
    const auto known = numbers_.find(row.key.hint());
    if (taking_ == nullptr) taking_ = &control_->takings[control_->threads++ % std::size(control_->takings)];
    is_strange_ = false;  // it may be another row by now: then the exchange fails
    for (std::uint64_t e = 0; e < kWidth; ++e) {
      const double pushes = known == numbers_.end() ? -1 : rows_->pushes_in(known->second, element(row, e));
      is_strange_ = is_strange_ || pushes < 0;
      taking_->pushes[e] = pushes < 0 ? 0 : std::uint32_t(pushes);
    }
    taking_->number = known == numbers_.end() ? 1 : std::uint32_t(known->second) + 1;
  }
  static float element(const shm::TableRowShm& row, std::uint64_t e) {
    const void* const elements = &row + 1;
    const auto bits =
        rows_->are_rounded()
            ? std::uint32_t{__atomic_load_n(static_cast<const std::uint16_t*>(elements) + e, __ATOMIC_RELAXED)} << 16
            : __atomic_load_n(static_cast<const std::uint32_t*>(elements) + e, __ATOMIC_RELAXED);
    return std::bit_cast<float>(bits);
  }

  static inline TableControl* control_ = nullptr;
  static inline const Rows* rows_ = nullptr;
  static inline std::unordered_map<std::uint64_t, std::uint64_t> numbers_;  // of the keys
  static inline std::vector<Part> parts_;
  static inline thread_local Taking* taking_ = nullptr;
  static inline thread_local bool is_strange_ = false;
};

struct TableStrike {
  std::optional<FaultPoint> point{};
  Action action = Action::kKill;
  int passes = 1;
  std::uint64_t store = 0;  // or before this store; 0: none

  void strike() const { raise(action == Action::kKill ? SIGKILL : SIGSTOP); }

  // What makes two workers meet takes its time now and then.
  void arm_it(std::uint64_t seed) const {
    static std::atomic<std::uint32_t> draws;
    draws = std::uint32_t(seed);
    static TableStrike own;
    own = *this;
    static std::atomic<int> passes_left;
    static std::atomic<std::uint64_t> stores_left;
    passes_left = passes, stores_left = store;
    shm::g_fault_hooks.reached = [](FaultPoint reached) {
      EvictionWitness::reached(reached);
      const bool is_slow =
          reached == FaultPoint::kRowFilled || reached == FaultPoint::kRowPinned || reached == FaultPoint::kRowSealed;
      if (is_slow && shm::mixed(++draws) % 64 == 0) usleep(100);
      if (own.point == reached && --passes_left == 0) own.strike();
    };
    shm::g_fault_hooks.before_access = [](const void* word, bool stores) {
      if (stores && own.store != 0 && --stores_left == 0) own.strike();
      EvictionWitness::before_access(word, stores);
    };
  }
};

}  // namespace ps_shm::test
