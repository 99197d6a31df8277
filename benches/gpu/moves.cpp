// How long it takes to move so many bytes between shared memory and the GPU, until they are there: by the kernels that
// pull and push, which read and write host memory themselves, and by the copy engine, at once or chunk by chunk.
#include <fmt/format.h>

#include <cstring>
#include <string>

#include "on_gpu.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::size_t kPieceBytes = 32 << 10, kMaxChunked = std::size_t{16} << 20;

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

// Everything that moves one size.
class Mover {
 public:
  Mover(std::byte* host, const Registered& registered, const device::DeviceMemory<float>& memory, std::size_t bytes)
      : host_(host),
        memory_(memory),
        bytes_(bytes),
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
      to_.push_back(memory.on_device() + at);
      from_.push_back(host + i * kPieceBytes);
      sizes_.push_back(count * sizeof(float));
    }
    pulled_.upload();
    sent_.upload();
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
    device::CudaError error = cuda().copy_batch(to_, from_, sizes_, stream_.get());
    if (error == device::kNotSupported) {
      error = device::kSuccess;
      for (std::size_t i = 0; i < pieces_ && error == device::kSuccess; ++i)
        error = cuda().copy(to_[i], from_[i], sizes_[i], stream_.get());
    }
    until_done(error);
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
  void until_done(device::CudaError enqueued) {
    check(enqueued, "move memory");
    check(cuda().synchronize(stream_.get()), "move memory");
  }

  device::OwnStream stream_{cuda()};
  std::byte* host_;
  const device::DeviceMemory<float>& memory_;
  std::size_t bytes_, pieces_;
  PieceList<kernels::PulledPiece> pulled_;
  PieceList<kernels::SentPiece> sent_;
  device::PinnedMemory<std::uint64_t> results_;
  device::PinnedMemory<std::uint32_t> arrived_;
  device::PinnedMemory<std::uint64_t> word_;
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> sizes_;
};

struct Way {
  const char* name;
  void (Mover::*move)();
  bool is_pull, is_chunked;
};
constexpr Way kWays[] = {{"kernel_pull", &Mover::kernel_pulls, true, false},
                         {"copy_engine_pull", &Mover::copy_engine_pulls, true, false},
                         {"copy_engine_pull_in_chunks", &Mover::copy_engine_pulls_in_chunks, true, true},
                         {"kernel_push_4_blocks", &Mover::kernel_sends<4>, false, false},
                         {"kernel_push_8_blocks", &Mover::kernel_sends<8>, false, false},
                         {"kernel_push_12_blocks", &Mover::kernel_sends<12>, false, false},
                         {"kernel_push_16_blocks", &Mover::kernel_sends<16>, false, false},
                         {"kernel_push_32_blocks", &Mover::kernel_sends<32>, false, false},
                         {"copy_engine_push", &Mover::copy_engine_sends, false, false}};

}  // namespace

Json moves(const SectionOptions& options) {
  const std::size_t largest = std::size_t{1} << (options.quick ? 24 : 28);
  const SharedBytes memory(largest);
  std::memset(memory.as<void>(), 0, largest);
  begin_gpu();
  const Registered registered(memory.as<void>(), largest);
  const device::DeviceMemory<float> on_gpu(cuda(), largest / sizeof(float));
  Json found;
  for (std::size_t bytes = 4096; bytes <= largest; bytes *= 4) {
    Mover mover(memory.as<std::byte>(), registered, on_gpu, bytes);
    std::vector<std::function<double()>> turns;
    std::vector<const Way*> ways;
    float value = 1.0F;
    for (const Way& way : kWays) {
      if (way.is_chunked && bytes > kMaxChunked) continue;
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
