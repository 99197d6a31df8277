#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/schedule.hpp"
#include "support/rule_reference.hpp"
#include "support/stress.hpp"
#include "update/elements.hpp"

using namespace ps_shm;
using namespace ps_shm::update;
using test::clipped, test::reference;

namespace {

const auto kRules = test::rules_where([](const Traits& traits) { return traits.works_versioned; });

std::mt19937_64& generator() {
  static std::mt19937_64 generator(test::stress_seed());
  return generator;
}

std::vector<float> random_values(std::size_t count) {
  std::uniform_real_distribution<float> between(-1.0F, 1.0F);
  std::vector<float> values(count);
  for (float& value : values) value = between(generator());
  return values;
}

struct Combination {
  const char* name;
  float scale = 1, clip_value = 0, l2 = 0, weight_decay = 0, ema = 0;
};

constexpr Combination kCombinations[] = {
    {.name = "plain"},
    {.name = "scale", .scale = 0.3F},
    {.name = "clip", .clip_value = 0.4F},
    {.name = "l2", .l2 = 0.02F},
    {.name = "decay", .weight_decay = 0.05F},
    {.name = "ema", .ema = 0.97F},
    {.name = "all", .scale = 1.7F, .clip_value = 0.6F, .l2 = 0.03F, .weight_decay = 0.04F, .ema = 0.9F},
};

// Large epsilons, so that a misplaced one shows.
Settings settings_for(UpdateRule rule, const Combination& with) {
  return {.rule = rule,
          .momentum = 0.8F,
          .beta1 = 0.85F,
          .beta2 = 0.99F,
          .rho = 0.95F,
          .epsilon = 0.02F,
          .initial_accumulator = 0.1F,
          .ftrl_beta = 0.7F,
          .l1 = 1.5F,
          .l2 = with.l2,
          .weight_decay = with.weight_decay,
          .clip_value = with.clip_value,
          .ema = with.ema};
}

// Values and slots of one variable, with unused space between them.
struct State {
  std::size_t count, stride, arrays;
  std::vector<float> floats;

  State(const Settings& settings, float rate, std::size_t elements)
      : count(elements), stride(elements + 3), arrays(1 + slots_per_element(settings)), floats(arrays * stride, 9.0F) {
    const auto values = random_values(count);
    std::copy(values.begin(), values.end(), floats.begin());
    initialise_slots(settings, rate, floats.data(), floats.data() + stride, stride, count);
  }
  test::Element element(std::size_t i) const {
    test::Element e;
    for (std::size_t k = 0; k < arrays; ++k) e.x[k] = double(floats[k * stride + i]);
    return e;
  }
  bool operator==(const State& other) const {
    return std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0;
  }
};

// Half a unit in the last place is 2^-24 of a term; a rule rounds each of its terms at most eight times.
constexpr double kStepError = 8 * 0x1p-24;

// How far `got` is from `wanted`, as a multiple of the rounding bound.
double excess(const State& got, std::size_t i, const test::Element& wanted, const double (&allowed)[4]) {
  double worst = 0;
  const test::Element e = got.element(i);
  for (std::size_t k = 0; k < got.arrays; ++k)
    if (e.x[k] != wanted.x[k]) worst = std::max(worst, std::abs(e.x[k] - wanted.x[k]) / (kStepError * allowed[k]));
  return worst;
}

// Runs `steps` steps and returns the worst excess of a single step, and of all steps together: errors add up at most.
struct Excess {
  double step = 0, total = 0;
};
Excess run(const Settings& settings, float scale, float base_rate, int steps) {
  State state(settings, base_rate, 101), next = state;  // full blocks and a remainder
  std::vector<test::Element> exact;
  for (std::size_t i = 0; i < state.count; ++i) exact.push_back(state.element(i));
  Excess worst;
  for (int step = 0; step < steps; ++step) {
    const float rate = base_rate * (1 + 0.25F * float(step % 3));
    const auto gradient = random_values(state.count);
    apply(settings, {rate, std::uint64_t(step)}, next.floats.data(), state.floats.data(), state.stride, gradient.data(),
          scale, state.count);
    for (std::size_t i = 0; i < state.count; ++i) {
      const double raw = double(scale) * double(gradient[i]);
      const double g = settings.rule == UpdateRule::kAdd ? raw : clipped(settings, raw);
      const test::Element one = reference(settings, rate, step + 1, state.element(i), g, std::abs(g));
      worst.step = std::max(worst.step, excess(next, i, one, one.size));
      test::Element all = reference(settings, rate, step + 1, exact[i], g, std::abs(g));
      for (std::size_t k = 0; k < 4; ++k) all.size[k] += exact[i].size[k];
      exact[i] = all;
      worst.total = std::max(worst.total, excess(next, i, all, all.size));
    }
    std::swap(state, next);
  }
  return worst;
}

// Three gradients of the same variable, scaled differently.
struct Contributors {
  std::vector<std::vector<float>> gradients;
  explicit Contributors(std::size_t count)
      : gradients{random_values(count), random_values(count), random_values(count)} {}
  std::vector<Contribution> from(std::size_t at) const {
    return {{gradients[0].data() + at, 1.0F}, {gradients[1].data() + at, 0.5F}, {gradients[2].data() + at, 0.75F}};
  }
};

constexpr Combination kAll = kCombinations[6];

}  // namespace

TEST_CASE("every rule, alone and with every setting, follows its float64 formula over a thousand random steps") {
  for (const UpdateRule rule : kRules)
    for (const Combination& with : kCombinations) {
      const auto [step, total] = run(settings_for(rule, with), with.scale, default_lr(rule), 1000);
      INFO(std::string(to_string(rule)) << " with " << std::string(with.name));
      CHECK(step <= 1);
      CHECK(total <= 1);
    }
}

TEST_CASE("an optimizer takes the mean over the contributors, each clipped by itself; add takes the plain sum") {
  for (const UpdateRule rule : kRules) {
    const Settings settings = settings_for(rule, kAll);
    const State before(settings, 0.1F, 2500);
    State after = before;
    const Contributors contributors(before.count);
    apply_combined(settings, {0.1F, 6}, after.floats.data(), before.floats.data(), before.stride, contributors.from(0),
                   before.count);
    double worst = 0;
    for (std::size_t i = 0; i < before.count; ++i) {
      double sum = 0, size = 0;
      for (const auto& [gradient, scale] : contributors.from(0)) {
        const double g = double(scale) * double(gradient[i]);
        sum += rule == UpdateRule::kAdd ? g : clipped(settings, g);
        size += std::abs(g);
      }
      const double share = rule == UpdateRule::kAdd ? 1.0 : 1.0 / 3;
      const test::Element wanted = reference(settings, 0.1F, 7, before.element(i), sum * share, size * share);
      worst = std::max(worst, excess(after, i, wanted, wanted.size));
    }
    INFO(std::string(to_string(rule)));
    CHECK(worst <= 1);
  }
}

TEST_CASE("a single contributor's step is an apply of its gradient, bit for bit") {
  for (const UpdateRule rule : kRules) {
    const Settings settings = settings_for(rule, kAll);
    const State before(settings, 0.1F, 1111);
    State alone = before, combined = before;
    const Contribution one[] = {{before.floats.data(), 0.6F}};  // the values themselves serve as a gradient
    apply(settings, {0.1F, 2}, alone.floats.data(), before.floats.data(), before.stride, one[0].gradient, 0.6F, 1111);
    apply_combined(settings, {0.1F, 2}, combined.floats.data(), before.floats.data(), before.stride, one, 1111);
    CHECK(alone == combined);
    CHECK_FALSE(alone == before);
  }
}

TEST_CASE("the result does not depend on the position: any division gives the same bits") {
  for (const UpdateRule rule : kRules)
    for (const Combination& with : kCombinations) {
      const Settings settings = settings_for(rule, with);
      const State before(settings, 0.1F, 2500);
      State whole = before, parts = before, whole_sum = before, parts_sum = before;
      const Contributors contributors(before.count);
      const float* gradient = contributors.gradients[0].data();
      const Moment moment{0.1F, 3};
      apply(settings, moment, whole.floats.data(), before.floats.data(), before.stride, gradient, with.scale, 2500);
      apply_combined(settings, moment, whole_sum.floats.data(), before.floats.data(), before.stride,
                     contributors.from(0), 2500);
      for (std::size_t at = 0, length = 1; at < 2500; at += length, length = length % 97 + 1) {
        const std::size_t n = std::min(length, 2500 - at);
        apply(settings, moment, parts.floats.data() + at, before.floats.data() + at, before.stride, gradient + at,
              with.scale, n);
        apply_combined(settings, moment, parts_sum.floats.data() + at, before.floats.data() + at, before.stride,
                       contributors.from(at), n);
      }
      INFO(std::string(to_string(rule)) << " with " << std::string(with.name));
      CHECK(whole == parts);
      CHECK(whole_sum == parts_sum);
    }
}

TEST_CASE("without elements nothing is accessed") {
  for (const UpdateRule rule : kRules) {
    const Settings settings = settings_for(rule, kAll);
    std::vector<float> guard(4, 7.0F);
    const Contribution two[] = {{guard.data(), 1.0F}, {guard.data(), 1.0F}};
    apply(settings, {0.1F, 0}, guard.data(), guard.data(), 1, guard.data(), 0.5F, 0);
    apply_combined(settings, {0.1F, 0}, guard.data(), guard.data(), 1, two, 0);
    accumulate(guard.data(), nullptr, guard.data(), 0.5F, 0.1F, 0);
    initialise_slots(settings, 0.1F, guard.data(), guard.data(), 1, 0);
    CHECK(guard == std::vector<float>(4, 7.0F));
  }
  CHECK(squared_norm(nullptr, 0) == 0.0);
}

TEST_CASE("the forms for elements stored with their state agree with the array forms, bit for bit") {
  const auto rules = test::rules_where(
      [](const Traits& traits) { return traits.works_versioned && traits.in_place_slots[0].name == nullptr; });
  for (const Combination& with : kCombinations)
    for (const UpdateRule rule : rules) {
      CAPTURE(to_string(rule));
      Settings settings = settings_for(rule, with);
      settings.ema = 0;
      constexpr std::size_t kCount = 300;
      const std::size_t record = 1 + slots_per_element(rule, false, true);
      REQUIRE(record == 1 + slots_per_element(rule, false));
      auto in = random_values(kCount), gradient = random_values(kCount);
      std::vector<float> now(kCount * record), next(kCount * record), together(kCount * record);
      std::copy(in.begin(), in.end(), now.begin());
      initialise_slots(settings, 0.3F, in.data(), now.data() + kCount, kCount, kCount);
      initialise_elements(settings, 0.3F, in.data(), together.data(), kCount);
      for (std::uint64_t update = 0; update < 3; ++update) {
        apply(settings, {0.3F, update}, next.data(), now.data(), kCount, gradient.data(), with.scale, kCount);
        now.swap(next);
        with_element_update(settings, 0.3F, with.scale, [&](const auto& element) {
          if constexpr (requires { element(together.data(), 0.0F); })
            for (std::size_t i = 0; i < kCount; ++i) element(&together[i * record], gradient[i]);
        });
      }
      for (std::size_t i = 0; i < kCount; ++i)
        for (std::size_t slot = 0; slot < record; ++slot)
          REQUIRE(together[i * record + slot] == now[slot * kCount + i]);
    }
}

TEST_CASE("an accumulator is filled by scaled and clipped gradients, in place or not") {
  const std::vector<float> gradient = {1.0F, -2.0F, 0.25F}, in = {10.0F, 20.0F, 30.0F};
  std::vector<float> out(3);
  accumulate(out.data(), nullptr, gradient.data(), 2.0F, 1.5F, 3);
  CHECK(out == std::vector<float>{1.5F, -1.5F, 0.5F});
  accumulate(out.data(), in.data(), gradient.data(), 2.0F, 0.0F, 3);
  CHECK(out == std::vector<float>{12.0F, 16.0F, 30.5F});
  accumulate(out.data(), out.data(), gradient.data(), 1.0F, 1.0F, 3);
  CHECK(out == std::vector<float>{13.0F, 15.0F, 30.75F});
}

TEST_CASE("a gradient of NaN shows in the value, clipped or not") {
  for (const UpdateRule rule : kRules) {
    const Settings settings = settings_for(rule, kAll);
    const State before(settings, 0.1F, 80);
    State after = before;
    std::vector<float> gradient(80, 0.1F);
    gradient[3] = gradient[79] = std::nanf("");
    apply(settings, {0.1F, 0}, after.floats.data(), before.floats.data(), before.stride, gradient.data(), 1.0F, 80);
    for (std::size_t i = 0; i < 80; ++i) REQUIRE(std::isnan(after.floats[i]) == (i == 3 || i == 79));
  }
}

TEST_CASE("slots start at zero, Adagrad's at its setting, the average at the value") {
  for (const UpdateRule rule : kRules) {
    if (rule == UpdateRule::kFtrl) continue;
    const State state(settings_for(rule, kAll), 0.1F, 20);
    for (std::size_t k = 1; k < state.arrays; ++k)
      for (std::size_t i = 0; i < 20; ++i)
        REQUIRE(state.floats[k * state.stride + i] == (k == state.arrays - 1          ? state.floats[i]
                                                       : rule == UpdateRule::kAdagrad ? 0.1F
                                                                                      : 0.0F));
    for (std::size_t k = 0; k < state.arrays; ++k) CHECK(state.floats[k * state.stride + 20] == 9.0F);
  }
}

TEST_CASE("FTRL starts where its formula gives the initial value back") {
  const Settings settings = settings_for(UpdateRule::kFtrl, kAll);
  State before(settings, 0.2F, 100);
  before.floats[7] = 0;
  initialise_slots(settings, 0.2F, before.floats.data(), before.floats.data() + before.stride, before.stride, 100);
  State after = before;
  const std::vector<float> nothing(100, 0.0F);
  apply(settings, {0.2F, 0}, after.floats.data(), before.floats.data(), before.stride, nothing.data(), 1.0F, 100);
  // z is near l1 when the value is small: its rounding is then that of l1.
  const double error = 8 * 0x1p-24 * (1 + double(settings.l1) / (double(settings.ftrl_beta) / 0.2));
  for (std::size_t i = 0; i < 100; ++i) REQUIRE(std::abs(double(after.floats[i]) - double(before.floats[i])) <= error);
  CHECK(after.floats[7] == 0.0F);
}

TEST_CASE("FTRL's value is exactly zero if z is within l1, even where it would be 0 / 0") {
  Settings settings = settings_for(UpdateRule::kFtrl, kCombinations[0]);
  settings.ftrl_beta = 0;
  const float in[] = {0.5F, 0.0F, 1.0F}, gradients[] = {0.0F, 0.01F};  // w, n, z
  for (const float gradient : gradients) {
    float out[] = {9.0F, 9.0F, 9.0F};
    apply(settings, {0.1F, 0}, out, in, 1, &gradient, 1.0F, 1);
    CHECK(out[0] == 0.0F);
  }
}

TEST_CASE("FTRL at a rate of zero, where a schedule ends, changes nothing") {
  const Settings settings = settings_for(UpdateRule::kFtrl, kAll);
  const State before(settings, 0.1F, 70);
  State after = before;
  std::fill_n(after.floats.begin(), 70, 5.0F);
  const auto gradient = random_values(70);
  apply(settings, {0.0F, 9}, after.floats.data(), before.floats.data(), before.stride, gradient.data(), 1.0F, 70);
  CHECK(after == before);
}

TEST_CASE("a squared norm is the exact sum of squares to float64's precision") {
  for (const std::size_t count : {1, 15, 16, 17, 100'003}) {
    const auto values = random_values(count);
    long double sum = 0;
    for (const float value : values) sum += static_cast<long double>(value) * static_cast<long double>(value);
    CHECK(std::abs(static_cast<long double>(squared_norm(values.data(), count)) - sum) <= 1e-13L * sum);
  }
  const std::vector<float> large(20, 3e38F);  // its square overflows float32
  CHECK(squared_norm(large.data(), 20) == doctest::Approx(1.8e78));
}

TEST_CASE("a norm above the limit scales the gradient down to it, others are unchanged") {
  CHECK(clip_scale(100.0, 5.0F) == 0.5F);
  CHECK(clip_scale(25.0, 5.0F) == 1.0F);
  CHECK(clip_scale(24.0, 5.0F) == 1.0F);
  CHECK(clip_scale(0.0, 5.0F) == 1.0F);
  CHECK(clip_scale(1e60, 0.0F) == 1.0F);
}

TEST_CASE("FTRL under a falling rate follows the paper's recursion with sigma = 1/eta_t - 1/eta_(t-1)") {
  constexpr std::size_t kCount = 37;
  Optimizer optimizer;
  optimizer.rule = UpdateRule::kFtrl;
  optimizer.l1 = 0.02F;
  optimizer.l2 = 0.01F;
  const Settings settings = settings_of(optimizer, UpdateRule::kFtrl, true);
  const Schedule schedule = Schedule::parse("cosine:1000:0.01");
  std::mt19937_64 random(test::stress_seed());
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> now(3 * kCount), next(3 * kCount);
  for (std::size_t i = 0; i < kCount; ++i) now[i] = uniform(random);
  initialise_slots(settings, 0.1F, now.data(), now.data() + kCount, kCount, kCount);
  std::vector<double> w(now.begin(), now.begin() + kCount), n(kCount), z(kCount), q(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    q[i] = 1 / 0.1;
    z[i] = -w[i] * (q[i] + double(settings.l2)) - (w[i] > 0 ? 1 : -1) * double(settings.l1);
  }
  double worst = 0;
  for (std::uint64_t step = 0; step < 1000; ++step) {
    std::vector<float> gradient(kCount);
    for (float& g : gradient) g = uniform(random);
    const float rate = 0.1F * schedule.factor(step);
    apply(settings, {rate, step}, next.data(), now.data(), kCount, gradient.data(), 1.0F, kCount);
    now.swap(next);
    for (std::size_t i = 0; i < kCount; ++i) {
      const double g = double(gradient[i]);
      n[i] += g * g;
      const double steeper = (1 + std::sqrt(n[i])) / double(rate);
      z[i] += g - (steeper - q[i]) * w[i];
      q[i] = steeper;
      const double l1 = double(settings.l1);
      w[i] = std::abs(z[i]) <= l1 ? 0 : -(z[i] - (z[i] > 0 ? l1 : -l1)) / (q[i] + double(settings.l2));
      worst = std::max(worst, std::abs(w[i] - double(now[i])));
    }
  }
  CHECK(worst < 1e-5);  // of values around 0.1: some hundred roundings of 2^-24 each
}
