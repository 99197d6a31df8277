// Learning-rate schedules: their factors, and how they are read.
#include "ps_shm/schedule.hpp"

#include <initializer_list>
#include <string>

#include <doctest/doctest.h>

#include "ps_shm/errors.hpp"

using namespace ps_shm;

TEST_CASE("a constant schedule is one at every step") {
  const Schedule schedule = Schedule::parse("constant");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(1'000'000'000) == 1.0F);
}

TEST_CASE("an exponential schedule decays continuously") {
  const Schedule schedule = Schedule::parse("exp:0.99:600");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(600) == 0.99F);
  CHECK(schedule.factor(300) == doctest::Approx(0.994987437));
}

TEST_CASE("a step schedule decays at integer multiples of its steps") {
  const Schedule schedule = Schedule::parse("step:0.5:10");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(9) == 1.0F);
  CHECK(schedule.factor(10) == 0.5F);
  CHECK(schedule.factor(35) == 0.125F);
}

TEST_CASE("a cosine schedule falls to its floor and stays there") {
  const Schedule schedule = Schedule::parse("cosine:100:0.25");
  CHECK(schedule.factor(0) == 1.0F);
  CHECK(schedule.factor(25) == doctest::Approx(0.890165043));  // 0.25 + 0.75 * (1 + sqrt(1/2)) / 2
  CHECK(schedule.factor(50) == doctest::Approx(0.625));
  CHECK(schedule.factor(100) == 0.25F);
  CHECK(schedule.factor(12345) == 0.25F);
  CHECK(Schedule::parse("cosine:100").factor(100) == 0.0F);
}

TEST_CASE("a warm-up rises to one, then its schedule counts from there") {
  const Schedule schedule = Schedule::parse("warmup:4+step:0.5:10");
  CHECK(schedule.factor(0) == 0.25F);
  CHECK(schedule.factor(3) == 1.0F);
  CHECK(schedule.factor(4) == 1.0F);
  CHECK(schedule.factor(13) == 1.0F);
  CHECK(schedule.factor(14) == 0.5F);
}

TEST_CASE("a schedule's text reads back as the same schedule") {
  for (const std::string text :
       {"constant", "exp:0.99:600", "exp:0.1:1e+20", "step:0.5:10", "cosine:100", "cosine:100:0.25", "cosine:1e+09",
        "warmup:1+constant", "warmup:500+exp:0.96:1000", "warmup:16777216+step:0.1:30", "warmup:5+cosine:95:0.1"}) {
    const Schedule schedule = Schedule::parse(text), again = Schedule::parse(schedule.to_string());
    CHECK(again.kind == schedule.kind);
    CHECK(again.decay == schedule.decay);
    CHECK(again.decay_steps == schedule.decay_steps);
    CHECK(again.warmup_steps == schedule.warmup_steps);
  }
  for (const std::string text : {"constant", "exp:0.99:600", "cosine:100", "cosine:100:0.25", "warmup:5+step:0.5:10"})
    CHECK(Schedule::parse(text).to_string() == text);
}

TEST_CASE("a schedule that cannot be read is refused") {
  const auto refuses = [](std::initializer_list<const char*> texts) {
    for (const std::string text : texts) {
      INFO(text);
      CHECK_THROWS_AS(Schedule::parse(text), Error);
    }
  };
  refuses({"", "constant:1", "constant+constant", "Constant", "linear:3", "exp:0.9:3+constant"});
  refuses({"exp", "exp:", "exp:0.9", "exp:0.9:", "exp:x:3", "exp:0.9:3:4", "exp:-1:3", "exp:0.9:0"});
  refuses({"exp:nan:3", "exp:0.9:inf", "exp:0.9:3 ", "exp:+0.9:3", "exp:0.9:1e50", "exp::3"});
  refuses({"step", "step:0.5", "step:0.5:0", "step:0:5", "step:0.5:10x"});
  refuses({"cosine", "cosine:", "cosine:0", "cosine:-5", "cosine:5:", "cosine:5:2", "cosine:5:-0.1", "cosine:5:0:3"});
  refuses({"warmup", "warmup:10", "warmup:10+", "warmup:+constant", "warmup:0+constant", "warmup:2.5+constant"});
  refuses({"warmup:99999999+constant", "warmup:10:constant", "warmup:10+cosine", "warmup:10+warmup:10+constant"});
}

TEST_CASE("a refusal names the part that cannot be read") {
  const auto refusal = [](const char* text) -> std::string {
    try {
      Schedule::parse(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  CHECK(refusal("exp:x:3") == "learning-rate schedule 'exp:x:3': DECAY of exp must be above 0, not 'x'");
  CHECK(refusal("step:0.5:0") == "learning-rate schedule 'step:0.5:0': STEPS of step must be above 0, not '0'");
  CHECK(refusal("exp:0.9x:3") == "learning-rate schedule 'exp:0.9x:3': DECAY of exp must be above 0, not '0.9x'");
  CHECK(refusal("warmup:10") == "learning-rate schedule 'warmup:10': '+SCHEDULE' is missing");
  CHECK(refusal("cosine:5:2").find("FLOOR of cosine must be from 0 to 1, not '2'") != std::string::npos);
  CHECK(refusal("exp:0.9:3:4").find("unexpected ':4'") != std::string::npos);
  CHECK(refusal("").find("use constant, exp:DECAY:STEPS") != std::string::npos);
}
