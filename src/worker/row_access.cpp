#include "worker/row_access.hpp"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "update/elements.hpp"
#include "worker/variable_state.hpp"

namespace ps {
namespace {

constexpr std::uint64_t kThreadBytes = 256 << 10;  // below it a thread's wake-up costs more than its share saves
constexpr std::size_t kAhead = 8;                  // rows: about what one core's misses under way can be

shm::Rows table_of(std::span<const VariablePart> parts) {
  shm::Rows table(parts.front().record);
  for (const VariablePart& part : parts) table.add_part(part.shard, part.record);
  return table;
}

// Asks for the lines that begin a row, to be written. The processor fetches what follows them by itself.
[[gnu::always_inline]] inline void prefetch_row(const float* row, std::uint64_t floats) noexcept {
  __builtin_prefetch(row, 1);
  if (floats > 16) __builtin_prefetch(row + 16, 1);
}

// Calls body(row's place, its number among `ids`) for each, asking ahead for the memory of those that follow.
template <class Id, class Body>
[[gnu::always_inline]] inline void for_rows(const shm::Rows& table, std::span<const Id> ids, Body&& body) noexcept {
  const std::uint64_t stride = table.row_floats();
  if (table.parts().size() == 1) {
    float* const first = table.parts().front().first;
    const std::size_t count = ids.size(), ahead = count > kAhead ? count - kAhead : 0;
    std::size_t i = 0;
    for (; i < ahead; ++i) {
      prefetch_row(first + ids[i + kAhead] * stride, stride);
      body(first + ids[i] * stride, i);
    }
    for (; i < count; ++i) body(first + ids[i] * stride, i);
    return;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) prefetch_row(table.at(table.find(ids[i + kAhead])), stride);
    body(table.at(table.find(ids[i])), i);
  }
}

}  // namespace

RowAccess::RowAccess(std::span<const VariablePart> parts, std::uint32_t rank)
    : table_(table_of(parts)), rank_(rank), last_push_(table_.blocks(), 0) {}

std::uint64_t RowAccess::grain() const noexcept {
  return std::max<std::uint64_t>(1, kThreadBytes / (table_.row_floats() * sizeof(float)));
}

template <class Id>
const Id* RowAccess::find_outside(std::span<const Id> ids, bool& are_ascending) const noexcept {
  bool ascending = true;
  Id largest = ids.empty() ? 0 : ids[0];
  for (std::size_t i = 1; i < ids.size(); ++i) {
    ascending &= ids[i] > ids[i - 1];
    largest = std::max(largest, ids[i]);
  }
  are_ascending = ascending;
  if (ids.empty() || largest < table_.rows()) return nullptr;
  return &*std::find_if(ids.begin(), ids.end(), [&](Id id) { return id >= table_.rows(); });
}

template <class Id>
void RowAccess::pull(std::span<const Id> ids, float* out, const update::Settings& settings, float learning_rate,
                     Threads& threads) const noexcept {
  const std::uint64_t elements = table_.row_elements(), record = table_.record_floats();
  update::with_element_value(settings, learning_rate, [&](const auto& value_of) {
    threads.split(ids.size(), grain(), [&](std::uint64_t begin, std::uint64_t end, std::uint32_t) {
      const std::span<const Id> some = ids.subspan(begin, end - begin);
      float* const to = out + begin * elements;
      if (elements == 1) {
        for_rows(table_, some,
                 [&](const float* row, std::size_t i) { shm::read_elements(to + i, row, 2, 1, value_of); });
      } else {
        for_rows(table_, some, [&](const float* row, std::size_t i) {
          shm::read_elements(to + i * elements, row, record, elements, value_of);
        });
      }
    });
  });
}

template <class Id>
void RowAccess::combine(std::span<const Id>& ids, std::span<const float>& gradients) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio: spreads neighbouring ids
  const std::size_t count = ids.size(), width = table_.row_elements();
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(16, 2 * count));
  if (seen_.size() < slots || ++call_ == 0) {
    seen_.assign(std::max(slots, seen_.size()), 0);
    call_ = 1;
  }
  const int shift = 64 - std::countr_zero(seen_.size());
  auto& unique = [&]() -> auto& {
    if constexpr (std::is_same_v<Id, std::uint64_t>)
      return unique_64_;
    else
      return unique_32_;
  }
  ();
  unique.clear();
  bool has_repeated = false;
  for (std::size_t i = 0; i < count; ++i) {
    const float* const row = gradients.data() + i * width;
    std::uint64_t slot = ids[i] * kMultiplier >> shift;
    while (seen_[slot] >> 32 == call_ && unique[seen_[slot] & 0xffffffff] != ids[i])
      slot = (slot + 1) & (seen_.size() - 1);
    if (seen_[slot] >> 32 != call_) {
      seen_[slot] = std::uint64_t{call_} << 32 | unique.size();
      unique.push_back(ids[i]);
      if (has_repeated) sums_.insert(sums_.end(), row, row + width);
      continue;
    }
    if (!has_repeated) sums_.assign(gradients.data(), row);
    has_repeated = true;
    float* const sum = sums_.data() + (seen_[slot] & 0xffffffff) * width;
    for (std::size_t k = 0; k < width; ++k) sum[k] += row[k];
  }
  if (!has_repeated) return;
  ids = unique;
  gradients = sums_;
}

template <class Id>
void RowAccess::push(std::span<const Id> ids, const float* gradients, const update::Settings& settings,
                     float learning_rate, float scale, Adds adds, Threads& threads) noexcept {
  const std::uint64_t elements = table_.row_elements();
  update::with_element_update(settings, learning_rate, scale, [&](const auto& update) {
    const auto push_range = [&]<Adds kAdds>(std::uint64_t begin, std::uint64_t end) {
      const std::span<const Id> some = ids.subspan(begin, end - begin);
      const float* const from = gradients + begin * elements;
      if (elements == 1)
        for_rows(table_, some, [&](float* row, std::size_t i) { shm::update_row(row, from + i, 1, kAdds, update); });
      else
        for_rows(table_, some, [&](float* row, std::size_t i) {
          shm::update_row(row, from + i * elements, elements, kAdds, update);
        });
    };
    threads.split(ids.size(), grain(), [&](std::uint64_t begin, std::uint64_t end, std::uint32_t) {
      if (adds == Adds::kExact)
        push_range.template operator()<Adds::kExact>(begin, end);
      else
        push_range.template operator()<Adds::kRacy>(begin, end);
    });
  });
  shm::fault_point(shm::FaultPoint::kInplaceBlock);
  count(ids);
}

// A push counts once in each block that it has touched.
template <class Id>
void RowAccess::count(std::span<const Id> ids) noexcept {
  if (++push_number_ == 0) {
    std::fill(last_push_.begin(), last_push_.end(), 0);
    push_number_ = 1;
  }
  const auto count_in = [&](const shm::Rows::Place& place, shm::AtomicShm<std::uint64_t>* counts) {
    const std::uint64_t block = table_.block(place);
    std::uint32_t& last = last_push_[place.part.first_block + block];
    if (last == push_number_) return;
    last = push_number_;
    counts[block].bump_relaxed(1);
  };
  if (table_.parts().size() == 1) {
    const shm::RowPart& part = table_.parts().front();
    shm::AtomicShm<std::uint64_t>* const counts = part.variable.row_counts(rank_);
    for (const Id id : ids) count_in({part, id}, counts);
  } else {
    for (const Id id : ids) {
      const shm::Rows::Place place = table_.find(id);
      count_in(place, place.part.variable.row_counts(rank_));
    }
  }
  shm::fault_point(shm::FaultPoint::kInplaceCounted);
}

template <class Id>
void RowAccess::prefetch(std::span<const Id> ids) const noexcept {
  const std::uint64_t stride = table_.row_floats(), rows = table_.rows();
  if (table_.parts().size() == 1) {
    const float* const first = table_.parts().front().first;
    for (const Id id : ids)
      if (id < rows) prefetch_row(first + id * stride, stride);
    return;
  }
  for (const Id id : ids)
    if (id < rows) prefetch_row(table_.at(table_.find(id)), stride);
}

std::uint64_t RowAccess::pushes_by_others(const Watch& watch) const noexcept {
  std::uint64_t pushes = 0;
  for (std::uint32_t rank = 0; rank < ranks_; ++rank)
    if (rank != rank_) pushes += watch.part->variable.row_pushes(watch.block, rank);
  return pushes;
}

template <class Id>
void RowAccess::begin_watch(std::span<const Id> ids, const shm::JobSegments& job) noexcept {
  if (++pulls_ % kWatchEvery != 1 || ids.empty()) return;
  if (pulls_ / kWatchEvery % 64 == 0)
    for (std::uint32_t rank = ranks_; rank < job.ranks(); ++rank)
      if (job.worker(rank).holders.load_acquire() != 0) ranks_ = rank + 1;
  watched_ = static_cast<std::uint32_t>(std::min<std::size_t>(kWatched, ids.size()));
  for (std::uint32_t i = 0; i < watched_; ++i) {
    const shm::Rows::Place place = table_.find(ids[(pulls_ + i * ids.size() / watched_) % ids.size()]);
    watches_[i] = {&place.part, table_.block(place), 0};
    watches_[i].pushes = pushes_by_others(watches_[i]);
  }
}

#define PS_FOR_ID(Id)                                                                                                  \
  template const Id* RowAccess::find_outside(std::span<const Id>, bool&) const noexcept;                               \
  template void RowAccess::pull(std::span<const Id>, float*, const update::Settings&, float, Threads&) const noexcept; \
  template void RowAccess::combine(std::span<const Id>&, std::span<const float>&);                                     \
  template void RowAccess::push(std::span<const Id>, const float*, const update::Settings&, float, float, Adds,        \
                                Threads&) noexcept;                                                                    \
  template void RowAccess::prefetch(std::span<const Id>) const noexcept;                                               \
  template void RowAccess::begin_watch(std::span<const Id>, const shm::JobSegments&) noexcept;
PS_FOR_ID(std::uint32_t)
PS_FOR_ID(std::uint64_t)
#undef PS_FOR_ID

}  // namespace ps
