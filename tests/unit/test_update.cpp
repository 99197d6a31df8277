#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "ps/errors.hpp"
#include "ps/schedule.hpp"
#include "update/rules.hpp"

using namespace ps;
using namespace ps::update;

namespace {

std::vector<float> random_values(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) value = float(generator() % 20001) / 10000.0F - 1.0F;
  return values;
}

}  // namespace

TEST_CASE("add over a thousand random steps stays at the float64 sum") {
  std::vector<float> value(37, 0.0F), next(37);
  std::vector<double> reference(37, 0.0);
  for (unsigned step = 0; step < 1000; ++step) {
    const auto delta = random_values(37, step);
    apply(UpdateRule::kAdd, next.data(), value.data(), delta.data(), 37, {});
    value.swap(next);
    for (std::size_t i = 0; i < 37; ++i) reference[i] += double(delta[i]);
  }
  for (std::size_t i = 0; i < 37; ++i) CHECK(double(value[i]) == doctest::Approx(reference[i]).epsilon(1e-3));
}

TEST_CASE("SGD with L2 over a thousand random steps stays at the float64 reference") {
  const Hyper hyper{0.05F, 0.01F};
  std::vector<float> value = random_values(37, 99), next(37);
  std::vector<double> reference(value.begin(), value.end());
  for (unsigned step = 0; step < 1000; ++step) {
    const auto gradient = random_values(37, step);
    apply(UpdateRule::kSgd, next.data(), value.data(), gradient.data(), 37, hyper);
    value.swap(next);
    for (std::size_t i = 0; i < 37; ++i)
      reference[i] -= double(hyper.learning_rate) * (double(gradient[i]) + double(hyper.l2) * reference[i]);
  }
  for (std::size_t i = 0; i < 37; ++i) CHECK(double(value[i]) == doctest::Approx(reference[i]).epsilon(1e-3).scale(1));
}

TEST_CASE("an optimizer takes the mean over the contributors, add takes the sum") {
  const std::vector<float> in(3000, 1.0F), first(3000, 2.0F), second(3000, 4.0F), third(3000, 6.0F);
  std::vector<float> out(3000);
  const float* gradients[] = {first.data(), second.data(), third.data()};
  apply_combined(UpdateRule::kAdd, out.data(), in.data(), gradients, 3000, {});
  CHECK(out == std::vector<float>(3000, 13.0F));
  apply_combined(UpdateRule::kSgd, out.data(), in.data(), gradients, 3000, {0.25F, 0.0F});
  for (const float value : out) REQUIRE(value == doctest::Approx(0.0F));
}

TEST_CASE("combining depends on no position: any split gives the same bits") {
  const auto in = random_values(2500, 1), a = random_values(2500, 2), b = random_values(2500, 3),
             c = random_values(2500, 4);
  const Hyper hyper{0.1F, 0.001F};
  std::vector<float> whole(2500), parts(2500);
  const float* all[] = {a.data(), b.data(), c.data()};
  apply_combined(UpdateRule::kSgd, whole.data(), in.data(), all, 2500, hyper);
  for (std::size_t at = 0; at < 2500; at += 7) {
    const float* some[] = {a.data() + at, b.data() + at, c.data() + at};
    apply_combined(UpdateRule::kSgd, parts.data() + at, in.data() + at, some, std::min<std::size_t>(7, 2500 - at),
                   hyper);
  }
  CHECK(std::memcmp(whole.data(), parts.data(), 2500 * sizeof(float)) == 0);
}

TEST_CASE("a single contributor's mean is its gradient") {
  const std::vector<float> in(10, 1.0F), gradient(10, 0.5F);
  std::vector<float> alone(10), combined(10);
  const float* one[] = {gradient.data()};
  apply(UpdateRule::kSgd, alone.data(), in.data(), gradient.data(), 10, {0.1F, 0.0F});
  apply_combined(UpdateRule::kSgd, combined.data(), in.data(), one, 10, {0.1F, 0.0F});
  CHECK(alone == combined);
}

TEST_CASE("no element: nothing is touched") {
  float guard = 7.0F;
  apply(UpdateRule::kSgd, &guard, &guard, &guard, 0, {0.1F, 0.0F});
  CHECK(guard == 7.0F);
}

TEST_CASE("the one-element form of SGD agrees with the array form") {
  const Hyper hyper{0.1F, 0.01F};
  const float in = 0.75F, gradient = -0.5F;
  float out = 0;
  apply(UpdateRule::kSgd, &out, &in, &gradient, 1, hyper);
  CHECK(sgd_one(in, gradient, hyper) == out);
  CHECK(add_one(in, gradient) == 0.25F);
}

TEST_CASE("a constant schedule is one at every step") {
  const Schedule schedule = Schedule::parse("constant");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(1'000'000'000) == 1.0F);
}

TEST_CASE("an exponential schedule decays continuously") {
  const Schedule schedule = Schedule::parse("exp:0.99:600");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(600) == doctest::Approx(0.99));
  CHECK(schedule.factor(300) == doctest::Approx(std::sqrt(0.99)));
  CHECK(schedule.to_string() == "exp:0.99:600");
}

TEST_CASE("a schedule that cannot be read is refused") {
  for (const char* text : {"", "exp", "exp:", "exp:0.9", "exp:0.9:", "exp:x:3", "exp:0.9:3:4", "exp:-1:3", "exp:0.9:0",
                           "cosine", "exp:nan:3", "exp:0.9:inf"})
    CHECK_THROWS_AS(Schedule::parse(text), Error);
}
