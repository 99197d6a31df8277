#include "device/gpu_pull.hpp"

#include <algorithm>
#include <map>

#include "device/polling.hpp"
#include "shm/slots/free_buffers.hpp"

namespace ps_shm {

namespace {

constexpr kernels::ChunkFormat kFormat{
    .buffer_bits = 24, .header_bytes = sizeof(shm::BufferHeaderShm), .region_bits = device::kRegionBits};
static_assert(shm::buffer_of(~std::uint64_t{0}) == (std::uint64_t{1} << kFormat.buffer_bits) - 1 &&
                  shm::version_of(~std::uint64_t{0}) == ~std::uint64_t{0} >> kFormat.buffer_bits,
              "kernels would take words apart in another way");
static_assert(offsetof(shm::BufferHeaderShm, stamp) == 0, "kernels look for the stamp at a buffer's beginning");
static_assert(shm::make_stamp(5, 7) == (shm::make_stamp(5, 0) | 7), "kernels make stamps by `or`");

}  // namespace

GpuLink::Pull::~Pull() { link_.watch.settle(copy_stream_.get()); }

void GpuLink::Pull::plan() {
  listed_.clear();
  list_.clear();
  regions_.clear();
  chunks_.clear();
  std::size_t largest = 1, all = 0;
  for (std::size_t i = 0; i < link_.states.size(); ++i) {
    VariableState& state = *link_.states[i];
    all += state.elements;
    for (VariablePart& part : state.parts) {
      largest = std::max<std::size_t>(largest, part.record.piece_elements);
      if (is_through_host()) continue;
      part.versioned ? list_versioned(state, part, link_.parameters[i]) : list_inplace(state, part, link_.parameters[i]);
    }
  }
  if (is_through_host()) {
    host_values_ = device::PinnedMemory<float>(link_.cuda, all);
    if (!sent_) sent_ = std::make_unique<device::OwnEvent>(link_.cuda);
  } else if (bounce_buffer_.count() < largest) {
    bounce_buffer_ = device::PinnedMemory<float>(link_.cuda, largest);
  }
  upload_list();
  if (!chunks_.empty()) {
    windows_.resize(kWindows);
    if (!before_) before_ = std::make_unique<device::OwnEvent>(link_.cuda);
    for (Window& window : windows_)
      if (!window.copied) window.copied = std::make_unique<device::OwnEvent>(link_.cuda);
  }
}

void GpuLink::Pull::list_versioned(VariableState& state, VariablePart& part, float* out) {
  const bool is_copied = link_.strategy.pull == device::PullPath::kCopyEngine && Impl::is_for_copy_engine(part);
  const device::Registration& shard = link_.shards.of(part.record.shard);
  const std::byte* base = link_.shards.base(part.record.shard);
  for (std::uint64_t piece = 0; piece < part.versioned->chunks(); ++piece) {
    const std::uint64_t begin = part.piece_begin(piece);
    const Piece entry{&state, &part, piece, part.first_piece + piece, out + begin};
    if (is_copied) {
      chunks_.push_back(entry);
      continue;
    }
    listed_.push_back(entry);
    const auto word = static_cast<std::size_t>(part.versioned->word_place(piece) - base);
    list_.push_back({.word = static_cast<const std::uint64_t*>(shard.at(word)),
                     .elements = nullptr,
                     .regions = nullptr,  // set by upload_list, by the number that `shard_bytes` holds till then
                     .shard_bytes = part.record.shard,
                     .stamp = shm::make_stamp(part.record.first_chunk + piece, 0),
                     .out = entry.out,
                     .count = static_cast<std::uint32_t>(part.piece_size(piece)),
                     .buffer_class = part.record.buffer_class});
  }
}

void GpuLink::Pull::list_inplace(VariableState& state, VariablePart& part, float* out) {
  const device::Registration& shard = link_.shards.of(part.record.shard);
  const std::byte* base = link_.shards.base(part.record.shard);
  for (std::uint64_t block = 0; block < part.inplace->blocks(); ++block) {
    const auto counter = static_cast<std::size_t>(part.inplace->counter_place(block) - base);
    // A scalar lies in the lower half of its counter's word.
    std::size_t at = part.inplace->is_scalar()
                         ? counter
                         : static_cast<std::size_t>(reinterpret_cast<const std::byte*>(
                                                        part.inplace->elements() + part.inplace->block_begin(block)) -
                                                    base);
    std::uint64_t left = part.piece_size(block) * sizeof(float);
    Piece entry{&state, &part, block, part.first_piece + block, out + part.piece_begin(block)};
    for (; left != 0; entry.is_rest = true) {
      const std::uint64_t bytes = std::min<std::uint64_t>(left, shard.contiguous_at(at));
      listed_.push_back(entry);
      list_.push_back({.word = static_cast<const std::uint64_t*>(shard.at(counter)),
                       .elements = static_cast<const float*>(shard.at(at)),
                       .regions = nullptr,
                       .shard_bytes = 0,
                       .stamp = 0,
                       .out = entry.out,
                       .count = static_cast<std::uint32_t>(bytes / sizeof(float)),
                       .buffer_class = 0});
      entry.out += bytes / sizeof(float);
      at += bytes;
      left -= bytes;
    }
  }
}

void GpuLink::Pull::upload_list() {
  if (list_.empty()) return;
  std::map<std::uint64_t, std::size_t> begins;  // index of each shard's regions among all
  for (const kernels::PulledPiece& piece : list_) {
    if (piece.elements != nullptr || begins.contains(piece.shard_bytes)) continue;
    begins[piece.shard_bytes] = regions_.size();
    const auto& regions = link_.shards.of(static_cast<std::uint32_t>(piece.shard_bytes)).regions();
    regions_.insert(regions_.end(), regions.begin(), regions.end());
  }
  regions_on_device_ = device::DeviceMemory<std::uint64_t>(link_.cuda, regions_.size());
  for (kernels::PulledPiece& piece : list_) {
    if (piece.elements != nullptr) continue;
    piece.regions = regions_on_device_.on_device() + begins[piece.shard_bytes];
    piece.shard_bytes = link_.shards.of(static_cast<std::uint32_t>(piece.shard_bytes)).bytes();
  }
  list_on_device_ = device::DeviceMemory<kernels::PulledPiece>(link_.cuda, list_.size());
  if (results_.count() < list_.size())
    results_ = device::PinnedMemory<shm::AtomicShm<std::uint64_t>>(link_.cuda, list_.size());
  const device::Stream stream = link_.stream->get();
  if (!regions_.empty())
    link_.check(link_.cuda.copy(regions_on_device_.on_device(), regions_.data(), regions_on_device_.bytes(), stream),
                "copy to its memory");
  link_.check(link_.cuda.copy(list_on_device_.on_device(), list_.data(), list_on_device_.bytes(), stream),
              "copy to its memory");
  device::wait_until_done(link_.watch, stream, "copy to its memory");
}

void GpuLink::Pull::start() {
  begin();
  is_starting_ = true;  // stays true after an error
  if (is_through_host()) pull_through_host();
  // Both wait for what the stream still does with the old parameters, and then work side by side.
  if (!chunks_.empty()) {
    link_.check(link_.cuda.record(before_->get(), link_.stream->get()), "record an event");
    link_.check(link_.cuda.wait(copy_stream_.get(), before_->get()), "wait for an event");
  }
  enqueue();
  if (!chunks_.empty()) copy_chunks();
  is_starting_ = false;
}

void GpuLink::Pull::begin() {
  if (is_under_way_)
    throw Error("a pull to the GPU begins while the previous one is still in progress", ErrorCode::kInvalidState);
  is_under_way_ = true;
  for (auto& result : results_.host()) result.store_relaxed(kernels::kPullPending);  // relaxed (gpu.G1)
}

void GpuLink::Pull::enqueue() {
  if (list_.empty()) return;
  link_.check(
      link_.kernels.pull_pieces(list_on_device_.on_device(), static_cast<std::uint32_t>(list_.size()),
                                reinterpret_cast<std::uint64_t*>(results_.on_device()), kFormat, link_.stream->get()),
      "start a pull");
}

std::uint64_t GpuLink::Pull::version_of(const Piece& piece, std::uint64_t result) const noexcept {
  return piece.part->inplace && piece.part->inplace->is_scalar() ? shm::scalar_pushes(result) : result;
}

bool GpuLink::Pull::finish() {
  if (!is_under_way_) return false;
  if (is_starting_) throw Error("a pull to the GPU has failed when it was started", ErrorCode::kInvalidState);
  bool has_moved = false;
  for (std::size_t i = 0; i < listed_.size(); ++i) {
    const auto& result = results_.host()[i];
    device::wait_for_device(
        link_.watch, "pull the parameters", [&] { return fmt::format("pull, chunk {} of {}", i + 1, listed_.size()); },
        [&] { return link_.cuda.query(link_.stream->get()); },
        [&] { return result.load_acquire() != kernels::kPullPending; });  // (gpu.G3) pairs with gpu.G2: the copy
    const std::uint64_t got = result.load_acquire();                      // (gpu.G3)
    if (got == kernels::kPullTorn) {
      bounce(listed_[i]);
      has_moved = true;
    } else if (!listed_[i].is_rest) {
      listed_[i].state->pulled[listed_[i].index] = version_of(listed_[i], got);
    }
  }
  if (is_through_host()) device::wait_until_done(link_.watch, sent_->get(), "copy parameters");
  is_under_way_ = false;  // stays true after an error
  ++link_.totals.pulls;
  link_.worker.count_pulls(link_.states.size());
  return has_moved;
}

// The CPU pulls the chunk itself and copies it on a stream of its own. What the main stream computes from the old bytes
// is discarded.
void GpuLink::Pull::bounce(const Piece& piece) {
  std::uint64_t retries = 0;
  float* buffer = bounce_buffer_.on_host();
  piece.state->pulled[piece.index] = piece.part->versioned->pull_chunk(piece.piece, buffer, retries);
  link_.check(
      link_.cuda.copy(piece.out, buffer, piece.part->piece_size(piece.piece) * sizeof(float), copy_stream_.get()),
      "copy to its memory");
  device::wait_until_done(link_.watch, copy_stream_.get(), "copy to its memory");
  has_bounced_ = true;
  ++link_.totals.bounced_chunks;
  link_.worker.count_pull_retries(kernels::kPullAttempts + retries);
}

void GpuLink::Pull::copy_chunks() {
  std::vector<Piece> moved = copy_once(chunks_);
  for (int attempt = 1; attempt < kernels::kPullAttempts && !moved.empty(); ++attempt) {
    link_.totals.redone_chunks += moved.size();
    link_.worker.count_pull_retries(moved.size());
    moved = copy_once(moved);
  }
  for (const Piece& piece : moved) bounce(piece);
}

std::vector<GpuLink::Pull::Piece> GpuLink::Pull::copy_once(const std::vector<Piece>& pieces) {
  std::vector<Piece> moved;
  std::size_t turn = 0, bytes = 0;
  const auto next_window = [&] {
    send_window(windows_[turn]);
    turn = (turn + 1) % kWindows;
    check_window(windows_[turn], moved);
    bytes = 0;
  };
  for (const Piece& piece : pieces) {
    Window& window = windows_[turn];
    const std::uint64_t word = piece.part->versioned->word(piece.piece);
    const device::Registration& shard = link_.shards.of(piece.part->record.shard);
    const std::uint64_t offset = (shm::buffer_of(word) << piece.part->record.buffer_class);
    const std::size_t size = piece.part->piece_size(piece.piece) * sizeof(float);
    if (offset + sizeof(shm::BufferHeaderShm) + size > shard.bytes()) {  // in memory that was added after registration
      moved.push_back(piece);
      continue;
    }
    window.pieces.push_back(piece);
    window.words.push_back(word);
    window.to.push_back(piece.out);
    window.from.push_back(static_cast<const std::byte*>(shard.at(offset)) + sizeof(shm::BufferHeaderShm));
    window.bytes.push_back(size);
    bytes += size;
    if (bytes >= kWindowBytes) next_window();
  }
  send_window(windows_[turn]);
  for (std::size_t i = 1; i <= kWindows; ++i) check_window(windows_[(turn + i) % kWindows], moved);
  return moved;
}

void GpuLink::Pull::send_window(Window& window) {
  if (window.pieces.empty()) return;
  const device::Stream stream = copy_stream_.get();
  device::CudaError error = link_.cuda.copy_batch(window.to, window.from, window.bytes, stream);
  if (error == device::kNotSupported) {  // a driver before CUDA 12.8
    error = device::kSuccess;
    for (std::size_t i = 0; i < window.to.size() && error == device::kSuccess; ++i)
      error = link_.cuda.copy(window.to[i], window.from[i], window.bytes[i], stream);
  }
  link_.check(error, "copy parameters");
  link_.check(link_.cuda.record(window.copied->get(), stream), "record an event");
}

// After the event the engine has read its last byte, so the stamps can be checked (slot.R3).
void GpuLink::Pull::check_window(Window& window, std::vector<Piece>& moved) {
  if (window.pieces.empty()) return;
  device::wait_until_done(link_.watch, window.copied->get(), "copy parameters");
  for (std::size_t i = 0; i < window.pieces.size(); ++i) {
    const Piece& piece = window.pieces[i];
    if (piece.part->versioned->is_still_whole(piece.piece, window.words[i]))
      piece.state->pulled[piece.index] = shm::version_of(window.words[i]);
    else
      moved.push_back(piece);
  }
  window.pieces.clear();
  window.words.clear();
  window.to.clear();
  window.from.clear();
  window.bytes.clear();
}

// All is enqueued on the main stream: behind what still reads the old parameters, and before what will read the new ones.
void GpuLink::Pull::pull_through_host() {
  float* values = host_values_.on_host();
  std::uint64_t retries = 0;
  for (std::size_t i = 0; i < link_.states.size(); ++i) {
    VariableState& state = *link_.states[i];
    retries += state.pull({values, state.elements}, 0, link_.worker.live().lr, link_.worker.threads());
    link_.check(link_.cuda.copy(link_.parameters[i], values, state.elements * sizeof(float), link_.stream->get()),
                "copy parameters");
    values += state.elements;
  }
  link_.check(link_.cuda.record(sent_->get(), link_.stream->get()), "record an event");
  link_.totals.redone_chunks += retries;
  link_.worker.count_pull_retries(retries);
}

}  // namespace ps_shm
