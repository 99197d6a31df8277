// How long it takes to move so many bytes between shared memory and the GPU, until they are there: by the kernels that
// pull and push, which read and write host memory themselves; by bulk copies of a few blocks; and by the copy engine, at
// once or chunk by chunk, also in windows that two streams take in turn.
#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <string>

#include "on_gpu.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::size_t kPieceBytes = 32 << 10, kMaxChunked = std::size_t{16} << 20;
constexpr std::size_t kWindowBytes = std::size_t{2} << 20;  // of GpuLink's copies
constexpr std::size_t kWindowedChunks[] = {256 << 10, 512 << 10, 1 << 20};

template <class Piece>
class PieceList {
 public:
  PieceList(std::size_t count, const device::OwnStream& stream)
      : on_host_(count), on_device_(cuda(), count), stream_(stream) {}
  Piece& operator[](std::size_t i) { return on_host_[i]; }
  void upload() {
    check(cuda().copy(on_device_.on_device(), on_host_.data(), on_device_.bytes(), stream_.get()), "copy");
    check(cuda().synchronize(stream_.get()), "copy");
  }
  const Piece* on_device() const { return on_device_.on_device(); }

 private:
  std::vector<Piece> on_host_;
  device::DeviceMemory<Piece> on_device_;
  const device::OwnStream& stream_;
};

// Copies that the copy engine gets one by one.
struct Chunks {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<std::size_t> sizes;

  Chunks() = default;
  Chunks(void* begin_to, const void* begin_from, std::size_t bytes, std::size_t chunk_bytes) {
    for (std::size_t at = 0; at < bytes; at += chunk_bytes) {
      to.push_back(static_cast<std::byte*>(begin_to) + at);
      from.push_back(static_cast<const std::byte*>(begin_from) + at);
      sizes.push_back(std::min(chunk_bytes, bytes - at));
    }
  }
};

// Everything that moves one size.
class Mover {
 public:
  // `ring_bytes`: 0 if there are no bulk copies.
  Mover(std::byte* host, const Registered& registered, const device::DeviceMemory<float>& memory, std::size_t bytes,
        std::uint32_t ring_bytes)
      : host_(host),
        mapped_(registered.on_device<const std::byte>()),
        memory_(memory),
        bytes_(bytes),
        ring_bytes_(ring_bytes),
        pieces_((bytes + kPieceBytes - 1) / kPieceBytes),
        pulled_(pieces_, stream_),
        sent_(pieces_, stream_),
        results_(cuda(), pieces_),
        arrived_(cuda(), pieces_),
        word_(cuda(), 1) {
    *word_.on_host() = 0;
    for (std::size_t i = 0; i < pieces_; ++i) {
      const std::size_t at = i * kPieceBytes / sizeof(float);
      const auto count = static_cast<std::uint32_t>(std::min(kPieceBytes, bytes - i * kPieceBytes) / sizeof(float));
      pulled_[i] = {.word = word_.on_device(),
                    .elements = registered.on_device<float>() + at,
                    .regions = nullptr,
                    .shard_bytes = 0,
                    .stamp = 0,
                    .out = memory.on_device() + at,
                    .count = count,
                    .buffer_class = 0};
      sent_[i] = {.from = memory.on_device() + at, .to = registered.on_device<float>() + at, .count = count, .pad = 0};
    }
    pulled_.upload();
    sent_.upload();
    chunks_[kPieceBytes] = Chunks(memory.on_device(), host, bytes, kPieceBytes);
    for (const std::size_t size : kWindowedChunks) chunks_[size] = Chunks(memory.on_device(), host, bytes, size);
  }

  void kernel_pulls() {
    until_done(kernels().pull_pieces(pulled_.on_device(), count(), results_.on_device(), {}, stream_.get()));
  }
  template <std::uint32_t senders>
  void kernel_sends() {
    until_done(kernels().send_pieces(sent_.on_device(), count(), arrived_.on_device(), false, nullptr, senders,
                                     stream_.get()));
  }
  void copy_engine_pulls() { until_done(cuda().copy(memory_.on_device(), host_, bytes_, stream_.get())); }
  void copy_engine_sends() { until_done(cuda().copy(host_, memory_.on_device(), bytes_, stream_.get())); }
  void copy_engine_pulls_in_chunks() {
    copy_chunks(chunks_.at(kPieceBytes), 0, pieces_, stream_);
    until_done();
  }
  // As a step needs it: on one stream, which continues when all windows are there.
  template <std::size_t chunk_bytes, bool on_two_streams>
  void copy_engine_pulls_windows() {
    const Chunks& chunks = chunks_.at(chunk_bytes);
    constexpr std::size_t kEach = kWindowBytes / chunk_bytes;
    if (on_two_streams) follow(second_stream_, stream_);
    for (std::size_t first = 0, window = 0; first < chunks.to.size(); first += kEach, ++window)
      copy_chunks(chunks, first, std::min(kEach, chunks.to.size() - first),
                  on_two_streams && window % 2 == 1 ? second_stream_ : stream_);
    if (on_two_streams) follow(stream_, second_stream_);
    until_done();
  }
  template <std::uint32_t blocks, std::uint32_t piece_bytes>
  void bulk_pulls() {
    until_done(bulk_read(mapped_, reinterpret_cast<std::byte*>(memory_.on_device()), bytes_,
                         {.blocks = blocks, .piece_bytes = piece_bytes, .ring_bytes = ring_bytes_}, stream_.get()));
  }

  // Whether a move brings what is there. `value` is one that was not there before.
  void require_arrival(void (Mover::*move)(), bool is_pull, float value, const char* name) {
    auto* const floats = reinterpret_cast<float*>(host_);
    const std::size_t all = bytes_ / sizeof(float);
    if (is_pull)
      std::fill_n(floats, all, value);
    else
      check(model_kernels().fill(memory_.on_device(), value, all, stream_.get()), "fill memory");
    (this->*move)();
    if (is_pull) {
      std::fill_n(floats, all, 0.0F);
      copy_engine_sends();
    }
    for (std::size_t i = 0; i < all; ++i)
      if (floats[i] != value)
        throw std::runtime_error(fmt::format("{} of {} bytes moved something else", name, bytes_));
  }

 private:
  std::uint32_t count() const { return static_cast<std::uint32_t>(pieces_); }
  void until_done(device::CudaError enqueued = device::kSuccess) {
    check(enqueued, "move memory");
    check(cuda().synchronize(stream_.get()), "move memory");
  }
  static void copy_chunks(const Chunks& chunks, std::size_t first, std::size_t count, const device::OwnStream& stream) {
    const auto to = std::span(chunks.to).subspan(first, count);
    const auto from = std::span(chunks.from).subspan(first, count);
    const auto sizes = std::span(chunks.sizes).subspan(first, count);
    device::CudaError error = cuda().copy_batch(to, from, sizes, stream.get());
    if (error == device::kNotSupported) {
      error = device::kSuccess;
      for (std::size_t i = 0; i < count && error == device::kSuccess; ++i)
        error = cuda().copy(to[i], from[i], sizes[i], stream.get());
    }
    check(error, "move memory");
  }
  // What is enqueued on `later` from now on begins after what `earlier` has by now.
  void follow(const device::OwnStream& later, const device::OwnStream& earlier) {
    check(cuda().record(reached_.get(), earlier.get()), "record an event");
    check(cuda().wait(later.get(), reached_.get()), "wait for an event");
  }

  device::OwnStream stream_{cuda()}, second_stream_{cuda()};
  device::OwnEvent reached_{cuda()};
  std::byte* host_;
  const std::byte* mapped_;
  const device::DeviceMemory<float>& memory_;
  std::size_t bytes_;
  std::uint32_t ring_bytes_;
  std::size_t pieces_;
  PieceList<kernels::PulledPiece> pulled_;
  PieceList<kernels::SentPiece> sent_;
  device::PinnedMemory<std::uint64_t> results_;
  device::PinnedMemory<std::uint32_t> arrived_;
  device::PinnedMemory<std::uint64_t> word_;
  std::map<std::size_t, Chunks> chunks_;  // by their size
};

constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();

struct Way {
  const char* name;
  void (Mover::*move)();
  bool is_pull;
  std::size_t least_bytes = 0, most_bytes = kAnySize;
  bool is_bulk = false;
};

template <std::uint32_t blocks, std::uint32_t piece_bytes = 16 << 10>
constexpr Way by_bulk_copies(const char* name) {
  return {.name = name, .move = &Mover::bulk_pulls<blocks, piece_bytes>, .is_pull = true, .is_bulk = true};
}
template <std::size_t chunk_bytes, bool on_two_streams>
constexpr Way by_windows(const char* name) {
  return {.name = name,
          .move = &Mover::copy_engine_pulls_windows<chunk_bytes, on_two_streams>,
          .is_pull = true,
          .least_bytes = 2 * kWindowBytes};
}

constexpr Way kWays[] = {
    {.name = "kernel_pull", .move = &Mover::kernel_pulls, .is_pull = true},
    by_bulk_copies<4>("bulk_pull_4_blocks"),
    by_bulk_copies<8>("bulk_pull_8_blocks"),
    by_bulk_copies<16>("bulk_pull_16_blocks"),
    by_bulk_copies<16, 4 << 10>("bulk_pull_16_blocks_4_kib"),
    by_bulk_copies<16, 32 << 10>("bulk_pull_16_blocks_32_kib"),
    by_bulk_copies<32>("bulk_pull_32_blocks"),
    by_bulk_copies<66>("bulk_pull_66_blocks"),
    by_bulk_copies<132>("bulk_pull_132_blocks"),
    {.name = "copy_engine_pull", .move = &Mover::copy_engine_pulls, .is_pull = true},
    {.name = "copy_engine_pull_in_chunks",
     .move = &Mover::copy_engine_pulls_in_chunks,
     .is_pull = true,
     .most_bytes = kMaxChunked},
    by_windows<256 << 10, false>("copy_engine_pull_256_kib"),
    by_windows<256 << 10, true>("copy_engine_pull_256_kib_two_streams"),
    by_windows<512 << 10, false>("copy_engine_pull_512_kib"),
    by_windows<512 << 10, true>("copy_engine_pull_512_kib_two_streams"),
    by_windows<1 << 20, false>("copy_engine_pull_1024_kib"),
    by_windows<1 << 20, true>("copy_engine_pull_1024_kib_two_streams"),
    {.name = "kernel_push_4_blocks", .move = &Mover::kernel_sends<4>, .is_pull = false},
    {.name = "kernel_push_8_blocks", .move = &Mover::kernel_sends<8>, .is_pull = false},
    {.name = "kernel_push_12_blocks", .move = &Mover::kernel_sends<12>, .is_pull = false},
    {.name = "kernel_push_16_blocks", .move = &Mover::kernel_sends<16>, .is_pull = false},
    {.name = "kernel_push_32_blocks", .move = &Mover::kernel_sends<32>, .is_pull = false},
    {.name = "copy_engine_push", .move = &Mover::copy_engine_sends, .is_pull = false},
};

}  // namespace

Json moves(const SectionOptions& options) {
  const std::size_t largest = std::size_t{1} << (options.quick ? 24 : 28);
  const SharedBytes memory(largest);
  std::memset(memory.as<void>(), 0, largest);
  begin_gpu();
  const Registered registered(memory.as<void>(), largest);
  const device::DeviceMemory<float> on_gpu(cuda(), largest / sizeof(float));
  std::uint32_t ring_bytes = 0;
  Json found;
  if (const device::CudaError error = bulk_read_max_ring(ring_bytes); error == device::kNotSupported) {
    static_cast<void>(cuda().last_error());
    found["bulk_copies"] = {{"not_available", "they need compute capability 9.0"}};
  } else {
    check(error, "make bulk copies");
    found["bulk_copies"] = {{"ring_bytes", ring_bytes}};
  }
  for (std::size_t bytes = 4096; bytes <= largest; bytes *= 4) {
    Mover mover(memory.as<std::byte>(), registered, on_gpu, bytes, ring_bytes);
    std::vector<std::function<double()>> turns;
    std::vector<const Way*> ways;
    float value = 1.0F;
    for (const Way& way : kWays) {
      if (bytes < way.least_bytes || bytes > way.most_bytes || (way.is_bulk && ring_bytes == 0)) continue;
      mover.require_arrival(way.move, way.is_pull, value++, way.name);
      ways.push_back(&way);
      turns.emplace_back([&mover, &way] { return seconds_of([&] { (mover.*way.move)(); }); });
    }
    const std::vector<Times> times = take_turns(options.quick ? 5 : 50, options.quick ? 0.3 : 1.5, turns);
    Json of_size;
    for (std::size_t i = 0; i < ways.size(); ++i) of_size[ways[i]->name] = rate(times[i], bytes);
    found[std::to_string(bytes)] = of_size;
    options.so_far(found);
  }
  return found;
}

}  // namespace ps_shm::bench
