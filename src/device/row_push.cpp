#include "device/row_push.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "device/polling.hpp"

namespace ps_shm::device {
namespace {

// The size of a chunk: large enough to make the cost of a flag small, small enough that the CPU starts early.
constexpr std::size_t kPieceBytes = 32 << 10;
constexpr const char *kSorting = "sort rows", *kSending = "send the gradients of rows";

std::uint32_t piece_rows_of(std::uint64_t elements) {
  return static_cast<std::uint32_t>(std::max<std::size_t>(1, kPieceBytes / (elements * sizeof(float))));
}

}  // namespace

RowPush::RowPush(RowCarrier& owner)
    : owner_(owner),
      elements_(static_cast<std::uint32_t>(owner.elements)),
      piece_rows_(piece_rows_of(elements_)),
      sent_(owner.cuda),
      distinct_(owner.cuda, 1),
      outside_(owner.cuda, 1) {
  outside_.on_host()->store_relaxed(0);
  load_sort();
}

RowPush::SortMemory::SortMemory(RowCarrier& owner, std::uint64_t most, std::uint32_t* distinct)
    : given(owner.cuda, most),
      sorted(owner.cuda, most),
      given_places(owner.cuda, most),
      places(owner.cuda, most),
      begins(owner.cuda, most) {
  std::size_t temp_storage_bytes = 0;
  owner.check(owner.kernels.sort_rows_temp_bytes(most, temp_storage_bytes), "say what a sort of rows needs");
  temp_storage = {owner.cuda, temp_storage_bytes};
  form = {.given = given.on_device(),
          .sorted = sorted.on_device(),
          .given_places = given_places.on_device(),
          .places = places.on_device(),
          .begins = begins.on_device(),
          .distinct = distinct,
          .temp_storage = temp_storage.on_device(),
          .temp_storage_bytes = temp_storage_bytes,
          .most = most};
}

// CUB's kernels are not among those that load() knows. CUDA loads each when it is first launched, and may wait for all
// work on the device then, so that happens here, and not in a push. CUB sorts one tile by other kernels than several; in
// all versions so far a tile has at most 256 x 19 rows.
void RowPush::load_sort() {
  constexpr std::uint64_t kSeveralTiles = 8192;
  const Stream stream = owner_.stream->get();
  const SortMemory memory(owner_, kSeveralTiles, distinct_.on_device());
  const DeviceMemory<std::uint32_t> ids(owner_.cuda, kSeveralTiles);
  const std::vector<std::uint32_t> zeros(kSeveralTiles);
  owner_.check(owner_.cuda.copy(ids.on_device(), zeros.data(), ids.bytes(), stream), "copy row numbers");
  for (const std::uint64_t count : {std::uint64_t{1}, kSeveralTiles})
    owner_.check(
        owner_.kernels.sort_rows({.values = ids.on_device(), .is_wide = 0, .pad = 0, .count = count}, owner_.rows,
                                 memory.form, reinterpret_cast<std::uint64_t*>(outside_.on_device()), stream),
        kSorting);
  wait_until_done(owner_.watch, stream, kSorting);
}

// Requires: no push is in progress. Releases the old memory first, so that both need not fit at the same time.
void RowPush::reserve(std::uint64_t rows) {
  const std::uint64_t had = sort_.form.most;
  if (rows <= had) return;
  const std::uint64_t most = std::max(rows, std::min<std::uint64_t>(had + had / 2, kernels::kMaxSortedRows));
  sort_ = {};
  SortMemory sort(owner_, most, distinct_.on_device());
  const auto renew = [&](auto& memory, std::size_t count) {
    memory = {};
    memory = std::remove_reference_t<decltype(memory)>(owner_.cuda, count);
  };
  renew(ids_, most);
  renew(sums_, most * elements_);
  renew(arrived_, (most + piece_rows_ - 1) / piece_rows_);
  sort_ = std::move(sort);  // last: so much is there
}

void RowPush::start(const kernels::RowIds& ids, std::span<const float> gradients) {
  if (is_under_way_)
    throw Error(fmt::format("a push of rows of {} begins while the previous one is still in progress", owner_.owner),
                ErrorCode::kInvalidState);
  owner_.require_floats(ids.count, gradients.size(), "push");
  if (ids.count > kernels::kMaxSortedRows)
    throw Error(fmt::format("push of {} rows of {} on a GPU: at most {} at once", ids.count, owner_.owner,
                            kernels::kMaxSortedRows));
  owner_.begin();
  reserve(ids.count);
  is_under_way_ = true;
  count_ = ids.count;
  outside_.on_host()->store_relaxed(0);  // relaxed (gpu.G1): the launch orders this and the next stores
  for (std::uint64_t piece = 0; piece < pieces(); ++piece) arrived_.on_host()[piece].store_relaxed(0);
  const Stream stream = owner_.stream->get();
  owner_.check(owner_.kernels.sort_rows(ids, owner_.rows, sort_.form,
                                        reinterpret_cast<std::uint64_t*>(outside_.on_device()), stream),
               kSorting);
  owner_.check(
      owner_.kernels.send_rows(sort_.form, count_, gradients.data(), elements_, piece_rows_, ids_.on_device(),
                               sums_.on_device(), reinterpret_cast<std::uint32_t*>(arrived_.on_device()), stream),
      kSending);
  owner_.check(owner_.cuda.record(sent_.get(), stream), "record an event");
}

bool RowPush::is_sent() { return owner_.cuda.query(sent_.get()) == kSuccess; }

void RowPush::wait_until_sent() {
  wait_for_device(
      owner_.watch, kSending, [&] { return fmt::format("push of rows of {}", owner_.owner); },
      [&] { return owner_.cuda.query(sent_.get()); }, [&] { return is_sent(); });
}

// Everything that has arrived forms one push of the worker. Rows are ascending, so there is nothing to combine.
void RowPush::apply_arriving() {
  const PushGroup one = owner_.handle.group_pushes();         // for snapshots
  const bool takes_all = owner_.worker.live().clip_norm > 0;  // the limit applies to the norm of all of them
  std::uint64_t piece = 0, applied = 0, here = 0;             // numbers of rows
  for (bool is_last = count_ == 0; !is_last;) {
    const auto& next = arrived_.on_host()[piece];
    wait_for_device(
        owner_.watch, kSending,
        [&] { return fmt::format("push of rows of {}, portion {} of {}", owner_.owner, piece + 1, pieces()); },
        [&] { return owner_.cuda.query(sent_.get()); },
        [&] { return next.load_acquire() != 0; });  // (gpu.G3) pairs with gpu.G2: the piece
    // All ids were checked before the first chunk was sent.
    owner_.require_inside(*outside_.on_host(), "push");
    for (std::uint32_t got; !is_last && (got = arrived_.on_host()[piece].load_acquire()) != 0;) {  // (gpu.G3)
      here += got - 1;
      is_last = got - 1 < piece_rows_ || ++piece == pieces();
    }
    if (here == applied || (takes_all && !is_last)) continue;
    owner_.apply({ids_.on_host() + applied, here - applied},
                 {sums_.on_host() + applied * elements_, (here - applied) * elements_});
    applied = here;
  }
  owner_.totals.sent_rows += applied;
}

void RowPush::finish() {
  if (!is_under_way_) return;
  owner_.begin();
  try {
    apply_arriving();
  } catch (...) {
    // If the rows or the job are at fault, the next push may succeed. If the GPU is at fault, this call fails.
    owner_.watch.settle(owner_.stream->get());
    if (owner_.cuda.query(owner_.stream->get()) == kSuccess) is_under_way_ = false;
    throw;
  }
  wait_until_sent();  // chunks without rows are still being flagged; after this, gradients may be overwritten
  is_under_way_ = false;
  ++owner_.totals.pushes;
  owner_.totals.given_rows += count_;
}

}  // namespace ps_shm::device
