// Invariants at each moment of a worker's life at which it could die or another process could read its state, checked
// at the fault points. And actions of another process at a chosen moment.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ps_shm/job_view.hpp"
#include "ps_shm/publisher.hpp"
#include "ps_shm/server.hpp"
#include "shm/base/fault_points.hpp"
#include "shm/checks/validation.hpp"
#include "shm/segment/live_settings.hpp"
#include "shm/segment/shared_data.hpp"
#include "support/conservation.hpp"
#include "support/fault_calls.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/member.hpp"
#include "support/sharded.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using namespace ps_shm::test;

TEST_CASE("stopped between: a leaving worker keeps its lock byte until its last store (locks.L5)") {
  TestJob job;
  Member member(job);
  const JobSegments others = job.attach();
  int looks = 0;
  {
    const FaultCalls watch([&](FaultPoint point) {
      CHECK(others.locks().is_held_by_other(kRankByte) == (point != FaultPoint::kLeaveReleased));
      CHECK(worker_state(others, 0) != WorkerState::kDead);
      ++looks;
    });
    member.leave();
  }
  CHECK(looks >= 5);
  CHECK(worker_state(others, 0) == WorkerState::kLeft);
}

TEST_CASE("stopped between: a first part is initialized last, and each part after its accumulator (directory.D6)") {
  JobConfig config =
      config_of({.mode = Mode::kSync, .reduce = Reduce::kAtomic, .ps_tasks = 2, .placement = Placement::kPartition});
  Server server(config);
  Worker worker(options(config));
  AttachOutcome outcome;
  auto job = JobSegments::try_attach(config.job, Access::kReadWrite, outcome);
  REQUIRE(job);
  const Directory directory(*job);
  const auto is_there = [&](std::uint32_t position) {
    return directory.at(position).init.load_acquire() == kInitialised;
  };
  int looks = 0;
  bool has_values = false;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point < FaultPoint::kInitClaimed || point > FaultPoint::kInitDone) return;
      const std::vector<std::uint32_t> parts = directory.parts(directory.find("v"));
      has_values = has_values || point == FaultPoint::kInitValues;
      REQUIRE(parts.size() == 2);
      for (const std::uint32_t part : parts) {
        if (is_there(part)) CHECK(is_there(directory.accumulator(part)));
        if (is_there(part)) CHECK(has_values);
        if (is_there(parts.front())) CHECK(is_there(part));
      }
      ++looks;
    });
    worker.variable(vector_of(3000), zero);
  }
  CHECK(looks >= 5);
}

TEST_CASE("stopped between: a gradient segment is recorded only once its name leads to it (barrier.G1)") {
  const JobConfig config = config_of({.mode = Mode::kSync});
  Server server(config);
  AttachOutcome outcome;
  const auto job = JobSegments::try_attach(config.job, Access::kReadWrite, outcome);
  REQUIRE(job);
  int noted = 0;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point > FaultPoint::kGradientCleared) return;  // a leaving worker unlinks it
      const std::uint64_t generation = job->worker(0).barriers[0].generation.load_acquire();
      if (generation == 0) return;
      const std::vector<std::string> there = list_segments(gradient_prefix(config.job, 0));
      CHECK(std::count(there.begin(), there.end(), gradient_name(config.job, 0, generation)) == 1);
      ++noted;
    });
    const Worker worker(options(config));
  }
  CHECK(noted >= 2);
}

TEST_CASE(
    "stopped between: a sum that another one adds to while it is used, and whose buffer is used again, is used again "
    "(barrier.B9)") {
  JobConfig config = config_of({.workers = 2, .mode = Mode::kSync, .quorum = 1, .reduce = Reduce::kAtomic});
  Server server(config);
  Worker first(options(config, 0)), late(options(config, 1));
  const Variable of_first = first.variable(vector_of(3), zero), of_late = late.variable(vector_of(3), zero);
  const std::vector<float> ones(3, 1.0F), tens(3, 10.0F);
  AttachOutcome outcome;
  auto job = JobSegments::try_attach(config.job, Access::kReadWrite, outcome);
  REQUIRE(job);
  const Directory directory(*job);
  const std::uint64_t stamp = make_stamp(directory.at(directory.accumulator(directory.find("v"))).first_chunk, 1);
  first.push(of_first, ones);
  bool applies = false;
  int looks = 0;
  {
    const FaultCalls watch([&](FaultPoint point) { applies = applies || point == FaultPoint::kHelpRead; },
                      [&](const void* word) {
                        std::uint64_t value = 0;
                        if (applies) std::memcpy(&value, word, sizeof(std::uint32_t));
                        if (!applies || static_cast<std::uint32_t>(stamp) != value) return;
                        std::memcpy(&value, word, sizeof value);
                        if (value != stamp || ++looks != 4)
                          return;  // two polls to find out whether there is one, two to use it
                        for (std::uint32_t i = 0; i <= kFreeBuffersPerClass; ++i) late.push(of_late, tens);
                      });
    CHECK(first.step() == 1);
  }
  CHECK(looks == 4);
  CHECK(JobView(config.job).values("v") == std::vector<float>(3, 1.0F + 10.0F * float(kFreeBuffersPerClass + 1)));
}

TEST_CASE(
    "stopped between: a chunk whose buffer came from a variable that was declared since is not damage (directory.D1)") {
  TestJob job;
  const Member member(job);
  const VariableShm& record = job.declare("v", 8);
  bool is_first = true;
  {
    const FaultCalls watch([](FaultPoint) {},
                      [&](const void* word) {
                        if (word != &job.word(record, 0) || !std::exchange(is_first, false)) return;
                        const VariableShm& other = job.declare("w", 8);
                        REQUIRE(other.buffer_class == record.buffer_class);
                        VersionedVariable v = job.versioned(record), w = job.versioned(other);
                        FreeBuffers free_buffers(job.segments, 0);
                        const auto keep = [](float*, const float*, ChunkPast) {};
                        // gains w's buffer, which is v's after this many pushes
                        w.push_chunk(0, free_buffers, {}, keep);
                        for (std::uint32_t i = 0; i < kFreeBuffersPerClass; ++i)
                          v.push_chunk(0, free_buffers, {}, keep);
                        REQUIRE(buffer_of(v.word(0)) == other.data_offset >> other.buffer_class);
                      });
    CHECK_NOTHROW(check_job(job.segments));
  }
  CHECK_FALSE(is_first);
}

TEST_CASE(
    "stopped between: a push notes no buffer number that it has read in an accumulator's rank set (snapshot.C5, "
    "slot.V4)") {
  JobConfig config;
  config.workers = config.max_workers = 2;
  TestJob job(config);
  VariableShm& values = job.declare("values", 4);
  Directory(job.segments).reserve({0}, kSnapshotByte);
  VariableShm& sums = job.declare("sums", 4);
  FreeBuffers mine(job.segments, 0), others(job.segments, 1);
  VersionedVariable chunk = job.versioned(values), sum = job.versioned(sums);
  const auto add = [](float* out, const float* in, ChunkPast) {
    for (int i = 0; i < 4; ++i) out[i] = in[i] + 1;
    return true;
  };
  const void* const preimage = &preimage_of(job.buffer(values, buffer_of(job.word(values, 0).load_acquire())));
  bool is_used_again = false;
  int notes = 0;
  {
    const FaultCalls watch(
        [&](FaultPoint point) {
          if (point != FaultPoint::kPushBuilding) return;
          const auto names = count_names(job.segments, {&values, &sums});
          for (std::uint32_t which = 0; which < kFreeBuffersPerClass; ++which)
            if (const FreeBufferShm& free_buffer = job.free_buffer(values, 0, which);
                is_in_flight(free_buffer.record.load_acquire())) {
              CHECK(names.contains(buffer_of(free_buffer.note_gain.load_relaxed())));
              ++notes;
            }
        },
        [&](const void* word) {
          if (word != preimage || std::exchange(is_used_again, true)) return;
          VersionedVariable(chunk).push_chunk(0, others, {.rank = 1}, add);  // the buffer is a free buffer now
          for (std::uint64_t step = 0; step < kFreeBuffersPerClass; ++step)  // and now the accumulator's
            sum.contribute(0, others, {.rank = 1, .step = step}, false, [](float* out, const float*) { out[0] = 1; });
        });
    chunk.push_chunk(0, mine, {.rank = 0, .epoch = 1}, add);
  }
  CHECK(is_used_again);
  CHECK(preimage == &preimage_of(job.buffer(sums, buffer_of(job.word(sums, 0).load_acquire()))));
  CHECK(notes == 1);
}

TEST_CASE("stopped between: a sleeping helper does not undo a later round (barrier.A6)") {
  TestJob job({.workers = 2, .mode = Mode::kSync, .quorum = 1});
  Member first(job), second(job);
  first.barrier.arrive(0);
  second.barrier.arrive(0);
  bool sleeps = false;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point != FaultPoint::kOpenReady || std::exchange(sleeps, true)) return;
      complete(first.barrier, 0);
      first.barrier.arrive(1);
      complete(first.barrier, 1);
    });
    complete(second.barrier, 0);
  }
  CHECK(sleeps);
  CHECK(first.barrier.round() == 2);
}

TEST_CASE("stopped between: a sleeping decider takes no later round from a rank that was left behind (barrier.B11)") {
  TestJob job({.workers = 4, .mode = Mode::kSync, .quorum = 1});
  Member decider(job), other(job), absent(job), late(job);
  for (Member* one : {&decider, &other, &absent, &late}) one->barrier.arrive(0);
  complete(decider.barrier, 0);
  for (Member* one : {&decider, &other}) one->barrier.arrive(1);
  int notes = 0;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point != FaultPoint::kDecideNoted || ++notes != 1) return;  // of `absent`; that of `late` comes after it
      complete(other.barrier, 1);
      for (Member* one : {&other, &late}) one->barrier.arrive(2);
      complete(other.barrier, 2);
      other.barrier.arrive(3);
      complete(other.barrier, 3);
    });
    std::vector<std::uint32_t> missing;
    CHECK(decider.barrier.try_decide(1, false, missing));
  }
  CHECK(notes == 2);
  CHECK(late.barrier.was_in(2));
}

TEST_CASE(
    "stopped between: an ending ps task releases its byte before it checks whether it is the last one (names.N2)") {
  const JobName name;
  JobConfig config = with_name(config_of(), name.text());
  config.ps_tasks = 2;
  std::optional<Server> first(std::in_place, config, ServerOptions{.task = 0});
  std::optional<Server> second(std::in_place, config, ServerOptions{.task = 1});
  bool is_last = false;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point != FaultPoint::kTaskReleased) return;
      second.reset();  // which ends at the same moment
      is_last = name.segments().empty();
    });
    first.reset();
  }
  CHECK_FALSE(second);
  CHECK(is_last);
  CHECK(name.segments().empty());
}

TEST_CASE("stopped between: a record that was published while another one was being placed stays (directory.D1)") {
  TestJob job;
  const Member member(job);
  JobSegments others = job.attach();
  const auto spec = [](const char* name) { return VariableSpec{.name = name, .shape = {10}}; };
  for (const FaultPoint moment : {FaultPoint::kDeclareClaimed, FaultPoint::kDeclareFilled, FaultPoint::kDeclarePlaced,
                                  FaultPoint::kDeclareGrown}) {
    const std::string mine = "mine" + std::to_string(int(moment)), theirs = "theirs" + std::to_string(int(moment));
    Directory directory(job.segments), other(others);
    bool is_first = true;
    std::uint32_t of_others = 0;
    {
      const FaultCalls watch([&](FaultPoint point) {
        if (point == moment && std::exchange(is_first, false))
          of_others = other.declare(spec(theirs.c_str()), 0, kRankByte).front();
      });
      const std::uint32_t own = directory.declare(spec(mine.c_str()), 0, kTaskByte).front();
      CHECK(own == of_others + 1);
    }
    CHECK_FALSE(is_first);
    CHECK(directory.find(theirs) == of_others);
    CHECK(directory.find(mine) == of_others + 1);
  }
}

TEST_CASE(
    "stopped between: a worker that joins while a round is decided is awaited in the next one, whichever died "
    "(barrier.A2)") {
  bool has_joined = true;
  int accesses = 0;  // the decider's byte, before the successor of the dead worker joins
  for (; has_joined; ++accesses) {
    CAPTURE(accesses);
    TestJob job(config_of({.workers = 2, .mode = Mode::kSync}));
    Member decider(job);
    std::optional<Member> dead(std::in_place, job), successor;
    dead->barrier.arrive(0);
    decider.barrier.arrive(0);
    complete(decider.barrier, 0);
    dead.reset();
    decider.barrier.arrive(1);
    std::vector<std::uint32_t> missing;
    int left = accesses;
    {
      const FaultCalls watch([](FaultPoint) {},
                        [&](const void*) {
                          if (left-- == 0) successor.emplace(job, 1);
                        });
      REQUIRE(decider.barrier.try_decide(1, true, missing));
    }
    has_joined = successor.has_value();
    if (!has_joined) successor.emplace(job, 1);
    complete(decider.barrier, 1);
    decider.barrier.arrive(2);
    CHECK_FALSE(decider.barrier.try_decide(2, true, missing));
    CHECK(missing == std::vector<std::uint32_t>{1});
  }
  CHECK(accesses > 10);
}

TEST_CASE(
    "stopped between: a process that gets the loader's byte after another one has loaded loads nothing (data.D2)") {
  Job job;
  AttachOutcome outcome;
  JobSegments faster = *JobSegments::try_attach(job.name.text(), Access::kReadWrite, outcome);
  Worker worker = job.join();
  int loads = 0;
  const auto load = [&](const auto& room) { ++loads, room(1)[0] = std::byte{7}; };
  std::byte found{};
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point == FaultPoint::kDataTaken) SharedData::make(faster, "key", load);
    });
    found = worker.shared_data("key", load).bytes[0];
  }
  CHECK(found == std::byte{7});
  CHECK(loads == 1);
}

TEST_CASE("stopped between: a setter reads the settings only once it has the setter's byte (settings.S1)") {
  TestJob job;
  bool has_byte = false;
  int before = 0, behind = 0;
  {
    const FaultCalls watch([&](FaultPoint point) { has_byte = has_byte || point == FaultPoint::kSetLocked; },
                      [&](const void*) { ++(has_byte ? behind : before); });
    REQUIRE(try_change_live(job.segments, [](LiveSettings& settings) { settings.clip_norm = 2; }));
  }
  CHECK(has_byte);
  CHECK(before == 0);
  CHECK(behind > 0);
}

TEST_CASE("stopped between: a variable is listed once all of its parts are declared (directory.D1)") {
  Job job({.ps_tasks = 2, .placement = Placement::kPartition});
  Worker worker = job.join();
  const JobView view = job.view();
  int looks = 0;
  {
    const FaultCalls watch([&](FaultPoint point) {
      if (point < FaultPoint::kDeclareMade || point > FaultPoint::kDeclareNext) return;
      for (const VariableInfo& one : view.variables()) CHECK(one.parts.size() == 2);
      ++looks;
    });
    worker.variable(vector_of(3000), zero);
  }
  CHECK(looks >= 5);
  CHECK(view.variables().size() == 1);
}

TEST_CASE(
    "stopped between: when the leader of several writers closes a round, the others have its generation (round.R5)") {
  const Sharded all;
  Publisher one = all.writer(0), two = all.writer(1), three = all.writer(2);
  std::optional<Publishing> beside, last;
  static std::function<void()> closes;
  closes = [&] {  // the leader is stopped here until they have looked
    CHECK(beside->number() == 1);
    CHECK(last->number() == 1);
  };
  g_fault_hooks.reached = [](FaultPoint point) {
    if (point == FaultPoint::kRoundClosed) closes();
  };
  beside.emplace(two, all, 1, 7), last.emplace(three, all, 2, 7);
  CHECK(all.publish(one, 0, 7) == 1);
  CHECK(beside->number() == 1);
  CHECK(last->number() == 1);
  g_fault_hooks = {};
}
