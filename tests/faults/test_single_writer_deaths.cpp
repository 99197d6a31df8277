// Pushes in place that are killed anywhere leave whole blocks, and the next owner of the rank completes the version.
#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "shm/base/fault_points.hpp"
#include "support/processes.hpp"
#include "support/sanitizers.hpp"
#include "support/single_writer_job.hpp"

using namespace ps_shm;
using namespace ps_shm::test;

namespace {

// Changes half of the block that the push under way has marked, as a push does that has come so far.
void scribble(const std::string& job) {
  shm::JobSegments segments = attach(job);
  const shm::Directory directory(segments);
  const shm::VariableShm& record = directory.at(directory.find("v"));
  const shm::VersionedVariable chunks(segments.shard(record.shard), record);
  const auto header = [&](std::uint64_t buffer) -> shm::BufferHeaderShm& {
    return *reinterpret_cast<shm::BufferHeaderShm*>(segments.shard_data(record.shard) +
                                                    (buffer << record.buffer_class));
  };
  for (std::uint64_t chunk = 0; chunk < chunks.chunks(); ++chunk) {
    shm::BufferHeaderShm& current = header(shm::buffer_of(chunks.word(chunk)));
    const std::uint64_t stamp = current.stamp.hint();
    if (!shm::is_changing(stamp)) continue;
    const std::uint64_t mark = header(shm::buffer_of(stamp)).stamp.hint();
    if (!shm::UndoLog::is_block(mark)) continue;
    float* const values = reinterpret_cast<float*>(&current + 1) + shm::UndoLog::block_of(mark);
    const std::uint64_t count = std::min(kBlock, chunks.chunk_size(chunk) - shm::UndoLog::block_of(mark));
    for (std::uint64_t array = 0; array <= record.slots; ++array)
      std::fill_n(values + chunks.place_of(array), (count + 1) / 2, 1e30F);
  }
}

// The pushes before the one that dies. With a snapshot between them the chunks have buffers that they preserve.
enum class Before { kOnePush, kTwoAroundASnapshot };
int pushes_in(Before before) { return before == Before::kOnePush ? 1 : 2; }

// Pushes so often, and once more. That push dies before its `number`-th store to a shared word. Exit status 0: it lived.
int push_and_die(const SingleWriterJob& job, Before before, std::uint64_t number, bool scribbles) {
  static std::uint64_t left;
  static bool changes;
  static const std::string* name;
  changes = scribbles, left = number, name = &job.config.job;
  Worker worker(options(job.config));
  const Variable v = job.declare(worker);
  worker.push(v, numbers(kElements, 0.001F));
  if (before == Before::kTwoAroundASnapshot) {
    static_cast<void>(worker.snapshot());
    worker.push(v, numbers(kElements, 0.002F));
  }
  const std::vector<float> last = numbers(kElements, 0.001F * float(pushes_in(before) + 1));
  shm::g_fault_hooks.before_access = [](const void*, bool stores) {
    if (!stores || --left != 0) return;
    if (changes) scribble(*name);
    raise(SIGKILL);
  };
  worker.push(v, last);
  shm::g_fault_hooks.before_access = nullptr;
  return 0;
}

// Each block is that of one of the two, with its slots.
void check_blocks(const std::vector<float>& found, const std::vector<float>& before, const std::vector<float>& now,
                  const shm::VariableShm& record) {
  const std::uint64_t arrays = found.size() / kElements;
  for (std::uint64_t chunk = 0; chunk < record.pieces; ++chunk) {
    const std::uint64_t begin = chunk * record.piece_elements, end = std::min(begin + record.piece_elements, kElements);
    bool is_old = false;
    for (std::uint64_t at = begin; at < end; at += kBlock) {
      const auto is = [&](const std::vector<float>& one) {
        for (std::uint64_t array = 0; array < arrays; ++array)
          if (!std::equal(found.begin() + std::ptrdiff_t(array * kElements + at),
                          found.begin() + std::ptrdiff_t(array * kElements + std::min(at + kBlock, end)),
                          one.begin() + std::ptrdiff_t(array * kElements + at)))
            return false;
        return true;
      };
      REQUIRE_MESSAGE((is(now) || is(before)), "block at element ", at);
      if (!is(now)) is_old = true;
      REQUIRE_MESSAGE((!is_old || is(before)), "a new block behind an old one at element ", at);
    }
  }
}

}  // namespace

TEST_CASE(
    "single-writer: a push that is killed before any of its stores leaves whole blocks, and the next owner goes on") {
  const JobConfig config = single_writer_config(UpdateRule::kAdam);
  for (const Before way : {Before::kOnePush, Before::kTwoAroundASnapshot}) {
    const std::vector<float> before = arrays_after(config, pushes_in(way)),
                             now = arrays_after(config, pushes_in(way) + 1);
    const std::uint64_t step = kIsSanitized ? 17 : 1;
    std::uint64_t number = 1, deaths = 0, mixed = 0;
    for (;; number += step, ++deaths) {
      CAPTURE(number);
      JobConfig mine = config;
      mine.job = unique_job_name();
      const SingleWriterJob job(mine);
      Child pusher([&] { return push_and_die(job, way, number, number % 2 == 0); });
      const int status = pusher.join();
      if (status != -1) {
        CHECK(status == 0);
        break;
      }
      const std::vector<float> found = job.arrays();  // beside the dead
      check_blocks(found, before, now, job.record());
      job.check();
      CHECK(JobView(mine.job).buffers().lost == 0);
      mixed += found != before && found != now;
      Worker next(options(mine));
      const Variable v = job.declare(next);
      CHECK(job.arrays() == found);
      const std::vector<std::uint64_t> words = job.words();
      const shm::VersionedVariable chunks(job.segments.shard(job.record().shard), job.record());
      for (std::uint64_t chunk = 0; chunk < words.size(); ++chunk) CHECK(chunks.is_still_whole(chunk, words[chunk]));
      next.push(v, numbers(kElements, 0.003F));
      job.check();
    }
    CHECK(deaths > (kIsSanitized ? 3 : 70));
    CHECK(mixed > (kIsSanitized ? 2 : 60));
  }
}

// The numbers of stores are of a block in the middle of the first chunk, and of the ends of that chunk's update.
TEST_CASE("single-writer: a recovery that is killed itself is repeated") {
  const JobConfig config = single_writer_config(UpdateRule::kAdam);
  const std::vector<float> before = arrays_after(config, 1), now = arrays_after(config, 2);
  for (const std::uint64_t death : {20, 32, 33, 34, 35, 36})
    for (std::uint64_t number = 1;; number += kIsSanitized ? 5 : 1) {
      CAPTURE(death);
      CAPTURE(number);
      JobConfig mine = config;
      mine.job = unique_job_name();
      const SingleWriterJob job(mine);
      Child pusher([&] { return push_and_die(job, Before::kOnePush, death, true); });
      REQUIRE(pusher.join() == -1);
      const std::vector<float> found = job.arrays();
      CHECK(found != before);
      CHECK(found != now);
      Child successor([&] {
        static std::uint64_t left;
        left = number;
        shm::g_fault_hooks.before_access = [](const void*, bool stores) {
          if (stores && --left == 0) raise(SIGKILL);
        };
        Worker worker(options(mine));
        return 0;
      });
      const bool lived = successor.join() != -1;
      CHECK(job.arrays() == found);
      Worker next(options(mine));
      job.declare(next);
      CHECK(job.arrays() == found);
      check_blocks(found, before, now, job.record());
      job.check();
      if (!lived) continue;
      CHECK(number > 5);
      break;
    }
}

TEST_CASE("single-writer: a push that is killed while each of its two threads is within a chunk leaves both complete") {
  constexpr std::uint64_t kChunks = 128, kLarge = (kChunks - 1) * 2720 + 1007;
  JobConfig config = single_writer_config(UpdateRule::kAdam);
  config.threads = 2;
  const SingleWriterJob job(config, kLarge);
  Child pusher([&] {
    Worker worker(options(config, 0, 2));
    const Variable v = job.declare(worker);
    static std::atomic<int> within{0};
    shm::g_fault_hooks.before_access = [](const void*, bool stores) {
      constexpr int kMiddle = 20;  // a thread's stores before it is in the middle of a chunk
      static thread_local int left = kMiddle;
      if (!stores || --left > 0) return;
      if (++within == 2) raise(SIGKILL);
      for (;;) pause();
    };
    worker.push(v, numbers(kLarge, 0.001F));
    return 0;
  });
  REQUIRE(pusher.join() == -1);
  const shm::VersionedVariable chunks(job.segments.shard(job.record().shard), job.record());
  const auto whole = [&] {
    const std::vector<std::uint64_t> words = job.words();
    std::uint64_t count = 0;
    for (std::uint64_t chunk = 0; chunk < words.size(); ++chunk) count += chunks.is_still_whole(chunk, words[chunk]);
    return count;
  };
  REQUIRE(chunks.chunks() == kChunks);
  CHECK(whole() == kChunks - 2);
  const std::vector<float> found = job.arrays();
  Worker next(options(config, 0));  // with oneTBB's threads here, later children would have none
  const Variable v = job.declare(next);
  CHECK(whole() == kChunks);
  CHECK(job.arrays() == found);
  next.push(v, numbers(kLarge, 0.003F));
  job.check();
}
