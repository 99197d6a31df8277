// The kernels of models, against plain loops; sums against float64, with a tolerance relative to the size of the terms.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "gpu/tables.hpp"
#include "update/rules.hpp"

namespace {

using namespace ps_shm::test;
using namespace ps_shm::device;

constexpr float kGuard = -77.0F;
constexpr std::size_t kGuards = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
struct Shape {
  int rows, columns;
};
const std::vector<Shape> kShapes{{1, 1},    {1, 257},  {3, 5},     {7, 31},    {33, 32},
                                 {100, 10}, {60, 129}, {257, 129}, {1000, 256}};

std::size_t product(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

std::vector<float> with_guard(std::vector<float> values) {
  values.insert(values.end(), kGuards, kGuard);
  return values;
}

std::vector<float> without_guard(std::vector<float> values) {
  values.resize(values.size() - kGuards);
  return values;
}

TEST_CASE("zero sizes: every kernel succeeds and accesses nothing") {
  Bench bench;
  const Stream s = bench.stream();
  bench.run(kernels().pull_pieces(nullptr, 0, nullptr, {24, 64, 30}, s));
  bench.run(kernels().send_pieces(nullptr, 0, nullptr, false, nullptr, ps_shm::kernels::kSenders, s));
  bench.run(kernels().send_pieces(nullptr, 0, nullptr, true, nullptr, ps_shm::kernels::kSenders, s));
  bench.run(kernels().add_pieces(nullptr, 0, 1.0F, 0.0F, true, s));
  ps_shm::train::ModelKernels& k = model_kernels();
  bench.run(k.bias_relu(nullptr, nullptr, 0, 0, s));
  bench.run(k.relu_gradient(nullptr, nullptr, 0, 0, nullptr, s));
  bench.run(k.softmax_cross_entropy(nullptr, nullptr, nullptr, 0, 0, nullptr, nullptr, s));
  bench.run(k.gather_rows(nullptr, nullptr, nullptr, 0, 0, nullptr, nullptr, s));
  bench.run(k.sgd_step(nullptr, nullptr, 0, 0.1F, 0.0F, 0.0F, 0.0F, s));
  bench.run(k.difference(nullptr, nullptr, 1.0F, nullptr, 0, s));
  bench.run(k.fill(nullptr, 1.0F, 0, s));
  bench.run(k.sparse_gradient({}, {}, nullptr, nullptr, nullptr, s));
  k.prepare_products(s);
  bench.run(k.multiply(false, false, 0, 3, 2, nullptr, nullptr, 0.0F, nullptr, s));
  bench.run(k.multiply(false, false, 3, 0, 2, nullptr, nullptr, 0.0F, nullptr, s));
  k.release_products(s);
}

TEST_CASE("bias and relu: the bias is added to each row, and what is below 0 becomes 0; NaN stays NaN") {
  Bench bench;
  for (const Shape& shape : kShapes) {
    const int rows = shape.rows, columns = shape.columns;
    CAPTURE(rows);
    CAPTURE(columns);
    auto values = random_floats(product(rows, columns), 1), bias = random_floats(product(1, columns), 2);
    values.front() = kNan;
    if (values.size() > 1) values.back() = kInfinity;
    const auto on_device = bench.put(with_guard(values));
    const auto added = bench.put(bias);
    bench.run(model_kernels().bias_relu(on_device.on_device(), added.on_device(), rows, columns, bench.stream()));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] += bias[i % bias.size()];
      if (values[i] < 0) values[i] = 0.0F;
    }
    CHECK(differing(bench.get(on_device), with_guard(values)) == 0);
  }
}

// The sum of the rows as the kernels add it: every 32nd row, and then the 32 sums. Behind it is the guard.
std::vector<float> sum_of_rows(const std::vector<float>& values, int columns) {
  const auto width = static_cast<std::size_t>(columns), rows = values.size() / width;
  std::vector<float> sums;
  for (std::size_t j = 0; j < width; ++j) {
    std::array<float, 32> parts = {};
    for (std::size_t i = 0; i < rows; ++i) parts[i % 32] += values[i * width + j];
    float sum = parts[0];
    for (std::size_t k = 1; k < parts.size(); ++k) sum += parts[k];
    sums.push_back(sum);
  }
  return with_guard(sums);
}

TEST_CASE("relu gradient: is 0 where the activation is 0 or below, and the bias's is its sum over the rows") {
  Bench bench;
  std::vector<Shape> shapes = kShapes;
  shapes.push_back({1024, 33});
  shapes.push_back({1025, 33});    // the sums have a kernel of their own
  shapes.push_back({65536, 257});  // more elements than a grid has threads
  for (const Shape& shape : shapes) {
    const int rows = shape.rows, columns = shape.columns;
    CAPTURE(rows);
    CAPTURE(columns);
    const std::size_t count = product(rows, columns);
    auto gradient = random_floats(count, 3), activations = random_floats(count, 4);
    for (std::size_t i = 0; i < count; i += 3) activations[i] = i % 2 == 0 ? 0.0F : -0.0F;
    if (count > 5) activations[4] = kNan, gradient[5] = kNan, activations[5] = 1.0F;
    const auto on_device = bench.put(with_guard(gradient));
    const auto shown = bench.put(activations);
    const auto sums = bench.put(with_guard(std::vector<float>(product(1, columns), kGuard)));
    bench.run(model_kernels().relu_gradient(on_device.on_device(), shown.on_device(), rows, columns, sums.on_device(),
                                            bench.stream()));
    for (std::size_t i = 0; i < count; ++i)
      if (activations[i] <= 0) gradient[i] = 0.0F;
    CHECK(differing(bench.get(on_device), with_guard(gradient)) == 0);
    CHECK(differing(bench.get(sums), sum_of_rows(gradient, columns)) == 0);
  }
}

struct Loss {
  float loss;
  std::vector<float> gradient, bias_gradient;
};

Loss softmax_on_device(Bench& bench, const std::vector<float>& logits, const std::vector<float>& bias,
                       const std::vector<std::uint8_t>& labels) {
  const auto on_device = bench.put(with_guard(logits));
  const auto added = bench.put(bias);
  const auto of_rows = bench.put(labels);
  const auto loss = bench.put(std::vector<float>{kGuard});
  const auto by_bias = bench.put(with_guard(std::vector<float>(bias.size(), kGuard)));
  bench.run(model_kernels().softmax_cross_entropy(on_device.on_device(), added.on_device(), of_rows.on_device(),
                                                  static_cast<int>(labels.size()), static_cast<int>(bias.size()),
                                                  loss.on_device(), by_bias.on_device(), bench.stream()));
  return {bench.get(loss)[0], bench.get(on_device), bench.get(by_bias)};
}

TEST_CASE("softmax: loss and gradients equal float64 loops, for large logits too, and repeat bit by bit") {
  Bench bench;
  for (const Shape& shape : kShapes)
    for (const float scale : {1.0F, 30.0F, 1e30F}) {
      const int rows = shape.rows, columns = shape.columns;
      if (columns > 256) continue;
      CAPTURE(rows);
      CAPTURE(columns);
      CAPTURE(scale);
      auto products = random_floats(product(rows, columns), 5), bias = random_floats(product(1, columns), 6);
      for (float& value : products) value *= scale;
      for (float& value : bias) value *= scale;
      std::vector<float> logits = products;
      for (std::size_t i = 0; i < logits.size(); ++i) logits[i] += bias[i % bias.size()];
      std::vector<std::uint8_t> labels;
      for (int i = 0; i < rows; ++i) labels.push_back(static_cast<std::uint8_t>(i * 7 % columns));
      double total = 0.0;
      std::vector<double> expected(logits.size());
      for (std::size_t i = 0; i < labels.size(); ++i) {
        const std::size_t begin = i * static_cast<std::size_t>(columns),
                          end = begin + static_cast<std::size_t>(columns);
        const double largest =
            double(*std::max_element(logits.begin() + std::ptrdiff_t(begin), logits.begin() + std::ptrdiff_t(end)));
        double sum = 0.0;
        for (std::size_t j = begin; j < end; ++j) sum += std::exp(double(logits[j]) - largest);
        total += std::log(sum) - (double(logits[begin + labels[i]]) - largest);
        for (std::size_t j = begin; j < end; ++j)
          expected[j] = (std::exp(double(logits[j]) - largest) / sum - (j == begin + labels[i] ? 1.0 : 0.0)) / rows;
      }
      const Loss once = softmax_on_device(bench, products, bias, labels);
      // The difference of two logits has their rounding.
      const double slack = 32 * kEpsilon * (1.0 + double(scale));
      CHECK(std::abs(double(once.loss) - total / rows) <= slack + 8 * kEpsilon * std::abs(total / rows));
      double worst = 0.0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        worst = std::max(worst, std::abs(double(once.gradient[i]) - expected[i]));
      CHECK(worst <= 64 * kEpsilon * (1.0 + std::min(double(scale), 100.0)) / rows);
      CHECK(once.gradient.back() == kGuard);
      CHECK(differing(once.bias_gradient, sum_of_rows(without_guard(once.gradient), columns)) == 0);
      const Loss again = softmax_on_device(bench, products, bias, labels);
      CHECK(is_same(once.loss, again.loss));
      CHECK(differing(once.gradient, again.gradient) == 0);
      CHECK(differing(once.bias_gradient, again.bias_gradient) == 0);
    }
}

TEST_CASE("softmax: a large batch, whose gradients have kernels of their own, has the bits of a small one") {
  Bench bench;
  constexpr int kRows = 256, kColumns = 100, kTimes = 8;  // powers of 2, so that a row's share is exact
  const std::vector<float> logits = random_floats(product(kRows, kColumns), 5), bias = random_floats(kColumns, 6);
  std::vector<std::uint8_t> labels;
  for (int i = 0; i < kRows; ++i) labels.push_back(static_cast<std::uint8_t>(i * 7 % kColumns));
  std::vector<float> many_logits;
  std::vector<std::uint8_t> many_labels;
  for (int time = 0; time < kTimes; ++time) {
    many_logits.insert(many_logits.end(), logits.begin(), logits.end());
    many_labels.insert(many_labels.end(), labels.begin(), labels.end());
  }
  const Loss small = softmax_on_device(bench, logits, bias, labels);
  const Loss large = softmax_on_device(bench, many_logits, bias, many_labels);
  std::size_t different = 0;
  for (std::size_t i = 0; i < many_logits.size(); ++i)
    different += !is_same(kTimes * large.gradient[i], small.gradient[i % logits.size()]);
  CHECK(different == 0);
  CHECK(std::abs(large.loss - small.loss) <= 4 * kEpsilon * small.loss);
  CHECK(differing(large.bias_gradient, sum_of_rows(without_guard(large.gradient), kColumns)) == 0);
}

TEST_CASE("softmax: NaN or infinity in any row, or in the bias, shows in the loss") {
  Bench bench;
  for (const float strange : {kNan, kInfinity})
    for (const std::size_t place : {0, 3, 40, 639}) {
      auto logits = random_floats(640, 6), bias = random_floats(10, 7);
      (place == 3 ? bias : logits)[place] = strange;
      const Loss found = softmax_on_device(bench, logits, bias, std::vector<std::uint8_t>(64, 3));
      CHECK_FALSE(std::isfinite(found.loss));
    }
}

TEST_CASE("gather: rows and labels come in the order of the indices, repeated ones too") {
  Bench bench;
  constexpr std::size_t kSet = 300;
  for (const int columns : {1, 3, 4, 64, 65, 784})
    for (const int rows : {1, 8, 9, 501})
      for (const std::size_t shift : {0, 1}) {
        CAPTURE(columns);
        CAPTURE(rows);
        const auto width = static_cast<std::size_t>(columns), count = static_cast<std::size_t>(rows);
        const auto set = random_floats(kSet * width + shift, 8);
        std::vector<std::uint8_t> set_labels(kSet), labels(count);
        std::vector<std::uint32_t> indices(count);
        for (std::size_t i = 0; i < kSet; ++i) set_labels[i] = static_cast<std::uint8_t>(i * 31);
        std::vector<float> expected;
        for (std::size_t i = 0; i < count; ++i) {
          indices[i] = static_cast<std::uint32_t>((i * 7919 + 299) % kSet);
          labels[i] = set_labels[indices[i]];
          const auto row = set.begin() + std::ptrdiff_t(shift + indices[i] * width);
          expected.insert(expected.end(), row, row + columns);
        }
        const auto on_device = bench.put(set), out = bench.put(with_guard(std::vector<float>(count * width, kGuard)));
        const auto of_set = bench.put(set_labels), of_rows = bench.put(std::vector<std::uint8_t>(count));
        const auto order = bench.put(indices);
        bench.run(model_kernels().gather_rows(on_device.on_device() + shift, of_set.on_device(), order.on_device(),
                                              rows, columns, out.on_device(), of_rows.on_device(), bench.stream()));
        CHECK(differing(bench.get(out), with_guard(expected)) == 0);
        CHECK(bench.get(of_rows) == labels);
      }
}

TEST_CASE("sgd: has the same bits as the CPU's step") {
  Bench bench;
  for (const std::size_t count : {1, 257, 100003})
    for (const auto& [l2, decay, clip_value] : {std::tuple{0.0F, 0.0F, 0.0F}, std::tuple{0.01F, 0.0F, 0.25F},
                                                std::tuple{0.003F, 0.1F, 0.0F}, std::tuple{0.0F, 0.1F, 0.0F}}) {
      auto values = random_floats(count, 13), gradient = random_floats(count, 14);
      if (count > 9) {
        gradient[1] = kNan;
        gradient[2] = kInfinity;
        values[3] = -kInfinity;
        values[4] = 0x1.8p-140F, gradient[4] = 0x1.4p-139F;
        values[5] = std::numeric_limits<float>::max(), gradient[5] = -values[5];
      }
      const auto on_device = bench.put(with_guard(values));
      const auto of_values = bench.put(gradient);
      bench.run(model_kernels().sgd_step(on_device.on_device(), of_values.on_device(), count, 0.3F, l2, decay,
                                         clip_value, bench.stream()));
      ps_shm::update::Settings settings;
      settings.l2 = l2;
      settings.weight_decay = decay;
      settings.clip_value = clip_value;
      const auto before = values;
      ps_shm::update::apply(settings, {0.3F, 0}, values.data(), before.data(), 0, gradient.data(), 1.0F, count);
      CHECK(differing(bench.get(on_device), with_guard(values)) == 0);
    }
}

TEST_CASE("difference and fill: have the same bits as plain loops, also for more elements than a grid has threads") {
  Bench bench;
  for (const std::size_t count : {1, 257, 100003}) {
    const auto a = random_floats(count, 15), b = random_floats(count, 16);
    const auto left = bench.put(a), right = bench.put(b), out = bench.put(with_guard(a));
    bench.run(
        model_kernels().difference(left.on_device(), right.on_device(), 0.3F, out.on_device(), count, bench.stream()));
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < count; ++i) expected[i] = 0.3F * (a[i] - b[i]);
    CHECK(differing(bench.get(out), with_guard(expected)) == 0);
  }
  constexpr std::size_t kMany = std::size_t{65535} * 256 + 7;
  const auto out = bench.put(std::vector<float>(kMany + 1, kGuard));
  bench.run(model_kernels().fill(out.on_device(), 2.5F, kMany, bench.stream()));
  const auto filled = bench.get(out);
  CHECK(std::count(filled.begin(), filled.end(), 2.5F) == std::ptrdiff_t(kMany));
  CHECK(filled.back() == kGuard);
}

TEST_CASE("product: all transpositions equal float64's within rounding, repeat bit by bit, and can be recorded") {
  Bench bench;
  const Stream stream = bench.stream();
  model_kernels().prepare_products(stream);
  for (const auto& sizes : {std::array{1, 1, 1}, std::array{3, 5, 7}, std::array{64, 10, 33}, std::array{129, 65, 257}})
    for (int variant = 0; variant < 4; ++variant)
      for (const float beta : {0.0F, 1.0F, 0.5F}) {
        const int m = sizes[0], n = sizes[1], k = sizes[2];
        const bool a_transposed = variant % 2 != 0, b_transposed = variant / 2 != 0;
        CAPTURE(m);
        CAPTURE(variant);
        CAPTURE(beta);
        const auto a = random_floats(product(m, k), 17), b = random_floats(product(k, n), 18);
        auto before = random_floats(product(m, n), 19);
        if (beta == 0.0F) before[0] = kNan;  // is not read in this case
        const auto left = bench.put(a), right = bench.put(b);
        auto out = bench.put(with_guard(before));
        const auto enqueue = [&] {
          return model_kernels().multiply(a_transposed, b_transposed, m, n, k, left.on_device(), right.on_device(),
                                          beta, out.on_device(), stream);
        };
        bench.run(enqueue());
        const auto once = bench.get(out);
        std::size_t wrong = 0;
        for (int i = 0; i < m; ++i)
          for (int j = 0; j < n; ++j) {
            const std::size_t place = product(i, n) + std::size_t(j);
            double sum = beta == 0.0F ? 0.0 : double(beta) * double(before[place]), size = std::abs(sum);
            for (int l = 0; l < k; ++l) {
              const double term =
                  double(a[a_transposed ? product(l, m) + std::size_t(i) : product(i, k) + std::size_t(l)]) *
                  double(b[b_transposed ? product(j, k) + std::size_t(l) : product(l, n) + std::size_t(j)]);
              sum += term;
              size += std::abs(term);
            }
            wrong += std::abs(double(once[place]) - sum) <= (k + 2) * kEpsilon * size ? 0 : 1;
          }
        CHECK(wrong == 0);
        CHECK(once.back() == kGuard);

        out = bench.put(with_guard(before));
        // Nothing may wait for a stream that is being recorded.
        const CudaError begun = cuda().begin_capture(stream), recorded = enqueue();
        Graph graph = nullptr;
        std::size_t operations = 0;
        const CudaError ended = cuda().end_capture(stream, graph, operations);
        REQUIRE(begun == kSuccess);
        REQUIRE(recorded == kSuccess);
        REQUIRE(ended == kSuccess);
        CHECK(operations >= 1);
        bench.run(cuda().launch(graph, stream));
        CHECK(differing(bench.get(out), once) == 0);
        bench.run(cuda().destroy_graph(graph));
      }
  model_kernels().release_products(stream);
}

}  // namespace
