// Rows of in-place variables: repeated and invalid ids, limits on norms, staleness and sizes. What the rules make of
// them: test_values.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/base/racing.hpp"
#include "support/rows_job.hpp"

using namespace ps_shm;
using test::ids_of;
using test::ids_of_all;
using test::row_config;
using test::RowsJob;

TEST_CASE("rows: many repeated ids are combined as with a map") {
  std::mt19937_64 random(3);
  for (const std::uint64_t rows :
       {1000, 20'000}) {  // a small table has an entry for each row, a large one is a hash table
    CAPTURE(rows);
    RowsJob job(row_config(UpdateRule::kAdd), {rows, 2});
    std::vector<double> expected(2 * rows);
    for (std::uint64_t row = 0; row < rows; ++row)
      for (std::uint64_t k = 0; k < 2; ++k) expected[row * 2 + k] = job.first(row, k);
    for (const std::size_t count : {1, 2, 17, 1000, 5000, 3, 20'000}) {
      std::vector<std::uint32_t> ids(count);
      std::vector<float> gradients(2 * count);
      for (std::size_t i = 0; i < count; ++i) {
        ids[i] = std::uint32_t(random() % (i % 2 == 0 ? 10 : rows));
        gradients[2 * i] = 1, gradients[2 * i + 1] = float(i % 4);
        expected[2 * ids[i]] += 1, expected[2 * ids[i] + 1] += double(i % 4);
      }
      job.push(ids, gradients);
    }
    const std::vector<float> all = job.pull(ids_of_all(rows));
    for (std::size_t i = 0; i < all.size(); ++i) REQUIRE(double(all[i]) == expected[i]);
  }
}

TEST_CASE("rows: thousands of repeated ids of a large table are summed in the order in which they occur") {
  constexpr std::uint64_t kRows = 300'000;  // two digits
  std::mt19937_64 random(4);
  RowsJob job(row_config(UpdateRule::kAdd), {kRows, 2});
  const std::vector<float> before = job.pull(ids_of_all(kRows));
  std::vector<std::uint32_t> ids(5000);
  std::vector<float> gradients(2 * ids.size()), sums(2 * kRows);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = std::uint32_t(i % 3 == 0 ? kRows - 1 - random() % 10 : random() % kRows);
    for (std::size_t k = 0; k < 2; ++k) {
      gradients[2 * i + k] = std::ldexp(float(random() % 1000) - 500, int(random() % 20));  // so that the order shows
      sums[2 * ids[i] + k] += gradients[2 * i + k];
    }
  }
  job.push(ids, gradients);
  const std::vector<float> after = job.pull(ids_of_all(kRows));
  for (std::size_t i = 0; i < after.size(); ++i) REQUIRE(after[i] == before[i] + sums[i]);
}

TEST_CASE("rows: an id out of range is an error that names it, before anything is applied") {
  RowsJob job(row_config(UpdateRule::kAdd), {10, 2});
  const std::vector<float> before = job.pull(ids_of_all(10));
  CHECK_THROWS_WITH_AS(job.push(ids_of({1, 10, 2}), {1, 1, 1, 1, 1, 1}),
                       "push of rows of variable 'table': id 10 (number 1 of 3) is out of range; it has 10 rows",
                       Error);
  CHECK_THROWS_WITH_AS(
      job.pull(ids_of({4'000'000'000})),
      "pull of rows of variable 'table': id 4000000000 (number 0 of 1) is out of range; it has 10 rows", Error);
  std::vector<float> out(2);
  const std::vector<std::uint64_t> far = {~std::uint64_t{0}};
  CHECK_THROWS_AS(job.worker.pull_rows(job.variable, far, out), Error);
  CHECK(job.pull(ids_of_all(10)) == before);
  job.worker.prefetch_rows(job.variable, far);  // skips it
}

TEST_CASE("rows: sizes that do not fit, versioned variables and scalars are errors with a hint") {
  RowsJob job(row_config(UpdateRule::kAdd), {10, 2});
  CHECK_THROWS_WITH_AS(job.push(ids_of({1, 2}), {1, 1, 1}),
                       "push of 2 rows of variable 'table': a row has 2 elements, the span has 3 in all", Error);
  const auto zero = [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); };
  const Variable versioned = job.worker.variable({.name = "chunks", .shape = {4}, .layout = Layout::kVersioned}, zero);
  const Variable scalar = job.worker.variable({.name = "one", .shape = {}, .layout = Layout::kInplace}, zero);
  const std::vector<std::uint32_t> ids = {0};
  std::vector<float> out(1);
  CHECK_THROWS_WITH_AS(
      job.worker.pull_rows(versioned, ids, out),
      "pull of rows of variable 'chunks': it is versioned; declare it with layout inplace and a first axis", Error);
  CHECK_THROWS_WITH_AS(
      job.worker.pull_rows(scalar, ids, out),
      "pull of rows of variable 'one': it is a scalar; declare it with layout inplace and a first axis", Error);
  CHECK(versioned.rows() == 0);
  CHECK(job.variable.rows() == 10);
  CHECK(job.variable.row_size() == 2);
}

TEST_CASE("rows: if a row is assigned many times at once the last value wins, for any number of threads" *
          doctest::skip(shm::kThreadSanitizer)) {  // it does not support oneTBB's locks
  constexpr std::size_t kTimes = 100'000, kWidth = 16;
  JobConfig config = row_config(UpdateRule::kSgd);
  config.threads = 3;
  RowsJob job(config, {10, kWidth});
  const std::vector<std::uint32_t> ids(kTimes, 7);
  std::vector<float> values(kTimes * kWidth);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i / kWidth);
  for (int again = 0; again < 10; ++again) {
    job.worker.assign_rows(job.variable, ids, values);
    REQUIRE(job.pull({7}) == std::vector<float>(kWidth, float(kTimes - 1)));
  }
}

TEST_CASE("rows: clip_norm limits the norm of a push, after repeated ids are combined") {
  JobConfig config = row_config(UpdateRule::kSgd);
  config.optimizer.clip_norm = 1.0F;
  config.optimizer.lr = 1.0F;
  RowsJob job(config, {4, 1});
  const std::vector<float> before = job.pull(ids_of_all(4));
  job.push(ids_of({1, 2, 1}), {1.5F, 4.0F, 1.5F});
  const std::vector<float> after = job.pull(ids_of_all(4));
  CHECK(after[1] == doctest::Approx(before[1] - 0.6));
  CHECK(after[2] == doctest::Approx(before[2] - 0.8));
  CHECK(after[0] == before[0]);
}

TEST_CASE("rows: the learning-rate schedule applies to rows as well") {
  JobConfig config = row_config(UpdateRule::kSgd);
  config.optimizer.lr = 1.0F;
  config.optimizer.schedule = Schedule::parse("step:0.5:1");
  RowsJob job(config, {4, 1});
  double expected = job.first(2, 0);
  for (int step = 0; step < 4; ++step) {
    job.push(ids_of({2}), {1.0F});
    expected -= std::pow(0.5, step);
    job.worker.step();
  }
  CHECK(job.pull(ids_of({2})).front() == doctest::Approx(expected));
}

TEST_CASE("rows: staleness is the number of others' pushes to a row's block between pull and push") {
  const JobConfig config = row_config(UpdateRule::kAdd);
  RowsJob job(config, {20'000, 1});
  Worker other({.job = config.job, .rank = {}, .stop_requested = {}, .log = [](const std::string&) {}});
  const Variable same = other.variable("table");
  std::vector<float> out(1);
  const std::vector<std::uint32_t> ids = {9}, near = {10, 11}, far = {15'000};  // a push counts once in a block
  const std::vector<float> one = {1.0F}, two = {1.0F, 1.0F};
  // The first of a worker's pulls is monitored.
  Worker third({.job = config.job, .rank = {}, .stop_requested = {}, .log = [](const std::string&) {}});
  const Variable watched = third.variable("table");
  third.pull_rows(watched, ids, out);
  for (int push = 0; push < 5; ++push) other.push_rows(same, near, two);
  for (int push = 0; push < 50; ++push) other.push_rows(same, far, one);
  third.push_rows(watched, ids, one);
  CHECK(third.staleness().max == 5);
  CHECK(third.staleness().mean == 5.0);
  for (const VariableInfo& info : JobView(config.job).variables())
    CHECK(info.updates == (5 + 50 + 1) / info.parts.front().chunks);
}

TEST_CASE("rows: a push counts once in each block that it touches, however many of its rows lie there") {
  const JobConfig config = row_config(UpdateRule::kAdd);
  RowsJob job(config, {40'000, 1});
  Worker other({.job = config.job, .rank = {}, .stop_requested = {}, .log = [](const std::string&) {}});
  const Variable same = other.variable("table");
  std::vector<std::uint32_t> ids(300);  // in several blocks, many of them with several of the rows
  for (std::uint32_t i = 0; i < ids.size(); ++i) ids[i] = i < 150 ? i : 130 * i;
  const std::vector<float> ones(ids.size(), 1.0F);
  for (const std::uint32_t wanted : {0U, 129U, 130U * 150U, 130U * 191U, 130U * 299U}) {
    CAPTURE(wanted);
    Worker third({.job = config.job, .rank = {}, .stop_requested = {}, .log = [](const std::string&) {}});
    const Variable watched = third.variable("table");
    std::vector<float> out(1);
    third.pull_rows(watched, std::vector<std::uint32_t>{wanted}, out);
    for (int push = 0; push < 3; ++push) other.push_rows(same, ids, ones);
    third.push_rows(watched, std::vector<std::uint32_t>{wanted}, std::vector<float>{1.0F});
    CHECK(third.staleness().max == 3);
  }
}

TEST_CASE("rows: the sizes that the inspector shows are those of the state next to the elements") {
  for (const auto& [rule, bytes, slots] : {std::tuple{UpdateRule::kSgd, 0, 0},
                                           {UpdateRule::kAdagrad, 100 * 5 * 4, 1},
                                           {UpdateRule::kFtrl, 100 * 5 * 4, 2},  // one replaces the value
                                           {UpdateRule::kRowwiseAdagrad, 100 * 3 * 4, 1}}) {
    const std::string name(to_string(rule));
    CAPTURE(name);
    RowsJob job(row_config(rule), {100, 5});
    const JobView view(job.config.job);
    CHECK(view.variables().front().parts.front().slot_bytes == std::uint64_t(bytes));
    CHECK(view.info().bytes.slots == std::uint64_t(bytes));
    CHECK(view.variables().front().slots.size() == std::size_t(slots));
  }
}

TEST_CASE("rows: operations without a meaning in place are refused with a hint") {
  const auto zero = [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); };
  for (const char* schedule : {"step:0.5:10", "warmup:10+constant"}) {
    JobConfig config = row_config(UpdateRule::kFtrl);
    config.optimizer.schedule = Schedule::parse(schedule);
    config.layout = Layout::kVersioned;
    Server server(config);
    Worker worker(test::options(config));
    CHECK_THROWS_WITH_AS(
        worker.variable({.name = "t", .shape = {4}, .layout = Layout::kInplace}, zero),
        "variable 't' is in-place, and ftrl computes its values from the learning rate; use `lr-schedule` "
        "constant, or layout versioned",
        Error);
  }
  {
    JobConfig config = row_config(UpdateRule::kRowwiseAdagrad);
    Server server(config);
    Worker worker(test::options(config));
    CHECK_THROWS_WITH_AS(worker.variable({.name = "t", .shape = {4}, .layout = Layout::kVersioned}, zero),
                         "variable 't' is versioned, but rowwise_adagrad keeps state for each row; use layout inplace",
                         Error);
    const Variable table = worker.variable({.name = "u", .shape = {4}, .layout = Layout::kInplace}, zero);
    CHECK_THROWS_WITH_AS(
        static_cast<void>(table.view()),
        "the elements of variable 'u' are not contiguous: the state of rowwise_adagrad lies between; pull it", Error);
  }
  {
    JobConfig config = row_config(UpdateRule::kSgd);
    config.optimizer.lr_staleness = true;
    RowsJob job(config, {4, 1});
    CHECK_THROWS_AS(job.push(ids_of({1}), {1.0F}), Error);
  }
}

TEST_CASE("rows: one-element rows in parts of one row do not change what follows them") {
  const auto zero = [](std::span<float> out) { std::fill(out.begin(), out.end(), 0.0F); };
  for (const std::uint64_t rows : {1, 3})
    for (const Adds adds : {Adds::kExact, Adds::kRacy}) {
      CAPTURE(rows);
      JobConfig config = row_config(UpdateRule::kAdd);
      config.ps_tasks = 3;
      config.placement = Placement::kPartition;
      config.adds = adds;
      RowsJob job(config, {rows, 1});
      std::vector<Variable> neighbours;
      for (int i = 0; i < 3; ++i)
        neighbours.push_back(job.worker.variable({.name = "n" + std::to_string(i), .shape = {}}, zero));
      const std::vector<float> ones(rows, 1.0F);
      for (int push = 0; push < 5; ++push) job.push(ids_of_all(rows), ones);
      const std::vector<float> all = job.pull(ids_of_all(rows));
      for (std::uint64_t row = 0; row < rows; ++row) CHECK(all[row] == job.first(row, 0) + 5);
      for (const Variable& neighbour : neighbours) CHECK(job.worker.pull(neighbour) == 0.0F);
      const JobView view(job.config.job);
      for (const VariableInfo& info : view.variables()) CHECK(info.updates == (info.name == "table" ? 5 : 0));
    }
}
