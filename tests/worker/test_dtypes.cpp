// Variables of other dtypes than float32: their bytes can be pulled, added to and assigned, and nothing else, except for
// bfloat16 (test_values.cpp).
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "support/error_text.hpp"
#include "support/job.hpp"
#include "update/dtypes.hpp"
#include "update/rules.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

constexpr DType kAll[] = {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kInt64,      DType::kFloat16,
                          DType::kInt32,   DType::kInt16,   DType::kInt8,     DType::kUint64,     DType::kUint32,
                          DType::kUint16,  DType::kUint8,   DType::kBool,     DType::kFloat8E4M3, DType::kFloat8E5M2};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::vector<T> pulled(Worker& worker, const Variable& variable) {
  std::vector<T> values(variable.element_count());
  worker.pull(variable, std::as_writable_bytes(std::span(values)));
  return values;
}

// Sums that wrap around in T, or are rounded to it.
template <class T>
void check_sums(DType dtype, std::uint32_t tasks = 1) {
  CAPTURE(to_string(dtype));
  CAPTURE(tasks);
  JobConfig config = config_of({.ps_tasks = tasks});
  if (tasks > 1) config.placement = Placement::kPartition, config.chunk_bytes = 1024;
  Server server(config);
  Worker worker(options(config, 0));
  for (const std::uint64_t count : {1, 2, 3, 7, 5000}) {
    CAPTURE(count);
    const Variable variable =
        worker.variable({.name = "v" + std::to_string(count), .shape = {count}, .dtype = dtype}, zero);
    std::vector<T> first(count), delta(count), sum(count);
    for (std::size_t i = 0; i < count; ++i) {
      first[i] = i % 2 == 0 ? std::numeric_limits<T>::max() : T(i);
      delta[i] = i % 2 == 0 ? T(i + 1) : T(3);
      sum[i] = std::is_integral_v<T> ? T(std::uint64_t(first[i]) + std::uint64_t(delta[i])) : T(first[i] + delta[i]);
    }
    worker.assign(variable, bytes_of(first));
    worker.add(variable, bytes_of(delta));
    CHECK(pulled<T>(worker, variable) == sum);
  }
}

}  // namespace

TEST_CASE("bytes of any dtype are pulled as assigned, by workers, views and snapshots, in parts or in full") {
  for (const DType dtype : kAll)
    for (const bool is_parted : {false, true})
      for (const std::vector<std::uint64_t>& shape :
           {std::vector<std::uint64_t>{}, {1}, {3}, {6, 4}, {5, 3}, {2000, 8}}) {
        CAPTURE(to_string(dtype));
        CAPTURE(shape.size());
        JobConfig settings{.optimizer = {.rule = UpdateRule::kAdam}};
        if (is_parted) settings.ps_tasks = 2, settings.placement = Placement::kPartition;
        Job job(settings);
        Worker worker = job.join(0);
        const VariableSpec spec{.name = "v", .shape = shape, .dtype = dtype};
        const std::size_t size = spec.element_count() * ps_shm::bytes_of(dtype);
        // Its first float begins with four bytes of 1, whatever the type.
        const Variable variable = worker.variable(spec, [&](std::span<float> values) {
          CHECK(values.size() == (size + 3) / 4);
          std::memset(values.data(), 1, std::min<std::size_t>(size, 4));
        });
        CHECK(variable.dtype() == dtype);
        CHECK(variable.element_count() == spec.element_count());
        std::vector<std::byte> pulled(size + 1), given(size + 1);
        std::fill(pulled.begin(), pulled.end(), std::byte{9});
        worker.pull(variable, std::span(pulled).subspan(0, size));
        CHECK(pulled[0] == std::byte{1});
        CHECK(pulled[std::min<std::size_t>(size, 4) - 1] == std::byte{1});
        if (size > 4) CHECK(pulled[size - 1] == std::byte{0});
        for (std::size_t i = 0; i < size; ++i) given[i + 1] = static_cast<std::byte>(i * 7 + 1);
        worker.assign(variable,
                      std::span<const std::byte>(given).subspan(1));  // not aligned for a float
        worker.pull(variable, std::span(pulled).subspan(1));
        const auto is_given = [&](const std::byte* found) { return std::memcmp(found, given.data() + 1, size) == 0; };
        CHECK(is_given(pulled.data() + 1));
        const JobView view = job.view();
        CHECK(is_given(view.bytes("v").data()));
        CHECK(view.bytes("v").size() == size);
        const VariableInfo info = view.variables().front();
        CHECK(info.dtype == dtype);
        CHECK(info.bytes == size);
        CHECK(info.element_count == spec.element_count());
        std::uint64_t rows = 0;
        for (const PartInfo& part : info.parts) CHECK(part.first_row == std::exchange(rows, rows + part.rows));
        CHECK(rows == (shape.empty() ? 1 : shape[0]));
        const bool cuts_rows = size / rows % 4 == 0 && rows > 1;
        CHECK(info.parts.size() == (is_parted && cuts_rows ? 2 : 1));
        const Snapshot snapshot = worker.snapshot();
        worker.assign(variable, std::vector<std::byte>(size));
        std::fill(pulled.begin(), pulled.end(), std::byte{9});
        snapshot.copy("v", std::span(pulled).subspan(1));
        CHECK(is_given(pulled.data() + 1));
        CHECK(info.rule == (update::takes_gradients(dtype) ? UpdateRule::kAdam : UpdateRule::kAdd));
      }
}

TEST_CASE("sums are computed in the element's type") {
  check_sums<std::int64_t>(DType::kInt64);
  check_sums<std::uint64_t>(DType::kUint64);
  check_sums<std::int32_t>(DType::kInt32);
  check_sums<std::uint32_t>(DType::kUint32);
  check_sums<std::int16_t>(DType::kInt16);
  check_sums<std::uint16_t>(DType::kUint16);
  check_sums<std::int8_t>(DType::kInt8);
  check_sums<std::uint8_t>(DType::kUint8);
  check_sums<double>(DType::kFloat64);
  check_sums<float>(DType::kFloat32);
  check_sums<std::int64_t>(DType::kInt64, 3);
  check_sums<double>(DType::kFloat64, 3);
  check_sums<std::int16_t>(DType::kInt16, 3);
}

TEST_CASE("padding of the last float does not count") {
  std::vector<std::uint64_t> digests;
  for (const int tail : {0, 7}) {
    Job job;
    Worker worker = job.join(0);
    worker.variable({.name = "v", .shape = {5}, .dtype = DType::kUint8}, [&](std::span<float> values) {
      std::memset(values.data(), tail, values.size_bytes());
      std::memset(values.data(), 1, 5);
    });
    digests.push_back(job.view().digest());
  }
  CHECK(digests[0] == digests[1]);
}

TEST_CASE("an int64 counter that several workers add to loses nothing, even beyond a float's precision") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    for (const Reduce reduce : {Reduce::kOrdered, Reduce::kAtomic}) {
      if (mode == Mode::kAsync && reduce == Reduce::kAtomic) continue;
      Job job({.workers = 3, .mode = mode, .reduce = reduce});
      constexpr std::int64_t kFirst = std::int64_t{1} << 60, kAdds = 300;
      std::vector<std::int64_t> counts(2);
      std::vector<std::thread> threads;
      for (std::uint32_t rank = 0; rank < 3; ++rank)
        threads.emplace_back([&, rank] {
          Worker worker = job.join(rank);
          const VariableSpec spec{.name = "count", .shape = {2}, .dtype = DType::kInt64};
          const Variable variable = worker.variable(spec, [&](std::span<float> values) {
            const std::int64_t first[] = {kFirst, -kFirst};
            std::memcpy(values.data(), first, sizeof first);
          });
          for (std::int64_t i = 0; i < kAdds; ++i) {
            worker.add(variable, bytes_of(std::vector<std::int64_t>{1, -1}));
            worker.add(variable, bytes_of(std::vector<std::int64_t>{0, -2}));
            worker.step();
          }
          worker.barrier();
          if (rank == 0) counts = pulled<std::int64_t>(worker, variable);
          worker.barrier();
        });
      for (std::thread& thread : threads) thread.join();
      CHECK(counts == std::vector<std::int64_t>{kFirst + 3 * kAdds, -kFirst - 9 * kAdds});
    }
  }
}

TEST_CASE("operations for gradients and floats are refused, with a hint at the alternative") {
  Job job;
  Worker worker = job.join(0);
  const Variable tokens = worker.variable({.name = "tokens", .shape = {4}, .dtype = DType::kInt32}, zero);
  const Variable mask = worker.variable({.name = "mask", .shape = {3}, .dtype = DType::kBool}, zero);
  std::vector<float> four(4);
  std::vector<std::byte> long_one(17);
  const std::string said =
      "variable 'tokens': its dtype is int32, and this call is for float32; pull or assign its bytes, or add to them";
  CHECK(contains(error_of([&] { worker.push(tokens, four); }), "push of " + said));
  CHECK(contains(error_of([&] { worker.pull(tokens, four); }), "pull of " + said));
  CHECK(contains(error_of([&] { worker.add(tokens, four); }), "add of " + said));
  CHECK(contains(error_of([&] { worker.assign(tokens, four); }), "assign of " + said));
  const std::vector<std::span<float>> outs = {std::span(four)};
  CHECK(contains(error_of([&] { worker.pull_all(std::span(&tokens, 1), outs); }), "pull of " + said));
  Versions versions;
  CHECK(contains(error_of([&] { worker.pull_if_changed(tokens, four, versions); }), "pull of " + said));
  CHECK(contains(error_of([&] { worker.pull(mask, std::span(four).first(3)); }), "pull or assign its bytes"));
  CHECK(!contains(error_of([&] { worker.pull(mask, std::span(four).first(3)); }), "added to"));
  CHECK(contains(error_of([&] { worker.gradient(tokens); }), "a gradient of " + said));
  CHECK(contains(error_of([&] { worker.pull(tokens, std::span(long_one)); }), "are 16 bytes, the span has 17"));
  CHECK(contains(error_of([&] { worker.add(mask, std::vector<std::byte>(3)); }), "bool has no sum; assign it"));
  CHECK(contains(error_of([&] { job.view().values("tokens"); }), "has dtype int32, not float32: use bytes()"));
  CHECK(contains(error_of([&] { worker.snapshot().copy("tokens", four); }), "give a span of bytes"));
  const auto declare = [&](const VariableSpec& spec) { return error_of([&] { worker.variable(spec, zero); }); };
  VariableSpec spec{.name = "other", .shape = {4}, .rule = UpdateRule::kAdam, .dtype = DType::kInt32};
  CHECK(contains(declare(spec), "takes no gradients"));
  spec = {.name = "other", .shape = {4}, .dtype = DType::kInt32, .layout = Layout::kInplace};
  CHECK(contains(declare(spec), "has dtype int32, and only float32 and bfloat16 can be in-place"));
  spec = {.name = "tokens", .shape = {4}};
  CHECK(contains(declare(spec), "already exists with dtype int32, but float32 was requested"));
}

TEST_CASE("bfloat16: values take half the memory, and state that of float32") {
  Job job({.chunk_bytes = 1024, .optimizer = {.rule = UpdateRule::kMomentum, .ema = 0.7F}});
  Worker worker = job.join();
  worker.variable({.name = "v", .shape = {4096}, .dtype = DType::kBFloat16}, zero);
  const VariableInfo info = job.view().variables().front();
  CHECK(info.bytes == 2 * 4096);
  CHECK(info.parts.front().bytes == 2 * 4096);
  CHECK(info.parts.front().slot_bytes == 2 * 4 * 4096);  // momentum and the average
  CHECK(info.slots == std::vector<std::string>{"momentum", "ema"});
  CHECK(info.parts.front().chunks * 1024 < 4096 * (2 + 2 * 4) * 1.25);
}

TEST_CASE("bfloat16: what is not possible is said") {
  Job job;
  Worker worker = job.join();
  VariableSpec spec{.name = "v", .shape = {4}, .dtype = DType::kBFloat16};
  const Variable variable = worker.variable(spec, zero);
  std::vector<float> four(4);
  CHECK(error_of([&] { worker.push(variable, std::vector<float>(3)); }) ==
        "push of variable 'v': it has 4 elements, the span has 3");
  CHECK(error_of([&] { worker.pull(variable, std::span(four).first(2)); }) ==
        "pull of variable 'v': it has 4 elements, the span has 2");
  CHECK(contains(error_of([&] { worker.add(variable, four); }), "its dtype is bfloat16, and this call is for float32"));
  CHECK(contains(error_of([&] { worker.add(variable, std::as_bytes(std::span(four)).first(8)); }),
                 "bfloat16 has no sum"));
  CHECK(contains(error_of([&] { static_cast<void>(worker.assign(variable, four)); }), "this call is for float32"));
  spec = {.name = "w", .shape = {4}, .rule = UpdateRule::kSgd, .dtype = DType::kFloat16};
  CHECK(contains(error_of([&] { worker.variable(spec, zero); }), "float16, which takes no gradients"));
}

// The tables of Micikevicius et al., FP8 Formats for Deep Learning (2022).
TEST_CASE("floats of 8 bits have the values of their formats") {
  const auto e4m3 = [](int bits) { return float(update::Float8E4M3{static_cast<std::uint8_t>(bits)}); };
  const auto e5m2 = [](int bits) { return float(update::Float8E5M2{static_cast<std::uint8_t>(bits)}); };
  CHECK(e4m3(0b0'0111'000) == 1.0F);
  CHECK(e4m3(0b0'1111'110) == 448.0F);
  CHECK(e4m3(0b0'0001'000) == 0.015625F);     // the smallest normal number, 2^-6
  CHECK(e4m3(0b0'0000'111) == 0.013671875F);  // the largest subnormal one, 0.875 * 2^-6
  CHECK(e4m3(0b1'0000'001) == -0.001953125F);
  CHECK(std::isnan(e4m3(0b0'1111'111)));
  CHECK(std::isnan(e4m3(0b1'1111'111)));
  CHECK(std::signbit(e4m3(0b1'0000'000)));
  CHECK(e5m2(0b0'01111'00) == 1.0F);
  CHECK(e5m2(0b0'11110'11) == 57344.0F);
  CHECK(e5m2(0b0'00000'01) == std::ldexp(1.0F, -16));
  CHECK(e5m2(0b1'11111'00) == -std::numeric_limits<float>::infinity());
  CHECK(std::isnan(e5m2(0b0'11111'01)));
}
