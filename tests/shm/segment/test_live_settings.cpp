// Settings that change while a job runs: nobody sees a partial change, one process changes at a time, and a dead setter
// changes nothing.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ps_shm/errors.hpp"
#include "ps_shm/job_control.hpp"
#include "ps_shm/job_view.hpp"
#include "shm/base/racing.hpp"
#include "shm/segment/live_record.hpp"
#include "shm/segment/live_settings.hpp"
#include "support/processes.hpp"
#include "support/test_job.hpp"

using namespace ps_shm;
using namespace ps_shm::shm;
using test::TestJob;

namespace {

JobConfig elastic(Mode mode = Mode::kAsync) { return {.workers = 4, .mode = mode, .elastic_min = 1, .elastic_max = 8}; }

// Settings whose fields all encode the same number, 1 to 2^20.
LiveSettings related(std::uint32_t number) {
  return {.mode = number % 2 == 0 ? Mode::kAsync : Mode::kSsp,
          .staleness = number,
          .quorum = number,
          .stale_limit = std::uint64_t{number} << 20,
          .lr = float(number),
          .clip_norm = float(2 * number),
          .momentum = 1 / float(2 + number),
          .beta1 = 1 / float(3 + number),
          .workers = number};
}

bool is_related(const LiveSettings& settings) {
  return settings == related(static_cast<std::uint32_t>(settings.staleness));
}

// Changes for try_change_live() and JobControl::change(): to the given settings whatever the current ones are, and to
// the current ones.
auto to(const LiveSettings& settings) {
  return [settings](LiveSettings& now) { now = settings; };
}
void keep(LiveSettings&) {}

std::vector<std::string> texts(const TestJob& job, const std::string& kind) {
  std::vector<std::string> found;
  for (const Event& event : JobView(job.name.text()).events())
    if (event.kind == kind) found.push_back(event.text);
  return found;
}

}  // namespace

TEST_CASE("live settings: at first they are those of the job") {
  JobConfig config = test::config_of(elastic(Mode::kSsp));
  config.staleness = 3;
  config.optimizer.lr = 0.25F;
  config.optimizer.clip_norm = 5;
  config.optimizer.momentum = 0.5F;
  config.optimizer.beta1 = 0.75F;
  const TestJob job(config);
  const Live live = read_live(job.segments);
  CHECK(live.settings.mode == Mode::kSsp);
  CHECK(live.settings.staleness == 3);
  CHECK(live.settings.lr == 0.25F);
  CHECK(live.settings.clip_norm == 5);
  CHECK(live.settings.momentum == 0.5F);
  CHECK(live.settings.beta1 == 0.75F);
  CHECK(live.settings.workers == 4);
  CHECK(live.clock_epoch == 1);
  CHECK(live.version == 0);
}

TEST_CASE("live settings: without a learning rate the rule's default applies") {
  const TestJob job({.optimizer = {.rule = UpdateRule::kAdam}});
  CHECK(read_live(job.segments).settings.lr == default_lr(UpdateRule::kAdam));
}

TEST_CASE("live settings: a change is complete, for other attachments too") {
  TestJob job(elastic());
  const JobSegments other = job.attach(Access::kReadOnly);
  for (std::uint32_t number = 1; number < 20; ++number) {
    REQUIRE(try_change_live(job.segments, to(related(number))));
    const Live live = read_live(other);
    CHECK(is_related(live.settings));
    CHECK(live.settings.staleness == number);
    CHECK(live.version == number);
    CHECK(live_version(other) == number);
  }
}

TEST_CASE("live settings: each change to mode ssp, and nothing else, begins a new epoch") {
  TestJob job(elastic());
  LiveSettings settings = read_live(job.segments).settings;
  const auto epoch_after = [&](Mode mode, std::uint64_t staleness) {
    settings.mode = mode;
    settings.staleness = staleness;
    REQUIRE(try_change_live(job.segments, to(settings)));
    return read_live(job.segments).clock_epoch;
  };
  CHECK(epoch_after(Mode::kSsp, 1) == 1);
  CHECK(epoch_after(Mode::kSsp, 2) == 1);
  CHECK(epoch_after(Mode::kAsync, 2) == 1);
  CHECK(epoch_after(Mode::kAsync, 2) == 1);
  CHECK(epoch_after(Mode::kSsp, 2) == 2);
}

TEST_CASE("live settings: a reader never sees a mix of two changes") {
  TestJob job(elastic());
  constexpr std::uint32_t kChanges = kThreadSanitizer ? 2'000 : 30'000;
  std::atomic<bool> done{false};
  std::atomic<int> mixed{0}, backwards{0}, different{0};
  std::atomic<std::uint64_t> reads{0};
  REQUIRE(try_change_live(job.segments, to(related(1))));
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      for (std::uint64_t last = 0; !done; ++reads) {
        const Live live = read_live(job.segments);
        mixed += !is_related(live.settings);
        different += live.version != live.settings.staleness;
        backwards += live.version < last;
        last = live.version;
      }
    });
  while (reads == 0) std::this_thread::yield();
  for (std::uint32_t number = 2; number <= kChanges; ++number)
    REQUIRE(try_change_live(job.segments, to(related(number))));
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(mixed == 0);
  CHECK(different == 0);
  CHECK(backwards == 0);
}

TEST_CASE("live settings: a partially written next record is not visible") {
  TestJob job(elastic());
  REQUIRE(try_change_live(job.segments, to(related(7))));
  LiveShm& next = job.segments.state().live[2];
  word_of(next, config::LiveKey::kMode).store_relaxed(99);
  word_of(next, config::LiveKey::kStaleness).store_relaxed(99);
  CHECK(is_related(read_live(job.segments).settings));
  CHECK(read_live(job.segments).settings.staleness == 7);
}

TEST_CASE("live settings: of several concurrent setters one succeeds, and no change is a mix") {
  TestJob job(elastic());
  constexpr int kSetters = 4, kTries = kThreadSanitizer ? 200 : 2'000;
  std::atomic<std::uint64_t> changed{0}, mixed{0};
  std::vector<std::thread> setters;
  for (int setter = 0; setter < kSetters; ++setter)
    setters.emplace_back([&, setter] {
      JobSegments own = job.attach();
      for (std::uint32_t i = 1; i <= kTries; ++i) {
        changed += try_change_live(own, to(related(static_cast<std::uint32_t>(setter) * kTries + i)));
        const Live live = read_live(own);
        mixed += live.version != 0 && !is_related(live.settings);
      }
    });
  for (std::thread& setter : setters) setter.join();
  CHECK(live_version(job.segments) == changed);
  CHECK(changed > 0);
  CHECK(mixed == 0);
}

TEST_CASE("live settings: a change is refused while another descriptor holds the setter's byte") {
  TestJob job(elastic());
  JobControl control(job.name.text());
  const LiveSettings before = control.current();
  LiveSettings wanted = before;
  wanted.lr = 0.5F;
  {
    const JobSegments other = job.attach();
    REQUIRE(other.locks().try_take(kSetterByte));
    CHECK_FALSE(try_change_live(job.segments, to(wanted)));
    CHECK_THROWS_WITH_AS(control.change(to(wanted)), doctest::Contains("another process"), Error);
    CHECK(control.current().lr == before.lr);
    CHECK(live_version(job.segments) == 0);
    CHECK(texts(job, "set").empty());
  }
  control.change(to(wanted));
  CHECK(control.current().lr == 0.5F);
}

TEST_CASE("live settings: concurrent setters of different settings do not undo each other's changes") {
  TestJob job(elastic());
  constexpr std::uint64_t kEach = kThreadSanitizer ? 200 : 5'000;
  const auto add_up = [&](auto&& add_one) {
    JobControl control(job.name.text());
    for (std::uint64_t done = 0; done < kEach;) try {
        control.change(add_one);
        ++done;
      } catch (const Error&) {  // the other one is changing them
      }
  };
  std::thread other([&] { add_up([](LiveSettings& settings) { settings.clip_norm += 1; }); });
  add_up([](LiveSettings& settings) { settings.staleness += 1; });
  other.join();
  const LiveSettings now = read_live(job.segments).settings;
  CHECK(now.staleness == kEach);
  CHECK(now.clip_norm == float(kEach));
  CHECK(live_version(job.segments) == 2 * kEach);
}

TEST_CASE("live settings: nobody else can change them between the read and the change") {
  TestJob job(elastic());
  JobControl first(job.name.text()), second(job.name.text());
  first.change([&](LiveSettings& settings) {
    CHECK_THROWS_WITH_AS(second.change(keep), doctest::Contains("another process"), Error);
    settings.staleness += 1;
  });
  second.change(keep);
  CHECK(first.current().staleness == 1);
}

TEST_CASE("live settings: a change that throws changes nothing and releases the setter's byte") {
  TestJob job(elastic());
  JobControl control(job.name.text());
  const auto fails = [](LiveSettings& settings) {
    settings.staleness = 5;
    throw std::runtime_error("no");
  };
  CHECK_THROWS_WITH(control.change(fails), "no");
  CHECK_FALSE(job.segments.locks().is_held_by_other(kSetterByte));
  CHECK(control.current().staleness == 0);
  CHECK(live_version(job.segments) == 0);
  CHECK(texts(job, "set").empty());
}

TEST_CASE("live settings: those of a dead job are not changed, nor any to what the job does not allow") {
  TestJob job(elastic());
  JobControl control(job.name.text());
  CHECK_THROWS_AS(control.change([](LiveSettings& settings) { settings.lr = -1; }), Error);
  CHECK(live_version(job.segments) == 0);
  job.segments.locks().release(kTaskByte);
  CHECK_THROWS_WITH_AS(JobControl(job.name.text()), doctest::Contains("is dead"), Error);
}

TEST_CASE("live settings: the setter's byte is released after a change") {
  TestJob job(elastic());
  JobControl(job.name.text()).change(keep);
  CHECK_FALSE(job.segments.locks().is_held_by_other(kSetterByte));
  JobControl kept(job.name.text());
  kept.change(keep);
  CHECK_FALSE(job.segments.locks().is_held_by_other(kSetterByte));
}

TEST_CASE("live settings: a setter killed half-way changes nothing and blocks nobody") {
  TestJob job(elastic());
  REQUIRE(try_change_live(job.segments, to(related(3))));
  const test::Bell ready;
  test::Child child([&] {
    const JobSegments own = job.attach();
    if (!own.locks().try_take(kSetterByte)) return 1;
    word_of(own.state().live[2], config::LiveKey::kMode).store_relaxed(3);
    word_of(own.state().live[2], config::LiveKey::kStaleness).store_relaxed(77);
    ready.tell();
    test::sleep_forever();
  });
  REQUIRE(ready.hear());
  CHECK_FALSE(try_change_live(job.segments, to(related(4))));
  child.kill();
  CHECK(is_related(read_live(job.segments).settings));
  CHECK(read_live(job.segments).settings.staleness == 3);
  REQUIRE(try_change_live(job.segments, to(related(5))));
  CHECK(is_related(read_live(job.segments).settings));
  CHECK(read_live(job.segments).settings.staleness == 5);
  CHECK(live_version(job.segments) == 2);
}

TEST_CASE("live settings: a change that the job does not support is refused and changes nothing") {
  for (const Mode mode : {Mode::kAsync, Mode::kSync}) {
    CAPTURE(to_string(mode));
    const TestJob job(elastic(mode));
    JobControl control(job.name.text());
    const auto refused = [&](auto&& spoil, const char* why) {
      CAPTURE(why);
      LiveSettings wanted = control.current();
      wanted.lr = 0.125F;
      spoil(wanted);
      CHECK_THROWS_WITH_AS(control.change(to(wanted)), doctest::Contains(why), Error);
      CHECK(live_version(job.segments) == 0);
    };
    if (mode == Mode::kSync) {
      refused([](LiveSettings& s) { s.mode = Mode::kAsync; }, "sync");
      refused([](LiveSettings& s) { s.mode = Mode::kSsp; }, "sync");
      refused([](LiveSettings& s) { s.quorum = 17; }, "quorum");
    } else {
      refused([](LiveSettings& s) { s.mode = Mode::kSync; }, "sync");
      refused([](LiveSettings& s) { s.quorum = 1; }, "quorum");
      refused([](LiveSettings& s) { s.quorum = 1, s.mode = Mode::kSsp; }, "quorum");
    }
    refused([](LiveSettings& s) { s.workers = 0; }, "`workers` must be 1 to 8");
    refused([](LiveSettings& s) { s.workers = 9; }, "`workers` must be 1 to 8");
    refused([](LiveSettings& s) { s.lr = -0.1F; }, "lr");
    refused([](LiveSettings& s) { s.lr = -1; }, "lr");
    refused([](LiveSettings& s) { s.lr = NAN; }, "lr");
    refused([](LiveSettings& s) { s.lr = std::numeric_limits<float>::infinity(); }, "lr");
    refused([](LiveSettings& s) { s.clip_norm = -1; }, "clip-norm");
    refused([](LiveSettings& s) { s.clip_norm = NAN; }, "clip-norm");
    refused([](LiveSettings& s) { s.momentum = 1; }, "momentum");
    refused([](LiveSettings& s) { s.momentum = 0.5F; }, "`momentum`: optimizer sgd has none");
    refused([](LiveSettings& s) { s.beta1 = 0.5F; }, "`beta1`: optimizer sgd has none");
    refused([](LiveSettings& s) { s.staleness = std::uint64_t{1} << 32; }, "staleness");
    CHECK(texts(job, "set").empty());
  }
}

TEST_CASE("live settings: an invalid mode is refused") {
  const TestJob job(elastic());
  JobControl control(job.name.text());
  LiveSettings wanted = control.current();
  for (const int number : {0, 4, 99}) {
    CAPTURE(number);
    wanted.mode = static_cast<Mode>(number);
    CHECK_THROWS_AS(control.change(to(wanted)), Error);
  }
  CHECK(live_version(job.segments) == 0);
}

TEST_CASE("live settings: the bounds themselves are accepted") {
  const TestJob job(elastic(Mode::kSync));
  JobControl control(job.name.text());
  LiveSettings wanted = control.current();
  for (const std::uint32_t workers : {1U, 8U}) {
    wanted.workers = workers;
    control.change(to(wanted));
    CHECK(control.current().workers == workers);
  }
  wanted.quorum = 16;
  control.change(to(wanted));
  CHECK(control.current().quorum == 16);
}

TEST_CASE("live settings: without elastic bounds the number of workers is fixed") {
  const TestJob job({.workers = 2});
  JobControl control(job.name.text());
  LiveSettings wanted = control.current();
  wanted.workers = 3;
  CHECK_THROWS_WITH_AS(control.change(to(wanted)), doctest::Contains("fixed"), Error);
}

TEST_CASE("live settings: a dead job is not changed") {
  const test::JobName name;
  JobSegments::create(test::with_name(test::config_of(elastic()), name.text()));  // and no process keeps it
  CHECK_THROWS_WITH_AS(JobControl(name.text()), doctest::Contains("is dead"), Error);
}

TEST_CASE("live settings: a control that was moved still works at its destination") {
  const TestJob job(elastic());
  JobControl first(job.name.text());
  JobControl control = std::move(first);
  control.change([](LiveSettings& settings) { settings.workers = 5; });
  CHECK(control.current().workers == 5);
}

TEST_CASE("live settings: a job that is over is not changed") {
  const TestJob job({.steps = 1});
  JobControl control(job.name.text());
  job.segments.global_step().store_release(1);
  CHECK_THROWS_WITH_AS(control.change(keep), doctest::Contains("over"), Error);
}

TEST_CASE("live settings: each difference is an event, an unchanged setting is none") {
  TestJob job(elastic());
  job.segments.global_step().store_release(12);
  JobControl control(job.name.text());
  control.change(keep);
  CHECK(texts(job, "set").empty());
  LiveSettings wanted = control.current();
  wanted.mode = Mode::kSsp;
  wanted.staleness = 4;
  wanted.lr = 0.5F;
  control.change(to(wanted));
  const std::string rate = fmt::format("{:.6g}", default_lr(UpdateRule::kSgd));
  CHECK(texts(job, "set") ==
        std::vector<std::string>{"mode: async -> ssp", "staleness: 0 -> 4", "lr: " + rate + " -> 0.5"});
  wanted.clip_norm = 2;
  wanted.workers = 5;
  control.change(to(wanted));
  CHECK(texts(job, "set").size() == 5);
  CHECK(texts(job, "set")[3] == "clip-norm: 0 -> 2");
  CHECK(texts(job, "set")[4] == "workers: 4 -> 5");
  for (const Event& event : JobView(job.name.text()).events())
    if (event.kind == "set") CHECK(event.step == 12);
  CHECK(JobView(job.name.text()).info().live_version == 3);
}

TEST_CASE("live settings: an optimizer's momentum can be changed, which is an event") {
  JobConfig config = test::config_of(elastic());
  const auto change = [&](UpdateRule rule, float LiveSettings::*setting) {
    config.optimizer.rule = rule;
    const TestJob job(config);
    JobControl control(job.name.text());
    control.change([&](LiveSettings& settings) { settings.*setting = 0.5F; });
    CHECK(control.current().*setting == 0.5F);
    return texts(job, "set");
  };
  CHECK(change(UpdateRule::kNesterov, &LiveSettings::momentum) == std::vector<std::string>{"momentum: 0.9 -> 0.5"});
  CHECK(change(UpdateRule::kAdamW, &LiveSettings::beta1) == std::vector<std::string>{"beta1: 0.9 -> 0.5"});
}

TEST_CASE("live settings: a change of the quorum is an event") {
  const TestJob job(elastic(Mode::kSync));
  JobControl control(job.name.text());
  LiveSettings wanted = control.current();
  wanted.quorum = 3;
  control.change(to(wanted));
  CHECK(texts(job, "set") == std::vector<std::string>{"quorum: 0 -> 3"});
}
