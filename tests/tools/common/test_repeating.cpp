// A periodic task of a program, in a thread that catches all exceptions.
#include "common/repeating.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace ps_shm;
using tools::Repeating;

namespace {

struct Report {
  std::string what;
  bool is_last;
};

void wait_until(const std::atomic<int>& count, int most) {
  while (count < most) std::this_thread::yield();
}

}  // namespace

TEST_CASE("repeating: an exception of any type does not stop it, and is reported once until a call has succeeded") {
  std::atomic<int> calls{0};
  std::vector<Report> reports;  // written by its thread; read after that has ended
  {
    Repeating repeating(
        [&](bool is_last) {
          const int call = is_last ? 0 : ++calls;
          if (call == 1 || call == 2 || call == 4 || call == 6) throw std::runtime_error("full");
          if (call == 3) throw 42;
          return call == 5;  // done; later calls did nothing
        },
        [&](const std::string& what, bool is_last) {
          reports.push_back({what, is_last});
        });
    wait_until(calls, 8);
    CHECK(repeating.finish());
    CHECK(repeating.finish());  // returns the same
  }
  REQUIRE(reports.size() == 4);
  CHECK(reports[0].what == "full");  // calls 1 and 2
  CHECK(reports[1].what == "unknown exception");
  CHECK(reports[2].what == "full");
  CHECK(reports[3].what == "full");  // again, after a success
  for (const Report& report : reports) CHECK_FALSE(report.is_last);
}

TEST_CASE("repeating: finish makes the last call, and returns whether it failed") {
  std::atomic<int> calls{0};
  std::vector<Report> reports;
  Repeating repeating(
      [&](bool) -> bool {
        ++calls;
        throw std::runtime_error("full");
      },
      [&](const std::string& what, bool is_last) {
        reports.push_back({what, is_last});
      });
  wait_until(calls, 3);
  CHECK_FALSE(repeating.finish());
  REQUIRE(reports.size() == 2);  // the first one, and in any case the last
  CHECK(reports[1].is_last);
  const int made = calls;
  CHECK_FALSE(repeating.finish());
  CHECK(calls == made);
}
