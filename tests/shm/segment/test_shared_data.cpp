#include "shm/segment/shared_data.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "ps_shm/job_view.hpp"
#include "ps_shm/worker.hpp"
#include "support/processes.hpp"
#include "support/sparse_texts.hpp"
#include "support/test_job.hpp"

namespace {

using namespace ps_shm;
using test::Bell;
using test::Child;
using test::Folder;
using test::TestJob;
using train::SparseData;

WorkerOptions member_of(const TestJob& job) {
  WorkerOptions options;
  options.job = job.name.text();
  options.log = [](const std::string&) {};
  return options;
}

// Loads this many bytes of one value, and counts the loads.
SharedLoader filler(std::size_t bytes, int value, int& loads) {
  return [bytes, value, &loads](const auto& room) {
    ++loads;
    const std::span<std::byte> out = room(bytes);
    std::fill(out.begin(), out.end(), std::byte(value));
  };
}

bool all_are(std::span<const std::byte> bytes, std::size_t count, int value) {
  return bytes.size() == count &&
         std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == std::byte(value); });
}

std::string path_of(const TestJob& job) { return "/dev/shm/" + shm::data_name(job.name.text()); }

}  // namespace

TEST_CASE("shared data: one worker loads it, the others get the same, read-only and for as long as they keep it") {
  const TestJob job;
  int loads = 0;
  SharedBytes kept;
  {
    Worker one(member_of(job)), two(member_of(job));
    const SharedBytes first = one.shared_data("content", filler(5000, 7, loads));
    kept = two.shared_data("content", filler(1, 8, loads));
    CHECK(loads == 1);
    CHECK(all_are(first.bytes, 5000, 7));
    CHECK(first.bytes.data() != kept.bytes.data());
    CHECK(reinterpret_cast<std::uintptr_t>(kept.bytes.data()) % shm::kPage == 0);
    CHECK(JobView(job.name.text()).info().bytes.shared_data == 4096 + 5000);
  }
  CHECK(all_are(kept.bytes, 5000, 7));
  CHECK(mprotect(const_cast<std::byte*>(kept.bytes.data()), 4096, PROT_READ | PROT_WRITE) != 0);
}

TEST_CASE("shared data: another content is an error that names both") {
  const TestJob job;
  int loads = 0;
  Worker one(member_of(job)), two(member_of(job));
  one.shared_data("this", filler(10, 1, loads));
  const std::string found = test::error_of([&] { two.shared_data("that", filler(10, 1, loads)); });
  CHECK(found.find("already share this, not that") != std::string::npos);
  const std::string long_content(3000, 'k');
  CHECK(test::error_of([&] { two.shared_data(long_content, filler(10, 1, loads)); }).size() > 3000);
  CHECK(loads == 1);
}

TEST_CASE("shared data: contents that differ beyond the stored part are told apart by their length") {
  const TestJob job;
  int loads = 0;
  Worker one(member_of(job));
  const std::string content(2000, 'k');
  one.shared_data(content, filler(10, 1, loads));
  CHECK_NOTHROW(one.shared_data(content, filler(10, 1, loads)));
  CHECK_THROWS_AS(one.shared_data(content + "k", filler(10, 1, loads)), Error);
}

TEST_CASE("shared data: a loader that throws leaves nothing, and the next worker loads") {
  const TestJob job;
  int loads = 0;
  Worker one(member_of(job)), two(member_of(job));
  CHECK_THROWS_WITH_AS(one.shared_data("content", [](const auto& room) { room(100), throw Error("malformed"); }), "malformed",
                       Error);
  CHECK(test::error_of([&] { one.shared_data("content", [](const auto&) {}); }).find("no data was loaded") == 0);
  CHECK_FALSE(std::filesystem::exists(path_of(job)));
  CHECK(all_are(two.shared_data("content", filler(100, 3, loads)).bytes, 100, 3));
}

TEST_CASE("shared data: if /dev/shm is full it is an error that gives the sizes") {
  const TestJob job;
  Worker worker(member_of(job));
  const std::size_t too_much = shm::shm_capacity_bytes() + (std::size_t{1} << 30);
  const std::string found = test::error_of([&] { worker.shared_data("content", [&](const auto& room) { room(too_much); }); });
  CHECK(found.find("MiB left") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(path_of(job)));
}

TEST_CASE("shared data: waiting workers take over from a killed loader, and keep waiting for a stopped one") {
  const TestJob job;
  for (const int signal : {SIGKILL, SIGSTOP}) {
    CAPTURE(signal);
    std::filesystem::remove(path_of(job));
    Bell is_loading, goes_on;
    Child loader([&] {
      Worker worker(member_of(job));
      const SharedBytes shared = worker.shared_data("content", [&](const auto& room) {
        const std::span<std::byte> out = room(1000);
        std::fill(out.begin(), out.begin() + 500, std::byte{1});
        is_loading.tell();
        static_cast<void>(goes_on.hear());
        std::fill(out.begin(), out.end(), std::byte{1});
      });
      worker.leave();
      return all_are(shared.bytes, 1000, 1) ? 0 : 1;
    });
    REQUIRE(is_loading.hear());
    if (signal == SIGSTOP) loader.stop();
    std::vector<std::unique_ptr<Child>> others;
    Bell is_waiting;
    for (int i = 0; i < 2; ++i)
      others.push_back(std::make_unique<Child>([&] {
        WorkerOptions options = member_of(job);
        options.stop_requested = [&, told = false]() mutable {
          if (!std::exchange(told, true)) is_waiting.tell();
          return false;
        };
        Worker worker(options);
        const SharedBytes shared = worker.shared_data("content", [](const auto& room) {
          const std::span<std::byte> out = room(1000);
          std::fill(out.begin(), out.end(), std::byte{2});
        });
        worker.leave();
        return all_are(shared.bytes, 1000, 2) ? 2 : all_are(shared.bytes, 1000, 1) ? 1 : 3;
      }));
    REQUIRE(is_waiting.hear());
    REQUIRE(is_waiting.hear());
    CHECK_FALSE(std::filesystem::exists(path_of(job)));
    kill(loader.pid(), signal == SIGKILL ? SIGKILL : SIGCONT);
    if (signal == SIGSTOP) goes_on.tell();
    CHECK(loader.join() == (signal == SIGKILL ? -1 : 0));
    for (const auto& other : others) CHECK(other->join() == (signal == SIGKILL ? 2 : 1));
  }
}

TEST_CASE("shared data: what an earlier job of that name has left is replaced, and removed with its job") {
  TestJob job;
  int loads = 0;
  {
    auto former = shm::Segment::create(shm::SegmentKind::kData, 0, job.name.text(), 12345, 8192, 8192);
    former.publish();
    REQUIRE(former.link(shm::data_name(job.name.text())));
  }
  {
    Worker worker(member_of(job));
    CHECK(all_are(worker.shared_data("content", filler(100, 3, loads)).bytes, 100, 3));
    CHECK(shm::remove_job(job.name.text()) == shm::RemoveOutcome::kAlive);
  }
  CHECK(std::filesystem::exists(path_of(job)));
  CHECK(shm::remove_job(job.name.text(), job.segments.control().descriptor()) == shm::RemoveOutcome::kRemoved);
  CHECK(job.name.segments().empty());
}

TEST_CASE("shared data: damaged data is an error that names it") {
  for (const int damage : {0, 1, 2}) {
    CAPTURE(damage);
    const TestJob job;
    int loads = 0;
    Worker worker(member_of(job));
    worker.shared_data("content", filler(5000, 3, loads));
    shm::Segment segment;
    REQUIRE(segment.open(shm::data_name(job.name.text()), shm::Access::kReadWrite) == shm::AttachOutcome::kReady);
    if (damage == 0) std::filesystem::resize_file(path_of(job), 5000);
    if (damage == 1) segment.header().number = 3;
    if (damage == 2) reinterpret_cast<shm::SharedDataShm*>(segment.data() + shm::kSharedRecordOffset)->bytes = 1 << 30;
    const std::string found = test::error_of([&] { worker.shared_data("content", filler(1, 1, loads)); });
    CHECK(found.find(shm::data_name(job.name.text())) != std::string::npos);
    CHECK(loads == 1);
  }
}

TEST_CASE("shared sparse data equals what reading it gives, and another source or other options are an error") {
  const Folder folder;
  std::string text;
  for (int row = 1; row <= 30'000; ++row)
    text += std::to_string(row % 2) + " 3:1 " + std::to_string(row + 3) + ":0.5\n";
  const std::string path = folder.write("data", text);
  const auto expected = test::examples_of(SparseData::read(path, {}));
  const TestJob job;
  Worker one(member_of(job)), two(member_of(job));
  const SparseData first = SparseData::share(one, path, {});
  std::filesystem::remove(path);  // nobody reads it again
  const SparseData second = SparseData::share(two, path, {});
  CHECK(test::examples_of(first) == expected);
  CHECK(test::examples_of(second) == expected);
  CHECK(second.info().features == 30'003);
  CHECK(second.name() == path);
  CHECK(second.occurrences()[2] == 30'000);
  train::SparseSourceOptions hashed;
  hashed.hash_bits = 8;
  CHECK(test::error_of([&] { SparseData::share(two, path, hashed); }).find("give all of them the same data") !=
        std::string::npos);
}
