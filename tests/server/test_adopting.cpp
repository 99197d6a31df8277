// A ps that takes over a job: when it does, when it is refused, and that no other process notices.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_view.hpp"
#include "ps_shm/server.hpp"
#include "ps_shm/worker.hpp"
#include "shm/segment/job_segments.hpp"
#include "support/job.hpp"
#include "support/manual_clock.hpp"
#include "support/processes.hpp"

using namespace ps_shm;
using test::Bell;
using test::Child;
using test::JobName;

namespace {

constexpr const char* kDone = "done";

// A ps that is asked to end twice in a row, so it does not wait for its workers.
const ServeHooks kAtOnce = {
    .stop_requested = [] { return true; }, .stop_at_once = [] { return true; }, .log = {}, .every_second = {}};

JobConfig settings(const JobName& name) {
  return test::with_name(test::config_of({.optimizer = {.rule = UpdateRule::kAdd}, .linger = Seconds(0.1)}),
                         name.text());
}

WorkerOptions quiet(const JobName& name, std::optional<std::uint32_t> rank = {}) {
  return {.job = name.text(), .rank = rank, .stop_requested = {}, .log = [](const std::string&) {}};
}

void fill(std::span<float> out, float value) { std::fill(out.begin(), out.end(), value); }

Variable declare(Worker& worker, float first = 0.0F) {
  return worker.variable({.name = "v", .shape = {100}, .layout = {}},
                         [first](std::span<float> out) { fill(out, first); });
}

void add_one(Worker& worker, const Variable& variable) {
  worker.push(variable, std::vector<float>(variable.element_count(), 1.0F));
  worker.step();
}

// A ps in its own process, which is killed when the object is destroyed.
struct OtherPs {
  Bell ready;
  Child process;

  explicit OtherPs(const JobConfig& config)
      : process([&] {
          Server server(config);
          ready.tell();
          test::sleep_forever();
          return 0;
        }) {
    REQUIRE(ready.hear());
  }
};

// A worker in its own process, which adds one and then sleeps.
struct OtherWorker {
  Bell ready;
  Child process;

  explicit OtherWorker(const JobName& name)
      : process([&] {
          Worker worker(quiet(name));
          add_one(worker, declare(worker));
          ready.tell();
          test::sleep_forever();
          return 0;
        }) {
    REQUIRE(ready.hear());
  }
};

// The error of Server's constructor; kDone if there is none.
std::string try_to_serve(const JobConfig& config, bool adopt = false) {
  try {
    ServerOptions options;
    options.adopt = adopt;
    Server server(config, options);
    server.keep_segments();
    return kDone;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("adopting: a plain restart takes over an orphaned job unchanged and reports it") {
  const JobName name;
  std::optional<OtherPs> first(std::in_place, settings(name));
  Worker worker(quiet(name));
  const Variable variable = declare(worker);
  add_one(worker, variable);
  const std::uint64_t instance = JobView(name.text()).info().instance;
  first.reset();
  add_one(worker, variable);  // this needs no ps
  CHECK_FALSE(JobView(name.text()).info().served);

  std::string said;
  ServerOptions options;
  options.log = [&](const std::string& line) { said += line; };
  const Server second(settings(name), options);
  CHECK(said.find("lost its ps; this one takes it over at step 2") != std::string::npos);
  add_one(worker, variable);
  const JobView view(name.text());
  CHECK(view.values("v") == std::vector<float>(100, 3.0F));
  CHECK(view.info().instance == instance);
  CHECK(view.info().served);
  CHECK(view.info().servers == 2);
  const std::vector<Event> events = view.events();
  CHECK(std::count_if(events.begin(), events.end(), [](const Event& e) { return e.kind == "adopted"; }) == 1);
}

TEST_CASE("adopting: a job with a live ps is refused and continues") {
  const JobName name;
  const OtherPs first(settings(name));
  CHECK(try_to_serve(settings(name)).find("already has a ps") != std::string::npos);
  CHECK(try_to_serve(settings(name), true).find("already has a ps") != std::string::npos);
  CHECK(JobView(name.text()).info().servers == 1);
}

TEST_CASE("adopting: fixed settings must equal the job's; the message names one that differs") {
  const JobName name;
  std::optional<OtherPs> first(std::in_place, settings(name));
  const OtherWorker worker(name);
  first.reset();
  JobConfig config = settings(name);
  SUBCASE("mode") {
    config.mode = Mode::kSync;
    CHECK(try_to_serve(config).find("goes on with mode async, not sync") != std::string::npos);
  }
  SUBCASE("rate") {
    config.optimizer.lr = 0.5F;
    CHECK(try_to_serve(config).find("lr") != std::string::npos);
  }
  SUBCASE("tasks") {
    config.ps_tasks = 2;
    CHECK(try_to_serve(config).find("ps-tasks 1, not 2") != std::string::npos);
  }
  SUBCASE("chunks") {
    config.chunk_bytes = 4096;
    CHECK(try_to_serve(config).find("goes on with chunk-bytes 0, not 4096") != std::string::npos);
  }
  SUBCASE("memory nodes") {
    config.numa = Numa::kNone;
    CHECK(try_to_serve(config).find("goes on with numa auto, not none") != std::string::npos);
  }
  SUBCASE("huge pages") {
    config.huge_pages = true;
    CHECK(try_to_serve(config).find("goes on with huge-pages off, not on") != std::string::npos);
  }
  SUBCASE("the limits of an elastic number of workers") {
    config.elastic_min = 1, config.elastic_max = 8;
    CHECK(try_to_serve(config).find("goes on with workers 1, not 1..8") != std::string::npos);
  }
  SUBCASE("manual placement") {
    config.place["v"] = 0;
    CHECK(try_to_serve(config).find("goes on with place none, not v=0") != std::string::npos);
  }
  CHECK_FALSE(JobView(name.text()).info().served);
  CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 1.0F));
}

TEST_CASE("adopting: a dead job is begun again, unless resuming it is requested") {
  const JobName name;
  {
    const OtherPs first(settings(name));
    const OtherWorker worker(name);
  }
  SUBCASE("begin again") {
    const Server server(settings(name));
    CHECK(JobView(name.text()).variables().empty());
    CHECK(JobView(name.text()).info().global_step == 0);
  }
  SUBCASE("resume") {
    ServerOptions options;
    options.adopt = true;
    const Server server(settings(name), options);
    CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 1.0F));
    Worker chief(quiet(name, 0));  // a restarted chief does not initialize again
    const Variable variable = declare(chief, 77.0F);
    add_one(chief, variable);
    CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 2.0F));
  }
}

TEST_CASE("adopting: resuming a job that does not exist is an error") {
  const JobName name;
  CHECK(try_to_serve(settings(name), true).find("there is no job") != std::string::npos);
  CHECK(name.segments().empty());
}

TEST_CASE("adopting: if several ps start at the same moment exactly one serves, whatever they find") {
  constexpr int kRounds = 30, kStarters = 3;
  for (int round = 0; round < kRounds; ++round) {
    const JobName name;
    const bool is_orphan = round % 3 != 0, is_dead = round % 3 == 2;  // otherwise nothing exists yet
    std::optional<OtherWorker> worker;
    if (is_orphan) {
      const OtherPs first(settings(name));
      worker.emplace(name);
      if (is_dead) worker.reset();
    }
    const Bell answers, go, done;
    std::vector<std::unique_ptr<Child>> starters;
    for (int i = 0; i < kStarters; ++i)
      starters.push_back(std::make_unique<Child>([&] {
        if (!go.hear()) return 9;
        try {
          Server server(settings(name));
          server.keep_segments();
          answers.tell();
          return done.hear() ? 1 : 9;  // while the others try
        } catch (const Error&) {
          answers.tell();
          return 0;
        }
      }));
    for (int i = 0; i < kStarters; ++i) go.tell();
    for (int i = 0; i < kStarters; ++i) REQUIRE(answers.hear());
    for (int i = 0; i < kStarters; ++i) done.tell();
    int serving = 0;
    for (const auto& starter : starters) {
      const int code = starter->join();
      REQUIRE((code == 0 || code == 1));
      serving += code;
    }
    CHECK(serving == 1);
    if (is_orphan && !is_dead) CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 1.0F));
  }
}

TEST_CASE("adopting: a job that was ended is not begun again while one of its workers lives, and the error names it") {
  const JobName name;
  std::optional<OtherWorker> survivor;
  {
    Server server(settings(name));
    survivor.emplace(name);
    REQUIRE(server.serve(kAtOnce) == EndReason::kStopRequested);
  }
  const std::string whom = fmt::format("worker 0 (process {})", survivor->process.pid());
  for (const bool adopt : {false, true}) {
    const std::string said = try_to_serve(settings(name), adopt);
    CHECK_MESSAGE(said.find("was ended, and " + whom) != std::string::npos, said);
  }
  WorkerOptions options = quiet(name);
  options.wait_job = Seconds(0.1);
  CHECK_THROWS_WITH_AS((Worker{options}), doctest::Contains(whom.c_str()), Error);
  CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 1.0F));
  survivor.reset();
  CHECK(try_to_serve(settings(name)) == kDone);
}

TEST_CASE("adopting: a dead job that was ended is resumed on request") {
  const JobName name;
  std::optional<OtherWorker> survivor;
  {
    Server server(settings(name));
    survivor.emplace(name);
    REQUIRE(server.serve(kAtOnce) == EndReason::kStopRequested);
  }
  survivor.reset();
  ServerOptions options;
  options.adopt = true;
  {
    Server server(settings(name), options);
    Worker worker(quiet(name));
    add_one(worker, declare(worker));
    CHECK(JobView(name.text()).values("v") == std::vector<float>(100, 2.0F));
  }
  CHECK(name.segments().empty());
}

TEST_CASE("adopting: a process that waits for a stopped remover reports whom it waits for") {
  const JobName name;
  { const OtherPs first(settings(name)); }
  const Bell locked;
  const Child remover([&] {
    shm::Segment control;
    if (control.open(name.control(), shm::Access::kReadWrite) != shm::AttachOutcome::kReady) return 1;
    if (!shm::TaskLocks(control.descriptor()).try_take_all()) return 2;
    locked.tell();
    test::sleep_forever();
    return 0;
  });
  REQUIRE(locked.hear());
  const std::string whom = fmt::format("process {} is removing it", remover.pid());
  std::string said;
  const auto hear = [&](const std::string& line) { said += line; };
  const test::ManualClock clock(test::ManualClock::Sleeps::kPass);
  int looks = 0;
  const auto is_enough = [&] { return !said.empty() || ++looks > 1000; };
  SUBCASE("a ps") {
    ServerOptions options;
    options.stop_requested = is_enough;
    options.log = hear;
    CHECK_THROWS_AS((Server{settings(name), options}), Interrupted);
  }
  SUBCASE("another task") {
    ServerOptions options;
    options.task = 1;
    options.stop_requested = is_enough;
    options.log = hear;
    JobConfig config = settings(name);
    config.ps_tasks = 2;
    CHECK_THROWS_AS((Server{config, options}), Interrupted);
  }
  SUBCASE("a worker") {
    WorkerOptions options = quiet(name);
    options.stop_requested = is_enough;
    options.log = hear;
    CHECK_THROWS_AS((Worker{options}), Interrupted);
  }
  CHECK_MESSAGE(said.find(whom) != std::string::npos, said);
}
