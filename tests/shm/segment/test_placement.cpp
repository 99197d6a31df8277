// Where variables are placed: placements and partitions. Values never depend on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "shm/segment/job_segments.hpp"
#include "shm/segment/memory_policy.hpp"
#include "shm/segment/placement.hpp"
#include "support/placement.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

TEST_CASE("placement: round robin cycles through the shards in the order of declaration") {
  Job job({.workers = 2, .ps_tasks = 3});
  Worker worker = job.join();
  declare(worker, {spec("a", {10}), spec("b", {10'000}), spec("c", {1}), spec("d", {5}), spec("e", {})});
  const auto placed = shards(job.name.text());
  CHECK(placed.at("a") == Shards{0});
  CHECK(placed.at("b") == Shards{1});
  CHECK(placed.at("c") == Shards{2});
  CHECK(placed.at("d") == Shards{0});
  CHECK(placed.at("e") == Shards{1});
}

TEST_CASE("placement: greedy gives the same balanced result for any order of the list, the largest first") {
  std::vector<VariableSpec> list;
  for (const std::uint64_t size : {5000, 100, 3000, 3000, 2000, 900, 1000, 1, 1, 4000})
    list.push_back(spec("v" + std::to_string(list.size()), {size}));
  std::map<std::string, Shards> first;
  for (int order = 0; order < 6; ++order) {
    Job job({.workers = 2, .ps_tasks = 3, .placement = Placement::kGreedy});
    Worker worker = job.join();
    declare(worker, list);
    const auto placed = shards(job.name.text());
    if (order == 0) first = placed;
    CHECK(placed == first);
    CHECK(job.view().variables().front().element_count == 5000);
    std::uint64_t load[3] = {};
    for (const VariableSpec& one : list) load[placed.at(one.name).front()] += one.element_count();
    CHECK(*std::max_element(load, load + 3) - *std::min_element(load, load + 3) <= 1000);
    std::next_permutation(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    std::rotate(list.begin(), list.begin() + 3, list.end());
  }
}

TEST_CASE("placement: greedy counts optimizer slots as bytes") {
  Job job({.workers = 2, .optimizer = {.rule = UpdateRule::kAdam}, .ps_tasks = 2, .placement = Placement::kGreedy});
  Worker worker = job.join();
  declare(worker, {spec("add", {2500}, UpdateRule::kAdd), spec("adam", {1000}, UpdateRule::kAdam),
                   spec("more", {300}, UpdateRule::kAdd)});
  CHECK(job.view().variables().front().name == "adam");  // 3000 floats
  CHECK(shards(job.name.text()).at("more") == shards(job.name.text()).at("add"));
}

TEST_CASE("placement: partition divides the first axis into one part per shard, the longer ones first") {
  Job job({.workers = 2, .ps_tasks = 3, .placement = Placement::kPartition});
  Worker worker = job.join();
  declare(worker, {spec("w", {11, 7}), spec("b", {2}), spec("s", {}), spec("row", {1, 50})});
  const std::vector<VariableInfo> variables = job.view().variables();
  REQUIRE(variables.size() == 4);
  const std::vector<PartInfo>& parts = variables[0].parts;
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].rows == 4);
  CHECK(parts[1].rows == 4);
  CHECK(parts[2].rows == 3);
  CHECK(parts[2].first_row == 8);
  CHECK(parts[2].bytes == 3 * 7 * sizeof(float));
  CHECK(shards(job.name.text()).at("w") == Shards{0, 1, 2});
  CHECK(shards(job.name.text()).at("b") == Shards{0, 1});  // fewer rows than shards
  CHECK(variables[2].parts.size() == 1);                   // a scalar
  CHECK(variables[3].parts.size() == 1);                   // one row
  CHECK(shards(job.name.text()).at("s") == Shards{2});
}

TEST_CASE("placement: the number of partitions and the largest part are as requested") {
  JobConfig config = config_of({.workers = 2, .ps_tasks = 2, .placement = Placement::kPartition, .partitions = 5});
  {
    Server server(config);
    Worker worker(options(config));
    declare(worker, {spec("w", {12}), spec("short", {3})});
    CHECK(shards(config.job).at("w") == Shards{0, 1, 0, 1, 0});
    CHECK(shards(config.job).at("short").size() == 3);
  }
  config.partitions = 0;
  for (const std::uint64_t most : {1, 4, 39, 40, 41, 100, 399, 400, 401, 100'000}) {
    CAPTURE(most);
    config.max_part_bytes = most;
    config.job = test::unique_job_name();
    Server server(config);
    Worker worker(options(config));
    declare(worker, {spec("w", {10, 10}), spec("s", {})});  // rows of 40 bytes
    const VariableInfo w = JobView(config.job).variables()[0];
    const std::uint64_t rows_per_part = std::clamp<std::uint64_t>(most / 40, 1, 10);
    CHECK(w.parts.size() == (10 + rows_per_part - 1) / rows_per_part);
    for (const PartInfo& part : w.parts) CHECK((part.bytes <= most || part.rows == 1));
    CHECK(std::accumulate(w.parts.begin(), w.parts.end(), std::uint64_t{0},
                          [](std::uint64_t sum, const PartInfo& part) { return sum + part.rows; }) == 10);
  }
}

TEST_CASE("placement: a small variable after more data than its buffers have numbers for has larger buffers") {
  const auto place = [](const TestJob& job, shm::VariableShm& record, std::uint64_t gib) {
    shm::VariableShm large{};  // as an in-place table
    large.layout = static_cast<std::uint32_t>(Layout::kInplace);
    large.shard_end = gib << 30;
    shm::Occupancy before(job.segments);
    REQUIRE(before.add(large));
    record.layout = static_cast<std::uint32_t>(Layout::kVersioned);
    record.elements = record.whole_elements = 100;
    shm::choose_pieces(record, nullptr, job.segments.config().chunk_bytes);
    shm::choose_place(record, nullptr, job.segments, before);
  };
  JobConfig for_gpu = config_of({.chunk_bytes = kChunkBytesForGpu});
  const TestJob plain, of_gpu(for_gpu);
  for (const TestJob* job : {&plain, &of_gpu})
    for (const auto& row : {std::pair{0, 1024}, {15, 1024}, {16, 2048}, {31, 2048}, {32, 4096}, {511, 32768}}) {
      const auto gib = static_cast<std::uint64_t>(row.first), bytes = static_cast<std::uint64_t>(row.second);
      CAPTURE(gib);
      shm::VariableShm record{};
      place(*job, record, gib);
      CHECK((std::uint64_t{1} << record.buffer_class) == bytes);
      CHECK(record.pieces == 1);
      CHECK(record.piece_elements >= 100);
      CHECK(record.data_offset >= gib << 30);
      CHECK((record.shard_end >> record.buffer_class) < (1U << 24));
    }
  shm::VariableShm record{};
  CHECK_THROWS_WITH_AS(place(TestJob({.chunk_bytes = 1024}), record, 16), doctest::Contains("16.0 GiB"), Error);
}

TEST_CASE("placement: by hand a variable is undivided and in the chosen shard, whatever the placement") {
  for (const Placement placement : {Placement::kRoundRobin, Placement::kGreedy, Placement::kPartition}) {
    CAPTURE(to_string(placement));
    JobConfig config = config_of({.workers = 2, .ps_tasks = 4, .placement = placement});
    config.place = {{"big", 3}, {"never", 1}};
    Server server(config);
    Worker worker(options(config));
    declare(worker, {spec("a", {1}), spec("big", {100, 3})});
    CHECK(shards(config.job).at("big") == Shards{3});
  }
  JobConfig wrong = config_of({.workers = 2, .ps_tasks = 2});
  wrong.place = {{"v", 2}};
  CHECK_THROWS_AS(Server{wrong}, Error);
}

TEST_CASE("placement: values, digests and pushes do not depend on it") {
  std::vector<std::uint64_t> digests;
  std::vector<std::vector<float>> values, pulled;
  const auto run = [&](std::uint32_t tasks, Placement placement, std::uint32_t partitions, Mode mode, Reduce reduce) {
    Job job({.mode = mode,
             .reduce = reduce,
             .optimizer = {.rule = UpdateRule::kMomentum, .clip_norm = 100, .ema = 0.5F},
             .ps_tasks = tasks,
             .placement = placement,
             .partitions = partitions});
    Worker worker = job.join();
    const std::vector<Variable> variables =
        declare(worker, {spec("w", {301, 17}, UpdateRule::kMomentum), spec("b", {17}, UpdateRule::kMomentum),
                         spec("n", {}, UpdateRule::kAdd)});
    std::vector<float> w(301 * 17), b(17), n(1);
    for (int step = 0; step < 5; ++step) {
      worker.pull(variables[0], w);
      worker.pull(variables[1], b);
      worker.pull(variables[2], n);
      for (float& value : w) value = value * 0.01F + float(step);
      const std::span<const float> gradients[] = {w, b, n};
      worker.push(variables, gradients);
      worker.step();
    }
    worker.pull(variables[0], w);
    std::vector<float> average(w.size());
    worker.pull_average(variables[0], average);
    CHECK(average == job.view().averages("w"));
    CHECK(w == job.view().values("w"));
    w.insert(w.end(), average.begin(), average.end());
    pulled.push_back(w);
    values.push_back(job.view().values("b"));
    digests.push_back(job.view().digest());
  };
  for (const auto& [mode, reduce] :
       {std::pair{Mode::kAsync, Reduce::kOrdered}, std::pair{Mode::kSync, Reduce::kOrdered},
        std::pair{Mode::kSync, Reduce::kAtomic}}) {
    run(1, Placement::kRoundRobin, 0, mode, reduce);
    run(3, Placement::kRoundRobin, 0, mode, reduce);
    run(2, Placement::kGreedy, 0, mode, reduce);
    run(3, Placement::kPartition, 0, mode, reduce);
    run(2, Placement::kPartition, 7, mode, reduce);
    run(1, Placement::kPartition, 300, mode, reduce);
  }
  for (std::size_t i = 1; i < digests.size(); ++i) {
    CAPTURE(i);
    CHECK(digests[i] == digests[0]);
    CHECK(values[i] == values[0]);
    CHECK(pulled[i] == pulled[0]);
  }
}

TEST_CASE("placement: workers that declare the same list at once in different orders get the same variables") {
  for (const Placement placement : {Placement::kRoundRobin, Placement::kGreedy, Placement::kPartition})
    for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
      CAPTURE(to_string(placement));
      for (int round = 0; round < 8; ++round) {
        JobConfig settings{.workers = 2, .mode = mode, .ps_tasks = 3, .placement = placement};
        if (mode == Mode::kSync) settings.reduce = Reduce::kAtomic;
        Job job(settings);
        std::vector<VariableSpec> list;
        for (std::uint64_t i = 0; i < 20; ++i) list.push_back(spec("v" + std::to_string(i), {1 + i * 37 % 11, 1 + i}));
        std::atomic<int> ready{0}, wrong{0};
        std::vector<std::thread> threads;
        for (int number = 0; number < 2; ++number)
          threads.emplace_back([&, number, list]() mutable {
            if (number == 1) std::reverse(list.begin(), list.end());
            Worker worker = job.join();
            ++ready;
            while (ready != 2) std::this_thread::yield();
            const std::vector<Variable> variables = declare(worker, list);
            for (std::size_t i = 0; i < list.size(); ++i) {
              std::vector<float> expected(list[i].element_count()), found(expected.size());
              count_up(list[i].name.size() + list[i].element_count() % 5, expected);
              worker.pull(variables[i], found);
              wrong += found != expected || variables[i].name() != list[i].name;
            }
          });
        for (std::thread& thread : threads) thread.join();
        CHECK(wrong == 0);
        CHECK(job.view().variables().size() == list.size());
      }
    }
}

TEST_CASE("placement: a part without the preceding one is damage, and nobody waits for the missing one") {
  for (const std::uint32_t damaged : {0U, 1U, 2U}) {
    CAPTURE(damaged);
    JobConfig config = config_of({.workers = 2, .ps_tasks = 3, .placement = Placement::kPartition});
    Server server(config);
    {
      Worker worker(options(config));
      declare(worker, {spec("w", {10, 3})});
    }
    shm::AttachOutcome outcome;
    auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
    shm::Directory directory(*job);
    REQUIRE(directory.count() == 3);
    char& letter = job->record(damaged).name[0];
    letter = 'x';
    CHECK_THROWS_WITH_AS(Worker(options(config)), doctest::Contains("no preceding part"), Error);
    CHECK_THROWS_WITH_AS(static_cast<void>(JobView(config.job).variables()), doctest::Contains("no preceding part"),
                         Error);
    letter = 'w';
    CHECK(JobView(config.job).variables().size() == 1);
  }
}

TEST_CASE("placement: the work of a declarer that died between two parts is completed by the next") {
  for (const bool summed : {false, true})
    for (std::uint32_t kept = 1; kept < (summed ? 8U : 4U); ++kept) {
      CAPTURE(kept);
      JobConfig config = config_of({.workers = 2,
                                    .mode = summed ? Mode::kSync : Mode::kAsync,
                                    .ps_tasks = 3,
                                    .placement = Placement::kPartition,
                                    .partitions = 4});
      if (summed) config.reduce = Reduce::kAtomic;
      config.workers = 1;
      Server server(config);
      shm::AttachOutcome outcome;
      auto job = shm::JobSegments::try_attach(config.job, shm::Access::kReadWrite, outcome);
      shm::Directory directory(*job);
      directory.declare(spec("w", {10, 3}), 0, shm::kRankByte + 9);
      REQUIRE(directory.count() == (summed ? 8 : 4));
      // The state after a kill: the index ends after `kept` records, and the dead declarer has claimed the next one.
      for (std::uint32_t position = kept; position < directory.count() + 8; ++position) {
        job->index(position).store_release(0);
      }
      for (std::uint32_t number = kept + 1; number < 10; ++number) job->record(number).claim.store_release(0);
      REQUIRE(directory.count() == kept);
      CHECK(JobView(config.job).variables().empty() == (kept < 7));  // of the last one only the accumulator is missing
      Worker worker(options(config));
      CHECK_THROWS_AS(worker.variable("w", Seconds(0.02)), Error);
      const Variable other = worker.variable(spec("other", {4}), [](std::span<float> out) { count_up(0, out); });
      const Variable w = worker.variable(spec("w", {10, 3}), [](std::span<float> out) { count_up(0, out); });
      worker.push(w, std::vector<float>(30, 1.0F));
      worker.push(other, std::vector<float>(4, 1.0F));
      worker.step();
      std::vector<float> expected(30);
      std::iota(expected.begin(), expected.end(), 1.0F);
      CHECK(JobView(config.job).values("w") == expected);
      CHECK(JobView(config.job).values("other") == std::vector<float>{1, 2, 3, 4});
      CHECK(shards(config.job).at("w").size() == 4);
    }
}

TEST_CASE("placement: pages in the memory of the wrong node are detected") {
  const std::vector<std::byte> memory(1 << 20, std::byte{1});
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data()) + shm::kPage - 1;
  const void* const pages = reinterpret_cast<const void*>(begin / shm::kPage * shm::kPage);
  constexpr std::size_t kBytes = (1 << 20) - shm::kPage;
  double on_some = 0;
  for (const std::uint32_t node : shm::memory_nodes()) on_some += 1 - shm::share_on_other_nodes(pages, kBytes, node);
  if (shm::share_on_other_nodes(pages, kBytes, 1000) == 0) {
    MESSAGE("this kernel does not say where pages are");
    return;
  }
  CHECK(on_some == doctest::Approx(1.0));
  CHECK(shm::share_on_other_nodes(pages, kBytes, 1000) == 1.0);
  CHECK(shm::share_on_other_nodes(pages, 0, 1000) == 0.0);
}
