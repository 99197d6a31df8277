// Requirements on GpuTable on any device: a GPU, or the fake of fake_cuda.hpp.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/gpu_table.hpp"
#include "support/gpu_rows_cases.hpp"
#include "support/table_job.hpp"

namespace ps_shm::test {

// A worker's table by key on a GPU, and device memory for what is sent and received.
class TableOnGpu : public DeviceCopies {
 public:
  TableOnGpu(GpuBox box, Worker& worker, const Table& table) : DeviceCopies(box), width_(table.row_size()) {
    GpuRowsOptions options;
    options.warn = [this](const std::string& line) { warnings.push_back(line); };
    rows = GpuTableAccess::make(worker, table, options, box.cuda, box.kernels);
  }

  struct Pulled {
    Floats rows;
    std::vector<std::uint8_t> found;
    bool is_redone = false;
    bool operator==(const Pulled& other) const { return rows == other.rows && found == other.found; }
  };
  Pulled pull(const Keys& keys) {
    const auto on_device = put(keys);
    const device::DeviceMemory<float> out(box_.cuda, keys.size() * width_);
    const device::DeviceMemory<bool> found(box_.cuda, keys.size());
    rows->start_pull({on_device.on_device(), keys.size()}, {out.on_device(), out.count()},
                     {found.on_device(), found.count()});
    Pulled pulled{Floats(out.count()), std::vector<std::uint8_t>(keys.size()), rows->finish_pull()};
    move(pulled.rows.data(), out.on_device(), out.bytes());
    move(pulled.found.data(), found.on_device(), found.bytes());
    return pulled;
  }
  PushedKeys push(const Keys& keys, const Floats& gradients) {
    const auto on_device = put(keys);
    const auto values = put(gradients);
    return rows->push({on_device.on_device(), keys.size()}, std::span<const float>(values.on_device(), values.count()));
  }

  std::vector<std::string> warnings;
  std::unique_ptr<GpuTable> rows;

 private:
  std::uint64_t width_;
};

// What a worker pulls.
inline TableOnGpu::Pulled pulled_by(Table& table, const Keys& keys) {
  TableOnGpu::Pulled pulled{Floats(keys.size() * table.row_size()), std::vector<std::uint8_t>(keys.size())};
  const auto flags = std::make_unique<bool[]>(keys.size());
  table.pull(keys, pulled.rows, {flags.get(), keys.size()});
  std::copy_n(flags.get(), keys.size(), pulled.found.begin());
  return pulled;
}

inline Keys shuffled(Keys keys, std::uint32_t seed) {
  std::shuffle(keys.begin(), keys.end(), std::mt19937(seed));
  return keys;
}

inline void pulls_keys_as_the_processor_does(GpuBox box) {
  for (const UpdateRule rule : kRowRules)
    for (const int placement : {0, 2})
      for (const std::uint64_t width : {1, 3, 16, 130}) {
        INFO("rule " << std::string(to_string(rule)) << " placement " << placement << " width " << width);
        TableJob job(spec_of(4000, width), table_config(rule, placement));
        TableOnGpu on_gpu(box, job.worker, job.table);
        const Keys keys = some_keys(300, width);
        CHECK(on_gpu.pull(keys) == pulled_by(job.table, keys));  // none has a row
        for (std::uint32_t round = 0; round < 2; ++round) {
          Keys some = shuffled(keys, round);
          some.resize(100 + 100 * round);
          job.table.push(some, some_gradients(some.size() * width, round));
          Keys repeated = shuffled(keys, 7);
          repeated.insert(repeated.end(), keys.begin(), keys.begin() + 30);
          const auto pulled = on_gpu.pull(repeated);
          CHECK(pulled == pulled_by(job.table, repeated));
          CHECK_FALSE(pulled.is_redone);
        }
        CHECK(on_gpu.pull({}).rows.empty());
        CHECK(on_gpu.warnings.empty());
        CHECK(on_gpu.rows->transfers().pulls == 4);
        CHECK(on_gpu.rows->transfers().pulled_rows == 300 + 2 * 330);
        CHECK(on_gpu.rows->transfers().bounced_rows == 0);
      }
}

// The same pushes by a GPU and by a processor, in two jobs, give bit-identical rows.
inline void pushes_keys_as_the_processor_does(GpuBox box) {
  for (const UpdateRule rule : kRowRules)
    for (const int placement : {0, 2}) {
      INFO("rule " << std::string(to_string(rule)) << " placement " << placement);
      JobConfig config = table_config(rule, placement);
      TableJob job(spec_of(4000, 5), config);
      config.job = unique_job_name();
      TableJob processor(spec_of(4000, 5), config);
      TableOnGpu on_gpu(box, job.worker, job.table);
      Keys keys = some_keys(200);
      keys[3] = 0, keys[4] = ~std::uint64_t{0};
      for (std::uint32_t round = 0; round < 3; ++round) {
        Keys some = shuffled(keys, round);
        some.insert(some.end(), keys.begin(), keys.begin() + 50);
        const Floats gradients = some_gradients(some.size() * 5, round);
        CHECK(on_gpu.push(some, gradients).updated == 200);
        processor.table.push(some, gradients);
      }
      CHECK(on_gpu.push({}, {}).updated == 0);
      CHECK(pulled_by(job.table, keys) == pulled_by(processor.table, keys));
      CHECK(on_gpu.pull(keys) == pulled_by(job.table, keys));
      CHECK(on_gpu.rows->transfers().given_rows == 750);
      CHECK(on_gpu.rows->transfers().sent_rows == 600);
    }
}

// A table that grows while the GPU uses it, from no row to many: new rows are pulled, by the GPU once they are registered.
inline void follows_a_table_that_grows(GpuBox box) {
  constexpr std::uint64_t kWidth = 250;
  TableJob job(spec_of(20'000, kWidth));
  TableOnGpu on_gpu(box, job.worker, job.table);
  const Keys keys = some_keys(16'000);
  std::uint64_t bounced = 0;
  for (std::size_t begin = 0; begin < keys.size(); begin += 1000) {
    job.push(Keys(keys.begin() + begin, keys.begin() + begin + 1000), 1.0F);
    const std::uint64_t before = on_gpu.rows->transfers().bounced_rows;
    Keys some(keys.begin() + begin + 900, keys.begin() + begin + 1000);
    some.insert(some.end(), keys.begin(), keys.begin() + 20);
    const auto pulled = on_gpu.pull(some);
    CHECK(pulled == pulled_by(job.table, some));
    CHECK(pulled.is_redone == (on_gpu.rows->transfers().bounced_rows != before));
    bounced += pulled.is_redone;
  }
  CHECK(bounced > 0);  // rows that are not registered yet
  CHECK(bounced < 14);
  CHECK(on_gpu.rows->transfers().registered_bytes > 10'000 * kWidth * sizeof(float));
}

// Each row has one value in all of its elements, which tells the key: whatever is evicted and made during a pull, a pull has
// no element of another key.
inline void pulls_no_row_of_another_key(GpuBox box, int pulls) {
  constexpr std::uint64_t kWidth = 16, kKeys = 400;
  TableSpec spec = spec_of(64, kWidth);
  spec.initial_range = 0;
  TableJob job(spec);
  TableOnGpu on_gpu(box, job.worker, job.table);
  Keys keys(kKeys);
  std::iota(keys.begin(), keys.end(), 1U);
  std::atomic<bool> has_ended{false};
  std::thread other([&] {
    Worker worker(options(job.config));
    Table table = worker.table(spec);
    std::mt19937 random(1);
    for (std::size_t round = 0; !has_ended.load(); ++round) {
      const std::uint64_t key = random() % kKeys + 1;
      table.assign({&key, 1}, Floats(kWidth, float(key)));  // evicts another one
      if (round % 3 == 0) table.evict({&key, 1});
    }
  });
  std::uint64_t found = 0, wrong = 0;
  for (int number = 0; number < pulls; ++number) {
    const auto pulled = on_gpu.pull(shuffled(keys, static_cast<std::uint32_t>(number)));
    const Keys order = shuffled(keys, static_cast<std::uint32_t>(number));
    for (std::size_t i = 0; i < order.size(); ++i)
      for (std::uint64_t e = 0; e < kWidth; ++e) {
        const float value = pulled.rows[i * kWidth + e];
        wrong += value != 0 && value != float(order[i]);
        found += value != 0;
      }
  }
  has_ended = true;
  other.join();
  CHECK(wrong == 0);
  CHECK(found > 0);
}

}  // namespace ps_shm::test
