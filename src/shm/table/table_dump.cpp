// Dumps of a table: the rows that have changed and the keys that were evicted since an earlier dump, while others push
// and evict. Nobody waits for a dump, and a dump waits for nobody.
#include <algorithm>
#include <limits>

#include "ps_shm/errors.hpp"
#include "shm/table/table_part.hpp"

namespace ps_shm::shm {
namespace {

constexpr std::uint64_t kListedAtOnce = 4096;  // entries whose memory is asked for together

}  // namespace

EvictedShm* TablePart::list_of(std::uint32_t lane) const noexcept {
  return reinterpret_cast<EvictedShm*>(segment_.data() + shm_.evicted_offset) + lane * shm_.listed_at_most;
}

// (table.L1) An entry of the lane's own list.
void TablePart::list(TableLane& lane, std::uint64_t key, std::uint32_t epoch) {
  TableLaneShm& own = *lane.shared;
  const std::uint64_t number = own.listed.load_relaxed(), place = number % shm_.listed_at_most;  // relaxed: its own
  EvictedShm& entry = list_of(lane.number)[place];
  std::uint32_t lost = own.lost.load_relaxed();
  const auto forget = [&] {         // no memory: it counts as forgotten
    own.lost.store_release(epoch);  // (table.L1)
    fault_point(FaultPoint::kEvictionLost);
  };
  // All but the first entry of a piece in the first round over the list find memory there.
  if (number < shm_.listed_at_most && number % kListedAtOnce == 0) {
    const auto at = [&](std::uint64_t one) {
      return static_cast<std::size_t>(reinterpret_cast<std::byte*>(list_of(lane.number) + one) - segment_.data());
    };
    if (!segment_.try_allocate(at(number), at(std::min(number + kListedAtOnce, shm_.listed_at_most)))) return forget();
  }
  if (number >= shm_.listed_at_most) lost = std::max(lost, entry.epoch.load_relaxed());
  own.lost.store_relaxed(lost);  // (table.L1)
  fault_point(FaultPoint::kEvictionLost);
  fence_release();  // (table.L1) who reads the new entry finds the old one lost: pairs with table.D3
  entry.key.store_relaxed(key);
  entry.epoch.store_relaxed(epoch);
  fault_point(FaultPoint::kEvictionWritten);
  own.listed.store_release(number + 1);  // (table.L1)
  fault_point(FaultPoint::kEvictionListed);
}

// (table.L1, table.L2) Lists the keys of the rows that the lane has sealed, before it evicts them.
void TablePart::list_sealed(TableLane& lane) {
  for (;;) {
    const std::uint32_t epoch = shm_.dump_epoch.load_acquire();  // (table.L1)
    for (const TableLane::Sealed& one : lane.sealed) list(lane, row(one.row).key.load_relaxed(), epoch);
    fence_store_load();                                   // (table.L2) pairs with table.D1; and is table.E3
    if (shm_.dump_epoch.load_relaxed() == epoch) return;  // (table.L2)
  }
}

// (table.D3) Appends what a lane has listed since the dump `since` has begun. False: a part of it is forgotten.
bool TablePart::read_list(std::uint32_t lane, std::uint32_t since, std::vector<std::uint64_t>& keys) const {
  const TableLaneShm& of = lanes_[lane];
  const std::uint64_t end = of.listed.load_acquire();  // (table.D3) pairs with table.L1
  const EvictedShm* const entries = list_of(lane);
  for (std::uint64_t number = end; number-- > 0 && end - number <= shm_.listed_at_most;) {
    const EvictedShm& entry = entries[number % shm_.listed_at_most];
    if (entry.epoch.load_relaxed() < since) break;
    keys.push_back(entry.key.load_relaxed());
  }
  fence_acquire();                        // (table.D3) pairs with table.L1
  return of.lost.load_relaxed() < since;  // (table.D3)
}

// (table.D3) Whether the key has a row. If so, the eviction that was listed comes to nothing, or another one made the row
// since: it belongs to the dump from `since`.
bool TablePart::is_back(TableLane& lane, std::uint64_t key, std::uint32_t since) {
  const std::uint64_t order = order_of(key);
  for (;;) {
    std::uint64_t word = 0;
    const std::optional<std::uint64_t> found = locate(lane, key, order, bucket_of(order), word);
    if (!found) return false;
    TableRowShm& there = row(*found);
    if (state_of(word) == RowState::kNew) {
      make_live(*found, word);
      continue;
    }
    if (state_of(word) == RowState::kSealed) {
      // (table.D3) else the evictor could go on behind this dump, whose entry nobody reads again
      if (!there.word.try_exchange_acq_rel(word, next_word(word, RowState::kLive, reference_of(word)))) continue;
      fault_point(FaultPoint::kRowRescued);
    }
    raise(there.changed, since);  // (table.D3)
    return true;
  }
}

std::uint32_t TablePart::next_dump() {
  std::uint32_t before = shm_.dump_epoch.load_acquire();  // (table.D1)
  do {
    if (before == std::numeric_limits<std::uint32_t>::max())
      throw Error("a table can be dumped 2^32 times, and this one was", ErrorCode::kExhausted);
  } while (!shm_.dump_epoch.try_exchange_acq_rel(before, before + 1));  // (table.D1)
  fault_point(FaultPoint::kDumpBegun);
  return before + 1;
}

bool TablePart::begin_dump(TableLane& lane, std::uint32_t dump, std::uint32_t since,
                           std::vector<std::uint64_t>& evicted) {
  raise(shm_.dump_epoch, dump);  // (table.D1) of all parts but the first
  fence_store_load();            // (table.D1) pairs with table.P2, table.L2
  const std::uint32_t lanes = std::min(shm_.lanes_used.load_acquire(), shm_.lanes);  // (table.P0)
  for (std::uint32_t one = 0; one < lanes; ++one)
    for (const AtomicShm<std::uint64_t>& pin : lanes_[one].pins)
      if (const std::uint64_t pinned = row_of_pin(pin.load_acquire()); pinned < rows_used())  // (table.D2)
        raise(row(pinned).changed, dump);                                                     // (table.D2)
  if (since == 0) return true;
  const std::size_t before = evicted.size();
  for (std::uint32_t one = 0; one < lanes; ++one)
    if (!read_list(one, since, evicted)) return false;
  const auto first = evicted.begin() + static_cast<std::ptrdiff_t>(before);
  std::sort(first, evicted.end());
  evicted.erase(std::unique(first, evicted.end()), evicted.end());
  evicted.erase(std::remove_if(first, evicted.end(), [&](std::uint64_t key) { return is_back(lane, key, since); }),
                evicted.end());
  return true;
}

}  // namespace ps_shm::shm
