// The kernels that move pieces between mapped host memory and the GPU.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gpu/tables.hpp"
#include "shm/base/atomic.hpp"
#include "support/sanitizers.hpp"
#include "support/stress.hpp"

namespace {

using namespace ps_shm::test;
using namespace ps_shm::device;
namespace kernels_of = ps_shm::kernels;
using kernels_of::AddedPiece;
using kernels_of::kPullTorn;
using kernels_of::PulledPiece;
using kernels_of::SentPiece;

constexpr float kGuard = -77.0F;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<std::uint32_t> kSizes{1, 2, 3, 4, 5, 31, 128, 511, 2047, 2048, 2049, 8176, 8192, 8195, 20001};

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint32_t kManyPieces = 3001;  // a fiber's turn takes long there
#else
constexpr std::uint32_t kManyPieces = 70001;  // more than a grid has blocks
#endif

// Buffers of versioned chunks in two regions that need not be contiguous.
constexpr kernels_of::ChunkFormat kFormat{.buffer_bits = 24, .header_bytes = 64, .region_bits = 18};
class Shard {
 public:
  static constexpr std::size_t kRegion = std::size_t{1} << kFormat.region_bits, kBytes = 2 * kRegion;

  Shard() {
    for (std::size_t i = 0; i < 2; ++i) {
      parts_.emplace_back(cuda(), kRegion);
      std::fill(parts_[i].host().begin(), parts_[i].host().end(), std::byte{});
      regions_.host()[i] = reinterpret_cast<std::uint64_t>(parts_[i].on_device());
    }
  }
  std::byte* at(std::size_t offset) { return parts_[offset / kRegion].on_host() + offset % kRegion; }
  // Writes a buffer of that number and class, stamped.
  void write(std::uint64_t number, std::uint32_t buffer_class, std::uint64_t stamp, const std::vector<float>& values) {
    std::byte* buffer = at(number << buffer_class);
    std::memcpy(buffer, &stamp, sizeof(stamp));
    std::memcpy(buffer + kFormat.header_bytes, values.data(), values.size() * sizeof(float));
  }
  const std::uint64_t* regions() { return regions_.on_device(); }

 private:
  std::vector<PinnedMemory<std::byte>> parts_;
  PinnedMemory<std::uint64_t> regions_{cuda(), 2};
};

constexpr std::uint64_t kStamp = std::uint64_t{5} << 40;
std::uint64_t word_of(std::uint64_t version, std::uint64_t buffer) { return version << kFormat.buffer_bits | buffer; }

// Pulls one chunk of `count` floats into `out`, `shift` floats from its start; returns its result.
std::uint64_t pull_one(Bench& bench, Shard& shard, std::uint64_t word, std::uint32_t buffer_class, std::uint32_t count,
                       std::vector<float>& out, std::size_t shift, std::uint64_t shard_bytes = Shard::kBytes) {
  const auto words = pinned<std::uint64_t>({word});
  const auto memory = bench.put(out);
  const auto pieces = pinned<PulledPiece>({{.word = words.on_device(),
                                            .elements = nullptr,
                                            .regions = shard.regions(),
                                            .shard_bytes = shard_bytes,
                                            .stamp = kStamp,
                                            .out = memory.on_device() + shift,
                                            .count = count,
                                            .buffer_class = buffer_class}});
  const auto results = pinned<std::uint64_t>({kernels_of::kPullPending});
  bench.run(kernels().pull_pieces(pieces.on_device(), 1, results.on_device(), kFormat, bench.stream()));
  out = bench.get(memory);
  return results.host()[0];
}

TEST_CASE("pull: versioned chunks of any size are pulled whole and with their version, from each region") {
  Bench bench;
  Shard shard;
  for (const std::uint32_t count : kSizes)
    for (const std::size_t shift : {0, 1})
      for (const std::size_t region : {0, 1}) {
        CAPTURE(count);
        const auto buffer_class =
            static_cast<std::uint32_t>(std::bit_width(kFormat.header_bytes + count * sizeof(float) - 1));
        const std::uint64_t number = (region * Shard::kRegion >> buffer_class) + 1,
                            version = 6 * count + 2 * shift + region;
        const auto values = random_floats(count, version);
        shard.write(number, buffer_class, kStamp | version, values);
        std::vector<float> out(count + 8, kGuard), expected = out;
        std::copy(values.begin(), values.end(), expected.begin() + static_cast<std::ptrdiff_t>(shift));
        CHECK(pull_one(bench, shard, word_of(version, number), buffer_class, count, out, shift) == version);
        CHECK(differing(out, expected) == 0);
      }
}

TEST_CASE("pull: a chunk with another one's stamp is torn") {
  Bench bench;
  Shard shard;
  std::vector<float> out(100, kGuard);
  for (const std::uint64_t stamp : {kStamp | 8, kStamp | 6, std::uint64_t{6} << 40 | 7, ~std::uint64_t{0}}) {
    shard.write(2, 10, stamp, random_floats(100, 1));
    CHECK(pull_one(bench, shard, word_of(7, 2), 10, 100, out, 0) == kPullTorn);
  }
}

TEST_CASE("pull: a buffer beyond the registered bytes is not read") {
  Bench bench;
  Shard shard;
  const std::uint64_t bytes = kFormat.header_bytes + 100 * sizeof(float), begin = 3 << 10;
  shard.write(3, 10, kStamp | 7, random_floats(100, 1));
  std::vector<float> out(100, kGuard);
  CHECK(pull_one(bench, shard, word_of(7, 3), 10, 100, out, 0, begin + bytes) == 7);
  CHECK(differing(out, random_floats(100, 1)) == 0);
  for (const std::uint64_t registered : {begin + bytes - 1, begin, begin - 1, std::uint64_t{0}}) {
    std::fill(out.begin(), out.end(), kGuard);
    CHECK(pull_one(bench, shard, word_of(7, 3), 10, 100, out, 0, registered) == kPullTorn);
    CHECK(std::count(out.begin(), out.end(), kGuard) == 100);
  }
  CHECK(pull_one(bench, shard, word_of(7, 0xffffff), 10, 100, out, 0) == kPullTorn);
}

TEST_CASE("pull: ranges of in-place variables come with their count of pushes, more pieces than blocks") {
  Bench bench;
  for (const std::uint32_t pieces_count : {15U, kManyPieces}) {
    CAPTURE(pieces_count);
    std::vector<PulledPiece> list;
    std::vector<std::uint64_t> words;
    std::size_t total = 0;
    std::vector<std::pair<std::size_t, std::uint32_t>> ranges;
    for (std::uint32_t i = 0; i < pieces_count; ++i) {
      ranges.emplace_back(total, pieces_count == kManyPieces ? i % 4 : kSizes[i]);
      total += ranges.back().second + i % 3;
      words.push_back(std::uint64_t{i} * 1000003 + 1);
    }
    const auto elements = random_floats(total + 8, 9);
    const auto variable = pinned(elements);
    const auto counts = pinned(words);
    const auto out = bench.put(std::vector<float>(total + 8, kGuard));
    for (std::uint32_t i = 0; i < pieces_count; ++i)
      list.push_back({.word = counts.on_device() + i,
                      .elements = variable.on_device() + ranges[i].first,
                      .regions = nullptr,
                      .shard_bytes = 0,
                      .stamp = 0,
                      .out = out.on_device() + ranges[i].first,
                      .count = ranges[i].second,
                      .buffer_class = 0});
    const auto pieces = pinned(list);
    const auto results = pinned(std::vector<std::uint64_t>(pieces_count, kernels_of::kPullPending));
    bench.run(kernels().pull_pieces(pieces.on_device(), pieces_count, results.on_device(), kFormat, bench.stream()));
    std::vector<float> expected(total + 8, kGuard);
    for (const auto& [begin, count] : ranges)
      std::copy_n(elements.begin() + std::ptrdiff_t(begin), count, expected.begin() + std::ptrdiff_t(begin));
    CHECK(differing(bench.get(out), expected) == 0);
    CHECK(std::equal(words.begin(), words.end(), results.on_host()));
  }
}

TEST_CASE("pull: while somebody pushes, every chunk that is not reported as torn is one version") {
  constexpr std::uint32_t kCount = 8192, kClass = 16;
  const int rounds = static_cast<int>(stress_rounds(200));
  Bench bench;
  Shard shard;
  const auto words = pinned<std::uint64_t>({word_of(0, 0)});
  shard.write(0, kClass, kStamp, std::vector<float>(kCount, 0.0F));
  auto& word = *reinterpret_cast<ps_shm::shm::AtomicShm<std::uint64_t>*>(words.on_host());
  ps_shm::shm::AtomicShm<std::uint32_t> end{};
  std::thread pusher([&] {
    for (std::uint64_t version = 1; end.load_acquire() == 0; ++version) {
      const std::uint64_t number = version % 3;
      std::byte* buffer = shard.at(number << kClass);
      auto& stamp = *reinterpret_cast<ps_shm::shm::AtomicShm<std::uint64_t>*>(buffer);
      stamp.store_relaxed(~std::uint64_t{0});
      ps_shm::shm::fence_release();
      auto* floats = reinterpret_cast<float*>(buffer + kFormat.header_bytes);
      std::fill_n(floats, kCount, static_cast<float>(version % (1 << 24)));
      stamp.store_relaxed(kStamp | version);
      word.store_release(word_of(version, number));
      std::this_thread::sleep_for(
          std::chrono::microseconds(version % 100));  // some pulls fit in between; no result depends on it
    }
  });
  std::vector<std::uint64_t> versions;
  std::size_t mixed = 0;
  const auto out = bench.put(std::vector<float>(kCount, kGuard));
  const auto pieces = pinned<PulledPiece>({{.word = words.on_device(),
                                            .elements = nullptr,
                                            .regions = shard.regions(),
                                            .shard_bytes = Shard::kBytes,
                                            .stamp = kStamp,
                                            .out = out.on_device(),
                                            .count = kCount,
                                            .buffer_class = kClass}});
  const auto results = pinned<std::uint64_t>({kernels_of::kPullPending});
  CudaError error = kSuccess;
  for (int round = 0; round < rounds && error == kSuccess; ++round) {
    error = kernels().pull_pieces(pieces.on_device(), 1, results.on_device(), kFormat, bench.stream());
    if (error == kSuccess) error = cuda().synchronize(bench.stream());
    std::vector<float> values(kCount);
    if (error == kSuccess) error = cuda().copy(values.data(), out.on_device(), out.bytes(), bench.stream());
    if (error == kSuccess) error = cuda().synchronize(bench.stream());
    if (results.host()[0] == kPullTorn) continue;
    versions.push_back(results.host()[0]);
    const auto expected = static_cast<float>(versions.back() % (1 << 24));
    mixed += std::all_of(values.begin(), values.end(), [&](float v) { return v == expected; }) ? 0 : 1;
  }
  end.store_release(1);
  pusher.join();
  REQUIRE(error == kSuccess);
  bench.run(kernels().pull_pieces(pieces.on_device(), 1, results.on_device(), kFormat, bench.stream()));
  CHECK(results.host()[0] == words.host()[0] >> kFormat.buffer_bits);
  MESSAGE("whole: " << versions.size() << " of " << rounds);
  CHECK(mixed == 0);
  CHECK(std::is_sorted(versions.begin(), versions.end()));
}

TEST_CASE("send: pieces of any size and alignment arrive and are reported") {
  Bench bench;
  std::size_t total = 0;
  std::vector<std::pair<std::size_t, std::uint32_t>> ranges{{0, 0}};
  for (const std::size_t gap : {0, 1, 2})
    for (const std::uint32_t count : kSizes) {
      ranges.emplace_back(total, count);
      total += count + gap + (gap == 0 ? (4 - count % 4) % 4 : 0);
    }
  const auto values = random_floats(total, 4);
  const auto gradient = bench.put(values);
  const auto to = pinned(std::vector<float>(total + 8, kGuard));
  const auto arrived = pinned(std::vector<std::uint32_t>(ranges.size() + 1, 0));
  std::vector<SentPiece> list;
  std::vector<float> expected(total + 8, kGuard);
  for (const auto& [begin, count] : ranges) {
    list.push_back({.from = gradient.on_device() + begin, .to = to.on_device() + begin, .count = count, .pad = 0});
    std::copy_n(values.begin() + std::ptrdiff_t(begin), count, expected.begin() + std::ptrdiff_t(begin));
  }
  const auto pieces = pinned(list);
  bench.run(kernels().send_pieces(pieces.on_device(), static_cast<std::uint32_t>(list.size()), arrived.on_device(),
                                  false, nullptr, kernels_of::kSenders, bench.stream()));
  CHECK(differing({to.host().begin(), to.host().end()}, expected) == 0);
  CHECK(std::count(arrived.host().begin(), arrived.host().end(), 1U) == std::ptrdiff_t(list.size()));
  CHECK(arrived.host().back() == 0);
}

TEST_CASE("send: behind a gate that is cancelled nothing is sent, behind an open one all") {
  Bench bench;
  const auto values = random_floats(1000, 4);
  const auto gradient = bench.put(values);
  const auto to = pinned(std::vector<float>(values.size(), kGuard));
  const auto arrived = pinned(std::vector<std::uint32_t>(1, 0));
  const auto gate = pinned(std::vector<std::uint32_t>(1, kernels_of::kGateCancelled));
  const auto pieces = pinned(std::vector<SentPiece>{
      {.from = gradient.on_device(), .to = to.on_device(), .count = std::uint32_t(values.size()), .pad = 0}});
  const auto send = [&] {
    bench.run(kernels().send_pieces(pieces.on_device(), 1, arrived.on_device(), false, gate.on_device(),
                                    kernels_of::kSenders, bench.stream()));
  };
  send();
  CHECK(differing({to.host().begin(), to.host().end()}, std::vector<float>(values.size(), kGuard)) == 0);
  CHECK(arrived.host()[0] == 0);
  gate.host()[0] = kernels_of::kGateOpen;
  send();
  CHECK(differing({to.host().begin(), to.host().end()}, values) == 0);
  CHECK(arrived.host()[0] == 1);
}

// The wait and the transfer at the ends of a recorded step. Launched for the first time with an open gate, since the
// first launch of a graph may wait for the stream.
TEST_CASE("send: a graph can wait on the stream at its gate, and sends once it is open, but not once it is cancelled") {
  if (!cuda().can_wait_value()) {
    MESSAGE("this driver has no waits");
    return;
  }
  Bench bench;
  const auto values = random_floats(1000, 4);
  const auto gradient = bench.put(values);
  const auto to = pinned(std::vector<float>(values.size(), kGuard));
  const auto arrived = pinned(std::vector<std::uint32_t>(1, 0));
  PinnedMemory<ps_shm::shm::AtomicShm<std::uint32_t>> gate(cuda(), 1);
  gate.on_host()->store_release(kernels_of::kGateOpen);
  const auto pieces = pinned(std::vector<SentPiece>{
      {.from = gradient.on_device(), .to = to.on_device(), .count = std::uint32_t(values.size()), .pad = 0}});
  REQUIRE(kernels().load() == kSuccess);
  REQUIRE(cuda().begin_capture(bench.stream()) == kSuccess);
  CHECK(cuda().wait_value(bench.stream(), gate.on_device(), kernels_of::kGateOpen) == kSuccess);
  CHECK(kernels().send_pieces(pieces.on_device(), 1, arrived.on_device(), false,
                              reinterpret_cast<const std::uint32_t*>(gate.on_device()), kernels_of::kSenders,
                              bench.stream()) == kSuccess);
  Graph graph{};
  std::size_t operations = 0;
  REQUIRE(cuda().end_capture(bench.stream(), graph, operations) == kSuccess);
  CHECK(operations >= 2);
  bench.run(cuda().launch(graph, bench.stream()));
  CHECK(arrived.host()[0] == 1);
  for (const bool is_cancelled : {false, true}) {
    CAPTURE(is_cancelled);
    arrived.host()[0] = 0;
    gate.on_host()->store_release(kernels_of::kGateClosed);
    REQUIRE(cuda().launch(graph, bench.stream()) == kSuccess);
    for (int looks = 0; looks < 1000; ++looks) REQUIRE(cuda().query(bench.stream()) == kNotReady);
    CHECK(arrived.host()[0] == 0);
    gate.on_host()->store_release(is_cancelled ? kernels_of::kGateCancelled : kernels_of::kGateOpen);
    REQUIRE(cuda().synchronize(bench.stream()) == kSuccess);
    CHECK(arrived.host()[0] == (is_cancelled ? 0 : 1));
  }
  CHECK(cuda().destroy_graph(graph) == kSuccess);
}

// In device memory, where adds are atomic on every GPU.
TEST_CASE("add: each element gets its scaled and clipped gradient, alone or by fours, at any start of the range") {
  Bench bench;
  for (const bool wide : {false, true})
    for (const float limit : {0.0F, 0.5F})
      for (const std::uint32_t count : {1U, 3U, 4U, 6U, 255U, 1027U, 8195U})
        for (const std::size_t shift : {0, 1, 3}) {
          CAPTURE(wide);
          CAPTURE(count);
          CAPTURE(shift);
          auto before = random_floats(count + 8, 11), gradient = random_floats(count, 12);
          gradient[0] = kNan;
          gradient[count - 1] = -kInfinity;
          const auto to = bench.put(before);
          const auto from = bench.put(gradient);
          const auto pieces =
              pinned<AddedPiece>({{.from = from.on_device(), .to = to.on_device() + shift, .count = count, .pad = 0}});
          bench.run(kernels().add_pieces(pieces.on_device(), 1, -0.25F, limit, wide, bench.stream()));
          for (std::size_t i = 0; i < count; ++i) {
            float g = gradient[i];
            if (limit > 0 && g < -limit) g = -limit;
            if (limit > 0 && g > limit) g = limit;
            before[i + shift] += -0.25F * g;
          }
          CHECK(differing(bench.get(to), before) == 0);
        }
}

TEST_CASE("add: no add is lost if many pieces go to the same elements") {
  constexpr std::uint32_t kCount = 1001, kPieces = 3000;
  Bench bench;
  for (const bool wide : {false, true}) {
    const auto to = bench.put(std::vector<float>(kCount, 0.0F)), from = bench.put(std::vector<float>(kCount, 1.0F));
    const auto pieces = pinned(
        std::vector<AddedPiece>(kPieces, {.from = from.on_device(), .to = to.on_device(), .count = kCount, .pad = 0}));
    bench.run(kernels().add_pieces(pieces.on_device(), kPieces, 2.0F, 0.0F, wide, bench.stream()));
    CHECK(differing(bench.get(to), std::vector<float>(kCount, 2.0F * kPieces)) == 0);
  }
}

}  // namespace
