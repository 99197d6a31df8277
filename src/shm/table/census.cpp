#include "shm/table/census.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "config/eviction.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::size_t kMostFaults = 10;
constexpr std::uint64_t kFirstBuckets = 512;  // that every table has
constexpr int kTries = 100;                   // for the rows behind one bucket, where they change all the time

class CensusTaker {
 public:
  CensusTaker(const Segment& segment, const TableShm& checked, const CensusRequest& request)
      : checked_(checked),
        request_(request),
        shm_(*reinterpret_cast<const TableShm*>(segment.data() + kTableOffset)),
        hash_(key_hash_of(checked)),
        buckets_(reinterpret_cast<const AtomicShm<std::uint64_t>*>(segment.data() + checked.buckets_offset)),
        rows_(segment.data() + checked.rows_offset),
        bucket_count_(std::uint64_t{1} << std::min<std::uint64_t>(shm_.bits.hint(), checked.max_bits)) {
    const std::uint64_t next = rows_next(), claimed = shm_.rows_backed.load_acquire();  // (table.A1) in this order
    // What has no memory is not looked at: that would take some for it.
    const std::uint64_t memory = segment.allocated_bytes(), backed = std::min(claimed, memory / checked.row_bytes);
    if (backed < next) complain(fmt::format("{} rows are in use, and there is memory for {}", next, backed));
    end_ = std::min(next, backed);
    if (const std::uint64_t most = std::bit_ceil(std::max<std::uint64_t>(end_, kFirstBuckets)); bucket_count_ > most) {
      complain(fmt::format("there are {} buckets for {} rows", bucket_count_, end_));  // (table.G4) they would be fewer
      bucket_count_ = most;
    }
    is_linked_.resize(request.share == 1 ? end_ : 0);
    steps_left_ = 16 * (end_ + bucket_count_) + kFewSteps;
  }

  PartCensus take() {
    for (std::uint64_t bucket = 0; bucket < bucket_count_ && !is_over(); bucket += request_.share) look_behind(bucket);
    for (std::uint64_t number = 0; number < end_; number += request_.share) read(number);
    std::sort_heap(census_.hottest.begin(), census_.hottest.end(), is_hotter);
    return std::move(census_);
  }

 private:
  static constexpr std::uint64_t kFewSteps = 1 << 16;
  enum class Outcome { kWhole, kMoved, kDamaged };
  struct Walk {
    Outcome outcome = Outcome::kMoved;
    std::vector<std::uint32_t> rows;  // that it has passed, in order
    std::string fault;
  };
  struct Place {  // in the list
    std::uint64_t order, key;
    bool operator<(const Place& other) const noexcept {
      return order < other.order || (order == other.order && key < other.key);
    }
  };

  const TableRowShm& row(std::uint64_t number) const noexcept {
    return *reinterpret_cast<const TableRowShm*>(rows_ + number * checked_.row_bytes);
  }
  std::uint64_t rows_next() const noexcept {
    const std::uint64_t next = shm_.rows_next.load_acquire();  // (table.A1)
    return std::min(next, checked_.max_rows);
  }
  void complain(std::string text) {
    if (census_.faults.size() < kMostFaults) census_.faults.push_back(std::move(text));
  }
  // Damage may make each bucket lead to all rows: then there is no end to it.
  bool is_over() const noexcept { return steps_left_ == 0 || census_.faults.size() >= kMostFaults; }

  // Walks from a linked bucket to the next one, or to the first row that is not before `last`. It looks at the path as
  // a search does (table.F1, table.F2), but leaves what is dead where it is: that stays linked, and leads on, while the
  // last word before it that is not dead stays as it was.
  Walk walk(std::uint64_t bucket, const std::optional<Place>& last = {}) {
    Walk found;
    const AtomicShm<std::uint64_t>* kept = &buckets_[bucket];
    std::uint64_t kept_word = kept->load_acquire();  // (table.F1)
    std::uint64_t reference = reference_of(kept_word);
    Place before{order_of_bucket(bucket), 0};
    const auto fail = [&](std::string fault) {
      found.outcome = Outcome::kDamaged;
      found.fault = std::move(fault);
      return std::move(found);
    };
    while (reference != kEndOfList && steps_left_ != 0) {
      --steps_left_;
      const std::uint64_t index = reference & (kBucketKind - 1);
      const bool is_of_bucket = (reference & kBucketKind) != 0;
      if (index >= (is_of_bucket ? std::uint64_t{1} << checked_.max_bits : rows_next()))
        return fail(fmt::format("the list leads to {} {}, which there is not", is_of_bucket ? "bucket" : "row", index));
      const AtomicShm<std::uint64_t>& current = is_of_bucket ? buckets_[index] : row(index).word;
      const std::uint64_t word = current.load_acquire();                           // (table.F1)
      const std::uint64_t key = is_of_bucket ? 0 : row(index).key.load_relaxed();  // (table.F1)
      fence_acquire();                                                             // (table.F1)
      if (kept->load_relaxed() != kept_word) return found;                         // (table.F2)
      const Place here{is_of_bucket ? order_of_bucket(index) : order_of_row(hash_, key), key};
      if (!(before < here))
        return fail(is_of_bucket ? fmt::format("bucket {} is not in order", index)
                                 : fmt::format("row {} of key {} is not in order", index, key));
      const RowState state = state_of(word);
      if (state == RowState::kFree || state > RowState::kDead ||
          (is_of_bucket && state != RowState::kNew && state != RowState::kLive))
        return fail(fmt::format("{} {} is linked and {}", is_of_bucket ? "bucket" : "row", index,
                                state == RowState::kFree ? "free" : "in no state that there is"));
      if (is_of_bucket && state == RowState::kLive && !last) break;
      if (last && !(here < *last)) {
        if (!is_of_bucket) found.rows.push_back(static_cast<std::uint32_t>(index));
        break;
      }
      if (!is_of_bucket) found.rows.push_back(static_cast<std::uint32_t>(index));
      before = here;
      reference = reference_of(word);
      if (state != RowState::kDead) kept = &current, kept_word = word;
    }
    found.outcome = Outcome::kWhole;
    return found;
  }

  void look_behind(std::uint64_t bucket) {
    if (state_of(buckets_[bucket].load_acquire()) != RowState::kLive) {  // (table.G1)
      if (bucket == 0) complain("the list has no beginning");
      return;
    }
    Walk found;
    for (int tries = 0; tries < kTries && found.outcome == Outcome::kMoved; ++tries) found = walk(bucket);
    if (found.outcome == Outcome::kDamaged) complain(std::move(found.fault));
    if (steps_left_ == 0 && !request_.is_in_use) complain("the buckets lead to the same rows again and again");
    if (found.outcome == Outcome::kMoved) ++census_.passed;
    if (found.outcome != Outcome::kWhole) return;
    if (census_.chains.size() <= found.rows.size()) census_.chains.resize(found.rows.size() + 1);
    ++census_.chains[found.rows.size()];
    for (const std::uint32_t number : found.rows) {
      if (number >= is_linked_.size()) continue;  // only some are looked at, or it is new
      if (is_linked_[number] && !request_.is_in_use) complain(fmt::format("the list leads to row {} twice", number));
      is_linked_[number] = true;
    }
  }

  // Whether a row that has a key is in no chain. It is linked as long as its word says so (table.I6, table.E5), so a
  // search in the meantime has to meet it.
  bool is_lost(std::uint64_t number) {
    for (int tries = 0; tries < kTries && !is_over(); ++tries) {
      const std::uint64_t word = row(number).word.load_acquire();  // (table.R1)
      if (!has_key(word)) return false;
      const std::uint64_t key = row(number).key.load_relaxed();
      const Place here{order_of_row(hash_, key), key};
      std::uint64_t bucket = reversed(here.order) & (bucket_count_ - 1);
      while (bucket != 0 && state_of(buckets_[bucket].load_acquire()) != RowState::kLive)  // (table.G1)
        bucket &= ~std::bit_floor(bucket);
      const Walk found = walk(bucket, here);
      if (found.outcome == Outcome::kDamaged) return false;  // that is told already
      if (found.outcome == Outcome::kMoved) continue;
      if (!found.rows.empty() && found.rows.back() == number) return false;
      fence_acquire();  // (table.R3)
      if (row(number).word.load_relaxed() == word) return steps_left_ != 0;
    }
    return false;
  }

  static bool has_key(std::uint64_t word) noexcept {
    return state_of(word) == RowState::kLive || state_of(word) == RowState::kSealed;
  }

  void read(std::uint64_t number) {
    const std::uint64_t word = row(number).word.load_acquire();  // (table.E1)
    ++census_.sampled;
    const bool is_linked = request_.share == 1 && is_linked_[number];
    switch (state_of(word)) {
      case RowState::kFree:
        ++(reference_of(word) == 0 ? census_.free : census_.claimed);
        break;
      case RowState::kNew:
        ++(is_linked ? census_.linked : census_.unlinked);
        break;
      case RowState::kDead:
        ++census_.dead;
        break;
      case RowState::kLive:
      case RowState::kSealed:
        ++census_.linked;
        if (state_of(word) == RowState::kSealed) ++census_.sealed;
        note_use(row(number));
        if (request_.share == 1 && !is_linked && !is_over() && is_lost(number))
          complain(fmt::format("row {} of key {} is live and in no chain", number, row(number).key.load_relaxed()));
        break;
      default:
        complain(fmt::format("row {} is in no state that there is", number));
    }
  }

  static bool is_hotter(const PartCensus::Used& a, const PartCensus::Used& b) noexcept {
    return a.frequency > b.frequency || (a.frequency == b.frequency && a.key < b.key);
  }

  void note_use(const TableRowShm& there) {
    if (!traits_of(static_cast<Evict>(checked_.evict)).counts_uses || request_.most_hot_rows == 0) return;
    std::vector<PartCensus::Used>& all = census_.hottest;  // a heap: the coldest of them comes first
    const PartCensus::Used used{there.key.load_relaxed(), there.used.hint() & kMaxFrequency};
    if (all.size() == request_.most_hot_rows) {
      if (!is_hotter(used, all.front())) return;
      std::pop_heap(all.begin(), all.end(), is_hotter);
      all.pop_back();
    }
    all.push_back(used);
    std::push_heap(all.begin(), all.end(), is_hotter);
  }

  const TableShm& checked_;
  const CensusRequest request_;
  const TableShm& shm_;
  const KeyHash hash_;
  const AtomicShm<std::uint64_t>* buckets_;
  const std::byte* rows_;
  std::uint64_t bucket_count_;
  std::uint64_t end_ = 0, steps_left_ = 0;
  std::vector<bool> is_linked_;  // by row; empty: only some are looked at
  PartCensus census_;
};

}  // namespace

PartCensus take_census(const Segment& segment, const TableShm& checked, const CensusRequest& request) {
  return CensusTaker(segment, checked, request).take();
}

}  // namespace ps_shm::shm
