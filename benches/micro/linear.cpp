// linear/batch1/...: asynchronous SGD on a dense linear model, one example a step: pull the weights, dot product and
// gradient in private memory, push, step(). Steps per second of all processes together. The limit is what the pull, the
// computation and the push take when each is done alone, by as many processes.
#include <fmt/format.h>

#include <memory>

#include "cases.hpp"
#include "job.hpp"
#include "update/simd.hpp"

namespace ps_shm::bench {
namespace {

PS_SHM_SIMD_CLONES float dot(const float* a, const float* b, std::uint64_t count) noexcept {
  constexpr std::size_t kLanes = 64;  // sums side by side, so that the order of additions allows SIMD
  float sums[kLanes] = {};
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  float sum = 0;
  for (const float lane : sums) sum += lane;
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

PS_SHM_SIMD_CLONES void scale(float* out, const float* x, float factor, std::uint64_t count) noexcept {
  PS_SHM_SIMD_LOOP
  for (std::uint64_t i = 0; i < count; ++i) out[i] = factor * x[i];
}

enum class Part { kAll, kPull, kCompute, kPush };

// Examples of length 1, so that a rate below 2 converges; the same ones every time.
void fill_examples(PrivateFloats& examples, std::uint64_t floats, int number) {
  std::uint32_t random = 12345U + std::uint32_t(number);
  const float size = 1.0F / (float(floats) * 0.29F);  // of the squares' mean, 1/12 of a range of 2
  for (std::size_t i = 0; i < examples.size(); ++i) {
    random = random * 1664525U + 1013904223U;
    examples.data()[i] = (float(random >> 8) * 0x1p-23F - 1.0F) * size;
  }
}

struct Rates {
  double rate = 0;
  std::uint64_t pushes = 0;
};

Rates run_part(const Job& job, std::uint64_t floats, int processes, Part part) {
  constexpr std::uint64_t kExamples = 16, kWarmups = 2;
  const auto ran = run_processes(processes, span_for(floats, processes), [&](int number) {
    auto member = job.join(number, floats);
    auto examples = std::make_shared<PrivateFloats>(kExamples * floats),
         weights = std::make_shared<PrivateFloats>(floats), gradient = std::make_shared<PrivateFloats>(floats);
    fill_examples(*examples, floats, number);
    auto step = std::make_shared<std::uint64_t>(0);
    const auto is = [=](Part wanted) { return part == Part::kAll || part == wanted; };
    const auto rounds = [=](std::uint64_t count) -> std::uint64_t {
      while (count-- > 0) {
        const float* x = examples->data() + (*step)++ % kExamples * floats;
        if (is(Part::kPull)) member->worker.pull(member->variable, {weights->data(), weights->size()});
        if (is(Part::kCompute)) scale(gradient->data(), x, dot(weights->data(), x, floats) - 1.0F, floats);
        if (is(Part::kPush)) member->worker.push(member->variable, {gradient->data(), gradient->size()});
        if (part == Part::kAll) member->worker.step();
      }
      return 0;
    };
    return Work{.prepare = [=] { rounds(kWarmups); }, .rounds = rounds};
  });
  const bool pushes = part == Part::kAll || part == Part::kPush;
  return {sum_of_rates(ran), pushes ? sum_of_rounds(ran) + ran.size() * kWarmups : 0};
}

Figures batch1(std::uint64_t floats, int processes) {
  JobConfig config = counting_config(processes);
  config.optimizer.lr = 0.1F;
  const Job job(config);
  const Rates pull = run_part(job, floats, processes, Part::kPull),
              push = run_part(job, floats, processes, Part::kPush),
              compute = run_part(job, floats, processes, Part::kCompute),
              all = run_part(job, floats, processes, Part::kAll);
  const double lost = job.lost_versions(all.pushes + push.pushes);
  require_exact(lost);
  const double push_pull = 1 / (1 / pull.rate + 1 / push.rate);
  Figures figures = rate_with_limit("steps/s", all.rate, 1 / (1 / push_pull + 1 / compute.rate));
  const Figures more = {{"limit_push_pull", push_pull}, {"pulls/s", pull.rate}, {"pushes/s", push.rate},
                        {"computes/s", compute.rate},   {"lost_%", 100 * lost}, {"retries", job.retries_per_push()}};
  figures.insert(figures.end(), more.begin(), more.end());
  return figures;
}

}  // namespace

void add_linear_cases() {
  constexpr std::uint64_t kFloats = 100'000;
  for (const int processes : process_counts({1, 2}))
    add_case(fmt::format("linear/batch1/floats:{}/processes:{}", kFloats, processes),
             [=] { return batch1(floats_of(kFloats), processes); });
}

}  // namespace ps_shm::bench
