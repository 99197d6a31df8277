// Intervals as text, and when an action with an interval is due.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "config/interval.hpp"
#include "ps_shm/errors.hpp"

using namespace ps_shm;
using config::Due;
using config::Interval;
using config::read_interval;

TEST_CASE("interval: a time with a unit and a number of steps are read, and written as they are read back") {
  CHECK(read_interval("60s") == Interval{.seconds = 60});
  CHECK(read_interval("5m") == Interval{.seconds = 300});
  CHECK(read_interval("250MS") == Interval{.seconds = 0.25});
  CHECK(read_interval("1000steps") == Interval{.steps = 1000});
  CHECK(read_interval("1Step") == Interval{.steps = 1});
  for (const std::string text : {"60s", "0.25s", "1000steps", "1step", "18446744073709551615steps"})
    CHECK(to_string(read_interval(text)) == text);
  CHECK(to_string(Interval{}).empty());
  CHECK_FALSE(Interval{}.is_given());
  CHECK(read_interval("1step").is_given());
  CHECK(read_interval("1ms").is_given());
}

TEST_CASE("interval: an invalid one is refused with the accepted forms") {
  for (const std::string text : {"", "60", "1.5", "often", "-5s", "0s", "999us", "0steps", "-1steps", "1.5steps",
                                 "steps", "5 steps", "5_steps", "nans", "1e400h", "18446744073709551616steps"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(read_interval(text), Error);
  }
  CHECK_THROWS_WITH_AS(read_interval("18446744073709551616steps"), "'18446744073709551616' is too large", Error);
  CHECK_THROWS_WITH_AS(read_interval("60"), "'60' is not an interval; write 60s, 5m or 1000steps", Error);
}

TEST_CASE("interval: steps are due at multiples, from whatever step they count") {
  Due due({.steps = 100}, 0, 250);
  CHECK_FALSE(due.is_now(1e9, 299));
  CHECK(due.is_now(0, 300));
  CHECK(due.is_now(0, 731));
  due.move_past(0, 731);
  CHECK_FALSE(due.is_now(0, 799));
  CHECK(due.is_now(0, 800));
  due.move_past(0, 800);
  CHECK_FALSE(due.is_now(0, 899));

  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK_FALSE(Due({.steps = most}, 0, 0).is_now(0, most - 1));
}

TEST_CASE("interval: times are due at multiples after the start, and missed ones are skipped") {
  Due due({.seconds = 10}, 1000.5, 7);
  CHECK_FALSE(due.is_now(1010, 1'000'000));
  CHECK(due.is_now(1010.5, 7));
  due.move_past(1034, 7);
  CHECK_FALSE(due.is_now(1040, 7));
  CHECK(due.is_now(1040.5, 7));
}

TEST_CASE("interval: one that is not given is never due") {
  CHECK_FALSE(Due({}, 0, 0).is_now(1e18, std::numeric_limits<std::uint64_t>::max()));
}
