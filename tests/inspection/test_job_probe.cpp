// The probe, which polls parts of a job frequently: ranks, chunks, blocks and rows.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "inspection/probe.hpp"
#include "ps_shm/errors.hpp"
#include "shm/segment/counters.hpp"
#include "shm/steps/worker_table.hpp"
#include "support/rows_job.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

// A job with a variable of several chunks, and a worker.
struct Probed {
  TestJob job{{.chunk_bytes = 1024}};
  VariableShm& record = job.declare("v", 1000, 10);
  JobSegments worker = job.attach();
  std::uint32_t rank = 0;
  FreeBuffers free_buffers{job.segments, 0};
  Probe probe{job.name.text()};

  Probed() { REQUIRE(try_join(worker, 2, rank) == JoinOutcome::kJoined); }

  // Another rank's pushes come first, `others` times in all.
  void push(std::uint64_t chunk, int others = 0) {
    VersionedVariable variable = job.versioned(record);
    FreeBuffers of_others{job.segments, 1};
    const auto copy = [&](float* out, const float* in) { std::copy_n(in, variable.chunk_size(chunk), out); };
    variable.push_chunk(chunk, free_buffers, {}, [&](float* out, const float* in, ChunkPast) {
      if (others-- > 0)
        variable.push_chunk(chunk, of_others, {}, [&](float* more, const float* from, ChunkPast) { copy(more, from); });
      copy(out, in);
    });
  }
};

}  // namespace

TEST_CASE("probe: a job that does not exist gives an error that names it") {
  const std::string name = test::unique_job_name();
  CHECK_THROWS_WITH_AS(Probe{name}, doctest::Contains(name.c_str()), Error);
}

TEST_CASE("probe: a rank's words tell what its worker does") {
  Probed t;
  WorkerShm& entry = t.worker.worker(t.rank);
  counter(entry, Counter::kSteps).store_relaxed(7);
  counter(entry, Counter::kPulls).store_relaxed(9);
  entry.pushing.store_relaxed(1);
  entry.waiting_on.store_relaxed(5);
  entry.waiting_for.store_release(static_cast<std::uint32_t>(WaitingFor::kStep));
  const std::vector<RankLook> looks = t.probe.ranks();
  REQUIRE(looks.size() == 1);
  CHECK(looks[0].rank == 2);
  CHECK(looks[0].state == WorkerState::kAlive);
  CHECK(looks[0].pid == static_cast<std::uint32_t>(getpid()));
  CHECK(looks[0].steps == 7);
  CHECK(looks[0].pulls == 9);
  CHECK(looks[0].is_pushing);
  CHECK(looks[0].waiting == WaitingFor::kStep);
  CHECK(looks[0].waiting_on == 5);
  CHECK(t.probe.holder(2) == static_cast<std::uint32_t>(getpid()));
  CHECK_FALSE(t.probe.holder(3).has_value());
  leave(t.worker, t.rank);
  CHECK(t.probe.ranks().at(0).state == WorkerState::kLeft);
  CHECK_FALSE(t.probe.is_alive(2));
}

TEST_CASE("probe: updates and repeated pushes are counted chunk by chunk") {
  Probed t;
  REQUIRE(t.probe.variables().size() == 1);
  const std::uint64_t pieces = t.probe.variables()[0].pieces;
  REQUIRE(pieces == t.record.pieces);
  t.push(0), t.push(1), t.push(1, 2);
  CHECK(t.probe.updates(0, 0) == 1);
  CHECK(t.probe.retries(0, 0) == 0);
  CHECK(t.probe.updates(0, 1) == 4);
  CHECK(t.probe.retries(0, 1) == 2);
  CHECK(t.probe.updates(0, pieces - 1) == 0);
  CHECK_THROWS_AS(t.probe.updates(0, pieces), Error);
}

TEST_CASE("probe: a chunk is read as it is now, a torn one is not read") {
  Probed t;
  REQUIRE(t.probe.variables().size() == 1);
  std::vector<float> values;
  REQUIRE(t.probe.read(0, t.record.pieces - 1, values));
  CHECK(values == std::vector<float>(1000 % t.record.piece_elements, 10.0F));
  t.job.buffer(t.record, buffer_of(t.job.word(t.record, 0).load_acquire())).stamp.store_relaxed(~std::uint64_t{0});
  CHECK_FALSE(t.probe.read(0, 0, values));
}

TEST_CASE("probe: variables that are declared or initialised later are found") {
  Probed t;
  CHECK(t.probe.variables().size() == 1);
  VariableShm& later = t.job.declare("later", 10, 3);
  later.init.store_release(0);
  REQUIRE(t.probe.variables().size() == 2);
  CHECK(t.probe.variables()[1].name == "later");
  CHECK_FALSE(t.probe.variables()[1].is_initialised);
  later.init.store_release(kInitialised);
  CHECK(t.probe.variables()[1].is_initialised);
}

TEST_CASE("probe: blocks of rows have their rows' numbers, and count pushes of rows") {
  Probed t;
  t.job.declare("table", 20000, 4, Layout::kInplace);
  REQUIRE(t.probe.variables().size() == 2);
  const VariableFacts& facts = t.probe.variables()[1];
  CHECK(facts.rows == 20000);
  REQUIRE(facts.pieces > 1);
  const std::vector<std::uint64_t> first = t.probe.rows(1, 0), second = t.probe.rows(1, 1);
  CHECK(first.front() == 0);
  CHECK(second.front() == first.back() + 1);
  std::vector<float> values;
  REQUIRE(t.probe.read(1, 1, values));
  CHECK(values == std::vector<float>(second.size(), 4.0F));
  Directory directory(t.job.segments);
  InplaceVariable table(t.job.segments.shard_data(0), directory.at(directory.find("table")));
  table.row_counts(t.rank)[1].store_relaxed(12);
  CHECK(t.probe.updates(1, 0) == 0);
  CHECK(t.probe.updates(1, 1) == 12);
}

TEST_CASE("probe: a job whose name is gone is reported as such and can still be read") {
  Probed t;
  CHECK_FALSE(t.probe.is_gone());
  unlink_segment(t.job.name.control());
  CHECK(t.probe.is_gone());
  CHECK(t.probe.ranks().size() == 1);
  t.probe.require_whole();
}

TEST_CASE("probe: the rows of all parts are those of the variable, each once, wherever they lie") {
  for (const PartitionBy by : {PartitionBy::kRange, PartitionBy::kHash}) {
    JobConfig config = test::row_config(UpdateRule::kAdd);
    config.ps_tasks = 3;
    config.placement = Placement::kPartition;
    config.partition_by = by;
    test::RowsJob job(config, {500, 3});
    Probe probe(config.job);
    const VariableFacts facts = probe.variables().at(0);
    std::vector<std::uint64_t> seen;
    std::vector<float> floats;
    for (std::uint64_t piece = 0; piece < facts.pieces; ++piece) {
      const std::vector<std::uint64_t> rows = probe.rows(0, piece);
      REQUIRE(probe.read(0, piece, floats));
      REQUIRE(floats.size() == rows.size() * 3);
      for (std::size_t i = 0; i < floats.size(); ++i) REQUIRE(floats[i] == job.first(rows[i / 3], i % 3));
      seen.insert(seen.end(), rows.begin(), rows.end());
    }
    std::sort(seen.begin(), seen.end());
    for (std::uint64_t row = 0; row < 500; ++row) REQUIRE(seen.at(row) == row);
    CHECK(seen.size() == 500);
  }
}
