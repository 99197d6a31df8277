// What is lost when several add to the same floats of host memory at once: a GPU and processors, or two processes on
// one GPU. Everybody adds ones, so few that floats hold every sum exactly.
#include <cstring>
#include <memory>

#include "on_gpu.hpp"
#include "shm/base/atomic.hpp"

namespace ps_shm::bench {
namespace {

constexpr std::uint32_t kCount = 4096 / sizeof(float);  // one page
constexpr std::uint64_t kMaxRounds = 1'000'000, kBatch = 16;

enum class Adder { kProcessor, kSystem, kSystemByFours, kDevice };

// One process's GPU, with the page registered.
class GpuAdder {
 public:
  GpuAdder(const SharedBytes& page, Adder how) : how_(how) {
    begin_gpu();
    stream_ = std::make_unique<device::OwnStream>(cuda());
    registered_ = std::make_unique<Registered>(page.as<void>(), kCount * sizeof(float));
    ones_ = device::DeviceMemory<float>(cuda(), kCount);
    piece_ = device::PinnedMemory<kernels::AddedPiece>(cuda(), 1);
    check(model_kernels().fill(ones_.on_device(), 1.0F, kCount, stream_->get()), "fill memory");
    *piece_.on_host() = {.from = ones_.on_device(), .to = registered_->on_device<float>(), .count = kCount, .pad = 0};
    check(cuda().synchronize(stream_->get()), "fill memory");
  }
  void add(std::uint64_t rounds) {
    if (how_ == Adder::kDevice)
      check(add_on_device(registered_->on_device<float>(), kCount, static_cast<std::uint32_t>(rounds), stream_->get()),
            "launch a kernel");
    else
      for (std::uint64_t round = 0; round < rounds; ++round)
        check(kernels().add_pieces(piece_.on_device(), 1, 1.0F, 0.0F, how_ == Adder::kSystemByFours, stream_->get()),
              "launch a kernel");
    check(cuda().synchronize(stream_->get()), "add");
  }

 private:
  Adder how_;
  std::unique_ptr<device::OwnStream> stream_;
  std::unique_ptr<Registered> registered_;
  device::DeviceMemory<float> ones_;
  device::PinnedMemory<kernels::AddedPiece> piece_;
};

void add_by_processor(float* to, std::uint64_t rounds) {
  auto* const words = reinterpret_cast<shm::AtomicShm<float>*>(to);
  for (std::uint64_t round = 0; round < rounds; ++round)
    for (std::uint32_t i = 0; i < kCount; ++i) {
      float now = words[i].load_relaxed();
      while (!words[i].try_exchange_acq_rel(now, now + 1.0F)) {
      }
    }
}

Json add_together(const std::vector<Adder>& adders, double seconds) {
  static_assert(kMaxRounds * 4 < 1 << 24);
  const SharedBytes page(kCount * sizeof(float));
  float* const floats = page.as<float>();
  const Span span{.seconds = seconds, .batch = kBatch, .least = kBatch, .most = kMaxRounds};
  const std::vector<Ran> ran = run_processes(static_cast<int>(adders.size()), span, [&](int number) {
    const Adder how = adders[static_cast<std::size_t>(number)];
    if (how == Adder::kProcessor)
      return Work{.rounds = [=](std::uint64_t rounds) { return add_by_processor(floats, rounds), 0; }};
    const auto gpu = std::make_shared<GpuAdder>(page, how);
    return Work{.rounds = [=](std::uint64_t rounds) { return gpu->add(rounds), 0; }};
  });
  const auto expected = double(sum_of_rounds(ran));
  double sum = 0, least = expected;
  for (std::uint32_t i = 0; i < kCount; ++i) {
    sum += double(floats[i]);
    least = std::min(least, double(floats[i]));
  }
  Json rounds = Json::array();
  for (const Ran& one : ran) rounds.push_back(one.rounds);
  return {{"rounds", rounds},
          {"expected", expected},
          {"mean", sum / kCount},
          {"least", least},
          {"lost_share", 1 - sum / kCount / expected},
          {"is_exact", sum == expected * kCount && least == expected}};
}

}  // namespace

Json adds_with_processors(const SectionOptions& options) {
  const double seconds = options.quick ? 0.3 : 2;
  set_patience((seconds + 8) * options.patience);
  return {{"processors_alone", add_together({Adder::kProcessor, Adder::kProcessor}, seconds / 2)},
          {"gpu_alone", add_together({Adder::kSystem}, seconds / 2)},
          {"one_by_one", add_together({Adder::kSystem, Adder::kProcessor, Adder::kProcessor}, seconds)},
          {"by_fours", add_together({Adder::kSystemByFours, Adder::kProcessor, Adder::kProcessor}, seconds)}};
}

Json adds_of_two_processes(const SectionOptions& options) {
  const double seconds = options.quick ? 0.3 : 2;
  set_patience((seconds + 8) * options.patience);
  return {{"device_scope", add_together({Adder::kDevice, Adder::kDevice}, seconds)},
          {"system_scope", add_together({Adder::kSystem, Adder::kSystem}, seconds)}};
}

}  // namespace ps_shm::bench
