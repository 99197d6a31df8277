// Update rules on private memory, one process: the memory traffic of an apply() against the same streams without rules.
//
// A gradient is pushed chunk by chunk, as a worker does: out of the chunk's buffer into a free buffer, which becomes
// the chunk's. Beside each rate stands `limit`: a triad with as many streams to read and to write over the same
// buffers, the faster of two, taken immediately before and after. Rates count every stream once (no write-allocate).
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "report.hpp"
#include "triad.hpp"
#include "update/rules.hpp"

namespace ps_shm::bench {
namespace {

using update::Settings;

constexpr std::size_t kHeaderFloats = 16;  // 64 bytes in front of every chunk's values
constexpr std::size_t kFreeBuffers = 3;

// Chunks of one variable as in a segment: values and slots in one buffer each, and a few free buffers.
class Chunks {
 public:
  Chunks(std::size_t gradient_count, std::size_t buffer_bytes, const Settings& settings)
      : arrays_(1 + update::slots_per_element(settings)),
        buffer_floats_(buffer_bytes / sizeof(float)),
        stride_((buffer_floats_ - kHeaderFloats) / arrays_ / 16 * 16),
        count_(gradient_count),
        chunks_((gradient_count + stride_ - 1) / stride_),
        memory_(map_floats((chunks_ + kFreeBuffers) * buffer_floats_)),
        gradient_(map_floats(gradient_count)) {
    for (std::size_t i = 0; i < count_; ++i) gradient_[i] = float(i % 1000) * 1e-3F - 0.5F;
    for (std::size_t i = 0; i < chunks_ + kFreeBuffers; ++i) {
      float* values = memory_ + i * buffer_floats_ + kHeaderFloats;
      std::fill_n(values, stride_, 0.5F);
      update::initialise_slots(settings, 0.01F, values, values + stride_, stride_, stride_);
      (i < chunks_ ? current_ : free_buffers_).push_back(values);
    }
  }
  ~Chunks() {
    munmap(memory_, (chunks_ + kFreeBuffers) * buffer_floats_ * sizeof(float));
    munmap(gradient_, count_ * sizeof(float));
  }
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  // work(out, in, stride, gradient, count) for every chunk; returns GB/s of memory traffic.
  template <class Work>
  double push(Work work) {
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < chunks_; ++i) {
      float*& free_buffer = free_buffers_[next_free_buffer_++ % kFreeBuffers];
      work(free_buffer, current_[i], stride_, gradient_ + i * stride_, std::min(stride_, count_ - i * stride_));
      std::swap(free_buffer, current_[i]);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    return double(count_) * sizeof(float) * double(2 * arrays_ + 1) / seconds.count() * 1e-9;
  }

 private:
  static float* map_floats(std::size_t count) {
    void* memory =
        mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory");
    return static_cast<float*>(memory);
  }

  std::size_t arrays_, buffer_floats_, stride_, count_, chunks_;
  float *memory_, *gradient_;
  std::vector<float*> current_, free_buffers_;
  std::size_t next_free_buffer_ = 0;
};

struct Figures {
  std::vector<double> rule, limit, ratio;
};
std::map<std::string, Figures> figures;  // by benchmark

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void run_case(benchmark::State& state, const std::string& name, const Settings& settings, std::size_t gradient_bytes,
              std::size_t buffer_bytes) {
  const std::size_t arrays = 1 + update::slots_per_element(settings);
  Chunks chunks(gradient_bytes / sizeof(float), buffer_bytes, settings);
  std::uint64_t updates = 0;
  const auto rule = [&](float* out, const float* in, std::size_t stride, const float* gradient, std::size_t count) {
    update::apply(settings, {1e-6F, updates}, out, in, stride, gradient, 1.0F, count);
  };
  const auto limit_by = [arrays](auto kernel) {
    return [=](float* out, const float* in, std::size_t stride, const float* gradient, std::size_t count) {
      kernel(arrays, out, in, stride, gradient, count, 0.0F);
    };
  };
  // A small variable is pushed often within a measurement, so that it is in the caches as far as it fits.
  const std::size_t rounds = std::max<std::size_t>(1, (std::size_t{32} << 20) / gradient_bytes);
  const auto measure = [&](const auto& work) {
    double sum = 0;
    for (std::size_t round = 0; round < rounds; ++round, ++updates) sum += 1 / chunks.push(work);
    return double(rounds) / sum;
  };
  measure(rule);
  Figures& mine = figures[name];
  for (auto _ : state) {
    const double plain = measure(limit_by(triad)), rate = measure(rule), asking = measure(limit_by(asking_triad));
    const double limit = std::max(plain, asking);
    mine.rule.push_back(rate);
    mine.limit.push_back(limit);
    mine.ratio.push_back(rate / limit);
    state.SetIterationTime(double(gradient_bytes) * double(2 * arrays + 1) * 1e-9 / rate);
    state.counters["GB/s"] = rate;
    state.counters["limit"] = limit;
    state.counters["of_limit"] = rate / limit;
  }
}

}  // namespace
}  // namespace ps_shm::bench

int main(int argc, char** argv) {
  using namespace ps_shm;
  using namespace ps_shm::bench;
  if (!may_report("update")) return 1;
  for (const std::size_t gradient : {std::size_t{64} << 20, std::size_t{1} << 20})
    for (const std::size_t buffer : {std::size_t{32} << 10, std::size_t{1} << 20})
      for (const auto& [label, rule, ema] : {std::tuple{"add", UpdateRule::kAdd, 0.0F},
                                             {"sgd", UpdateRule::kSgd, 0.0F},
                                             {"momentum", UpdateRule::kMomentum, 0.0F},
                                             {"nesterov", UpdateRule::kNesterov, 0.0F},
                                             {"adagrad", UpdateRule::kAdagrad, 0.0F},
                                             {"rmsprop", UpdateRule::kRmsProp, 0.0F},
                                             {"adam", UpdateRule::kAdam, 0.0F},
                                             {"adamw", UpdateRule::kAdamW, 0.0F},
                                             {"ftrl", UpdateRule::kFtrl, 0.0F},
                                             {"adam+ema", UpdateRule::kAdam, 0.999F}}) {
        Optimizer optimizer;
        optimizer.ema = ema;
        const Settings settings = update::settings_of(optimizer, rule, true);
        const std::string name = fmt::format("update/{}/{}M/chunk:{}K", label, gradient >> 20, buffer >> 10);
        benchmark::RegisterBenchmark(
            name.c_str(), [=](benchmark::State& state) { run_case(state, name, settings, gradient, buffer); })
            ->UseManualTime()
            ->Iterations(3)
            ->Unit(benchmark::kMillisecond);
      }
  const int code = run_benchmarks(argc, argv, 9, "1 process, not pinned");
  if (code != 0) return code;
  fmt::print("medians of memory traffic\n");
  for (const auto& [name, of] : figures)
    fmt::print("{:<32} {:6.1f} GB/s, limit {:6.1f}, ratio {:.2f}\n", name, median(of.rule), median(of.limit),
               median(of.ratio));
}
