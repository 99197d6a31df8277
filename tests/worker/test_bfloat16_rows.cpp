// In-place variables of bfloat16: pushed as a whole or by rows, updated by every rule bit for bit as their float32 form
// with rounding, exactly once by each push, and stored in half the memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <latch>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/checkpoint.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/slots/inplace_bfloat16.hpp"
#include "support/folder.hpp"
#include "support/rows_job.hpp"
#include "support/rule_reference.hpp"
#include "support/twins.hpp"

using namespace ps_shm;
using namespace ps_shm::test;
using Floats = std::vector<float>;
using Ids = std::vector<std::uint32_t>;

namespace {

constexpr float kRate = 0.1F;

Floats first_values(std::uint64_t count) {
  Floats values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = rounded(float(i % 61) / 77 - 0.4F);
  return values;
}

VariableSpec halves(std::vector<std::uint64_t> shape) {
  return {
      .name = "v", .shape = std::move(shape), .dtype = DType::kBFloat16, .layout = Layout::kInplace, .regularize = 1};
}

void first_halves(std::span<float> out) {
  const Floats values = first_values(2 * out.size());
  auto* const bits = reinterpret_cast<update::BFloat16Bits*>(out.data());
  for (std::size_t i = 0; i < values.size(); ++i) bits[i] = update::rounded_to_nearest(values[i]);
}

std::uint64_t block_elements(const Job& job) { return job.view().variables().front().parts.front().chunk_elements; }

Floats random_gradients(std::mt19937_64& random, std::size_t count) {
  Floats gradients(count);
  for (float& one : gradients) one = float(random() % 64) / 32 - 1;
  return gradients;
}

}  // namespace

TEST_CASE("rows of bfloat16: every rule follows its float32 form with rounding, bit for bit, however rows lie") {
  constexpr std::uint64_t kRows = 20;
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    for (const std::uint64_t width : {1U, 2U, 3U, 5U, 8U, 300U}) {
      CAPTURE(std::string(to_string(rule)));
      CAPTURE(width);
      JobConfig config = row_config(rule);
      config.optimizer.l1 = rule == UpdateRule::kFtrl ? 0.01F : 0.0F;
      config.optimizer.weight_decay = rule == UpdateRule::kAdamW ? 0.1F : 0.0F;
      config.seed = 7;
      VariableJob job(config, halves({kRows, width}), first_halves);
      const std::uint64_t rows_of_block = block_elements(job) / width;
      const std::uint64_t seed = update::rounding_seed(*config.seed, "v");
      TwinRows reference(config.optimizer, 1, width, kRate);
      const Floats first = first_values(kRows * width);
      for (std::uint32_t row = 0; row < kRows; ++row) reference.begin(row, first.data() + row * width);
      const Ids all = ids_of_all(kRows);
      CHECK(job.pull() == reference.values(all));
      std::vector<std::uint64_t> row_pushes(kRows), pushes(kRows);  // by block
      std::mt19937_64 random(3);
      for (int round = 0; round < 12; ++round) {
        if (round % 4 == 3) {  // the whole variable
          const Floats gradients = random_gradients(random, kRows * width);
          job.worker.push(job.variable, gradients);
          for (std::uint64_t row = 0; row < kRows; ++row) {
            const std::uint64_t block = row / rows_of_block, begin = block * rows_of_block;
            const auto bits = shm::rounding_of_block(seed, begin * width, 0, pushes[block]).key;
            reference.push(row, gradients.data() + row * width, bits, (row - begin) * width);
          }
          for (std::uint64_t& one : pushes) ++one;
          continue;
        }
        Ids some;
        std::sample(all.begin(), all.end(), std::back_inserter(some), 13, random);
        if (round % 2 == 0) std::shuffle(some.begin(), some.end(), random);
        const Floats gradients = random_gradients(random, some.size() * width);
        job.worker.push_rows(job.variable, some, gradients);
        std::vector<std::uint64_t> counted = row_pushes;
        for (std::size_t i = 0; i < some.size(); ++i) {
          const std::uint64_t block = some[i] / rows_of_block;
          reference.push(some[i], gradients.data() + i * width,
                         shm::rounding_of_row(seed, some[i], 0, row_pushes[block]).key);
          counted[block] = row_pushes[block] + 1;
        }
        row_pushes = counted;
      }
      CHECK(job.pull() == reference.values(all));
      CHECK(job.pull({3, 1, 19}) == reference.values(Ids{3, 1, 19}));
      if (update::traits_of(rule).has_row_state()) {
        Floats states(kRows);
        job.worker.snapshot().copy("v", states, update::traits_of(rule).row_slot.name);
        for (std::uint32_t row = 0; row < kRows; ++row) CHECK(states[row] == reference.at(row).state);
      }
      if (reference.record() > 1) {
        const Floats slot = JobView(config.job).slot("v", JobView(config.job).variables().front().slots[0]);
        for (std::uint32_t row = 0; row < kRows; ++row)
          for (std::uint64_t i = 0; i < width; ++i)
            REQUIRE(slot[row * width + i] == reference.at(row).numbers[i * reference.record() + 1]);
      }
    }
  }
}

TEST_CASE("rows of bfloat16: a row that is longer than a block, whose blocks begin anywhere") {
  constexpr std::uint64_t kRows = 3, kWidth = 10'001;
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kMomentum, UpdateRule::kAdam}) {
    CAPTURE(std::string(to_string(rule)));
    const JobConfig config = row_config(rule);
    VariableJob job(config, halves({kRows, kWidth}), first_halves);
    const std::uint64_t of_block = block_elements(job), seed = update::rounding_seed(*config.seed, "v");
    REQUIRE(of_block < kWidth);
    TwinRows reference(config.optimizer, 1, 1, kRate);  // of rows of one element
    const Floats first = first_values(kRows * kWidth);
    for (std::uint32_t i = 0; i < first.size(); ++i) reference.begin(i, &first[i]);
    std::mt19937_64 random(4);
    for (std::uint64_t round = 0; round < 3; ++round) {
      const Floats gradients = random_gradients(random, first.size());
      job.worker.push(job.variable, gradients);
      for (std::uint64_t i = 0; i < first.size(); ++i) {
        const std::uint64_t begin = i / of_block * of_block;
        reference.push(i, &gradients[i], shm::rounding_of_block(seed, begin, 0, round).key, i - begin);
      }
    }
    const Ids all = ids_of_all(first.size());
    CHECK(job.pull() == reference.values(all));
    Floats row(kWidth);
    job.worker.pull_rows(job.variable, Ids{1}, row);
    CHECK(row == reference.values(Ids(all.begin() + kWidth, all.begin() + 2 * kWidth)));
  }
}

TEST_CASE("rows of bfloat16: racy updates and several threads have the same bits, as long as nobody else pushes" *
          doctest::skip(shm::kThreadSanitizer)) {  // it does not support oneTBB's locks
  constexpr std::uint64_t kRows = 4000, kWidth = 5;
  JobConfig config = row_config(UpdateRule::kSgd);
  const Ids ids = ids_of_all(kRows);
  Floats gradients(kRows * kWidth);
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = float(i % 89) / 89 - 0.5F;
  std::vector<Floats> all;
  for (const Adds adds : {Adds::kExact, Adds::kRacy})
    for (const std::uint32_t threads : {1U, 3U}) {
      config.job = unique_job_name();
      config.adds = adds;
      config.threads = threads;
      VariableJob job(config, halves({kRows, kWidth}), first_halves);
      for (int round = 0; round < 3; ++round) {
        job.worker.push_rows(job.variable, ids, gradients);
        job.worker.push(job.variable, gradients);
      }
      all.push_back(job.pull());
      CHECK(all.back() == all.front());
    }
}

TEST_CASE("rows of bfloat16: the mean of many small changes is that of float32, where rounding to nearest loses them") {
  constexpr std::uint64_t kRows = 500, kWidth = 8;
  constexpr int kPushes = 40;
  const Ids ids = ids_of_all(kRows);
  const Floats up(kRows * kWidth, kSmallStep), gradients(kRows * kWidth, -kSmallStep / kRate);
  const std::vector<std::function<void(VariableJob&)>> ways = {
      [&](VariableJob& job) { job.worker.push_rows(job.variable, ids, gradients); },
      [&](VariableJob& job) { job.worker.push(job.variable, gradients); },
      [&](VariableJob& job) { job.worker.add_rows(job.variable, ids, up); },
      [&](VariableJob& job) { job.worker.add(job.variable, up); }};
  for (std::size_t way = 0; way < ways.size(); ++way) {
    CAPTURE(way);
    VariableJob job(row_config(UpdateRule::kSgd), halves({kRows, kWidth}), first_halves);
    static_cast<void>(job.worker.assign(job.variable, Floats(kRows * kWidth, 1.0F)));
    for (int round = 0; round < kPushes; ++round) ways[way](job);
    check_mean_of_small_steps(job.pull(), kPushes);
  }
}

TEST_CASE("rows of bfloat16: no push is lost, and none is applied twice, beside others") {
  constexpr std::uint64_t kRows = 5, kWidth = 15;  // exchanges of 16, 8, 4 and 2 bytes
  constexpr int kWorkers = 3, kPushes = 5'000;
  VariableJob job(row_config(UpdateRule::kAdd), halves({kRows, kWidth}), first_halves);
  static_cast<void>(job.worker.assign(job.variable, Floats(kRows * kWidth, 0.0F)));
  std::latch all_are_there(kWorkers);
  std::vector<std::thread> pushers;
  for (int w = 0; w < kWorkers; ++w)
    pushers.emplace_back([&] {
      Worker worker(options(job.config));
      const Variable variable = worker.variable(job.spec, first_halves);
      const Ids ids = ids_of_all(kRows);
      const Floats up(kRows * kWidth, 1.0F), down(kRows * kWidth, -1.0F);
      all_are_there.arrive_and_wait();
      for (int push = 0; push < kPushes; ++push) {
        worker.push_rows(variable, ids, up), worker.push(variable, down);
        worker.add(variable, up), worker.add_rows(variable, ids, down);
      }
      worker.push_rows(variable, ids, up);
    });
  for (std::thread& one : pushers) one.join();
  for (const float value : job.pull()) REQUIRE(value == float(kWorkers));
}

TEST_CASE("rows of bfloat16: values are assigned to the nearest, as floats, as bytes and by rows") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    CAPTURE(std::string(to_string(rule)));
    VariableJob job(row_config(rule), halves({7, 3}), first_halves);
    Floats given(21);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = float(i) / 77 - 0.1F;
    const auto check = [&] {
      const Floats there = job.pull();
      for (std::size_t i = 0; i < given.size(); ++i) {
        if (rule == UpdateRule::kFtrl)  // its z is what is rounded
          REQUIRE(there[i] == doctest::Approx(given[i]).epsilon(1.0 / 256));
        else
          REQUIRE(there[i] == rounded(given[i]));
      }
    };
    static_cast<void>(job.worker.assign(job.variable, given));
    check();
    static_cast<void>(job.worker.assign(job.variable, Floats(21, 0.5F)));
    job.worker.assign_rows(job.variable, ids_of_all(7), given);
    check();
    static_cast<void>(job.worker.assign(job.variable, Floats(21, 0.5F)));
    std::vector<std::byte> bytes(21 * 2 + 1);
    const std::span<std::byte> odd = std::span(bytes).subspan(1);  // not aligned
    for (std::size_t i = 0; i < given.size(); ++i) {
      const std::uint16_t bits = update::rounded_to_nearest(given[i]);
      std::memcpy(odd.data() + 2 * i, &bits, sizeof bits);
    }
    static_cast<void>(job.worker.assign(job.variable, std::span<const std::byte>(odd)));
    check();
    if (rule == UpdateRule::kFtrl) continue;
    std::vector<std::byte> pulled(42);
    job.worker.pull(job.variable, std::span(pulled));
    CHECK(std::equal(pulled.begin(), pulled.end(), odd.begin()));
    CHECK(job.view().bytes("v") == pulled);
    CHECK(job.view().sample("v", 1000) == pulled);
    CHECK(job.view().values("v") == job.pull());
  }
}

TEST_CASE("rows of bfloat16: half of the bytes, and less than half of a percent more for what aligns rows of 64") {
  for (const UpdateRule rule : rules_where([](const update::Traits&) { return true; })) {
    if (!works_in_place(rule)) continue;
    CAPTURE(std::string(to_string(rule)));
    const auto bytes_per_row = [&](DType dtype, std::uint64_t width) {
      JobConfig config = row_config(rule);
      const Server server(config);
      Worker worker(options(config));
      worker.variable({.name = "v", .shape = {100, width}, .dtype = dtype}, [](std::span<float>) {});
      const VariableInfo info = JobView(config.job).variables().front();
      CHECK(info.layout == Layout::kInplace);  // the job's
      CHECK(info.bytes == 100 * width * bytes_of(dtype));
      return (info.parts.front().bytes + info.parts.front().slot_bytes) / 100;
    };
    const bool has_row_state = update::traits_of(rule).has_row_state();
    const std::uint64_t half = bytes_per_row(DType::kBFloat16, 64), whole = bytes_per_row(DType::kFloat32, 64);
    CHECK(half * 2 == whole);
    CHECK(bytes_per_row(DType::kBFloat16, 1) == (has_row_state ? 8 : bytes_per_row(DType::kFloat32, 1) / 2));
  }
}

TEST_CASE("rows of bfloat16: parts by range and by hash, and rows that no whole number of floats holds") {
  constexpr std::uint64_t kRows = 23, kWidth = 5;
  for (const PartitionBy by : {PartitionBy::kRange, PartitionBy::kHash}) {
    JobConfig config = row_config(UpdateRule::kMomentum);
    config.ps_tasks = 3;
    config.placement = Placement::kPartition;
    config.partition_by = by;
    const Server server(config);
    Worker worker(options(config));
    const Variable variable =
        worker.variable({.name = "v", .shape = {kRows, kWidth}, .dtype = DType::kBFloat16}, [](std::span<float>) {});
    const VariableInfo info = JobView(config.job).variables().front();
    REQUIRE(info.parts.size() == 3);
    std::uint64_t next = 0, bytes = 0;
    for (const PartInfo& part : info.parts) {
      if (by == PartitionBy::kRange) CHECK(part.first_row == next);
      next += part.rows, bytes += part.bytes;
    }
    CHECK(next == kRows);
    CHECK(bytes == kRows * kWidth * 2);
    Floats given(kRows * kWidth);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = float(i);  // exact in bfloat16
    static_cast<void>(worker.assign(variable, given));
    Floats there(given.size());
    worker.pull(variable, there);
    CHECK(there == given);
    Floats row(kWidth);
    worker.pull_rows(variable, Ids{17}, row);
    CHECK(std::equal(row.begin(), row.end(), given.begin() + 17 * kWidth));
    worker.push_rows(variable, Ids{17, 4}, Floats(2 * kWidth, -10.0F));
    worker.pull(variable, there);
    for (std::size_t i = 0; i < given.size(); ++i)
      CHECK(there[i] == given[i] + (i / kWidth == 17 || i / kWidth == 4 ? 1 : 0));
    Floats copied(given.size());
    worker.snapshot().copy("v", copied);
    CHECK(copied == there);
    CHECK(JobView(config.job).values("v") == there);
  }
}

TEST_CASE("rows of bfloat16: a checkpoint has them in bfloat16, and either layout goes on with it") {
  const Folder folder;
  for (const UpdateRule rule : {UpdateRule::kSgd, UpdateRule::kAdam, UpdateRule::kFtrl, UpdateRule::kRowwiseAdagrad}) {
    CAPTURE(std::string(to_string(rule)));
    JobConfig config = row_config(rule);
    VariableJob job(config, halves({9, 5}), first_halves);
    for (int round = 0; round < 3; ++round) {
      job.worker.push_rows(job.variable, Ids{1, 5, 8}, Floats(15, 0.7F));
      job.worker.push(job.variable, Floats(45, -0.2F));
    }
    const Checkpoint saved(Checkpoint::save(JobView(config.job), folder.path()));
    saved.verify();
    CHECK(saved.variables().front().dtype == DType::kBFloat16);
    std::vector<std::byte> bytes(90);
    saved.read("v", bytes);
    CHECK(bytes == JobView(config.job).bytes("v"));
    JobConfig next = config;
    next.job = unique_job_name();
    next.restore = saved.folder();
    next.first_step = saved.global_step();
    VariableJob restored(next, halves({9, 5}), first_halves);
    CHECK(restored.pull() == job.pull());
    for (const std::string& slot : saved.variables().front().slots) {
      const bool is_of_rows = update::traits_of(rule).has_row_state();
      Floats ours(is_of_rows ? 9 : 45), theirs(ours.size());
      job.worker.snapshot().copy("v", ours, slot);
      restored.worker.snapshot().copy("v", theirs, slot);
      CHECK(ours == theirs);
    }
    if (!update::traits_of(rule).works_versioned) continue;
    next.job = unique_job_name();
    const Server server(next);
    Worker worker(options(next));
    VariableSpec spec = job.spec;
    spec.layout = Layout::kVersioned;
    Floats values(45);
    worker.pull(worker.variable(spec, [](std::span<float>) {}), values);
    Floats there = job.pull();
    for (float& value : there) value = rounded(value);  // that of ftrl is computed from its state
    CHECK(values == there);
  }
}
