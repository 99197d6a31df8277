#include "train/data/sparse/sparse_stream.hpp"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "support/sanitizers.hpp"
#include "support/sparse_texts.hpp"

namespace {

using namespace ps_shm;
using namespace ps_shm::test;
using train::SparseData;
using train::SparsePart;
using train::SparseSourceOptions;
using train::SparseStream;

// Rows of different lengths; a label is the row's number.
SparseData numbered(int rows) {
  std::string text;
  for (int row = 0; row < rows; ++row) {
    text += std::to_string(row);
    for (int i = 1; i <= row % 7; ++i) text += " " + std::to_string(i * (row % 11 + 1)) + ":" + std::to_string(row + i);
    text += "\n";
  }
  return parse(text);
}

std::vector<float> take(SparseStream& stream, std::uint64_t count) {
  std::vector<float> labels;
  for (; count != 0; --count) labels.push_back(stream.next().label);
  return labels;
}

std::vector<float> sorted(std::vector<float> labels) {
  std::sort(labels.begin(), labels.end());
  return labels;
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0, of_files = 0;
  file >> all >> resident >> of_files;
#if defined(__SANITIZE_ADDRESS__)
  resident = of_files;  // the sanitizer's own memory grows with the addresses that were ever read
#endif
  return resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

constexpr std::size_t kWhole = SparseStream::kWindowBytes, kSmall = 2000;

}  // namespace

TEST_CASE("sparse stream: each epoch visits every example once, in a new order, in one window and in many") {
  constexpr int kRows = 500;
  const SparseData data = numbered(kRows);
  const std::vector<PlainExample> all = examples_of(data);
  for (const std::size_t window : {kWhole, kSmall, std::size_t{1}}) {
    CAPTURE(window);
    SparseStream stream(data, {}, 1, 0, window);
    CHECK(stream.examples() == kRows);
    std::set<std::vector<float>> orders;
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<float> labels;
      for (int i = 0; i < kRows; ++i) {
        CHECK(stream.epochs() == epoch);
        const PlainExample example = plain(stream.next());
        CHECK(example == all[std::size_t(example.label)]);
        labels.push_back(example.label);
      }
      orders.insert(labels);
      for (int i = 0; i < kRows; ++i) REQUIRE(sorted(labels)[std::size_t(i)] == float(i));
    }
    CHECK(stream.epochs() == 4);
    CHECK(orders.size() == 4);
  }
}

TEST_CASE("sparse stream: in windows, neighbours in the data stay close; a single window mixes all data") {
  const SparseData data = numbered(2000);
  const auto mean_jump = [&](std::size_t window) {
    SparseStream stream(data, {}, 1, 0, window);
    const std::vector<float> labels = take(stream, 2000);
    double sum = 0;
    for (std::size_t i = 1; i < labels.size(); ++i) sum += std::abs(labels[i] - labels[i - 1]);
    return sum / double(labels.size() - 1);
  };
  CHECK(mean_jump(kWhole) == doctest::Approx(2000.0 / 3).epsilon(0.1));  // for two uniform draws
  CHECK(mean_jump(kSmall) < 60);  // windows of about 62 rows: a third of it, and one long jump in 62
  CHECK(mean_jump(kSmall) > 20);
}

TEST_CASE("sparse stream: the order is a function of data, part, seed and rank") {
  const SparseData data = numbered(300), same = numbered(300);
  const auto order = [](const SparseData& of, SparsePart part, std::uint64_t seed, unsigned rank) {
    SparseStream stream(of, part, seed, rank, kSmall);
    return take(stream, 700);
  };
  const std::vector<float> first = order(data, {}, 1, 0);
  CHECK(order(same, {}, 1, 0) == first);
  CHECK(order(data, {}, 2, 0) != first);
  CHECK(order(data, {}, 1, 1) != first);
  CHECK(order(data, {.test_share = 0.01, .is_test = false}, 1, 0) != first);
}

TEST_CASE("sparse part: training and test part are disjoint, complete, and have about their fraction") {
  constexpr int kRows = 3000;
  const SparseData data = numbered(kRows);
  const SparsePart training{.test_share = 0.1, .is_test = false}, test{.test_share = 0.1, .is_test = true};
  std::vector<float> labels;
  for (const SparsePart& part : {training, test})
    train::for_each_example(data, part, [&](const train::SparseExample& one) { labels.push_back(one.label); });
  CHECK(std::is_sorted(labels.begin(), labels.begin() + 2000));
  CHECK(sorted(labels).size() == kRows);
  CHECK(std::set<float>(labels.begin(), labels.end()).size() == kRows);
  for (const std::size_t window : {kWhole, kSmall}) {
    SparseStream held_out(data, test, 1, 0, window);
    CHECK(held_out.examples() > 240);  // 300 expected, with a deviation of 16
    CHECK(held_out.examples() < 360);
    const std::vector<float> seen = take(held_out, held_out.examples());
    CHECK(held_out.epochs() == 1);
    CHECK(sorted(seen) == std::vector<float>(labels.end() - std::ptrdiff_t(seen.size()), labels.end()));
  }
}

TEST_CASE("sparse stream: a part without examples is an error that names the data") {
  const SparseData data = numbered(3);
  CHECK(error_of([&] {
          SparseStream(data, {.test_share = 0, .is_test = true}, 1, 0);
        }).find("data: none of its 3 examples is held out for testing") == 0);
  CHECK(error_of([&] {
          SparseStream(data, {.test_share = 1, .is_test = false}, 1, 0);
        }).find("data: none of its 3 examples is left for training") == 0);
}

TEST_CASE("sparse stream: one example is an epoch") {
  const SparseData data = numbered(1);
  SparseStream stream(data, {}, 1, 0);
  for (std::uint64_t epoch = 1; epoch < 4; ++epoch) {
    CHECK(stream.next().label == 0);
    CHECK(stream.epochs() == epoch);
  }
}

TEST_CASE("sparse data: reading a file and streaming it take constant memory") {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  constexpr std::size_t kWindow = 4 * kMiB;
  const Folder folder;
  const std::string path = folder.path("data");
  {
    std::ofstream file(path, std::ios::binary);
    std::string block;
    for (int row = 0; row < 4096; ++row) {
      block += row % 2 == 0 ? "+1" : "-1";
      for (int i = 0; i < 20; ++i) block += " " + std::to_string(i * 1000 + row % 1000 + 1) + ":0.25";
      block += "\n";
    }
    while (file && file.tellp() < std::ptrdiff_t(64 * kMiB)) file << block;
    REQUIRE(file);
  }
  const std::uint64_t before = resident_bytes();
  std::uint64_t most = 0;
  const auto look = [&] { most = std::max(most, resident_bytes() - std::min(before, resident_bytes())); };
  SparseSourceOptions options;
  options.stop_requested = [&] { return look(), false; };  // once per block
  const SparseData data = SparseData::read(path, options);
  CHECK(most < 16 * kMiB);  // buffers of 2 and 1 MiB
  const std::uint64_t bytes = data.words().size_bytes();
  CHECK(bytes > 30 * kMiB);
  CHECK(data.info().examples * 168 == bytes);

  most = 0;
  SparseStream stream(data, {}, 1, 0, kWindow);
  look();
  double sum = 0;
  for (std::uint64_t i = 0; i < 2 * stream.examples(); ++i) {
    for (const float value : stream.next().values) sum += value;
    if (i % 1024 == 0) look();
  }
  CHECK(sum == double(data.info().nonzeros) * 0.25 * 2);
  // The window, what the kernel maps around it, its order, and the memory of a cursor.
  CHECK(most < 16 * kMiB);
}
