#include "worker/row_access.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "update/elements.hpp"
#include "update/simd.hpp"
#include "worker/variable_state.hpp"

namespace ps_shm {
namespace {

// Rows are prefetched several at a time, ahead of their use: about as many cache misses as one core can have in flight.
// An exchange waits for the page walks of all prefetches before it, so one prefetch for each row would add the time of
// a page walk to each row (rows of 16 floats with their slots, 26,624 random ones of 10 million: 89 ns a row instead of
// 224).
constexpr std::size_t kPrefetched = 8;

// Calls body(i) for each i below `count`, and prefetch(i) for those that follow. body() returns the next i.
template <class Prefetch, class Body>
[[gnu::always_inline]] inline void prefetching(std::size_t count, Prefetch&& prefetch, Body&& body) noexcept {
  for (std::size_t i = 0; i < count;) {
    const std::size_t end = std::min(i + kPrefetched, count);
    if (count - end >= kPrefetched)
      for (std::size_t k = 0; k < kPrefetched; ++k) prefetch(end + k);  // a constant number: without a loop
    else
      for (std::size_t k = end; k < count; ++k) prefetch(k);
    while (i < end) i = body(i);
  }
}

shm::Rows table_of(std::span<const VariablePart> parts) {
  shm::Rows table(parts.front().record);
  for (const VariablePart& part : parts) table.add_part(part.shard, part.record);
  return table;
}

constexpr std::uint64_t kLine = 64;

// Prefetches the first cache lines of a row, for writing. The processor itself fetches the lines that follow them.
[[gnu::always_inline]] inline void prefetch_row(const std::byte* row, std::uint64_t bytes) noexcept {
  update::prefetch_to_own(row);
  if (bytes > kLine) update::prefetch_to_own(row + kLine);
}

// Calls body(place), where place(id) tells where a row lies.
template <class Body>
[[gnu::always_inline]] inline void with_place(const shm::Rows& table, Body&& body) noexcept {
  if (table.parts().size() == 1)
    body([first = table.parts().front().first, stride = table.row_bytes()](std::uint64_t id) {
      return first + id * stride;
    });
  else
    body([&](std::uint64_t id) { return table.at(table.find(id)); });
}

// Calls body(row's place, its index in `ids`) for each id, and prefetches the rows of the ids that follow.
template <class Place, class Body>
[[gnu::always_inline]] inline void for_places(std::span<const std::uint64_t> ids, std::uint64_t row_bytes,
                                              const Place& place, Body&& body) noexcept {
  prefetching(
      ids.size(), [&](std::size_t i) { prefetch_row(place(ids[i]), row_bytes); },
      [&](std::size_t i) __attribute__((always_inline)) {
        body(place(ids[i]), i);
        return i + 1;
      });
}
template <class Body>
[[gnu::always_inline]] inline void for_rows(const shm::Rows& table, std::span<const std::uint64_t> ids,
                                            Body&& body) noexcept {
  with_place(table, [&](const auto& place) __attribute__((always_inline)) {
    for_places(ids, table.row_bytes(), place, body);
  });
}

// Whether each id is larger than the one before.
PS_SHM_SIMD_CLONES bool ascend(const std::uint64_t* ids, std::size_t count) noexcept {
  std::uint64_t falls = 0;
  for (std::size_t i = 1; i < count; ++i) falls |= static_cast<std::uint64_t>(ids[i] <= ids[i - 1]);
  return falls == 0;
}

}  // namespace

RowAccess::RowAccess(std::span<const VariablePart> parts, std::uint32_t rank, const update::KeyHash& hash)
    : table_(table_of(parts)),
      rank_(rank),
      last_push_(table_.blocks(), 0),
      sums_(hash, table_.row_elements(), table_.rows()) {}

std::uint64_t RowAccess::grain() const noexcept { return Threads::grain(table_.row_bytes()); }

const std::uint64_t* RowAccess::find_outside(std::span<const std::uint64_t> ids, bool& are_ascending) const noexcept {
  are_ascending = ascend(ids.data(), ids.size());
  if (ids.empty() || (are_ascending && ids.back() < table_.rows())) return nullptr;
  const auto found = std::find_if(ids.begin(), ids.end(), [&](std::uint64_t id) { return id >= table_.rows(); });
  return found == ids.end() ? nullptr : &*found;
}

void RowAccess::for_batches(std::span<const std::uint64_t> ids, std::uint64_t grain, Threads& threads,
                            BatchBody body) const noexcept {
  const std::uint64_t stride = table_.row_bytes();
  threads.split(ids.size(), grain, [&](std::uint64_t begin, std::uint64_t end, std::uint32_t) {
    with_place(table_, [&](const auto& place) {
      std::byte* places[2][kPrefetched];
      std::byte **now = places[0], **next = places[1];
      std::size_t count = std::min<std::size_t>(kPrefetched, end - begin);
      for (std::size_t k = 0; k < count; ++k) now[k] = place(ids[begin + k]);
      for (std::size_t i = begin; i < end;) {
        const std::size_t after = i + count, following = std::min<std::size_t>(kPrefetched, end - after);
        for (std::size_t k = 0; k < following; ++k) prefetch_row(next[k] = place(ids[after + k]), stride);
        body(now, count, i);
        std::swap(now, next);
        i = after, count = following;
      }
    });
  });
}

void RowAccess::pull(std::span<const std::uint64_t> ids, float* out, const update::Settings& settings,
                     float lr, Threads& threads) const noexcept {
  const std::uint64_t elements = table_.row_elements(), record = table_.record();
  constexpr std::size_t kSingle = 2;  // any distance but 1: one element is then read as such, not as an array to copy
  update::with_element_value(settings, lr, [&](const auto& value_of) {
    threads.split(ids.size(), grain(), [&](std::uint64_t begin, std::uint64_t end, std::uint32_t) {
      const std::span<const std::uint64_t> some = ids.subspan(begin, end - begin);
      float* const to = out + begin * elements;
      if (table_.is_bfloat16()) {
        for_rows(table_, some, [&](const std::byte* row, std::size_t i) {
          shm::read_bfloat16(to + i * elements, row, record, elements, value_of);
        });
      } else if (elements == 1) {
        for_rows(table_, some, [&](const std::byte* row, std::size_t i) {
          shm::read_elements(to + i, reinterpret_cast<const float*>(row), kSingle, 1, value_of);
        });
      } else {
        for_rows(table_, some, [&](const std::byte* row, std::size_t i) {
          shm::read_elements(to + i * elements, reinterpret_cast<const float*>(row), record, elements, value_of);
        });
      }
    });
  });
}

namespace {

// Atomic updates of elements with ascending ids: elements that lie in the same 16 bytes share one exchange.
template <class Update>
void push_neighbours(std::byte* row, std::span<const std::uint64_t> ids, const float* gradients,
                     const Update& update) noexcept {
  auto* const first = reinterpret_cast<float*>(row);
  constexpr std::size_t kRecord = shm::floats_of<Update>(), kTogether = 4 / kRecord;
  prefetching(
      ids.size(), [&](std::size_t i) { update::prefetch_to_own(first + ids[i] * kRecord); },
      [&](std::size_t i) __attribute__((always_inline)) {
        const std::uint64_t group = ids[i] / kTogether;
        std::size_t next = i + 1;
        while (next < ids.size() && ids[next] / kTogether == group) ++next;
        shm::fault_point(shm::FaultPoint::kInplaceElement);
        if (next == i + 1) {
          using Bits = std::conditional_t<kRecord == 1, std::uint32_t, std::uint64_t>;
          shm::update_bits<Bits>(first + ids[i] * kRecord, gradients + i, update);
        } else {
          shm::update_some_of_16_bytes(first + group * 4, [&](float* floats) {
            for (std::size_t k = i; k < next; ++k)
              shm::update_record(update, floats + ids[k] % kTogether * kRecord, gradients[k]);
          });
        }
        return next;
      });
}

// Whether pushes by this rule have a loop of their own, for what nearly all jobs have: exact updates of float32 in one
// part. All other ones, and changes, go through for_batches(), with some 13 instructions more for each row.
template <class Rule>
constexpr bool has_own_loop() noexcept {
  const UpdateRule rule = Rule::kTraits.rule;
  return rule == UpdateRule::kAdd || rule == UpdateRule::kSgd || rule == UpdateRule::kAdagrad ||
         rule == UpdateRule::kFtrl || rule == UpdateRule::kRowwiseAdagrad;
}
template <class Update>
void push_in_own_loop(const shm::Rows& table, std::span<const std::uint64_t> ids, const float* gradients,
                      bool are_ascending, const Update& update) noexcept {
  const std::uint64_t elements = table.row_elements(), stride = table.row_bytes();
  std::byte* const first = table.parts().front().first;
  if constexpr (shm::kHas16ByteExchange && shm::floats_of<Update>() <= 2 && !requires { update.with_state(0.0F); })
    if (elements == 1 && are_ascending) return push_neighbours(first, ids, gradients, update);
  const auto place = [&](std::uint64_t id) { return first + id * stride; };
  for_places(ids, stride, place, [&](std::byte* row, std::size_t i) {
    shm::update_row(reinterpret_cast<float*>(row), gradients + i * elements, elements, Adds::kExact, update);
  });
}

}  // namespace

void RowAccess::push(std::span<const std::uint64_t> ids, const float* gradients, const update::Settings& settings,
                     float lr, float scale, Adds adds, bool are_ascending, Threads& threads) noexcept {
  const std::uint64_t width = table_.row_elements();
  const bool is_bfloat16 = table_.is_bfloat16();
  const bool may_have_own_loop = adds == Adds::kExact && !is_bfloat16 && table_.parts().size() == 1;
  update::with_element_update(settings, lr, scale, [&](const auto& update) {
    if constexpr (has_own_loop<typename std::remove_cvref_t<decltype(update)>::Rule>())
      if (may_have_own_loop)
        return threads.split(ids.size(), grain(), [&](std::uint64_t begin, std::uint64_t end, std::uint32_t) {
          push_in_own_loop(table_, ids.subspan(begin, end - begin), gradients + begin * width, are_ascending, update);
        });
    for_batches(ids, grain(), threads, [&](std::byte* const* rows, std::size_t count, std::size_t first) {
      const auto here = update;  // in registers, where they suffice: an exchange might change what lies in memory
      const float* from = gradients + first * width;
      const std::uint64_t elements = width;
      if (is_bfloat16)
        for (std::size_t k = 0; k < count; ++k, from += elements)
          shm::update_row(pushed_row(rows[k], ids[first + k], settings.rounding), from, elements, adds, here);
      else
        for (std::size_t k = 0; k < count; ++k, from += elements)
          shm::update_row(reinterpret_cast<float*>(rows[k]), from, elements, adds, here);
    });
  });
  shm::fault_point(shm::FaultPoint::kInplaceBlock);
  count(ids, are_ascending);
}

void RowAccess::change(update::Change how, std::span<const std::uint64_t> ids, const float* values,
                       const update::Settings& settings, float lr, bool are_ascending,
                       Threads& threads) noexcept {
  const std::uint64_t elements = table_.row_elements();
  const bool is_in_order = how != update::Change::kAdd && !are_ascending;
  update::with_element_change(settings, how, lr, [&](const auto& change) {
    const std::uint64_t of_thread = is_in_order ? ids.size() : grain();
    for_batches(ids, of_thread, threads, [&](std::byte* const* rows, std::size_t count, std::size_t first) {
      for (std::size_t k = 0; k < count; ++k) {
        const auto change_row = [&](const auto& row) {
          shm::update_row(row, values + (first + k) * elements, elements, Adds::kExact, change);
        };
        if (!table_.is_bfloat16())
          change_row(reinterpret_cast<float*>(rows[k]));
        else if (change.is_sum())
          change_row(pushed_row(rows[k], ids[first + k], settings.rounding));
        else
          change_row(shm::BFloat16Row<shm::RoundToNearest>{rows[k], {}});
      }
    });
  });
  shm::fault_point(shm::FaultPoint::kInplaceBlock);
  count(ids, are_ascending);
}

// The row of bfloat16 that is there, for a push (inplace.P7).
shm::BFloat16Row<shm::RoundStochastically> RowAccess::pushed_row(std::byte* row, std::uint64_t id,
                                                                 std::uint64_t seed) const noexcept {
  const shm::Rows::Place place = table_.find(id);
  const std::uint64_t pushes = place.part.variable.row_pushes(table_.block(place), rank_);  // this rank's own
  return {row, shm::rounding_of_row(seed, id, rank_, pushes)};
}

// A push counts once in each block that it has touched.
void RowAccess::count(std::span<const std::uint64_t> ids, bool are_ascending) noexcept {
  if (are_ascending && table_.parts().size() == 1) {
    // Counts each block once. First the blocks are listed without a branch, which would often be mispredicted; then
    // their counters are incremented: a counter that is read right after its own store would stall the next one.
    constexpr std::size_t kTogether = 64;
    const shm::RowPart& part = table_.parts().front();
    shm::AtomicShm<std::uint64_t>* const counts = part.variable.row_counts(rank_);
    std::uint64_t blocks[kTogether], previous = table_.blocks();
    for (std::size_t begin = 0; begin < ids.size(); begin += kTogether) {
      std::size_t found = 0;
      for (const std::uint64_t id : ids.subspan(begin, std::min(kTogether, ids.size() - begin))) {
        const std::uint64_t block = table_.block({part, id});
        blocks[found] = block;
        found += block != previous;
        previous = block;
      }
      for (std::size_t i = 0; i < found; ++i) counts[blocks[i]].bump_relaxed(1);
    }
    shm::fault_point(shm::FaultPoint::kInplaceCounted);
    return;
  }
  if (++push_number_ == 0) {
    std::fill(last_push_.begin(), last_push_.end(), 0);
    push_number_ = 1;
  }
  const auto count_in = [&](const shm::Rows::Place& place, shm::AtomicShm<std::uint64_t>* counts) {
    const std::uint64_t block = table_.block(place);
    std::uint32_t& last = last_push_[place.part.first_block + block];
    counts[block].bump_relaxed(last != push_number_);
    last = push_number_;
  };
  if (table_.parts().size() == 1) {
    const shm::RowPart& part = table_.parts().front();
    shm::AtomicShm<std::uint64_t>* const counts = part.variable.row_counts(rank_);
    for (const std::uint64_t id : ids) count_in({part, id}, counts);
  } else {
    for (const std::uint64_t id : ids) {
      const shm::Rows::Place place = table_.find(id);
      count_in(place, place.part.variable.row_counts(rank_));
    }
  }
  shm::fault_point(shm::FaultPoint::kInplaceCounted);
}

void RowAccess::prefetch(std::span<const std::uint64_t> ids) const noexcept {
  const std::uint64_t stride = table_.row_bytes(), rows = table_.rows();
  if (table_.parts().size() == 1) {
    const std::byte* const first = table_.parts().front().first;
    for (const std::uint64_t id : ids)
      if (id < rows) prefetch_row(first + id * stride, stride);
    return;
  }
  for (const std::uint64_t id : ids)
    if (id < rows) prefetch_row(table_.at(table_.find(id)), stride);
}

std::uint64_t RowAccess::pushes_by_others(const Watch& watch) const noexcept {
  std::uint64_t pushes = 0;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    if (rank != rank_) pushes += watch.part->variable.row_pushes(watch.block, rank);
  return pushes;
}

void RowAccess::begin_watch(std::span<const std::uint64_t> ids, const shm::JobSegments& job) noexcept {
  if (++pulls_ % kWatchEvery != 1 || ids.empty()) return;
  for (std::uint32_t rank = ranks_; rank < job.ranks(); ++rank)
    if (job.worker(rank).holders.load_acquire() != 0) ranks_ = rank + 1;  // (ranks.J4)
  watched_ = static_cast<std::uint32_t>(std::min<std::size_t>(kWatched, ids.size()));
  for (std::uint32_t i = 0; i < watched_; ++i) {
    const shm::Rows::Place place = table_.find(ids[(pulls_ + i * ids.size() / watched_) % ids.size()]);
    watches_[i] = {&place.part, table_.block(place), 0};
    watches_[i].pushes = pushes_by_others(watches_[i]);
  }
}

}  // namespace ps_shm
