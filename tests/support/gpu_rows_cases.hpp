// Requirements on GpuRows on any device: a GPU, or the fake of fake_cuda.hpp.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device/gpu_rows.hpp"
#include "support/gpu_cases.hpp"
#include "support/rows_job.hpp"
#include "support/rule_reference.hpp"

namespace ps_shm::test {

// Copies between vectors and device memory.
class DeviceCopies {
 public:
  explicit DeviceCopies(GpuBox box) : box_(box), stream_(box.cuda) {}

  template <class T>
  device::DeviceMemory<T> put(const std::vector<T>& values) {
    device::DeviceMemory<T> memory(box_.cuda, values.size());
    move(memory.on_device(), values.data(), memory.bytes());
    return memory;
  }
  void move(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    device::check(box_.cuda, box_.cuda.copy(to, from, bytes, stream_.get()), "copy");
    device::check(box_.cuda, box_.cuda.synchronize(stream_.get()), "copy");
  }

 protected:
  GpuBox box_;

 private:
  device::OwnStream stream_;
};

// A worker's table on a GPU, and device memory for the rows that are sent and received.
class RowsOnGpu : public DeviceCopies {
 public:
  RowsOnGpu(GpuBox box, Worker& worker, const Variable& variable) : DeviceCopies(box), width_(variable.row_size()) {
    GpuRowsOptions options;
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
    rows = device::make_gpu_rows(worker, variable, options, box.cuda, box.kernels);
  }

  template <class Id>
  std::vector<float> pull(const std::vector<Id>& ids) {
    const auto on_device = put(ids);
    const device::DeviceMemory<float> out(box_.cuda, ids.size() * width_);
    rows->pull(std::span<const Id>(on_device.on_device(), ids.size()), std::span(out.on_device(), out.count()));
    std::vector<float> got(out.count());
    move(got.data(), out.on_device(), out.bytes());
    return got;
  }
  template <class Id>
  void push(const std::vector<Id>& ids, const std::vector<float>& gradients) {
    const auto on_device = put(ids);
    const auto values = put(gradients);
    rows->push(std::span<const Id>(on_device.on_device(), ids.size()),
               std::span<const float>(values.on_device(), values.count()));
  }

  std::vector<std::string> warnings;
  std::unique_ptr<GpuRows> rows;

 private:
  std::uint64_t width_;
};

inline const std::vector<UpdateRule> kRowRules = rules_where([](const update::Traits&) { return true; });

// The placement of a table: whole, in parts by range, or striped.
inline JobConfig table_config(UpdateRule rule, int placement) {
  JobConfig config = row_config(rule);
  config.optimizer.l1 = 0.01F;
  config.optimizer.l2 = 0.01F;
  if (placement == 0) return config;
  config.ps_tasks = 3;
  config.placement = Placement::kPartition;
  config.partition_by = placement == 1 ? PartitionBy::kRange : PartitionBy::kHash;
  return config;
}

inline std::vector<std::uint32_t> some_ids(std::size_t count, std::uint32_t rows, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::uint32_t> ids(count);
  for (std::uint32_t& id : ids) id = static_cast<std::uint32_t>(generator()) % rows;
  return ids;
}

inline std::vector<float> some_gradients(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

inline std::vector<std::uint64_t> widened(const std::vector<std::uint32_t>& ids) { return {ids.begin(), ids.end()}; }

inline void pulls_rows_as_the_processor_does(GpuBox box) {
  constexpr std::uint32_t kRows = 203;
  for (const UpdateRule rule : kRowRules)
    for (const int placement : {0, 1, 2})
      for (const std::uint64_t width : {1, 3, 16, 130}) {
        INFO("rule " << std::string(to_string(rule)) << " placement " << placement << " width " << width);
        RowsJob job(table_config(rule, placement), {kRows, width});
        RowsOnGpu table(box, job.worker, job.variable);
        for (std::uint32_t round = 0; round < 2; ++round) {
          const auto ids = some_ids(300, kRows, round);
          CHECK(table.pull(ids) == job.pull(ids));
          CHECK(table.pull(widened(ids)) == job.pull(ids));
          job.push(ids, some_gradients(ids.size() * width, round));
        }
        CHECK(table.pull(ids_of_all(kRows)) == job.pull(ids_of_all(kRows)));
        CHECK(table.pull(std::vector<std::uint64_t>{}).empty());
        CHECK(table.warnings.empty());
        CHECK(table.rows->transfers().pulls == 6);
        CHECK(table.rows->transfers().pulled_rows == 2 * 2 * 300 + kRows);
      }
}

// The same pushes by a GPU and by a processor, in two jobs, give bit-identical results: no row has so many gradients
// that the GPU sums them in another order.
inline void pushes_rows_as_the_processor_does(GpuBox box) {
  constexpr std::uint32_t kRows = 203;
  for (const UpdateRule rule : kRowRules)
    for (const int placement : {0, 1, 2})
      for (const std::uint64_t width : {1, 3, 16, 130}) {
        INFO("rule " << std::string(to_string(rule)) << " placement " << placement << " width " << width);
        const std::uint32_t threads = placement == 2 ? 3 : 1;
        JobConfig config = table_config(rule, placement);
        config.threads = threads;
        RowsJob job(config, {kRows, width});
        config.job = unique_job_name();
        RowsJob processor(config, {kRows, width});
        RowsOnGpu table(box, job.worker, job.variable);
        for (std::uint32_t round = 0; round < 3; ++round) {  // the second one is larger than the first
          const auto ids = some_ids(100 + 400 * (round % 2), kRows, round);
          const auto gradients = some_gradients(ids.size() * width, round);
          if (round == 1)
            table.push(widened(ids), gradients);
          else
            table.push(ids, gradients);
          processor.push(ids, gradients);
        }
        table.push(std::vector<std::uint32_t>{}, {});
        CHECK(job.pull(ids_of_all(kRows)) == processor.pull(ids_of_all(kRows)));
        const GpuRowTransfers& done = table.rows->transfers();
        CHECK(done.pushes == 4);
        CHECK(done.threads == threads);
        CHECK(done.reasons.find("A kernel reads the rows that a batch names") == 0);
        CHECK(done.given_rows == 700);
        CHECK(done.sent_rows <= 100 + kRows + 100);
        CHECK(done.sent_rows > 200);
      }
}

// Integer gradients have sums that floats represent exactly, in whatever order they are summed.
inline void sums_frequent_rows_exactly(GpuBox box) {
  for (const std::uint64_t width : {1, 16, 130}) {
    RowsJob job(table_config(UpdateRule::kAdd, 0), {50, width});
    RowsOnGpu table(box, job.worker, job.variable);
    std::vector<std::uint32_t> ids = some_ids(5000, 50, 1);
    for (std::size_t i = 0; i < ids.size(); i += 2) ids[i] = 7;
    std::vector<float> gradients(ids.size() * width);
    std::vector<float> expected = job.pull(ids_of_all(50));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = float(i * 37 % 201) - 100;
      expected[ids[i / width] * width + i % width] += gradients[i];
    }
    table.push(ids, gradients);
    CHECK(job.pull(ids_of_all(50)) == expected);
  }
}

// A limit on the norm applies to the whole push, however many pieces it is sent in.
inline void clips_by_the_norm_of_all(GpuBox box) {
  JobConfig config = row_config(UpdateRule::kSgd);
  config.optimizer.clip_norm = 1.0F;
  RowsJob job(config, {3000, 16});
  RowsOnGpu table(box, job.worker, job.variable);
  const auto all = ids_of_all(3000);
  const auto before = job.pull(all);
  table.push(all, std::vector<float>(before.size(), 2.0F));
  const auto after = job.pull(all);
  double moved = 0;
  for (std::size_t i = 0; i < after.size(); ++i) moved += std::pow(double(after[i]) - double(before[i]), 2);
  CHECK(std::sqrt(moved) == doctest::Approx(0.1).epsilon(1e-3));
}

inline void refuses_rows_that_there_are_not(GpuBox box) {
  RowsJob job(table_config(UpdateRule::kAdd, 1), {100, 16});
  RowsOnGpu table(box, job.worker, job.variable);
  const auto before = job.pull(ids_of_all(100));
  CHECK_THROWS_WITH_AS(table.pull(ids_of({1, 100, 2})), doctest::Contains("id 100 is out of range; it has 100 rows"),
                       Error);
  CHECK_THROWS_WITH_AS(table.pull(std::vector<std::uint64_t>{~std::uint64_t{0}}), doctest::Contains("out of range"),
                       Error);
  CHECK_THROWS_WITH_AS(table.push(ids_of({1, 2, 4000000000}), std::vector<float>(48, 1.0F)),
                       doctest::Contains("id 4000000000 is out of range"), Error);
  std::vector<std::uint32_t> many(5000, 3);
  many.back() = 101;
  CHECK_THROWS_WITH_AS(table.push(many, std::vector<float>(many.size() * 16, 1.0F)),
                       doctest::Contains("id 101 is out of range"), Error);
  CHECK(job.pull(ids_of_all(100)) == before);
  // Later pushes are not affected.
  CHECK(table.pull(ids_of({99, 0})) == job.pull(ids_of({99, 0})));
  table.push(ids_of({5}), std::vector<float>(16, 1.0F));
  CHECK(job.pull(ids_of({5}))[0] == before[5 * 16] + 1.0F);
}

// Two workers on a GPU and one without add integers to the same few rows, and to many.
inline void loses_no_update(GpuBox box, int pushes) {
  for (const int placement : {0, 2})
    for (const std::uint32_t rows : {3U, 2000U}) {
      constexpr std::size_t kBatch = 200, kWidth = 16;
      RowsJob job(table_config(UpdateRule::kAdd, placement), {rows, kWidth});
      const auto before = job.pull(ids_of_all(rows));
      const auto ids_at = [&](int who, int k) {
        auto ids = some_ids(kBatch, rows, static_cast<std::uint32_t>(who * 1000 + k));
        for (std::size_t i = 0; i < ids.size(); i += 4) ids[i] = 1;
        return ids;
      };
      const auto push_all = [&](int who) {
        Worker worker(options(job.config));
        RowsOnGpu table(box, worker, worker.variable("table"));
        for (int k = 0; k < pushes; ++k) {
          table.push(ids_at(who, k), std::vector<float>(kBatch * kWidth, float(1 + who)));
          if (k % 8 == 0) static_cast<void>(table.pull(ids_at(who, k)));
        }
      };
      std::thread first(push_all, 0), second(push_all, 1);
      for (int k = 0; k < pushes; ++k) job.push(ids_at(2, k), std::vector<float>(kBatch * kWidth, 3.0F));
      first.join();
      second.join();
      std::vector<float> expected = before;
      for (int who = 0; who < 3; ++who)
        for (int k = 0; k < pushes; ++k)
          for (const std::uint32_t id : ids_at(who, k))
            for (std::size_t e = 0; e < kWidth; ++e) expected[id * kWidth + e] += float(1 + who);
      CHECK(job.pull(ids_of_all(rows)) == expected);
    }
}

}  // namespace ps_shm::test
