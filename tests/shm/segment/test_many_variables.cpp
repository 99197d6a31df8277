// Jobs with many variables: the record table grows on demand, by several processes at once, into a full /dev/shm, and
// damaged; and a model of ten thousand variables trains.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/directory.hpp"
#include "support/hostile.hpp"
#include "support/job.hpp"
#include "support/own_shm.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

namespace {

// A counter: the smallest variable in a shard.
VariableSpec small(std::uint32_t number) {
  VariableSpec spec;
  spec.name = fmt::format("v{}", number);
  spec.layout = Layout::kInplace;
  spec.rule = UpdateRule::kAdd;
  return spec;
}

void declare(Directory& directory, std::uint32_t begin, std::uint32_t end, std::uint32_t byte = kTaskByte) {
  for (std::uint32_t number = begin; number < end; ++number) directory.declare(small(number), 0, byte);
}

std::vector<VariableSpec> parts_of_a_transformer(std::uint32_t count) {
  std::vector<VariableSpec> specs;
  for (std::uint32_t number = 0; number < count; ++number)
    specs.push_back({.name = fmt::format("layer{}/block{}/weight", number / 16, number % 16),
                     .shape = {1 + number % 7},
                     .rule = UpdateRule::kAdd});
  return specs;
}

}  // namespace

TEST_CASE("many variables: a small job's control segment is under 1 MiB, even with the maximum number of ranks") {
  TestJob job({.max_workers = kMaxRanks});
  Directory directory(job.segments);
  CHECK(job.segments.control().file_bytes() == control_bytes(kMaxRanks));
  declare(directory, 0, 1);
  CHECK(job.segments.control().file_bytes() == control_bytes(kMaxRanks, kRecordsAtOnce));
  CHECK(job.segments.control().file_bytes() < 1 << 20);
}

TEST_CASE("many variables: the record table grows step by step, and never beyond its maximum") {
  TestJob job;
  Directory directory(job.segments);
  const std::uint32_t ranks = job.segments.ranks();
  declare(directory, 0, kRecordsAtOnce);
  CHECK(job.segments.control().file_bytes() == control_bytes(ranks, kRecordsAtOnce));
  CHECK_FALSE(job.segments.has_records(kRecordsAtOnce + 1));
  declare(directory, kRecordsAtOnce, kMaxVariables);
  CHECK(job.segments.control().file_bytes() == control_bytes(ranks, kMaxVariables));
  CHECK(job.segments.has_records(kMaxVariables));
  CHECK_FALSE(job.segments.has_records(kMaxVariables + 1));
  CHECK_THROWS_WITH_AS(declare(directory, kMaxVariables, kMaxVariables + 1), doctest::Contains("is full"), Error);
  CHECK(job.segments.control().file_bytes() == job.segments.control().mapped_bytes());
  const JobView view(job.name.text());
  CHECK(view.variables().size() == kMaxVariables);
  CHECK(view.info().bytes.control == control_bytes(ranks, kMaxVariables));
  CHECK_NOTHROW(check_job(job.segments));
}

TEST_CASE("many variables: one with more parts than fit is refused before it takes any records") {
  TestJob job({.placement = Placement::kPartition, .partitions = 1000});
  Directory directory(job.segments);
  VariableSpec parted;
  parted.shape = {1000};
  for (int number = 0; number < 16; ++number) {
    parted.name = fmt::format("parted{}", number);
    CHECK(directory.declare(parted, 0, kTaskByte).size() == 1000);
  }
  parted.name = "one-too-many";
  CHECK_THROWS_WITH_AS(directory.declare(parted, 0, kTaskByte), doctest::Contains("is full"), Error);
  CHECK(directory.count() == 16'000);
  CHECK(directory.declare(small(0), 0, kTaskByte).front() == 16'000);
  parted.name = "parted3";
  CHECK(directory.declare(parted, 0, kTaskByte).front() == 3000);
}

TEST_CASE("many variables: processes that declare at once grow the records, each variable once") {
  TestJob job;
  constexpr std::uint32_t kProcesses = 4, kCount = 5 * kRecordsAtOnce;
  const Bell begin;
  std::vector<std::unique_ptr<Child>> children;
  for (std::uint32_t number = 0; number < kProcesses; ++number)
    children.push_back(std::make_unique<Child>([&, number] {
      JobSegments own = job.attach();
      Directory directory(own);
      if (!begin.hear()) return 1;
      // Each its own and the common ones in between, so that all collide at each step of the growth.
      for (std::uint32_t i = 0; i < kCount; ++i) {
        declare(directory, i, i + 1, kRankByte + number);
        VariableSpec mine = small(i);
        mine.name += fmt::format("-of-{}", number);
        directory.declare(mine, 0, kRankByte + number);
      }
      return 0;
    }));
  for (std::uint32_t number = 0; number < kProcesses; ++number) begin.tell();
  for (const auto& child : children) CHECK(child->join() == 0);
  const Directory directory(job.segments);
  const std::vector<std::string> names = directory.names();
  CHECK(names.size() == (1 + kProcesses) * kCount);
  CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
  CHECK_NOTHROW(check_job(job.segments));
}

TEST_CASE("many variables: a process that attaches during growth finds whole records, and never fewer than before") {
  TestJob job;
  std::atomic<bool> is_over{false};
  std::size_t looks = 0, most = 0;
  std::thread declarer([&] {
    JobSegments own = job.attach();
    Directory directory(own);
    declare(directory, 0, 12 * kRecordsAtOnce, kRankByte);
    is_over = true;
  });
  bool is_last = false;
  while (!is_last) {
    is_last = is_over;
    JobSegments attached = job.attach(looks % 2 == 0 ? Access::kReadOnly : Access::kReadWrite);
    const std::size_t found = copy_records(attached).size();
    CHECK(found >= most);
    most = found;
    ++looks;
  }
  declarer.join();
  CHECK(most == 12 * kRecordsAtOnce);
}

TEST_CASE("many variables: if /dev/shm is full for more records, nothing has changed and a retry works") {
  check_in_own_shm("size=64m", [] {
    TestJob job;
    Directory directory(job.segments);
    for (const std::uint32_t there : {0U, kRecordsAtOnce, 5 * kRecordsAtOnce}) {
      declare(directory, directory.count(), there);
      const std::size_t bytes = job.segments.control().file_bytes();
      {
        const Filler filler(48 << 10);  // the shard has space for one more counter, not for 64 KiB
        try {
          declare(directory, there, there + 1);
          return 1;
        } catch (const Error& error) {
          if (std::string(error.what()).find("cannot reserve") == std::string::npos) return 2;
        }
        if (directory.count() != there || job.segments.control().file_bytes() != bytes) return 3;
        JobSegments attached = job.attach();
        check_job(attached);
      }
      declare(directory, there, there + 1);
      if (directory.count() != there + 1 || directory.find(small(there).name) != there) return 4;
    }
    return 0;
  });
}

TEST_CASE("many variables: a declarer that died after it grew the records leaves nothing to repair") {
  TestJob job;
  Directory directory(job.segments);
  job.segments.make_record(3 * kRecordsAtOnce);
  CHECK(JobView(job.name.text()).variables().empty());
  declare(directory, 0, 2);
  CHECK(directory.count() == 2);
  CHECK(job.segments.control().file_bytes() == control_bytes(job.segments.ranks(), 4 * kRecordsAtOnce));
  CHECK_NOTHROW(check_job(job.segments));
}

TEST_CASE("many variables: a record that the control segment has no bytes for is damage to all that attach") {
  for (const std::uint32_t kept : {0U, 1U, kRecordsAtOnce, kRecordsAtOnce + 1, 2 * kRecordsAtOnce - 1}) {
    CAPTURE(kept);
    TestJob job;
    Directory directory(job.segments);
    declare(directory, 0, 2 * kRecordsAtOnce);
    const JobView before(job.name.text());
    SegmentFile(job.name.control()).cut(control_bytes(job.segments.ranks(), kept));
    const std::string what = "is damaged: it has been truncated before record";
    CHECK_THROWS_WITH_AS(JobView(job.name.text()).variables(), doctest::Contains(what.c_str()), Error);
    CHECK_THROWS_WITH_AS(before.variables(), doctest::Contains(what.c_str()), Error);
    WorkerOptions options;
    options.job = job.name.text();
    CHECK_THROWS_WITH_AS(Worker(std::move(options)), doctest::Contains(what.c_str()), Error);
    JobSegments attached = job.attach();
    CHECK_THROWS_AS(Directory(attached).find("v1"), Error);
    CHECK_THROWS_AS(Directory(attached).at(kept), Error);
  }
}

TEST_CASE("many variables: one view reads all values, also those declared later, and sees later damage") {
  TestJob job;
  for (int number = 0; number < 3; ++number) job.declare(fmt::format("v{}", number), 10, float(number));
  const JobView view(job.name.text());
  for (int round = 0; round < 2; ++round)
    for (int number = 0; number < 3; ++number)
      CHECK(view.values(fmt::format("v{}", number)) == std::vector<float>(10, float(number)));
  job.declare("v3", 20, 3);
  CHECK(view.values("v3") == std::vector<float>(20, 3.0F));
  CHECK(view.values("v1") == std::vector<float>(10, 1.0F));
  CHECK_THROWS_WITH_AS(view.values("v4"), doctest::Contains("there is no variable 'v4'"), Error);
  job.segments.record(1).elements = 9;
  CHECK_THROWS_WITH_AS(view.values("v1"), doctest::Contains("is damaged"), Error);
}

TEST_CASE("many variables: an index that names no record, or one twice, is damage") {
  TestJob job;
  Directory directory(job.segments);
  declare(directory, 0, 3);
  for (const std::uint32_t entry : {1U, kRecordsAtOnce + 1, kMaxVariables, kMaxVariables + 1, ~0U}) {
    CAPTURE(entry);
    job.segments.index(2).store_release(entry);
    CHECK_THROWS_AS(copy_records(job.segments), Error);
    CHECK_THROWS_AS(Directory(job.segments).find("v0"), Error);
  }
}

TEST_CASE("many variables: a second first part of one name, and a part of another shape, are damage") {
  TestJob job({.placement = Placement::kPartition, .partitions = 2});
  Directory directory(job.segments);
  for (const char* name : {"a", "b"}) {
    VariableSpec parted;
    parted.name = name;
    parted.shape = {name[0] == 'a' ? 10U : 20U};
    directory.declare(parted, 0, kTaskByte);
  }
  CHECK_NOTHROW(copy_records(job.segments));
  SUBCASE("a second first part") {
    directory.at(2).name[0] = 'a';
    CHECK_THROWS_WITH_AS(copy_records(job.segments), doctest::Contains("the name and part of another record"), Error);
  }
  SUBCASE("another shape") {
    directory.at(3).name[0] = 'a';
    job.segments.index(1).store_release(job.segments.index(3).load_acquire());
    CHECK_THROWS_WITH_AS(copy_records(job.segments),
                         doctest::Contains("a shape or rule that differs from its first part's"), Error);
  }
}

TEST_CASE("many variables: a model of ten thousand is declared by all in one call, pulled and pushed") {
  constexpr std::uint32_t kCount = 10'000, kWorkers = 2, kSteps = 3;
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    CAPTURE(std::string(to_string(mode)));
    Job job({.workers = kWorkers, .mode = mode});
    const std::vector<VariableSpec> specs = parts_of_a_transformer(kCount);
    std::atomic<std::uint32_t> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank)
      threads.emplace_back([&, rank] {
        Worker worker = job.join(rank);
        const std::vector<Variable> variables = worker.variables(
            specs, [](std::size_t i, std::span<float> out) { std::fill(out.begin(), out.end(), float(i)); });
        const std::vector<float> ones(7, 1.0F);
        std::vector<std::span<const float>> gradients;
        for (const VariableSpec& spec : specs) gradients.push_back(std::span(ones).first(spec.shape[0]));
        for (std::uint32_t step = 0; step < kSteps; ++step) {
          worker.push(variables, gradients);
          worker.step();
        }
        worker.barrier();
        std::vector<float> out(7);
        for (std::size_t i = 0; i < kCount; ++i) {
          worker.pull(variables[i], std::span(out).first(specs[i].shape[0]));
          wrong += out[0] != float(i + kSteps * kWorkers);
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(wrong == 0);
  }
}
