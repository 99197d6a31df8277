// Accesses of kernels to memory that others access concurrently: their order, and what is complete when something is
// reported, with threads that take turns by number and with the last one first.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "device/resources.hpp"
#include "support/environment.hpp"
#include "support/fake_cuda.hpp"

using namespace ps_shm;
using device::kSuccess;
using kernels::PulledPiece;
using on_cpu::Access;
using on_cpu::Noted;

namespace {

constexpr kernels::ChunkFormat kFormat{.buffer_bits = 24, .header_bytes = 64, .region_bits = 30};
constexpr std::uint32_t kCount = 8176, kClass = 15;  // a default chunk of 32 KiB
constexpr std::size_t kThreads = 512, kBuffers = 4, kShardBytes = kBuffers << kClass;
constexpr std::uint64_t kStamp = std::uint64_t{5} << 40;

// A stream whose kernels are observed, in one order of turns.
class Watched {
 public:
  explicit Watched(const char* order) : order_("PS_SHM_CUDA_ON_CPU_ORDER", order) { stream_.emplace(cuda); }
  ~Watched() {
    stream_.reset();
    CHECK(cuda.faults().empty());
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  device::Stream stream() { return stream_->get(); }
  // `during`, if given, sees each access before it is made.
  template <class Launch>
  void run(Launch&& launch, on_cpu::Watcher during = {}) {
    REQUIRE(cuda.enqueue(stream(), [this, during] {
      on_cpu::watch([this, during](const Noted& one) {
        seen.push_back(one);
        if (during) during(one);
      });
    }) == kSuccess);
    REQUIRE(launch() == kSuccess);
    REQUIRE(cuda.enqueue(stream(), [] { on_cpu::watch({}); }) == kSuccess);
    REQUIRE(cuda.synchronize(stream()) == kSuccess);
  }

  test::FakeCuda cuda;
  device::TransferKernels& kernels = on_cpu::transfer_kernels();
  std::vector<Noted> seen;

 private:
  test::EnvironmentVariable order_;
  std::optional<device::OwnStream> stream_;
};

// One versioned chunk in a shard with a few buffers; in each version all elements equal its number.
struct Chunk {
  explicit Chunk(Watched& on)
      : shard(on.cuda, kShardBytes),
        word(on.cuda, 1),
        regions(on.cuda, 1),
        results(on.cuda, 1),
        out(on.cuda, kCount),
        pieces(on.cuda, 1) {
    std::fill(shard.host().begin(), shard.host().end(), std::byte{});
    regions.host()[0] = reinterpret_cast<std::uint64_t>(shard.on_device());
    pieces.host()[0] = {.word = word.on_device(),
                        .elements = nullptr,
                        .regions = regions.on_device(),
                        .shard_bytes = kShardBytes,
                        .stamp = kStamp,
                        .out = out.on_device(),
                        .count = kCount,
                        .buffer_class = kClass};
  }
  std::byte* buffer(std::uint64_t version) { return shard.on_host() + (version % kBuffers << kClass); }
  const std::byte* buffer_on_device(std::uint64_t version) {
    return shard.on_device() + (version % kBuffers << kClass);
  }
  void set_stamp(std::uint64_t version, std::uint64_t stamp) { std::memcpy(buffer(version), &stamp, sizeof stamp); }
  void push(std::uint64_t version) {
    set_stamp(version, kStamp | version);
    std::fill_n(reinterpret_cast<float*>(buffer(version) + kFormat.header_bytes), kCount, float(version));
    word.host()[0] = version << kFormat.buffer_bits | version % kBuffers;
  }
  void pull(Watched& on, on_cpu::Watcher during = {}) {
    results.host()[0] = kernels::kPullPending;
    on.run([&] { return on.kernels.pull_pieces(pieces.on_device(), 1, results.on_device(), kFormat, on.stream()); },
           std::move(during));
  }
  bool has_pulled(Watched& on, std::uint64_t version) {
    std::vector<float> got(kCount);
    REQUIRE(on.cuda.copy(got.data(), out.on_device(), out.bytes(), on.stream()) == kSuccess);
    REQUIRE(on.cuda.synchronize(on.stream()) == kSuccess);
    return results.host()[0] == version && std::count(got.begin(), got.end(), float(version)) == kCount;
  }

  device::PinnedMemory<std::byte> shard;
  device::PinnedMemory<std::uint64_t> word, regions, results;
  device::DeviceMemory<float> out;
  device::PinnedMemory<PulledPiece> pieces;
};

std::size_t first_of(const std::vector<Noted>& seen, Access access, const void* address) {
  const auto found = std::find_if(seen.begin(), seen.end(),
                                  [&](const Noted& one) { return one.access == access && one.address == address; });
  return static_cast<std::size_t>(found - seen.begin());
}

bool is_load(const Noted& one) { return one.access == Access::kLoad && one.bytes == sizeof(float); }

}  // namespace

TEST_CASE("kernel protocols: a chunk's word is acquired before its bytes, and each thread fences before the stamp") {
  for (const char* order : {"0", "1"}) {
    Watched on(order);
    Chunk chunk(on);
    chunk.push(6);
    chunk.pull(on);
    CHECK(chunk.has_pulled(on, 6));
    const std::size_t word = first_of(on.seen, Access::kLoadAcquire, chunk.word.on_device());
    const std::size_t stamp = first_of(on.seen, Access::kLoad, chunk.buffer_on_device(6));
    const std::size_t result = first_of(on.seen, Access::kStoreRelease, chunk.results.on_device());
    REQUIRE(word < on.seen.size());
    REQUIRE(stamp < on.seen.size());
    REQUIRE(result < on.seen.size());
    CHECK(stamp < result);
    std::vector<std::size_t> last_load(kThreads, 0), fence(kThreads, 0);
    std::size_t loads = 0;
    for (std::size_t i = 0; i < on.seen.size(); ++i) {
      if (is_load(on.seen[i])) {
        ++loads;
        CHECK(i > word);
        CHECK(i < stamp);
        last_load[on.seen[i].thread] = i;
      }
      if (on.seen[i].access == Access::kFence && i < stamp) fence[on.seen[i].thread] = i;
    }
    CHECK(loads == kCount);
    for (std::size_t thread = 0; thread < kThreads; ++thread) CHECK(fence[thread] > last_load[thread]);
  }
}

TEST_CASE("kernel protocols: a chunk that is pushed again before its stamp is checked is pulled again") {
  for (const char* order : {"0", "1"})
    for (const int pushes : {1, 2, 3}) {
      Watched on(order);
      Chunk chunk(on);
      chunk.push(1);
      std::uint64_t version = 1;
      int looks = 0;
      chunk.pull(on, [&](const Noted& one) {
        if (one.access != Access::kLoad || one.bytes != sizeof(std::uint64_t)) return;
        ++looks;
        if (looks > pushes) return;
        chunk.set_stamp(version, ~std::uint64_t{0});  // its buffer belongs to another update by now
        chunk.push(++version);
      });
      CHECK(looks == std::min(pushes + 1, kernels::kPullAttempts));
      if (pushes < kernels::kPullAttempts)
        CHECK(chunk.has_pulled(on, version));
      else
        CHECK(chunk.results.host()[0] == kernels::kPullTorn);
    }
}

TEST_CASE("kernel protocols: an element that changes after its stamp's check is not in what is reported as whole") {
  for (const char* order : {"0", "1"}) {
    Watched on(order);
    Chunk chunk(on);
    chunk.push(3);
    bool has_looked = false;
    chunk.pull(on, [&](const Noted& one) {
      // The access after the load of the stamp comes after the check: a load from then on is too late.
      if (has_looked) std::fill_n(reinterpret_cast<float*>(chunk.buffer(3) + kFormat.header_bytes), kCount, -1.0F);
      has_looked |= one.access == Access::kLoad && one.bytes == sizeof(std::uint64_t);
    });
    CHECK(has_looked);
    CHECK(chunk.has_pulled(on, 3));
  }
}

TEST_CASE("kernel protocols: an in-place range's count is acquired first, and reported when all of it is there") {
  for (const char* order : {"0", "1"})
    for (const std::uint32_t count : {1U, 2047U, kCount}) {
      Watched on(order);
      const device::PinnedMemory<std::uint64_t> pushed(on.cuda, 1), results(on.cuda, 1);
      const device::PinnedMemory<float> elements(on.cuda, count);
      const device::DeviceMemory<float> out(on.cuda, count);
      const device::PinnedMemory<PulledPiece> pieces(on.cuda, 1);
      pushed.host()[0] = 41;
      std::fill(elements.host().begin(), elements.host().end(), 7.0F);
      pieces.host()[0] = {.word = pushed.on_device(),
                          .elements = elements.on_device(),
                          .regions = nullptr,
                          .shard_bytes = 0,
                          .stamp = 0,
                          .out = out.on_device(),
                          .count = count,
                          .buffer_class = 0};
      std::ptrdiff_t there = -1;
      on.run([&] { return on.kernels.pull_pieces(pieces.on_device(), 1, results.on_device(), kFormat, on.stream()); },
             [&](const Noted& one) {
               if (one.access == Access::kStoreRelease)
                 there = std::count(out.on_device(), out.on_device() + count, 7.0F);
             });
      CHECK(there == std::ptrdiff_t(count));
      CHECK(results.host()[0] == 41);
      const std::size_t acquired = first_of(on.seen, Access::kLoadAcquire, pushed.on_device());
      const auto load = std::find_if(on.seen.begin(), on.seen.end(), is_load);
      CHECK(acquired < static_cast<std::size_t>(load - on.seen.begin()));
      CHECK(load != on.seen.end());
    }
}

TEST_CASE("kernel protocols: a sent piece is reported by a release when all of it is there") {
  constexpr std::uint32_t kPieces = 7, kEach = 5003, kBlocks = 3;
  for (const char* order : {"0", "1"})
    for (const bool as_bfloat16 : {false, true}) {
      Watched on(order);
      const device::PinnedMemory<float> from(on.cuda, kPieces * kEach);
      const device::PinnedMemory<std::uint16_t> to(on.cuda, 2 * kPieces * kEach);
      const device::PinnedMemory<std::uint32_t> arrived(on.cuda, kPieces);
      const device::PinnedMemory<kernels::SentPiece> pieces(on.cuda, kPieces);
      std::fill(from.host().begin(), from.host().end(), -1.0F);  // both halves differ from the previous contents
      std::fill(to.host().begin(), to.host().end(), std::uint16_t{1});
      std::fill(arrived.host().begin(), arrived.host().end(), 0U);
      const std::size_t halves = as_bfloat16 ? kEach : 2 * kEach;
      for (std::uint32_t i = 0; i < kPieces; ++i)
        pieces.host()[i] = {
            .from = from.on_device() + i * kEach, .to = to.on_device() + i * halves, .count = kEach, .pad = 0};
      std::size_t reports = 0, missing = 0, early = 0;
      std::array<std::uint32_t, kBlocks> next{0, 1, 2};
      on.run(
          [&] {
            return on.kernels.send_pieces(pieces.on_device(), kPieces, arrived.on_device(), as_bfloat16, nullptr, kBlocks, on.stream());
          },
          [&](const Noted& one) {
            if (one.access != Access::kStoreRelease) return;
            ++reports;
            const auto piece = static_cast<const std::uint32_t*>(one.address) - arrived.on_device();
            const std::uint16_t* begin = to.on_host() + static_cast<std::size_t>(piece) * halves;
            missing += static_cast<std::size_t>(std::count(begin, begin + halves, std::uint16_t{1}));
            early += piece == std::exchange(next.at(one.block), next.at(one.block) + kBlocks) ? 0 : 1;
          });
      CHECK(reports == kPieces);
      CHECK(missing == 0);
      CHECK(early == 0);  // each block takes every third, in the order of the list
      CHECK(std::count(arrived.host().begin(), arrived.host().end(), 1U) == kPieces);
    }
}

TEST_CASE("kernel protocols: a piece of rows is reported by a release when its numbers and sums are there") {
  constexpr std::uint32_t kRows = 10, kPieceRows = 4, kElements = 37, kRepeats = 200;
  constexpr std::uint32_t kIds = kRows * kRepeats;
  for (const char* order : {"0", "1"}) {
    Watched on(order);
    const device::PinnedMemory<std::uint64_t> given(on.cuda, kIds), ids(on.cuda, kRows);
    const device::PinnedMemory<std::uint32_t> places(on.cuda, kIds), begins(on.cuda, kRows), distinct(on.cuda, 1);
    const device::PinnedMemory<std::uint32_t> arrived(on.cuda, kIds / kPieceRows);
    const device::PinnedMemory<float> gradients(on.cuda, kIds * kElements), sums(on.cuda, kRows * kElements);
    std::fill(gradients.host().begin(), gradients.host().end(), 1.0F);
    std::fill(sums.host().begin(), sums.host().end(), -1.0F);
    for (std::uint32_t i = 0; i < kIds; ++i) places.host()[i] = i;
    for (std::uint32_t row = 0; row < kRows; ++row) {
      given.host()[row] = row + 1;
      begins.host()[row] = row * kRepeats;
    }
    std::fill(ids.host().begin(), ids.host().end(), 0);
    distinct.host()[0] = kRows;
    const kernels::RowSort sorted{.given = given.on_device(),
                                  .sorted = nullptr,
                                  .given_places = nullptr,
                                  .places = places.on_device(),
                                  .begins = begins.on_device(),
                                  .distinct = distinct.on_device(),
                                  .temp_storage = nullptr,
                                  .temp_storage_bytes = 0,
                                  .most = kIds};
    std::size_t rows = 0, missing = 0;
    on.run(
        [&] {
          return on.kernels.send_rows(sorted, kIds, gradients.on_device(), kElements, kPieceRows, ids.on_device(),
                                      sums.on_device(), arrived.on_device(), on.stream());
        },
        [&](const Noted& one) {
          if (one.access != Access::kStoreRelease) return;
          const auto piece =
              static_cast<std::size_t>(static_cast<const std::uint32_t*>(one.address) - arrived.on_device());
          for (std::size_t row = piece * kPieceRows; row < std::min<std::size_t>((piece + 1) * kPieceRows, kRows);
               ++row) {
            ++rows;
            const float* sum = sums.on_host() + row * kElements;
            missing += ids.host()[row] != row + 1 || std::count(sum, sum + kElements, float(kRepeats)) != kElements;
          }
        });
    CHECK(rows == kRows);
    CHECK(missing == 0);
    CHECK(arrived.host()[0] == 1 + kPieceRows);
    CHECK(arrived.host()[2] == 1 + kRows % kPieceRows);
    CHECK(arrived.host()[3] == 1);
  }
}

TEST_CASE("bulk reads: every byte comes to its place, by any number of blocks with any number of pieces in the ring") {
  for (const char* order : {"0", "1"}) {
    Watched on(order);
    std::uint32_t max_ring = 0;
    REQUIRE(on_cpu::bulk_read_max_ring(max_ring) == kSuccess);
    CHECK(max_ring == 192 << 10);
    for (const std::size_t bytes : {16U, 1024U, 5U * 1024, 300U * 1024 + 16}) {
      const device::PinnedMemory<std::uint32_t> from(on.cuda, bytes / sizeof(std::uint32_t));
      std::iota(from.host().begin(), from.host().end(), 1U);
      for (const std::uint32_t blocks : {1U, 3U, 40U})
        for (const std::uint32_t ring : {2U * 1024, 3U * 1024, max_ring}) {
          const device::DeviceMemory<std::uint32_t> to(on.cuda, from.count());
          on.run([&] {
            return on_cpu::bulk_read(reinterpret_cast<const std::byte*>(from.on_device()),
                                     reinterpret_cast<std::byte*>(to.on_device()), bytes,
                                     {.blocks = blocks, .piece_bytes = 1024, .ring_bytes = ring}, on.stream());
          });
          std::vector<std::uint32_t> got(from.count());
          REQUIRE(on.cuda.copy(got.data(), to.on_device(), bytes, on.stream()) == kSuccess);
          REQUIRE(on.cuda.synchronize(on.stream()) == kSuccess);
          CHECK(std::equal(got.begin(), got.end(), from.host().begin()));
        }
    }
  }
}

TEST_CASE("bulk reads: what is not aligned, or has less than two pieces in a ring, is refused") {
  Watched on("0");
  const device::PinnedMemory<std::byte> from(on.cuda, 4096);
  const device::DeviceMemory<std::byte> to(on.cuda, 4096);
  const auto read = [&](std::size_t at, std::size_t bytes, const kernels::BulkReads& how) {
    return on_cpu::bulk_read(from.on_device() + at, to.on_device() + at, bytes, how, on.stream());
  };
  CHECK(read(0, 1024, {.blocks = 1, .piece_bytes = 512, .ring_bytes = 1024}) == kSuccess);
  CHECK(read(0, 0, {.blocks = 1, .piece_bytes = 512, .ring_bytes = 1024}) == kSuccess);
  CHECK(read(8, 1024, {.blocks = 1, .piece_bytes = 512, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(read(0, 1032, {.blocks = 1, .piece_bytes = 512, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(read(0, 1024, {.blocks = 0, .piece_bytes = 512, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(read(0, 1024, {.blocks = 1, .piece_bytes = 0, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(read(0, 1024, {.blocks = 1, .piece_bytes = 504, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(read(0, 1024, {.blocks = 1, .piece_bytes = 528, .ring_bytes = 1024}) == device::kInvalidValue);
  CHECK(on.cuda.synchronize(on.stream()) == kSuccess);
}
