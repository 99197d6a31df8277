// Whether words are torn that are copied while they are written: by a processor while the GPU reads, and by the GPU
// while a processor reads. All bytes of a value are the same, so a word whose bytes differ is a torn one.
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "on_gpu.hpp"
#include "shm/base/atomic.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::size_t kWords = (std::size_t{256} << 10) / sizeof(std::uint64_t);
constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t), kFloats = kBytes / sizeof(float);
constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr int kWriters = 2;

struct Shared {
  shm::AtomicShm<std::uint64_t> words[kWords];
};

template <class Word>
[[noreturn]] void keep_writing(Shared& shared) {
  auto* const words = reinterpret_cast<shm::AtomicShm<Word>*>(shared.words);
  for (std::uint64_t value = 0;; ++value)
    for (std::size_t i = 0; i < kBytes / sizeof(Word); ++i)
      words[i].store_relaxed(static_cast<Word>(value % 256 * kOnes));
}

// What has been seen of values, some of which were torn.
struct Seen {
  std::uint64_t words = 0, torn4 = 0, torn8 = 0, looks = 0, mixed_looks = 0;

  void look(std::uint64_t word) {
    const auto is_torn = [](std::uint32_t half) { return half != (half & 0xff) * std::uint32_t{0x01010101}; };
    ++words;
    torn8 += word != (word & 0xff) * kOnes;
    torn4 += is_torn(static_cast<std::uint32_t>(word)) || is_torn(static_cast<std::uint32_t>(word >> 32));
  }
  // One copy's. Different values in it show that it was written meanwhile; else it proves nothing.
  void look(const std::uint64_t* all, std::size_t count) {
    ++looks;
    bool is_mixed = false;
    for (std::size_t i = 0; i < count; ++i) {
      look(all[i]);
      is_mixed = is_mixed || all[i] != all[0];
    }
    mixed_looks += is_mixed ? 1 : 0;
  }
  Json as_json() const {
    return {{"words", words},
            {"torn_8_bytes", torn8},
            {"torn_4_bytes", torn4},
            {"copies", looks},
            {"mixed_copies", mixed_looks}};
  }
};

// The GPU reads what processors write by words of this size: by a copy, or by the kernel that pulls in-place variables.
class Reader {
 public:
  explicit Reader(Shared& shared) : shared_(shared), registered_(&shared, kBytes) {
    *word_.on_host() = 0;
    *piece_.on_host() = {.word = word_.on_device(),
                         .elements = registered_.on_device<float>(),
                         .regions = nullptr,
                         .shard_bytes = 0,
                         .stamp = 0,
                         .out = reinterpret_cast<float*>(copy_.on_device()),
                         .count = kFloats,
                         .buffer_class = 0};
  }
  Json read(bool is_kernel, double seconds) {
    Seen seen;
    for (const double until = now_seconds() + seconds; now_seconds() < until;) {
      if (is_kernel)
        check(kernels().pull_pieces(piece_.on_device(), 1, result_.on_device(), {}, stream_.get()), "launch a kernel");
      else
        check(cuda().copy(copy_.on_device(), &shared_, kBytes, stream_.get()), "copy");
      check(cuda().copy(seen_.on_host(), copy_.on_device(), kBytes, stream_.get()), "copy");
      check(cuda().synchronize(stream_.get()), "copy");
      seen.look(seen_.on_host(), kWords);
    }
    return seen.as_json();
  }

 private:
  Shared& shared_;
  device::OwnStream stream_{cuda()};
  Registered registered_;
  device::DeviceMemory<std::uint64_t> copy_{cuda(), kWords};
  device::PinnedMemory<std::uint64_t> seen_{cuda(), kWords}, word_{cuda(), 1}, result_{cuda(), 1};
  device::PinnedMemory<kernels::PulledPiece> piece_{cuda(), 1};
};

template <class Word>
Json read_by_gpu(double seconds) {
  const SharedBytes memory(kBytes);
  Shared& shared = *memory.as<Shared>();
  std::array<std::unique_ptr<Helper>, kWriters> writers;  // before CUDA begins
  for (auto& writer : writers) writer = std::make_unique<Helper>([&] { keep_writing<Word>(shared); });
  begin_gpu();
  Reader reader(shared);
  return {{"copy_engine", reader.read(false, seconds)}, {"kernel", reader.read(true, seconds)}};
}

// The copy engine writes one value after the other, and this processor reads.
Json written_by_gpu(double seconds) {
  constexpr int kValues = 8, kRounds = 4;
  const SharedBytes memory(kBytes);
  Shared& shared = *memory.as<Shared>();
  begin_gpu();
  const device::OwnStream stream(cuda());
  const Registered registered(memory.as<void>(), kBytes);
  const device::DeviceMemory<std::uint64_t> values(cuda(), kValues * kWords);
  const device::PinnedMemory<std::uint64_t> first(cuda(), kWords);
  for (int value = 0; value < kValues; ++value) {
    std::fill_n(first.on_host(), kWords, static_cast<std::uint64_t>(value + 1) * kOnes);
    check(cuda().copy(values.on_device() + static_cast<std::size_t>(value) * kWords, first.on_host(), kBytes,
                      stream.get()),
          "copy");
    check(cuda().synchronize(stream.get()), "copy");
  }
  Seen seen;
  std::vector<std::uint64_t> read(kWords);
  for (const double until = now_seconds() + seconds; now_seconds() < until;) {
    for (int i = 0; i < kRounds * kValues; ++i)
      check(cuda().copy(memory.as<void>(), values.on_device() + static_cast<std::size_t>(i % kValues) * kWords, kBytes,
                        stream.get()),
            "copy");
    while (cuda().query(stream.get()) == device::kNotReady && now_seconds() < until + 1) {
      for (std::size_t i = 0; i < kWords; ++i) read[i] = shared.words[i].load_relaxed();
      seen.look(read.data(), kWords);
    }
    check(cuda().synchronize(stream.get()), "copy");
  }
  return seen.as_json();
}

}  // namespace

Json tearing(const SectionOptions& options) {
  const double seconds = options.quick ? 0.1 : 1, patience = (2 * seconds + 4) * options.patience;
  // Each in a process of its own, since writers are forked before CUDA begins.
  const Json stores8 = run_section([=](const SoFar&) { return read_by_gpu<std::uint64_t>(seconds); }, patience);
  const Json stores4 = run_section([=](const SoFar&) { return read_by_gpu<std::uint32_t>(seconds); }, patience);
  Json found;
  for (const auto& [name, of] : {std::pair{"8_byte", &stores8}, std::pair{"4_byte", &stores4}}) {
    if (of->contains("error")) return *of;
    found[std::string("copy_engine_reads_") + name + "_stores"] = (*of)["copy_engine"];
    found[std::string("kernel_reads_") + name + "_stores"] = (*of)["kernel"];
  }
  found["copy_engine_writes"] = run_section([=](const SoFar&) { return written_by_gpu(seconds); }, patience);
  return found;
}

}  // namespace ps_shm::bench
